"""Reads a pcap on standard input and prints one line per frame: what an implementation other than ours makes
of it. IPv4 goes through scapy's RoCE layer; scapy has no ICRC for IPv6, so that one is computed here from the
standard's list of masked fields.

Line: name opcode solicited migreq pad becn dqpn ackreq psn syndrome msn icrc
"""

import io
import sys
import zlib

from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader


def icrc_ipv6(packet):
    """ICRC of the bytes from the IPv6 header on, without the four at the end."""
    masked = bytearray(packet[:-4])
    masked[0] |= 0x0F  # traffic class, flow label
    masked[1] = masked[2] = masked[3] = 0xFF
    masked[7] = 0xFF  # hop limit
    masked[46] = masked[47] = 0xFF  # UDP checksum
    masked[52] = 0xFF  # FECN, BECN, reserved
    return zlib.crc32(b"\xff" * 8 + bytes(masked)).to_bytes(4, "little").hex()


def icrc_ipv4(frame):
    """scapy fills in the ICRC of a packet that has none."""
    bare = frame.copy()
    bare[BTH].icrc = None
    return bytes(bare)[-4:].hex()


for raw, _ in RawPcapReader(io.BytesIO(sys.stdin.buffer.read())):
    frame = Ether(raw)
    bth = frame[BTH]
    name = "cnp" if CNPPadding in frame else "ack" if AETH in frame else "other"
    syndrome, msn = (frame[AETH].syndrome, frame[AETH].msn) if AETH in frame else (-1, -1)
    if IP in frame:
        assert frame[UDP].dport == 4791
        icrc = icrc_ipv4(frame)
    else:
        icrc = icrc_ipv6(bytes(frame[IPv6]))
    print(name, bth.opcode, bth.solicited, bth.migreq, bth.padcount, bth.becn, bth.dqpn, bth.ackreq, bth.psn,
          syndrome, msn, icrc)
