"""A sender of arrays."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longhaul import _native


class Sent(NamedTuple):
    """What was sent."""

    windows: int
    """Windows begun."""
    messages: int
    """Messages sent."""
    unsent: int
    """Messages left out as gaps."""
    bytes: int
    """Their bytes."""
    elapsed_s: float
    """Seconds since the first message."""
    behind_s: float
    """Largest delay of a message behind its schedule."""
    present: int | None
    """Messages of the stream that the receiver has; known at the end."""
    missing: int | None
    """Messages of the stream that the receiver misses; known at the end."""


class Sender:
    """A connected sender: a station whose windows are arrays.

    A window has `subbands * blocks` messages of `message_bytes`. Each subband has a queue pair, and
    message s of a window is of subband s modulo their number. `rate` is in bit/s, `jitter` in
    seconds, `gap` the probability that a message is left out. `docs/ingest.md` explains the rest.
    """

    def __init__(
        self,
        to: str | tuple[str, int],
        device: _native.Device | None = None,
        *,
        stream: int = 0,
        reliable: bool = False,
        subbands: int = 16,
        blocks: int = 16,
        message_bytes: int = 8192,
        rate: float | None = None,
        jitter: float = 0.0,
        gap: float = 0.0,
        list: int = 1,
        solicit: int = 0,
        first_window: int | None = None,
        announce: bool = True,
        seed: int = 1,
    ) -> None:
        if not isinstance(to, str):
            host, port = to
            to = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._sent: Sent | None = None
        self._native = _native.Sender(
            _native.Device() if device is None else device,
            to,
            stream=stream,
            reliable=reliable,
            subbands=subbands,
            blocks=blocks,
            message_bytes=message_bytes,
            rate=rate,
            jitter=jitter,
            gap=gap,
            list=list,
            solicit=solicit,
            first_window=first_window,
            announce=announce,
            seed=seed,
        )

    @property
    def first_window(self) -> int:
        """Number of the first window."""
        return self._native.first_window

    @property
    def window_bytes(self) -> int:
        """Bytes of a window."""
        return self._native.window_bytes

    def send(self, array: ArrayLike) -> Sent:
        """Sends an array, whose bytes are those of whole windows, and returns the counts so far.

        The array is copied first. Messages may still be on their way when this returns; `finish`
        waits for them.
        """
        whole: NDArray[Any] = np.ascontiguousarray(array)
        return Sent(**self._native.send(whole.reshape(-1).view(np.uint8).data))

    def finish(self) -> Sent:
        """Ends the stream and returns the final counts."""
        if self._sent is None:
            self._sent = Sent(**self._native.finish())
        return self._sent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None or not issubclass(kind, Exception):
            self.finish()
        else:
            self._native.close()
