"""Runs the C++ writer of tests/record for the Python tests."""

import os
import pathlib
import subprocess

WRITER = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD", "build")) / "bin" / "test_record"


def start(path, steps=0):
    """Starts writing a run file at `path`; steps = 0: until killed. Its stdout counts safe rows."""
    env = dict(os.environ, MESHWRIGHT_RUN_FILE=str(path), MESHWRIGHT_RUN_STEPS=str(steps))
    return subprocess.Popen([WRITER, "[.writer]"], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def write(path, steps):
    process = start(path, steps)
    output = process.communicate()[0].decode()
    assert process.returncode == 0, output


def count_of(output):
    """The last count that the writer printed in full."""
    numbers = [line for line in output.decode().split("\n")[:-1] if line.isdigit()]
    return int(numbers[-1]) if numbers else 0
