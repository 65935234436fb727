"""Arrays that are sent arrive in arrays, with their flags."""

import gc
import select
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import BYTES, SLOTS, windows

import longhaul
from longhaul import Fate


def test_each_message_is_in_its_place(pair):
    sent = windows(5)
    with pair.receiver(until_idle=True) as receiver:
        counts = pair.send(receiver, sent)
        assert (counts.windows, counts.messages, counts.missing) == (5, 5 * SLOTS, 0)
        received = []
        for chunk in receiver:
            assert chunk.stream_id == 0 and chunk.present.all()
            assert chunk.present.shape == (1, SLOTS)
            assert 0 < chunk.extra.first_arrival <= chunk.extra.last_arrival <= time.time()
            assert np.array_equal(chunk.data[0], sent[chunk.chunk_id])
            received.append(chunk.chunk_id)
    assert received == [0, 1, 2, 3, 4]
    assert receiver.statistics()["windows_complete"] == 5
    assert "stream 0" in receiver.notices()[0]


def test_lists_and_gaps_leave_messages_in_their_slots(pair):
    sent = windows(20)
    with pair.receiver(until_idle=True, regions=64) as receiver:
        counts = pair.send(receiver, sent, list=4, gap=0.2)
        assert counts.unsent > 0 and counts.messages + counts.unsent == 20 * SLOTS
        present = 0
        for chunk in receiver:
            assert np.array_equal(chunk.fates == Fate.NEVER_SENT, ~chunk.present)
            where = chunk.present[0]
            assert np.array_equal(chunk.data[0][where], sent[chunk.chunk_id][where])
            present += int(where.sum())
    assert present == counts.messages
    assert receiver.statistics()["messages"]["never_sent"] == counts.unsent


def test_memory_is_what_the_user_allocated(pair):
    memory = [np.full((SLOTS, BYTES // 8), -1, np.complex64) for _ in range(8)]
    sent = (np.arange(2 * memory[0].size) * (1 + 1j)).astype(np.complex64)
    sent = sent.reshape(2, *memory[0].shape)
    with pair.receiver(memory=memory, regions=8, until_idle=True) as receiver:
        pair.send(receiver, sent)
        for chunk in receiver:
            array = memory[chunk.chunk_id]
            assert chunk.data.dtype == np.complex64 and np.shares_memory(chunk.data, array)
            assert np.array_equal(array, sent[chunk.chunk_id])
    assert all(np.all(array == -1) for array in memory[2:])


def test_streams_that_share_a_ring_share_chunks(pair):
    shape = {"streams": 4, "streams_per_ring": 2, "regions": 8}
    with pair.receiver(until_idle=True, **shape) as receiver:
        sent = windows(2)
        senders = [pair.sender(receiver, stream=stream, first_window=0) for stream in (2, 3)]
        for sender in senders:
            sender.send(sent + sender._native.first_window)
        for sender in senders:
            sender.finish()
        chunks = list(receiver)
    assert [chunk.stream_id for chunk in chunks] == [2, 2]
    for chunk in chunks:
        assert chunk.data.shape == (2, SLOTS, BYTES)
        assert np.array_equal(chunk.data, np.stack([sent[chunk.chunk_id]] * 2))


def test_dlpack_and_the_array_interface_are_the_memory_itself(pair):
    with pair.receiver() as receiver:
        pair.send(receiver, windows(1))
        chunk = receiver.ring.get(timeout=300)
        array = np.asarray(chunk)
        assert array.base is chunk
        assert chunk.__dlpack_device__() == (1, 0)
        assert np.shares_memory(np.from_dlpack(chunk), array)
        assert chunk.__array_interface__["data"][0] == array.ctypes.data


def test_a_released_chunk_gives_nothing_and_arrays_stay_valid(pair):
    with pair.receiver() as receiver:
        sent = windows(2)
        pair.send(receiver, sent)
        chunk = receiver.ring.get(timeout=300)
        array = chunk.data
        assert chunk.release() == 0
        for use in (
            lambda: chunk.data,
            lambda: np.from_dlpack(chunk),
            chunk.release,
            chunk.refresh,
        ):
            with pytest.raises(longhaul.ReleasedError, match="chunk 0 has been released"):
                use()
        assert chunk.is_released and chunk.present.all() and "released" in repr(chunk)
        with receiver.ring.get(timeout=300) as second:
            pass
        assert second.is_released
    del chunk, receiver
    gc.collect()
    assert np.array_equal(array[0], sent[0])


def test_arrays_hold_their_chunk_and_nothing_else_does(pair):
    with pair.receiver() as receiver:
        pair.send(receiver, windows(2))
        first, second = receiver.ring.get(timeout=300), receiver.ring.get(timeout=300)
        assert receiver.statistics()["held_regions"] == 2
        array, reference = first.data, weakref.ref(first)
        capsule = np.from_dlpack(second)
        del first, second
        assert receiver.statistics()["held_regions"] == 2
        del array, capsule
        assert reference() is None
        assert receiver.statistics()["held_regions"] == 0


def test_memory_outlives_receiver_and_devices(pair):
    memory = [np.zeros((SLOTS, BYTES), np.uint8) for _ in range(8)]
    references = [weakref.ref(array) for array in memory]
    receiver = pair.receiver(memory=memory, regions=8)
    pair.send(receiver, windows(1))
    chunk = receiver.ring.get(timeout=300)
    receiver.stop()
    del memory, receiver
    gc.collect()
    assert np.array_equal(chunk.data, windows(1)[0])
    del chunk
    gc.collect()
    assert all(reference() is None for reference in references)


def test_chunks_stay_in_the_ring_when_the_receiver_stops(pair):
    with pair.receiver() as receiver:
        pair.send(receiver, windows(3))
    assert receiver.is_stopped
    assert [chunk.chunk_id for chunk in receiver] == [0, 1, 2]
    with pytest.raises(longhaul.Stopped):
        receiver.ring.get()


def test_the_descriptor_is_readable_while_chunks_wait(pair):
    with pair.receiver() as receiver:
        assert receiver.ring.empty()
        assert select.select([receiver], [], [], 0) == ([], [], [])
        with pytest.raises(longhaul.Empty):
            receiver.ring.get_nowait()
        with pytest.raises(longhaul.Empty):
            receiver.ring.get(timeout=0.01)
        pair.send(receiver, windows(1))
        assert select.select([receiver], [], [], 300)[0] == [receiver]
        assert receiver.ring.qsize() == 1
        receiver.add_free_chunk(receiver.ring.get())
        assert select.select([receiver], [], [], 0)[0] == []


def test_threads_share_a_ring(pair):
    with pair.receiver(regions=128) as receiver:
        taken = [[] for _ in range(8)]

        def take(mine):
            for chunk in receiver:
                mine.append(chunk.chunk_id)
                chunk.release()

        threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        with pair.sender(receiver) as sender:
            # Two threads with one sender: whole windows alternate.
            both = [
                threading.Thread(target=lambda: [sender.send(windows(1)) for _ in range(20)])
                for _ in range(2)
            ]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
        assert sender.finish().windows == 40
        receiver.stop()
        for thread in threads:
            thread.join()
    assert sorted(sum(taken, [])) == list(range(40))
    assert receiver.statistics()["windows_complete"] == 40


def test_a_blocked_thread_lets_others_run(pair):
    with pair.receiver() as receiver:
        waiting = threading.Thread(target=lambda: receiver.ring.get(timeout=300))
        waiting.start()
        # Would never end if the waiting thread kept the interpreter's lock.
        pair.send(receiver, windows(1))
        waiting.join()


def test_a_window_that_is_overwritten_while_it_is_held_is_flagged(pair):
    with pair.receiver(regions=8, until_idle=True) as receiver:
        first = windows(1)
        with pair.sender(receiver) as sender:
            sender.send(first)
            held = receiver.ring.get(timeout=300)
            array = held.data
            assert held.present.all()
            sender.send(windows(17)[1:])
        sender.finish()
        held.refresh()
        assert (held.fates == Fate.OVERWRITTEN).all()
        assert held.release() == SLOTS
        # Memory that senders write to is still memory.
        assert array.shape == (1, SLOTS, BYTES)
        receiver.stop()
        rest = [chunk.chunk_id for chunk in receiver]
    statistics = receiver.statistics()
    assert statistics["windows_undelivered"] > 0
    assert len(rest) + 1 + statistics["windows_undelivered"] == 17
