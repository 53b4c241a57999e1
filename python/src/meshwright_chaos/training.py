"""A training that is disturbed: started with restarts, watched step by step, started again where it
has ended, and held to the losses of the training that nobody disturbs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

from meshwright_called.texts import plural
from meshwright_chaos.processes import (
    Members,
    Process,
    apart,
    at_this_load,
    setting_of_agent,
    wait,
    widen,
)
from meshwright_chaos.texts import quoted

SECONDS_TO_LEAVE = 30  # that processes have after the outermost one has ended
DATA_BYTES = 256 << 20  # files of data that have more bytes together are not copied
COMPLAINTS = (
    "error: ",
    "restart 1 of",
    "not started again",
    "is broken",
    "no checkpoint of step",
    "cannot be written",
    "cannot be read",
)


def same(one: float, other: float) -> bool:
    """Equal to the bit: 0 and -0 differ, and a NaN equals itself."""
    return one.hex() == other.hex()


def losses_of(result: dict[str, Any]) -> list[float]:
    """The losses of a training's result; NaN where it has none for a step."""
    return [math.nan if loss is None else float(loss) for loss in result.get("losses") or []]


def objects_in(lines: bytes) -> list[dict[str, Any]]:
    """The results and errors among what the program has printed."""
    found = []
    for line in lines.split(b"\n"):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


class Start:
    """How the script's processes are started."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.program: str = request["program"]
        self.timeout: float = request["timeout"]
        self.settings: list[str] = list(request["settings"])
        # Copies of the files that the script names as its data, in which bits may flip.
        self.data: list[pathlib.Path] = []
        library = pathlib.Path(self.program).parent.parent / "lib/libmeshwright_clock.so"
        # Makes the wall clock of a run's processes jump; it need not be there.
        self.clock_library = library

    @property
    def several(self) -> bool:
        """Whether the run has several processes."""
        return self.request["processes"] > 1 or bool(self.request["launcher"])

    def words(self, folder: pathlib.Path, settings: list[str], restarts: int | None) -> list[str]:
        """The command that trains, disturbed by what stands in the folder."""
        asked = self.request
        words = [self.program, "run", asked["script"], "--json"]
        timeout = f"timeout={self.timeout}"
        for setting in [*self.settings, timeout, *settings, setting_of_agent(folder)]:
            words += ["--set", setting]
        for path in asked["plugin_path"]:
            words += ["--plugin-path", path]
        if asked["processes"] > 0:
            words += ["--processes", str(asked["processes"])]
        if asked["communicator"]:
            words += ["--communicator", asked["communicator"]]
        if restarts is not None:
            words += ["--max-restarts", str(restarts)]
        if asked["launcher"]:
            words += ["--launcher", asked["launcher"]]
        return words + (["--", *asked["words"]] if asked["words"] else [])

    def copy_data(self, files: list[dict[str, Any]], folder: pathlib.Path) -> None:
        """Copies the files of a run's data, so that nobody's own are changed. From then on the run
        reads the copies of those that the script names. Nothing, where there are none, where they
        have more than 256 MiB together, or where one cannot be copied."""
        copies: list[pathlib.Path] = []
        try:
            if sum(os.path.getsize(file["path"]) for file in files) > DATA_BYTES:
                return
            for file in files:
                if not file["implied"]:  # a folder of its own, as names may be equal
                    into = folder / f"{len(copies) + 1:04}"
                    into.mkdir(parents=True)
                    copies.append(into / pathlib.Path(file["path"]).name)
                shutil.copyfile(file["path"], into / pathlib.Path(file["path"]).name)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            return
        if copies:
            self.settings.append(f"data.path={{{', '.join(map(quoted, copies))}}}")
        self.data = copies

    def read(self, *words: str) -> tuple[int, list[dict[str, Any]], str]:
        """What a command of the program says: its exit code, its objects, and its text."""
        done = subprocess.run(
            [self.program, *words], capture_output=True, stdin=subprocess.DEVNULL, preexec_fn=apart
        )
        text = (done.stdout + done.stderr).decode(errors="backslashreplace")
        return done.returncode, objects_in(done.stdout), text


class Training:
    """See above. `losses`: those of each step of the training that nobody disturbs."""

    def __init__(self, start: Start, folder: pathlib.Path, losses: list[float]) -> None:
        self.folder, self.checkpoints = folder, folder / "checkpoints"
        self.run_file, self.clock_file = folder / "run.h5", folder / "clock"
        self.started, self.losses, self.timeout = start, losses, start.timeout
        (folder / "tmp").mkdir()
        self.clock_file.write_bytes(bytes(8))
        # Ranks write their steps into it, which no limit on the size of files reaches.
        os.mkfifo(folder / "steps", 0o600)
        self._pipe = os.open(folder / "steps", os.O_RDWR | os.O_NONBLOCK)
        widen(self._pipe)
        self._process: Process | None = None
        self._unread = self._out = self._err = b""
        self.next_step = self.farthest = 0  # of the training under way; the most that were done
        self.begun = 0  # how often ranks have begun to train
        self.first_step = self.wrong = -1  # the first one since then, the first with another loss

    @property
    def steps(self) -> int:
        return len(self.losses)

    def begin_anew(self) -> None:
        """Begins from step 0, without any checkpoint."""
        self.clear_away(at_this_load(SECONDS_TO_LEAVE))
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self.run_file.unlink(missing_ok=True)
        self.farthest = 0
        self.wrong = -1
        self.start()

    def start(self) -> None:
        """Starts it, to go on from its newest checkpoint, once what ran before is gone."""
        self.clear_away(at_this_load(SECONDS_TO_LEAVE))
        # What was killed may have left half a line, which is not the next result's beginning.
        self._out += b"\n" if self._out else b""
        every = self.started.request["checkpoints"]
        settings = [
            f"checkpoint={{path={quoted(self.checkpoints)},every={every},keep=4}}",
            f"log={quoted(self.run_file)}",
            "resume=true",
        ]
        variables = {
            "TMPDIR": str(self.folder / "tmp"),
            "MESHWRIGHT_CLOCK_OFFSET": str(self.clock_file),
        }
        if self.started.clock_library.exists():
            before = os.environ.get("LD_PRELOAD")
            preloaded = [str(self.started.clock_library), *([before] if before else [])]
            variables["LD_PRELOAD"] = ":".join(preloaded)
        self.first_step, self.next_step = -1, 0
        if self._process is not None:
            self._process.close()
        self._process = Process(self.started.words(self.folder, settings, 1), variables)

    def _look(self, seconds: float) -> None:
        if self._process is None:
            time.sleep(seconds)
            return
        out, err, lines = self._process.look(seconds, self._pipe)
        self._out += out
        self._err += err
        *whole, self._unread = (self._unread + lines).split(b"\n")
        for line in whole:
            self._take(line.decode())

    def _take(self, line: str) -> None:
        if line.startswith("start"):
            self.begun += 1
            self.first_step, self.next_step = -1, 0
            return
        number, text = line.split()
        step, loss = int(number), float.fromhex(text)
        if not 0 <= step < self.steps:
            return
        if self.first_step < 0:
            self.first_step = step
        if not math.isfinite(loss):
            return  # it is left out, and computed again
        self.next_step = step + 1
        self.farthest = max(self.farthest, self.next_step)
        if self.wrong < 0 and not same(loss, self.losses[step]):
            self.wrong = step

    def watch(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Takes what the run says for so long, or until `holds`."""
        return wait(self._look, seconds, holds)

    def over(self) -> bool:
        """Whether the outermost process has ended."""
        return self._process is None or not self._process.running

    def done(self) -> bool:
        """Whether all steps are done."""
        return self.over() and self.exit_code == 0

    @property
    def exit_code(self) -> int:
        return self._process.exit_code if self._process else 0

    @property
    def members(self) -> Members:
        return Members(self.folder, self.started.program)

    def mark(self) -> None:
        """From here on counts what it says."""
        self._look(0)
        self._out = self._err = b""

    @property
    def said(self) -> str:
        """What it has told people since mark()."""
        return self._err.decode(errors="backslashreplace")

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results and errors since mark()."""
        return objects_in(self._out)

    def complaint(self) -> str:
        """What is wrong, as it says: an error's message, why it failed, or a line that tells people
        of a file; empty: nothing."""
        for line in self.results:
            if line.get("kind") == "error":
                return str(line.get("message") or "")
            if line.get("kind") == "train" and line.get("status") == "failed":
                return str(line.get("reason") or "")
        lines = self.said.split("\n")
        return next((line for line in lines if any(sign in line for sign in COMPLAINTS)), "")

    def failing(self) -> bool:
        """Whether it has said that it failed."""
        return any(
            line.get("kind") == "error" or line.get("status") == "failed" for line in self.results
        )

    def checkpoint(self, step: int) -> pathlib.Path:
        return self.checkpoints / f"step-{step:08}"

    def checkpoint_steps(self) -> list[int]:
        """The numbers of the checkpoints that are there, ascending."""
        return sorted(
            int(path.name[5:])
            for path in self.checkpoints.glob("step-*")
            if path.name[5:].isdigit()
        )

    def wrong_in_run_file(self, *, whole: bool = False) -> str:
        """What is wrong with the losses in the run file; with `whole` also, what it lacks of a run
        that is done. Empty: nothing, or there is no file yet."""
        if not self.run_file.exists():
            return "the run is done, and there is no run file" if whole else ""
        file = str(self.run_file)
        rows = self.started.read("runs", "tail", "-n", str(1 << 30), "--json", file)[1]
        for expected, row in enumerate(rows):
            if row.get("kind") == "error":
                return str(row["message"])
            if row.get("step") != expected:
                return f"the run file lacks step {expected}"
            if expected < self.steps and row["loss"] is not None:
                if not same(float(row["loss"]), self.losses[expected]):
                    return f"the run file has another loss at step {expected}"
        if whole and len(rows) != self.steps:
            steps = plural(self.steps, "step")
            return f"the run is done, and its file has {len(rows)} of {steps}"
        if whole:
            words = ["export", "--jsonl", "--table", "summary", file]
            status = self.started.read("runs", *words)[1][0]["status"]
            if status != "done":
                return f'the run is done, and its file says "{status}"'
        return ""

    def wrong_in_result(self) -> str:
        """What is wrong with the result of a run that is done; empty: nothing."""
        for line in self.results:
            if line.get("kind") != "train" or line.get("status") != "done":
                continue
            losses = losses_of(line)
            if len(losses) != self.steps:
                return f"its result has {plural(len(losses), 'loss')}"
            for step, (one, other) in enumerate(zip(losses, self.losses)):
                if not same(one, other):
                    return f"its result has another loss at step {step}"
            return ""
        said = self._out[:200].decode(errors="backslashreplace") or self.said
        return f"it has ended without a result; it said: {said}"

    def clear_away(self, seconds: float) -> bool:
        """Waits until no process of it is left, and takes what they have said. False if some had to
        be killed."""

        def gone() -> bool:
            return self.over() and not self.members.all

        alone = gone() or self.watch(seconds, gone)
        if not alone:
            self.members.kill()
            self.watch(seconds, gone)
        self._look(0)  # else the next training would be taken to have said what is left
        return alone

    def stop(self) -> bool:
        """Ends all its processes: by a signal that asks, then by force. False if some outlived the
        first."""
        if self._process is not None:
            self._process.ask_to_end()
        until = time.monotonic() + at_this_load(SECONDS_TO_LEAVE)
        while not (self.over() and not self.members.all) and time.monotonic() < until:
            self._look(0.05)
        left = self.members
        left.kill()
        while not self.over():
            self._look(0.05)
        return not left.all
