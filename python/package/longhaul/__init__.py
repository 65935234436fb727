"""Telescope data by RDMA: messages placed in numpy arrays, with a flag for each."""

from longhaul._native import Device
from longhaul.chunk import Chunk, Extra, Fate
from longhaul.errors import (
    DeviceError,
    Empty,
    Error,
    ReleasedError,
    ResourceError,
    SendError,
    SessionError,
    SettingsError,
    Stopped,
)
from longhaul.receiver import ChunkRingbuffer, Receiver, Settings, Statistics
from longhaul.sender import Sender, Sent

__all__ = [
    "Chunk",
    "ChunkRingbuffer",
    "Device",
    "DeviceError",
    "Empty",
    "Error",
    "Extra",
    "Fate",
    "Receiver",
    "ReleasedError",
    "ResourceError",
    "SendError",
    "Sender",
    "Sent",
    "SessionError",
    "Settings",
    "SettingsError",
    "Statistics",
    "Stopped",
]
