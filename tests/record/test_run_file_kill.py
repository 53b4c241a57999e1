"""kill -9 after numbers of rows that are drawn, with a reader on the file: it always opens, its
rows are a prefix, and it holds at least what was safe before the last interval. (A writer that
appends in place fails this about every second time: the kill falls into an append.)"""

import os
import pathlib
import random
import select
import signal
import tempfile
import time

import h5py
import numpy as np

import run_file_tools

KILLS = 20


def check(path, safe):
    with h5py.File(path, locking=False) as f:
        assert f.attrs["status"] == b"running"
        steps = f["steps"][:]
        count = len(steps)
        assert count >= safe, f"{safe} rows were safe, {count} are there"
        assert (steps["step"] == np.arange(count)).all()
        assert np.allclose(steps["loss"], 10 / (1 + np.arange(count)), rtol=1e-15)
        communication = f["communication"][:]
        assert (communication["step"] == np.repeat(np.arange(count), 2)).all()
        assert (f["actions"]["step"] == np.arange(count)).all()
        series = f["series"]
        want = [s for s in range(count) for _ in range((s % 2 == 0) + (s == 4))]
        assert series["step"][:].tolist() == want
        for name in [name if name != "group" else "group/deep" for name in series]:
            assert len(series[name]) == len(want), name
        return count


def read(pipe):
    """What is in the pipe now."""
    got = b""
    while select.select([pipe], [], [], 0)[0]:
        part = os.read(pipe.fileno(), 65536)
        if not part:
            break
        got += part
    return got


chance = random.Random(20)
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "run.h5"
    most = 0
    for kill in range(KILLS):
        process, reader = run_file_tools.start(path), None
        output = b""
        rows = chance.randint(1, 300)  # that are safe when it is killed
        while run_file_tools.count_of(output) < rows:
            output += read(process.stdout)
            assert process.poll() is None, output.decode()
            time.sleep(0.001)
            # Held while it grows.
            if kill % 2 and reader is None and run_file_tools.count_of(output):
                reader = h5py.File(path, locking=False)
        time.sleep(chance.uniform(0, 0.01))  # into the midst of an append
        process.send_signal(signal.SIGKILL)
        process.wait()
        output += read(process.stdout)
        process.stdout.close()
        if reader:  # first: within a process, HDF5 lets a new opening share the old one's view
            reader.close()
        most = max(most, check(path, run_file_tools.count_of(output)))
        # The hidden copy of the killed run, and of no other: each run clears those before it away.
        assert len(list(path.parent.iterdir())) <= 2, list(path.parent.iterdir())
    print(f"{KILLS} kills, at most {most} rows")
