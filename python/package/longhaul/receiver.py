"""The receiver, and the ring of its chunks."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from longhaul import _native
from longhaul.chunk import Chunk
from longhaul.errors import Empty, SettingsError, Stopped

# Longest sleep of a coroutine without a look at `stop` and at the senders, in seconds.
_TICK = 0.05
# Alignments, in bytes. The device copies faster to whole cache lines and pages.
_PAGE = 4096
_HUGE_PAGE = 2 << 20


class Settings(TypedDict, total=False):
    """Settings of a receiver; `longhaul ingest receive --example` explains each."""

    listen: str
    transport: str
    layout: dict[str, int]
    streams: int
    streams_per_ring: int
    slots: int
    message_bytes: int
    regions: int
    lateness: int
    delivery: str
    receives: dict[str, int]
    threads: int
    cores: list[int]
    wait: str
    queue_pairs_max: int
    linger_ms: int
    idle_ms: int
    senders: list[dict[str, Any]]


class Statistics(TypedDict):
    """Counts since the start."""

    messages: dict[str, int]
    arrivals: int
    bytes: int
    windows: int
    windows_complete: int
    windows_undelivered: int
    windows_skipped: int
    open_windows: int
    duplicates: int
    late: int
    outside: int
    foreign: int
    out_of_buffer: int
    failed_pairs: int
    sessions: int
    refused: int
    regions: int
    held_regions: int


class ChunkRingbuffer:
    """The chunks that wait to be taken, as an iterator and an async iterator.

    Any number of threads and coroutines may take chunks; each chunk goes to one of them.
    """

    def __init__(
        self,
        native: _native.Receiver,
        memory: Sequence[NDArray[Any]],
        shape: tuple[int, int],
        regions: int,
    ) -> None:
        self._native = native
        self._memory = memory
        self._shape = shape
        self._regions = regions

    def get(self, timeout: float | None = None) -> Chunk:
        """The next chunk; waits for it, for at most `timeout` seconds.

        Raises `Empty` after the timeout, and `Stopped` after the last chunk.
        """
        native = self._native.next(timeout)
        ring = native.stream_id // self._shape[0]
        region = ring * self._regions + native.chunk_id % self._regions
        return Chunk(native, self._memory[region], self._shape)

    def get_nowait(self) -> Chunk:
        """The next chunk; raises `Empty` if there is none."""
        return self.get(0)

    async def get_async(self) -> Chunk:
        """The next chunk; the event loop runs meanwhile. Raises `Stopped` after the last one."""
        while True:
            try:
                return self.get_nowait()
            except Empty:
                await self._readable()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        # A descriptor for this coroutine alone: an event loop has one reader for each.
        fd = os.dup(self.data_fd)
        readable = asyncio.Event()
        loop.add_reader(fd, readable.set)
        try:
            await asyncio.wait_for(readable.wait(), _TICK)
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def qsize(self) -> int:
        """Chunks that wait."""
        return self._native.queued()

    def empty(self) -> bool:
        """Whether no chunk waits."""
        return self.qsize() == 0

    @property
    def maxsize(self) -> int:
        """Chunks that can be held before windows are dropped."""
        return len(self._memory) // 2

    @property
    def data_fd(self) -> int:
        """A descriptor that is readable while chunks wait. It must only be polled."""
        return self._native.fd

    def stop(self) -> None:
        """Stops the receiver."""
        self._native.stop()

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            try:
                chunk = self.get()
            except Stopped:
                return
            yield chunk
            # The consumer may be done with it before the next one comes.
            del chunk

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while True:
            try:
                chunk = await self.get_async()
            except Stopped:
                return
            yield chunk
            del chunk


class Receiver:
    """A running receiver: a context manager, an iterator and an async iterator of its chunks.

    It stops at the end of a `with` block or with `stop`. Iteration ends after the last chunk; with
    `until_idle` the receiver stops by itself when its last sender has ended.

    `memory` are the arrays to receive into: the regions of each ring, ring after ring, each
    contiguous and writable, of any type and shape with enough bytes. Without it the receiver
    allocates arrays of bytes. The receiver refers to the arrays as long as senders may write to
    them.
    """

    def __init__(
        self,
        device: _native.Device | None = None,
        *,
        memory: Sequence[NDArray[Any]] | None = None,
        until_idle: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        complete = _native.complete_settings(json.dumps(settings))
        self.settings: Settings = json.loads(complete)
        shape = (self.settings["streams_per_ring"], self.settings["slots"])
        if memory is None:
            memory = _allocate(self.settings)
        views = [_bytes_of(array) for array in memory]
        self._native = _native.Receiver(
            _native.Device() if device is None else device,
            complete,
            views,
            until_idle,
        )
        self.ring = ChunkRingbuffer(self._native, memory, shape, self.settings["regions"])

    @property
    def address(self) -> tuple[str, int]:
        """Address and port of its sessions."""
        return self._native.address

    @property
    def is_stopped(self) -> bool:
        """Whether it has stopped; chunks may still wait in the ring."""
        return self._native.is_stopped

    def fileno(self) -> int:
        """The ring's `data_fd`, for `select` and the like."""
        return self._native.fd

    def stop(self) -> None:
        """Ends all sessions and closes all windows, whose chunks remain in the ring."""
        self._native.stop()

    def add_free_chunk(self, chunk: Chunk) -> None:
        """Releases a chunk."""
        chunk.release()

    def notices(self) -> list[str]:
        """Sentences since the last call: senders that came, ended or were refused."""
        return self._native.notices()

    def statistics(self) -> Statistics:
        """Counts since the start."""
        return self._native.statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.ring)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return aiter(self.ring)


def _allocate(settings: Settings) -> list[NDArray[np.uint8]]:
    rings = settings["streams"] // settings["streams_per_ring"]
    shape = (settings["streams_per_ring"], settings["slots"], settings["message_bytes"])
    size = math.prod(shape)
    alignment = _HUGE_PAGE if size >= _HUGE_PAGE else _PAGE
    regions = []
    for _ in range(rings * settings["regions"]):
        whole = np.empty(size + alignment, np.uint8)
        first = -whole.ctypes.data % alignment
        regions.append(whole[first : first + size].reshape(shape))
    return regions


def _bytes_of(array: NDArray[Any]) -> memoryview:
    if not (isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable):
        raise SettingsError("memory must be numpy arrays that are contiguous and writable")
    if array.size == 0:
        raise SettingsError("memory must not be empty")
    return array.reshape(-1).view(np.uint8).data
