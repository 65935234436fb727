"""The native part."""

from typing import Any, final

from longhaul.receiver import Statistics

__all__ = ["Chunk", "Device", "Receiver", "Sender", "complete_settings"]

def complete_settings(settings: str) -> str: ...

@final
class Device:
    """An RDMA device, which any number of receivers and senders can use.

    Without a name it is the software device that `longhaul exec` describes in the environment, of
    which a process has one; with a name it is a device of libibverbs, such as `mlx5_0`.
    """

    def __new__(cls, name: str | None = None) -> Device: ...
    @staticmethod
    def pair() -> tuple[Device, Device]:
        """Two software devices in this process, connected to each other: for tests and trials."""

@final
class Chunk:
    chunk_id: int
    stream_id: int
    arrivals: tuple[float, float] | None
    @property
    def is_released(self) -> bool: ...
    def fates(self) -> bytes: ...
    def release(self) -> int: ...

@final
class Receiver:
    def __new__(
        cls, device: Device, settings: str, memory: list[memoryview], until_idle: bool
    ) -> Receiver: ...
    def next(self, limit: float | None) -> Chunk: ...
    def stop(self) -> None: ...
    @property
    def is_stopped(self) -> bool: ...
    def queued(self) -> int: ...
    @property
    def fd(self) -> int: ...
    @property
    def address(self) -> tuple[str, int]: ...
    def notices(self) -> list[str]: ...
    def statistics(self) -> Statistics: ...

@final
class Sender:
    first_window: int
    window_bytes: int
    def __new__(
        cls,
        device: Device,
        to: str,
        *,
        stream: int,
        reliable: bool,
        subbands: int,
        blocks: int,
        message_bytes: int,
        rate: float | None,
        jitter: float,
        gap: float,
        list: int,
        solicit: int,
        first_window: int | None,
        announce: bool,
        seed: int,
    ) -> Sender: ...
    # A dict with the fields of longhaul.Sent.
    def send(self, bytes: memoryview) -> dict[str, Any]: ...
    def finish(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
