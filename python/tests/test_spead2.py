"""Readers of spead2's rings take the receiver's chunks."""

import numpy as np
import pytest
from conftest import BYTES, SLOTS, windows

recv = pytest.importorskip("spead2.recv")


def test_a_reader_of_spead2_takes_the_chunks(pair):
    from longhaul.spead2 import ChunkRingbufferWriter

    sent = windows(8)
    ring = recv.ChunkRingbuffer(2)
    with pair.receiver(until_idle=True, regions=32) as receiver:
        with ChunkRingbufferWriter(receiver, ring) as writer:
            pair.send(receiver, sent)
            numbers = []
            for chunk in ring:
                assert isinstance(chunk, recv.Chunk) and chunk.stream_id == 0
                assert chunk.data.shape == (1, SLOTS, BYTES)
                assert np.array_equal(chunk.data[0], sent[chunk.chunk_id])
                assert chunk.present.dtype == np.uint8 and chunk.present.all()
                assert 0 < chunk.extra[0] <= chunk.extra[1]
                numbers.append(chunk.chunk_id)
                if chunk.chunk_id % 2 == 0:
                    assert writer.add_free_chunk(chunk) == 0
            del chunk
        assert numbers == list(range(8))
        assert receiver.statistics()["held_regions"] == 0


def test_a_ring_that_its_reader_stops_stops_the_receiver(pair):
    from longhaul.spead2 import ChunkRingbufferWriter

    ring = recv.ChunkRingbuffer(1)
    with pair.receiver(regions=32) as receiver:
        with ChunkRingbufferWriter(receiver, ring):
            pair.send(receiver, windows(4))
            ring.get()
            ring.stop()
        assert receiver.is_stopped
