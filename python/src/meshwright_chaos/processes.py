"""Processes: those that are started here, and those of a run, whoever has started them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pathlib
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

from meshwright_chaos.texts import quoted

FULL_DISK_BYTES = 4096


class Wish:
    """The user's wish for an end, which the program passes on as SIGTERM, and which whoever waits
    looks for. A second one ends this process at once."""

    came = False

    @classmethod
    def take(cls, number: int, _frame: object) -> None:
        cls.came = True
        signal.signal(number, signal.SIG_DFL)


def at_this_load(seconds: float) -> float:
    """The seconds, multiplied by the number of programs that want each core (at least 1). For how
    long the command waits before it gives up, never for what a run is required to do."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def widen(pipe: int) -> None:
    """Makes room in a pipe: mpirun drops at its end what a full one does not take."""
    fcntl.fcntl(pipe, 1031, 1 << 20)  # F_SETPIPE_SZ


def apart() -> None:
    """In a process that is about to run another program: the terminal's Ctrl-C does not reach it,
    and SIGTERM does when its parent ends."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Process:
    """A process in a group of its own, what it says, and how it has ended."""

    def __init__(self, words: list[str], variables: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=apart,
        )
        assert self._process.stdout and self._process.stderr
        self.streams = (self._process.stdout.fileno(), self._process.stderr.fileno())
        for stream in self.streams:
            widen(stream)
            os.set_blocking(stream, False)
        self.running = True

    def look(self, seconds: float, *more: int) -> tuple[bytes, ...]:
        """What both streams, and further pipes, have within so many seconds."""
        pipes = [*self.streams, *more]
        if self.running:
            select.select(pipes, [], [], seconds)
            # Asked before the pipes are read: what it said before its end is then there.
            self.running = self._process.poll() is None
        else:
            time.sleep(seconds)
        return tuple(map(all_in, pipes))

    def ask_to_end(self) -> None:
        if self.running:
            self._process.terminate()

    @property
    def exit_code(self) -> int:
        """128 + the signal, where one has ended it."""
        code = self._process.returncode or 0
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()


def all_in(pipe: int) -> bytes:
    """What stands in a pipe now."""
    found = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, 1 << 16):
            found += part
    return found


def send(process: int, number: int) -> bool:
    """Sends a signal. False if the process is gone."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def setting_of_agent(folder: pathlib.Path) -> str:
    """By which a run makes faults happen as files of the folder say (plugins/chaos)."""
    return f'observers[+]={{ kind = "chaos", folder = {quoted(folder)} }}'


class Members:
    """The processes of a run on this machine: those with the setting of its agent. One that has
    ended has no words, even if nobody has asked yet how."""

    def __init__(self, folder: pathlib.Path, program: str) -> None:
        self.ranks: list[int] = []  # those that carry ranks
        self.launchers: list[int] = []  # the outermost process, mpirun and srun
        agent = os.fsencode(setting_of_agent(folder))
        for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
            try:
                words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if agent not in words:
                    continue
                runs_this = os.readlink(f"/proc/{name}/exe") == program
            except OSError:
                continue
            starts_others = b"--max-restarts" in words or b"--processes" in words
            into = self.ranks if runs_this and not starts_others else self.launchers
            into.append(int(name))

    @property
    def all(self) -> list[int]:
        return self.ranks + self.launchers

    def kill(self) -> None:
        for process in self.all:
            send(process, signal.SIGKILL)


def member_text(process: int) -> str:
    """"process 2 (4711)": its number among those of the run, where its launcher has told it."""
    with contextlib.suppress(OSError):
        words = pathlib.Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
        variables = dict(word.split("=", 1) for word in words.split("\0") if "=" in word)
        for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK"):
            if number := variables.get(name):
                return f"process {number} ({process})"
    return f"process {process}"


def resident_bytes(process: int) -> int:
    """The memory that it holds; 0: it is gone."""
    try:
        pages = pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


@contextlib.contextmanager
def standing_still(processes: list[int]) -> Iterator[bool]:
    """Stops processes (SIGSTOP) as long as the block lasts. A shell lets them continue when its
    input ends: at the end of the block, or when this process ends, however."""
    words = ["/bin/sh", "-c", 'read -r _; kill -CONT "$@"', "sh", *map(str, processes)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=os.setpgrp
    ):
        yield any([send(process, signal.SIGSTOP) for process in processes])


def limit_files(process: int, *, limited: bool) -> None:
    """No file of the process grows beyond 4 KiB from now on; or as before again."""
    with contextlib.suppress(ProcessLookupError):
        _, most = resource.prlimit(process, resource.RLIMIT_FSIZE)
        few = FULL_DISK_BYTES if most == resource.RLIM_INFINITY else min(FULL_DISK_BYTES, most)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (few if limited else most, most))


def wait(look: Callable[[float], object], seconds: float, holds: Callable[[], bool]) -> bool:
    """Looks again and again until `holds`; false after so many seconds, or where the user wishes an
    end."""
    until = time.monotonic() + seconds
    while True:
        look(0.02)
        if holds():
            return True
        if time.monotonic() >= until or Wish.came:
            return False
