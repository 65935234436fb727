"""Compares this package's receiver with `longhaul ingest receive`, in chunks of 64 MiB.

    python receive_rate.py target/release/longhaul

Both take chunks from a sender in another process, over shared memory. A round is four transfers in
the order A B B A, so that a steady change of the machine's speed cancels. Processor time counts from
the receiver's start, without that of the interpreter. Exit code 1: the median of the rounds' ratios
of the rates is below 0.95.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SHAPE = {"slots": 4096, "message_bytes": 16384, "regions": 8}
LEAST = 0.95


class Figures(NamedTuple):
    """Of a transfer."""

    rate: float
    """Gbit/s of messages that are present, while the sender sends as fast as the device."""
    cost: float
    """Processor seconds of the receiving process per GiB."""


def receive() -> None:
    """Takes all chunks, as the child process of a round."""
    import longhaul

    begun = time.process_time()
    with longhaul.Receiver(listen="127.0.0.1:0", until_idle=True, **SHAPE) as receiver:
        print("{}:{}".format(*receiver.address), file=sys.stderr, flush=True)
        for chunk in receiver:
            chunk.release()
    print(json.dumps(receiver.statistics() | {"cpu_s": time.process_time() - begun}))


def environment(socket: Path, role: str, ip: str) -> dict[str, str]:
    device = {"LONGHAUL_MEMIF_SOCKET": str(socket), "LONGHAUL_MEMIF_ROLE": role, "LONGHAUL_IP": ip}
    return os.environ | device


def transfer(receiver: list[str], program: str, windows: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "wire.sock"
        taking = subprocess.Popen(
            receiver,
            env=environment(socket, "master", "10.77.0.2"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        address = taking.stderr.readline().split()[-1]
        sender = [program, "ingest", "send", address, "--json", "--untouched", "--blocks", "256"]
        sender += ["--message", "16K", "--list", "16", "--windows", str(windows)]
        sent = subprocess.run(
            sender,
            env=environment(socket, "slave", "10.77.0.1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        received = json.loads(taking.stdout.read())
        _, _, usage = os.wait4(taking.pid, 0)
    sent = json.loads(sent.stdout)
    ends = ("windows", "windows_undelivered", "windows_skipped")
    if sum(received[end] for end in ends) != windows:
        raise SystemExit(f"{windows} windows were sent: {received}")
    present = received["messages"]["present"] * SHAPE["message_bytes"]
    cpu_s = received.get("cpu_s", usage.ru_utime + usage.ru_stime)
    return Figures(present * 8 / sent["elapsed_s"] / 1e9, cpu_s / (present / 2**30))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the program longhaul, built as this package was")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of four transfers")
    parser.add_argument("--windows", type=int, default=40, help="windows of a transfer")
    options = parser.parse_args()
    of_rust = [options.program, "ingest", "receive", "--json", "--until-idle"]
    of_rust += ["--listen", "127.0.0.1:0", "--slots", str(SHAPE["slots"]), "--message", "16K"]
    of_rust += ["--regions", str(SHAPE["regions"])]
    receivers = {"rust": of_rust, "python": [sys.executable, __file__, "--receive"]}
    ratios, costs = [], {"rust": [], "python": []}
    for _ in range(options.rounds):
        rates: dict[str, list[float]] = {"rust": [], "python": []}
        for of in ("rust", "python", "python", "rust"):
            figures = transfer(receivers[of], options.program, options.windows)
            rates[of].append(figures.rate)
            costs[of].append(figures.cost)
        rust, python = (statistics.geometric_mean(rates[of]) for of in rates)
        ratios.append(python / rust)
        print(f"rust {rust:.2f}, python {python:.2f} Gbit/s: {ratios[-1]:.3f}", flush=True)
    rust, python = (statistics.median(costs[of]) for of in costs)
    print(f"processor: rust {rust:.3f}, python {python:.3f} s/GiB")
    median = statistics.median(ratios)
    print(f"rate: median ratio {median:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")
    return 0 if median >= LEAST else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--receive"]:
        receive()
    else:
        sys.exit(main())
