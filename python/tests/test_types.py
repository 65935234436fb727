"""The stubs of the native part are what it has, and the package has the types that it declares."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent

pytest.importorskip("mypy")


def run(*arguments: str) -> None:
    command = (sys.executable, "-P", "-m", *arguments)
    ended = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_stubs_are_those_of_the_native_part():
    run("mypy.stubtest", "longhaul._native")


def test_the_package_is_typed(tmp_path):
    run("mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "longhaul")
