"""Processes that run experiments one after the other, so that not each pays for a start of the
program."""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile
import time

from lua_tree import render

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = os.environ.get("MESHWRIGHT_BIN", str(ROOT / "build/bin/meshwright"))
PLUGINS = os.environ.get("MESHWRIGHT_TEST_PLUGINS", str(ROOT / "build/lib/meshwright/test-plugins"))
RECORD = re.compile(b"\x1d([^\x1e]*)\x1e")
VERBS = ("prove", "verify", "train")
LIMIT = 120       # seconds after which it is looked at whether an experiment hangs
MOST_CPU = 60     # seconds of cores that none takes
COLLECTIVE = 3000  # seconds that a rank waits for the others: a hang is found here, not there
AT_MOST = 150   # experiments of a process


class Told:
    """What a worker said of an experiment: facts by verb, and how its process ended if it did."""

    def __init__(self):
        self.verbs, self.ended, self.stderr = {}, None, ""


def runnable(keys):
    """The chunk that makes the experiment anew for each verb."""
    more = f"threads = 1, timeout = {COLLECTIVE}, "
    text = render(keys)
    return f"return function() return {{ {more}{text[1:]} end"


def threads_of(pid):
    """The state of each thread, and the seconds of cores that all have had."""
    states, ticks = [], 0
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        states.append(words[0])
        ticks += int(words[11]) + int(words[12])
    return states, ticks / os.sysconf("SC_CLK_TCK")


class Worker:
    def __init__(self, environment=None):
        self.process, self.ran, self.environment = None, 0, environment or {}

    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.errors = open(os.path.join(self.folder.name, "stderr"), "wb+")
        environment = {**os.environ, "MESHWRIGHT_FIRST_USE": "off", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0",
                       **self.environment}
        self.process = subprocess.Popen([BIN, "run", str(HERE / "worker.lua"), "--plugin-path", PLUGINS], cwd=self.folder.name,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment,
                                        start_new_session=True)  # Ctrl-C is for whoever asked for it
        self.left, self.ran = b"", 0

    def end(self, kill=False):
        """Ends the process; how it did: an exit status, or less than 0 for a signal."""
        if not self.process:
            return None
        if kill:
            self.process.send_signal(signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        status = self.process.wait()
        self.process = None
        self.errors.close()
        self.folder.cleanup()
        return status

    def said_last(self):
        self.errors.seek(0, os.SEEK_END)
        size = self.errors.tell()
        self.errors.seek(max(0, size - 3000))
        return self.errors.read().decode(errors="replace")

    def record(self, until):
        """The next record; None: the process is over; a TimeoutError where it takes too long."""
        while True:
            found = RECORD.search(self.left)
            if found:
                self.left = self.left[found.end():]
                return json.loads(found[1])
            if not select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))[0]:
                if self.hangs():
                    raise TimeoutError
                until = time.monotonic() + 10
                continue
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                return None
            self.left += more

    def hangs(self):
        """Whether it has taken more of the cores than it can need, or no thread of it wants them. Where
        other programs have the cores it is slow, and does not hang."""
        looks = []
        for _ in range(20):
            states, seconds = threads_of(self.process.pid)
            if seconds - self.before > MOST_CPU:
                return True
            looks.append((any(state in "RD" for state in states), seconds))
            time.sleep(0.1)
        return not any(busy for busy, _ in looks) and looks[0][1] == looks[-1][1]

    def run(self, keys, number=0, verbs=VERBS, limit=LIMIT):
        if self.process and self.ran >= AT_MOST:
            self.end()
        if not self.process:
            self.begin()
        self.ran += 1
        told, text = Told(), runnable(keys).encode()
        try:
            self.process.stdin.write(f"{number} {len(text)} {','.join(verbs)}\n".encode() + text + b"\n")
            self.process.stdin.flush()
            until = time.monotonic() + limit
            self.before = threads_of(self.process.pid)[1]
            while True:
                facts = self.record(until)
                if facts is None:
                    told.stderr = self.said_last()
                    status = self.end()
                    told.ended = f"signal {-status}" if status < 0 else f"exit {status}"
                    return told
                if facts["verb"] == "end":
                    return told
                told.verbs[facts["verb"]] = facts
        except TimeoutError:
            told.stderr, told.ended = self.said_last(), "hangs"
            self.end(kill=True)
        except BrokenPipeError:
            told.stderr = self.said_last()
            told.ended = f"exit {self.end()}"
        return told
