"""Windows of messages."""

from __future__ import annotations

from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from longhaul import _native
from longhaul.errors import ReleasedError


class Fate(IntEnum):
    """What became of a message."""

    UNACCOUNTED = 0
    """Missing, and the sender announced nothing about it."""
    PRESENT = 1
    """Arrived with the right length."""
    NEVER_SENT = 2
    """The sender announced that it left it out, or there was no sender."""
    LOST = 3
    """The sender sent it, and it did not arrive."""
    TOO_LATE = 4
    """Arrived after its window had closed."""
    NO_RECEIVE = 5
    """The device had no receive work request for it."""
    OVERWRITTEN = 6
    """Arrived, and another window or too long a message was written over it."""
    WRONG_LENGTH = 7
    """Arrived with another length."""


class Extra(NamedTuple):
    """When the messages of a chunk arrived, in seconds since 1970."""

    first_arrival: float
    last_arrival: float


class Chunk:
    """A window of messages in the receiver's memory.

    A chunk holds its memory until it is released: by `release`, at the end of a `with` block, or
    when nothing refers to the chunk or an array of its `data` any more. Afterwards senders write
    to the memory again. An array taken before stays valid memory, but its bytes change.
    """

    __slots__ = ("__weakref__", "_fates", "_memory", "_native", "_shape")

    def __init__(self, native: _native.Chunk, memory: NDArray[Any], shape: tuple[int, int]) -> None:
        self._native = native
        self._memory = memory
        self._shape = shape
        self._fates = self._read_fates()

    def _read_fates(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._native.fates(), np.uint8).reshape(self._shape)

    @property
    def chunk_id(self) -> int:
        """The window's number, without wrap."""
        return self._native.chunk_id

    @property
    def stream_id(self) -> int:
        """Number of the first stream in the chunk."""
        return self._native.stream_id

    @property
    def extra(self) -> Extra | None:
        """Arrival times; None if nothing arrived."""
        arrivals = self._native.arrivals
        return None if arrivals is None else Extra(*arrivals)

    @property
    def fates(self) -> NDArray[np.uint8]:
        """A `Fate` for each message, by stream and slot, as of the delivery or latest `refresh`."""
        return self._fates

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each message is present, by stream and slot."""
        present: NDArray[np.bool_] = self._fates == Fate.PRESENT
        return present

    @property
    def data(self) -> NDArray[Any]:
        """The memory, as the array that the receiver was given, or bytes by stream, slot and place.

        Bytes of messages that are not present are undefined. The array refers to the chunk.
        """
        return np.asarray(self)

    @property
    def is_released(self) -> bool:
        """Whether the memory has been returned."""
        return self._native.is_released

    def refresh(self) -> None:
        """Updates `fates`: late messages, and data overwritten since the delivery."""
        self._fates = self._read_fates()

    def release(self) -> int:
        """Returns the memory to the receiver.

        The result is the number of messages that were overwritten before: what was read of them is
        undefined. The second release raises `ReleasedError`.
        """
        return self._native.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_released:
            self.release()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.is_released:
            raise ReleasedError(f"chunk {self.chunk_id} has been released")
        interface: dict[str, Any] = self._memory.__array_interface__
        return interface

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory.__dlpack_device__()

    def __repr__(self) -> str:
        state = "released" if self.is_released else f"{int(self.present.sum())} present"
        return f"<Chunk {self.chunk_id} of stream {self.stream_id}: {state}>"
