"""Two devices of this process for each test, and a limit for its time."""

import faulthandler
import os
from collections.abc import Iterator

import numpy as np
import pytest

import longhaul

LIMIT = 400
SLOTS = 16
BYTES = 1024


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A test that hangs ends the run, with the stacks of its threads."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class Pair:
    """A receiver and its senders, of 16 messages of 1 KiB per window."""

    def __init__(self) -> None:
        self.a, self.b = longhaul.Device.pair()

    def receiver(self, **settings: object) -> longhaul.Receiver:
        shape = {"slots": SLOTS, "message_bytes": BYTES}
        # Longer than a busy machine stops a sender.
        settings = {"listen": "127.0.0.1:0", "idle_ms": 60_000} | shape | settings
        return longhaul.Receiver(self.b, **settings)

    def sender(self, receiver: longhaul.Receiver, **settings: object) -> longhaul.Sender:
        settings = {"subbands": 4, "blocks": 4, "message_bytes": BYTES} | settings
        return longhaul.Sender(receiver.address, self.a, **settings)

    def send(self, receiver: longhaul.Receiver, windows: np.ndarray, **settings: object):
        """Sends the windows; the result says what the receiver has once the stream has ended."""
        with self.sender(receiver, **settings) as sender:
            sender.send(windows)
        return sender.finish()


@pytest.fixture
def pair() -> Pair:
    return Pair()


def windows(count: int) -> np.ndarray:
    """Different bytes everywhere."""
    random = np.random.default_rng(1)
    return random.integers(0, 256, (count, SLOTS, BYTES), dtype=np.uint8)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records skipped tests where `cargo xtask` lists them."""
    file = os.environ.get("LONGHAUL_SKIPS")
    if report.skipped and file:
        reason = " ".join(str(report.longrepr[2]).split())
        with open(file, "a") as skips:
            skips.write(f"python {report.nodeid}: {reason}\n")
