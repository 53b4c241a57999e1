"""Starts runs: a script is trained by the program, and its run is read."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from types import TracebackType
from typing import IO, Any, Literal, overload

from meshwright.errors import MeshwrightError, Problem
from meshwright.program import (
    PathLike,
    Settings,
    absolute,
    find_program,
    quoted,
    results_of,
    words_of,
)
from meshwright.runs import Run, read_run


class StartedRun:
    """A run that goes on beside this process.

    As a context manager it is ended when the block is left. `wait` returns its run, `read` what
    the run's file has so far. `results` has what the program printed, once one has waited for it.
    """

    def __init__(self, words: list[str], *, program: PathLike | None, cwd: PathLike | None) -> None:
        self._cwd = cwd
        self.results: list[dict[str, Any]] = []
        # Files, not pipes: nobody need read them while it runs. A group of its own: Ctrl-C reaches
        # it once, through `stop`; a second one would end it within its step.
        self._stdout: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._stderr: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [find_program(program), *words],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            process_group=0,
        )

    @property
    def output(self) -> str:
        """What the program has told people so far."""
        self._stderr.seek(0)
        return self._stderr.read()

    @property
    def going_on(self) -> bool:
        """Whether the program is still at work."""
        return self.process.poll() is None

    def read(self, log: PathLike) -> Run:
        """Reads the file of a run that goes on, or has ended: the experiment's `log`, seen from
        where it was started."""
        return read_run(absolute(log, self._cwd))

    def stop(self) -> None:
        """Asks it to end after the step under way, as Ctrl-C does."""
        if self.going_on:
            self.process.send_signal(signal.SIGINT)

    def wait(self, timeout: float | None = None) -> Run:
        """Waits until it has ended and reads its run: the last one, if the script trains several.

        Raises MeshwrightError if it did not end well, with the run as its attribute `run` where
        there is a file; subprocess.TimeoutExpired after `timeout` seconds, and the run goes on.
        """
        runs = self.wait_for_all(timeout)
        if runs:
            return runs[-1]
        raise MeshwrightError(
            2,
            [
                Problem(
                    "script",
                    "run.no-file",
                    "log",
                    "the script has written no run file",
                    "give the experiment one: set={'log': '\"runs/NAME.h5\"'}",
                )
            ],
            results=self.results,
            stderr=self.output,
        )

    def wait_for_all(self, timeout: float | None = None) -> list[Run]:
        """Waits in the same way and reads the runs of all experiments of the script that have a
        run file."""
        exit_code = self.process.wait(timeout)
        self._stdout.seek(0)
        stdout = self._stdout.read()
        try:
            self.results = results_of(exit_code, stdout, self.output)
        except MeshwrightError as error:
            self.results = error.results
            runs = self._runs()
            error.run = runs[-1] if runs else None
            raise
        return self._runs()

    def _runs(self) -> list[Run]:
        found = []
        for result in self.results:
            path = (
                absolute(result["log"], self._cwd)
                if result.get("kind") == "train" and result.get("log")
                else None
            )
            if path is not None and path.exists():
                found.append(read_run(path))
        return found

    def __enter__(self) -> StartedRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # with the processes that it has started
        self.process.wait()
        self._stdout, self._stderr = kept(self._stdout), kept(self._stderr)


def kept(file: IO[str]) -> IO[str]:
    """What a file holds, in memory; the file is closed."""
    with file:
        file.seek(0)
        return io.StringIO(file.read())


@overload
def run(
    script: PathLike,
    set: Settings | None = None,
    wait: Literal[True] = True,
    *,
    log: PathLike | None = None,
    options: Iterable[str] = (),
    arguments: Iterable[str] = (),
    program: PathLike | None = None,
    cwd: PathLike | None = None,
) -> Run: ...
@overload
def run(
    script: PathLike,
    set: Settings | None = None,
    *,
    wait: Literal[False],
    log: PathLike | None = None,
    options: Iterable[str] = (),
    arguments: Iterable[str] = (),
    program: PathLike | None = None,
    cwd: PathLike | None = None,
) -> StartedRun: ...
def run(
    script: PathLike,
    set: Settings | None = None,
    wait: bool = True,
    *,
    log: PathLike | None = None,
    options: Iterable[str] = (),
    arguments: Iterable[str] = (),
    program: PathLike | None = None,
    cwd: PathLike | None = None,
) -> Run | StartedRun:
    """Trains as a script says (`meshwright run`) and returns its run; with wait=False at once, as
    a StartedRun.

    `set` changes keys of the experiment (see `plan`), `log` says where the run file goes if the
    script does not or is not to. `options` are more options of the command ("--processes", "2"),
    `arguments` the script's own. Where a script trains several experiments the last run is
    returned; StartedRun.wait_for_all has all of them. Raises MeshwrightError if the run fails,
    diverges or is refused. An interrupt of this process (KeyboardInterrupt) ends the run after
    its step.
    """
    settings = dict(set or {})
    if log is not None:
        settings["log"] = quoted(os.fspath(log))  # with the slash at its end that makes it a folder
    started = StartedRun(
        words_of("run", script, settings, options, arguments), program=program, cwd=cwd
    )
    if not wait:
        return started
    with started:
        return started.wait()
