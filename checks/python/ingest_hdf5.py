"""Checks a file of the HDF5 sink, and prints the number of messages by fate."""

import json
import sys

import h5py

with h5py.File(sys.argv[1]) as file:
    data, fates = file["data"][:], file["fates"][:]
    assert data.shape == (20, 1, 256, 8192) and data.dtype == "u1", (data.shape, data.dtype)
    present = fates == 1
    assert data[present].any(axis=-1).all() and not data[~present].any()
    assert file.attrs["TELESCOP"] == "LOFAR" and file.attrs["OBSFREQ"] == 150.5
    assert list(file["window"]) == list(range(20)) and not file["stream"][:].any()
    assert (file["last_arrival"][:] >= file["first_arrival"][:]).all()
    names = file["fates"].attrs["names"].split()
    print(json.dumps({name: int((fates == number).sum()) for number, name in enumerate(names)}))
