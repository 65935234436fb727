"""rdma-core's own Python tests, from Debian's package python3-pyverbs, on Longhaul's device.

usage: rdma_core_tests.py SCRATCH MODULE ...

They come compressed, as documentation, so they are unpacked into SCRATCH first. Client and server are one process, so
the device must reach itself: run it in a lab.
"""

import gzip
import pathlib
import shutil
import sys
import unittest

PACKAGED = pathlib.Path("/usr/share/doc/rdma-core/tests")


def unpack(scratch):
    target = scratch / "tests"
    target.mkdir(parents=True, exist_ok=True)
    # The others import what vendors' devices have.
    vendors = ("test_mlx5", "test_efa", "test_cuda")
    for source in PACKAGED.iterdir():
        if source.name.startswith(vendors):
            continue
        if source.suffix == ".gz":
            (target / source.stem).write_bytes(gzip.decompress(source.read_bytes()))
        else:
            shutil.copy(source, target / source.name)
    return target


def main():
    target = unpack(pathlib.Path(sys.argv[1]))
    modules = sys.argv[2:]
    sys.argv[1:] = ["--dev", "longhaul0", "--gid", "1"]
    sys.path[:0] = [str(target.parent), str(target)]

    from args_parser import parser

    parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"tests.{module}" for module in modules])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
