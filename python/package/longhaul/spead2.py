"""Chunks for programs that take them from a ring of spead2."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import numpy as np
import spead2.recv

import spead2
from longhaul import chunk as ours
from longhaul.receiver import Receiver


class Chunk(spead2.recv.Chunk):
    """A chunk of spead2 with the one that holds its memory."""

    longhaul: ours.Chunk


class ChunkRingbufferWriter:
    """Puts a receiver's chunks into a `spead2.recv.ChunkRingbuffer`, from a thread.

    Nothing is copied: `data` of a spead2 chunk is the receiver's memory. `present` has a byte for
    each message, and `extra` the two arrival times. The reader returns a chunk by `add_free_chunk`,
    as to a stream of spead2, or drops it. When the receiver has stopped, the ring is stopped, which
    ends its readers after the last chunk.
    """

    def __init__(self, receiver: Receiver, ring: spead2.recv.ChunkRingbuffer) -> None:
        self._receiver = receiver
        self._ring = ring
        ring.add_producer()
        self._thread = threading.Thread(target=self._write, name="longhaul-spead2")
        self._thread.start()

    def _write(self) -> None:
        try:
            for chunk in self._receiver:
                self._ring.put(_converted(chunk))
                # The ring has it.
                del chunk
        except spead2.Stopped:
            # Its reader has stopped the ring: nobody takes chunks any more.
            self._receiver.stop()
        finally:
            self._ring.remove_producer()

    def add_free_chunk(self, chunk: Chunk) -> int:
        """Returns a chunk's memory.

        The result is the number of messages that were overwritten before: what was read of them is
        undefined.
        """
        return chunk.longhaul.release()

    def stop(self) -> None:
        """Stops receiver and ring, and waits for the thread."""
        self._receiver.stop()
        self._ring.stop()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _converted(chunk: ours.Chunk) -> Chunk:
    extra = np.array(chunk.extra or (np.nan, np.nan))
    converted = Chunk(
        data=chunk.data,
        present=chunk.present.astype(np.uint8),
        extra=extra,
        chunk_id=chunk.chunk_id,
        stream_id=chunk.stream_id,
    )
    converted.longhaul = chunk
    return converted
