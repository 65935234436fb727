"""A program for mpirun: exchanges messages of several sizes between two halves of the ranks, and adds
up arrays, with every byte checked.

    mpi_exchange.py [ROUNDS [MESSAGE_BYTES [ALLREDUCE_BYTES]]]

Rank 0 prints one line of JSON: half a round trip in µs, the bandwidth of one direction in Gbit/s,
and the time of an allreduce in ms.
"""

import array
import json
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
peer = (rank + ranks // 2) % ranks
is_first = rank < ranks // 2
# Messages in flight.
WINDOW = 16


def seconds(call, rounds):
    world.Barrier()
    begun = MPI.Wtime()
    for _ in range(rounds):
        call()
    world.Barrier()
    return (MPI.Wtime() - begun) / rounds


def pattern(size, sender):
    return bytes((i * 7 + sender) & 0xFF for i in range(min(size, 256))) * (size // min(size, 256))


def exchange(size):
    """A message to the peer and one back."""
    out, back = pattern(size, rank), bytearray(size)
    if is_first:
        world.Send(out, peer)
        world.Recv(back, peer)
    else:
        world.Recv(back, peer)
        world.Send(out, peer)
    if back != pattern(size, peer):
        raise SystemExit(f"rank {rank}: {size} bytes of rank {peer} are wrong")


def stream(messages):
    token = bytearray(8)
    if is_first:
        MPI.Request.Waitall([world.Isend(message, peer) for message in messages])
        world.Recv(token, peer)
    else:
        MPI.Request.Waitall([world.Irecv(message, peer) for message in messages])
        world.Send(token, peer)


def main():
    given = [int(text) for text in sys.argv[1:]]
    rounds, size, reduced = given + [50, 1 << 20, 1 << 20][len(given) :]
    # Hosts of one machine have one name, and addresses of their own.
    with open("/proc/self/net/fib_trie") as addresses:
        hosts = len(set(world.allgather(addresses.read())))
    # Around the sizes at which libraries change from eager to rendezvous.
    for probe in (1, 256, 8192, 65536, 1 << 20):
        exchange(probe)
    latency = seconds(lambda: exchange(8), rounds) / 2
    messages = [bytearray(size) for _ in range(WINDOW)]
    streamed = seconds(lambda: stream(messages), 4)
    terms = array.array("d", [float(rank + 1)]) * (reduced // 8)
    sums = array.array("d", [0.0]) * len(terms)
    added = seconds(lambda: world.Allreduce(terms, sums), 2)
    if set(sums) != {ranks * (ranks + 1) / 2}:
        raise SystemExit(f"rank {rank}: the sum is wrong")
    if rank == 0:
        gbps = size * WINDOW * (ranks // 2) * 8 / streamed / 1e9
        figures = {"latency_us": latency * 1e6, "gbps": gbps, "allreduce_ms": added * 1e3}
        print(json.dumps({"ranks": ranks, "hosts": hosts} | figures))


main()
