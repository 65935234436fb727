"""What makes no sense is refused with a sentence, and Ctrl-C interrupts."""

import json
import os
import signal
import socket
import threading
import time
import typing
from collections.abc import Callable

import numpy as np
import pytest
from conftest import BYTES, SLOTS, windows

import longhaul
from longhaul import _native


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"slot": 3}, "unknown field `slot`"),
        ({"slots": "many"}, "invalid type"),
        ({"slots": 0}, "slots"),
        ({"regions": 12}, "12 regions: the number must be a power of two"),
        ({"slots": 5000}, "5000 slots need more than 12 bits"),
        ({"threads": 0}, "threads: a number from 1 to 256"),
        ({"memory": [np.zeros((SLOTS, BYTES), np.uint8)] * 3}, "16 regions of 16384 bytes"),
        ({"memory": [np.zeros(5, np.uint8)] * 16}, "and 0 were given"),
        ({"memory": [np.zeros(0, np.uint8)] * 16}, "must not be empty"),
        ({"memory": [np.zeros((SLOTS, 2 * BYTES), np.uint8)[:, ::2]] * 16}, "contiguous"),
        ({"memory": [bytearray(SLOTS * BYTES)] * 16}, "numpy arrays"),
    ],
)
def test_settings_of_a_receiver(pair, settings, text):
    with pytest.raises(longhaul.SettingsError, match=text) as raised:
        pair.receiver(**settings)
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, longhaul.Error)


def test_read_only_memory(pair):
    memory = [np.zeros((SLOTS, BYTES), np.uint8) for _ in range(16)]
    memory[5].flags.writeable = False
    with pytest.raises(longhaul.SettingsError, match="writable"):
        pair.receiver(memory=memory)
    with pytest.raises(longhaul.SettingsError, match="writable"):
        _native.Receiver(pair.b, "{}", [memoryview(b"12345678")], False)


def test_an_address_that_is_taken(pair):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(longhaul.ResourceError, match="cannot listen on 127.0.0.1") as raised:
            pair.receiver(listen=f"127.0.0.1:{port}")
    assert isinstance(raised.value, OSError)


def test_devices():
    with pytest.raises(longhaul.DeviceError):
        longhaul.Device("mlx5_77")
    assert not any(name.startswith("LONGHAUL_MEMIF") for name in os.environ)
    with pytest.raises(longhaul.DeviceError, match="run Python with 'longhaul exec'"):
        longhaul.Device()


def test_settings_of_a_sender(pair):
    with pair.receiver() as receiver:
        for settings, text in [
            ({"subbands": 0}, "at least 1"),
            ({"gap": 1.5}, "from 0 to 1"),
            ({"rate": 0.0}, "above 0"),
            ({"jitter": -1.0}, "jitter"),
        ]:
            with pytest.raises(longhaul.SettingsError, match=text):
                pair.sender(receiver, **settings)
        for settings, text in [
            ({"stream": 7}, "the receiver refused: stream 7 is unknown"),
            ({"blocks": 9}, "the regions are too small"),
        ]:
            with pytest.raises(longhaul.SessionError, match=text) as raised:
                pair.sender(receiver, **settings)
            assert isinstance(raised.value, ConnectionError)
        with pair.sender(receiver) as sender:
            for array in (np.zeros(100, np.uint8), np.zeros(0, np.uint8)):
                with pytest.raises(longhaul.SettingsError, match="a window has 16384"):
                    sender.send(array)
        with pytest.raises(longhaul.SendError, match="has finished"):
            sender.send(windows(1))
    with pytest.raises(longhaul.SessionError, match="start the receiver first"):
        pair.sender(receiver)


def test_a_receiver_that_stops_ends_its_senders(pair):
    receiver = pair.receiver()
    sender = pair.sender(receiver)
    receiver.stop()
    with pytest.raises((longhaul.SessionError, longhaul.SendError)):
        while True:
            sender.send(windows(1))


def test_the_declared_settings_are_the_library_s():
    declared = set(typing.get_type_hints(longhaul.Settings))
    assert declared == set(json.loads(_native.complete_settings("{}")))


def test_the_declared_statistics_are_the_library_s(pair):
    with pair.receiver() as receiver:
        assert set(receiver.statistics()) == set(typing.get_type_hints(longhaul.Statistics))


def test_the_fates_are_the_library_s(pair):
    with pair.receiver() as receiver:
        names = list(receiver.statistics()["messages"])
    assert names == [fate.name.lower() for fate in longhaul.Fate]


def interrupt_once(is_time: Callable[[], bool]) -> None:
    """Sends this process SIGINT from a thread, once `is_time`."""

    def interrupt():
        while not is_time():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def test_ctrl_c_interrupts_an_iteration(pair):
    with pytest.raises(KeyboardInterrupt):
        with pair.receiver() as receiver:
            pair.send(receiver, windows(1))
            interrupt_once(receiver.ring.empty)
            for _ in receiver:
                pass
    assert receiver.is_stopped


def test_ctrl_c_interrupts_a_sender(pair):
    with pair.receiver() as receiver:
        with pytest.raises(KeyboardInterrupt):
            # Sixteen messages in 1000 s, of which the first leaves at once.
            with pair.sender(receiver, rate=16 * BYTES * 8 / 1000) as sender:
                interrupt_once(lambda: receiver.statistics()["arrivals"] > 0)
                sender.send(windows(1))
        counts = sender.finish()
        assert 0 < counts.messages < SLOTS and counts.messages + counts.unsent == SLOTS
