"""Checks a file of the GUPPI sink, and prints blocks, messages dropped and packet indices."""

import json
import sys

from blimpy.guppi import GuppiRaw

CHANNELS, BLOCKS, BYTES = 16, 16, 8192

raw = GuppiRaw(sys.argv[1])
blocks, dropped, indices = raw.find_n_data_blocks(), 0, []
for _ in range(blocks):
    header, x, y = raw.read_next_data_block_int8()
    assert header["OBSFREQ"] == 1420.0 and header["TBIN"] == 1e-6, header
    assert x.shape == (CHANNELS, BLOCKS * BYTES // 4, 2), x.shape
    filled = x.reshape(CHANNELS, BLOCKS, -1).any(axis=2) | y.reshape(CHANNELS, BLOCKS, -1).any(axis=2)
    assert (~filled).sum() == header["NDROP"], header
    dropped += header["NDROP"]
    indices.append(header["PKTIDX"])
print(json.dumps([blocks, dropped, indices]))
