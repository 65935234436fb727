"""Moves a KV cache between two hosts: many blocks, written and read, every byte checked.

    kv_transfer.py LIBRARY serve OWN_IP PORT
    kv_transfer.py LIBRARY move OWN_IP PORT PEER_IP BLOCKS BLOCK_SIZE [ROUNDS]

LIBRARY is `nixl` or `mooncake`. The two ends exchange addresses over a TCP connection to PORT. The
mover prints one line of JSON: Gbit/s of its writes and reads.
"""

import ctypes
import json
import mmap
import os
import socket
import sys
import time

# Blocks lie twice their size apart, like the pages of other sequences in a cache.
SPREAD = 2
LIMIT_S = 60


class Cache:
    """Blocks of memory with a known pattern."""

    def __init__(self, blocks, size):
        self.blocks, self.size = blocks, size
        self.length = blocks * size * SPREAD
        self.map = mmap.mmap(-1, self.length)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def addresses(self):
        return [self.address + i * self.size * SPREAD for i in range(self.blocks)]

    def fill(self, salt):
        for i in range(self.blocks):
            at = i * self.size * SPREAD
            self.map[at : at + self.size] = pattern(salt, i, self.size)
            self.map[at + self.size : at + 2 * self.size] = bytes(self.size)

    def check(self, salt, within_s=0):
        """Ends the program if a byte is wrong, after `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while fault := self.fault(salt):
            if time.monotonic() >= deadline:
                raise SystemExit(fault)
            time.sleep(0.01)

    def fault(self, salt):
        zeros = bytes(self.size)
        for i in range(self.blocks):
            at = i * self.size * SPREAD
            if self.map[at : at + self.size] != pattern(salt, i, self.size):
                return f"block {i} of {self.blocks} is wrong"
            if self.map[at + self.size : at + 2 * self.size] != zeros:
                return f"the memory after block {i} was written to"
        return None


def pattern(salt, block, size):
    word = (salt * 2654435761 + block * 40503 + 1) & 0xFFFFFFFF
    return word.to_bytes(4, "little") * (size // 4)


class Nixl:
    def __init__(self, name, own_ip, cache):
        from nixl._api import nixl_agent, nixl_agent_config

        config = nixl_agent_config(
            enable_prog_thread=True, enable_listen_thread=False, backends=["UCX"]
        )
        self.agent = nixl_agent(name, config)
        self.cache = cache
        self.agent.register_memory([(cache.address, cache.length, 0, "")], "DRAM")

    def own(self):
        return self.agent.get_agent_metadata().hex()

    def meet(self, theirs, addresses):
        self.peer = self.agent.add_remote_agent(bytes.fromhex(theirs))
        if isinstance(self.peer, bytes):
            self.peer = self.peer.decode()
        size = self.cache.size
        own = [(address, size, 0) for address in self.cache.addresses()]
        far = [(address, size, 0) for address in addresses]
        self.own_list = self.agent.get_xfer_descs(own, "DRAM")
        self.far_list = self.agent.get_xfer_descs(far, "DRAM")

    def move(self, operation):
        handle = self.agent.initialize_xfer(
            operation, self.own_list, self.far_list, self.peer, b"done"
        )
        state = self.agent.transfer(handle)
        deadline = time.monotonic() + LIMIT_S
        while state == "PROC":
            if time.monotonic() > deadline:
                raise SystemExit(f"{operation} is not done after {LIMIT_S} s")
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise SystemExit(f"{operation}: {state}")
        self.agent.release_xfer_handle(handle)


class Mooncake:
    def __init__(self, name, own_ip, cache):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        failed = self.engine.initialize(own_ip, "P2PHANDSHAKE", "rdma", "")
        if failed:
            raise SystemExit(f"initialize: {failed}")
        self.own_ip, self.cache = own_ip, cache
        failed = self.engine.register_memory(cache.address, cache.length)
        if failed:
            raise SystemExit(f"register_memory: {failed}")

    def own(self):
        return f"{self.own_ip}:{self.engine.get_rpc_port()}"

    def meet(self, theirs, addresses):
        self.peer, self.far = theirs, addresses

    def move(self, operation):
        call = {
            "WRITE": self.engine.batch_transfer_sync_write,
            "READ": self.engine.batch_transfer_sync_read,
        }[operation]
        sizes = [self.cache.size] * self.cache.blocks
        failed = call(self.peer, self.cache.addresses(), self.far, sizes)
        if failed:
            raise SystemExit(f"{operation}: {failed}")


LIBRARIES = {"nixl": Nixl, "mooncake": Mooncake}


class Line:
    """JSON lines over TCP."""

    def __init__(self, connection):
        connection.settimeout(2 * LIMIT_S)
        self.file = connection.makefile("rw")

    def put(self, value):
        print(json.dumps(value), file=self.file, flush=True)

    def get(self):
        text = self.file.readline()
        if not text:
            raise SystemExit("the other end is gone")
        return json.loads(text)


def serve(library, own_ip, port):
    listener = socket.create_server((own_ip, port))
    listener.settimeout(LIMIT_S)
    line = Line(listener.accept()[0])
    blocks, size = line.get()
    cache = Cache(blocks, size)
    end = LIBRARIES[library]("serve", own_ip, cache)
    theirs = line.get()
    line.put([end.own(), cache.addresses()])
    if library == "nixl":
        end.agent.add_remote_agent(bytes.fromhex(theirs))
    while (asked := line.get()) != "end":
        if "fill" in asked:
            cache.fill(asked["fill"])
        else:
            # Boxes in mode early complete WRITEs before they arrive, and TCP may overtake them.
            cache.check(asked["check"], within_s=LIMIT_S)
        line.put("ok")


def connect(peer_ip, port):
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection((peer_ip, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def move(library, own_ip, port, peer_ip, blocks, size, rounds):
    line = Line(connect(peer_ip, port))
    line.put([blocks, size])
    cache = Cache(blocks, size)
    end = LIBRARIES[library]("move", own_ip, cache)
    line.put(end.own())
    end.meet(*line.get())
    best = {}
    for salt in range(1, rounds + 1):
        for operation in ("WRITE", "READ"):
            ours, theirs = (salt, 0) if operation == "WRITE" else (0, salt + 1000)
            cache.fill(ours)
            line.put({"fill": theirs})
            line.get()
            begun = time.monotonic()
            end.move(operation)
            gbps = blocks * size * 8 / (time.monotonic() - begun) / 1e9
            best[operation] = max(gbps, best.get(operation, 0))
            if operation == "WRITE":
                line.put({"check": salt})
                line.get()
            else:
                cache.check(salt + 1000)
    line.put("end")
    print(json.dumps({"library": library, "blocks": blocks, "size": size, "gbps": best}))


def main():
    library, role, own_ip, port, *rest = sys.argv[1:]
    if role == "serve":
        serve(library, own_ip, int(port))
    else:
        peer_ip, blocks, size, *rounds = rest
        move(library, own_ip, int(port), peer_ip, int(blocks), int(size), int((rounds or [2])[0]))
    sys.stdout.flush()
    # The device's thread writes its counters now and then, and does not when a process ends so.
    time.sleep(1.5)
    # nixl 1.5.1 crashes in the destructors of its libraries, with and without a device.
    os._exit(0)


main()
