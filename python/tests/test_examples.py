"""The examples, in two processes whose devices are connected by shared memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LIMIT = 300


def start(socket: Path, role: str, ip: str, *command: str) -> subprocess.Popen:
    environment = os.environ | {
        "LONGHAUL_MEMIF_SOCKET": str(socket),
        "LONGHAUL_MEMIF_ROLE": role,
        "LONGHAUL_IP": ip,
    }
    command = (sys.executable, str(EXAMPLES / command[0]), *command[1:])
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_presence_and_spectrum_of_an_array(tmp_path):
    pytest.importorskip("matplotlib")
    socket, plot = tmp_path / "wire.sock", tmp_path / "presence.png"
    options = ("--listen", "127.0.0.1:0", "--out", str(plot))
    receiving = start(socket, "master", "10.77.0.2", "presence.py", *options)
    address = receiving.stdout.readline().split()[-1]
    options = (address, "--windows", "6", "--gap", "0.1", "--tone", "0.125")
    sending = start(socket, "slave", "10.77.0.1", "send_array.py", *options)
    sent = sending.communicate(timeout=LIMIT)[0]
    received = receiving.communicate(timeout=LIMIT)[0]
    assert sending.returncode == receiving.returncode == 0
    messages, unsent = map(int, re.findall(r"sent (\d+) .* left out (\d+)", sent)[0])
    assert messages + unsent == 6 * 256 and unsent > 0
    assert f"the receiver has {messages} and misses 0" in sent
    assert f"{messages} of 1536 messages; peak at 0.125 cycles per sample" in received
    assert plot.read_bytes().startswith(b"\x89PNG")
