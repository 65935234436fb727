"""The receiver as an async iterator."""

import asyncio
import threading

import numpy as np
from conftest import SLOTS, windows

from longhaul import Fate


def in_thread(work):
    """Runs `work` in a thread and blocks until it ends: an event loop that calls this is busy."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_chunks_arrive_while_other_coroutines_run(pair):
    sent = windows(5)

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        received = []
        async with pair.receiver(until_idle=True) as receiver:
            sending = asyncio.create_task(asyncio.to_thread(pair.send, receiver, sent))
            async for chunk in receiver:
                assert np.array_equal(chunk.data[0], sent[chunk.chunk_id])
                received.append(chunk.chunk_id)
            await sending
        ticking.cancel()
        return received, ticks

    received, ticks = asyncio.run(main())
    assert received == [0, 1, 2, 3, 4] and ticks > 0


def test_a_busy_loop_loses_nothing_within_the_depth_of_the_ring(pair):
    async def main():
        complete = []
        async with pair.receiver(regions=16) as receiver:
            depth = receiver.ring.maxsize
            with pair.sender(receiver) as sender:
                sent = windows(depth)
                for _ in range(10):
                    # Busy for as long as it takes to fill the ring.
                    in_thread(lambda: sender.send(sent))
                    for _ in range(depth):
                        chunk = await receiver.ring.get_async()
                        assert np.array_equal(chunk.data[0], sent[chunk.chunk_id % depth])
                        complete.append(bool(chunk.present.all()))
                        assert chunk.release() == 0
        return complete, receiver.statistics()

    complete, statistics = asyncio.run(main())
    assert complete == [True] * 80
    assert statistics["messages"]["present"] == 80 * SLOTS
    assert statistics["windows_undelivered"] == 0


def test_what_a_busy_loop_loses_beyond_the_ring_is_flagged(pair):
    """The sender overruns the ring twice; each message is intact, flagged, or counted."""

    async def main():
        sent = windows(40)
        delivered, intact = [], 0
        async with pair.receiver(regions=8, until_idle=True) as receiver:
            in_thread(lambda: pair.send(receiver, sent))
            async for chunk in receiver:
                chunk.refresh()
                same = (chunk.data[0] == sent[chunk.chunk_id]).all(axis=1)
                assert not (chunk.present[0] & ~same).any(), "damage without a flag"
                assert set(np.unique(chunk.fates)) <= {Fate.PRESENT, Fate.OVERWRITTEN}
                intact += int(chunk.present.sum())
                delivered.append(chunk.chunk_id)
                chunk.release()
        return delivered, intact, receiver.statistics()

    delivered, intact, statistics = asyncio.run(main())
    lost = statistics["windows_undelivered"] + statistics["windows_skipped"]
    assert lost > 0 and len(delivered) + lost == 40
    assert intact < 40 * SLOTS


def test_two_coroutines_share_a_ring(pair):
    async def main():
        async with pair.receiver(regions=64) as receiver:

            async def take():
                return [chunk.chunk_id async for chunk in receiver]

            both = [asyncio.create_task(take()) for _ in range(2)]
            await asyncio.to_thread(pair.send, receiver, windows(20))
            await asyncio.to_thread(receiver.stop)
            return sum(await asyncio.gather(*both), [])

    assert sorted(asyncio.run(main())) == list(range(20))
