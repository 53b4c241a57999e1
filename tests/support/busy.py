"""A machine whose cores other programs use, as the program sees it in MESHWRIGHT_SYSTEM_ROOT."""
import os
import pathlib
import threading
import time


class Machine:
    """Within `with`, the folder of a system on which others have so many cores all the time. If `run`
    is true, cores are counted as if the program kept all of them busy besides."""

    def __init__(self, folder, others, run=False):
        self.stat = pathlib.Path(folder) / "proc/stat"
        self.stat.parent.mkdir(parents=True)
        self.rate = 100 * (others + (len(os.sched_getaffinity(0)) if run else 0))
        self.began, self.over = time.monotonic(), threading.Event()
        self.write()
        self.thread = threading.Thread(target=self.tick)

    def write(self):
        worked = 1000 + int(self.rate * (time.monotonic() - self.began))
        new = self.stat.with_suffix(".new")
        new.write_text(f"cpu  {worked} 0 0 5 0 0 0 0 0 0\n")
        new.replace(self.stat)

    def tick(self):
        while not self.over.wait(0.005):
            self.write()

    def __enter__(self):
        self.thread.start()
        return str(self.stat.parent.parent)

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
