"""Datagrams over loopback from one process to another, and what of them arrives, in Gbit/s of payload.

datagrams.py runs|singles BYTES SECONDS: in runs that the kernel cuts and joins (UDP_SEGMENT, UDP_GRO), or one by one.
"""

import os
import socket
import sys
import time

UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE = 103, 104, 33
LONGEST_RUN = 65000

how, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
taker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taker.bind(("127.0.0.1", 0))
try:
    taker.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
except PermissionError:
    pass
if how == "runs":
    taker.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
sender = os.fork()
if sender == 0:
    giver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    giver.connect(taker.getsockname())
    count = 1
    if how == "runs":
        giver.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
        count = LONGEST_RUN // size
    data = bytes(size * count)
    end = time.monotonic() + seconds + 1
    while time.monotonic() < end:
        giver.send(data)
    os._exit(0)
time.sleep(0.5)
taker.settimeout(10)
buffer, taken, start = bytearray(1 << 16), 0, time.monotonic()
while time.monotonic() < start + seconds:
    taken += taker.recv_into(buffer)
print(taken * 8 / (time.monotonic() - start) / 1e9)
os.waitpid(sender, 0)
