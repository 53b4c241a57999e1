"""Makes one fault happen to a training that is under way, and follows what that makes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import struct
import time
from typing import Any

from meshwright_called.texts import plural
from meshwright_chaos.kinds import Kind
from meshwright_chaos.processes import (
    Wish,
    at_this_load,
    limit_files,
    member_text,
    send,
    standing_still,
)
from meshwright_chaos.texts import readable
from meshwright_chaos.training import Training

TO_GO_ON = 150  # seconds that a start and its first new step may take
TO_BE_TAKEN = 20  # that a rank may take to meet its order
TO_BE_WITHDRAWN = 0.2
TO_BE_NOTICED = 20
# How often the command may be started after one fault, with one restart of its own each time. The
# first start may be refused while the fault lasts.
MOST_STARTS = 2
UNSEEN_STEPS = 4  # for which the losses after a fault that nothing can see are looked at
DAY = 86400


@dataclasses.dataclass
class Record:
    """What became of a fault."""

    number: int
    kind: Kind
    step: int  # the training's next one; -1: not known
    where: str = ""  # "rank 2, all-reduce on dp for 'embedding' (gradients)"
    at: float = 0  # seconds since the command began
    met: bool = False  # it came about
    told: bool = False
    said: str = ""  # what the run said, its first line
    # The losses were others after it, which no run can see: the training was given up.
    parted: bool = False
    ended: bool = False
    starts: int = 0  # of the command, until it went on
    goes_on_from: int = -1  # a step; -1: it never ended
    seconds: float = 0  # until a step was done that had not been done before
    # The processes of the ranks after it, and the bytes that they hold together.
    processes: list[int] = dataclasses.field(default_factory=list)
    resident: int = 0
    grown: int | None = None  # bytes since they had settled; None: they have not yet
    wrong: str = ""  # what should not have happened

    def facts(self) -> dict[str, Any]:
        """The line of JSON."""
        return {
            "kind": "fault",
            "number": self.number,
            "fault": self.kind.name,
            "where": self.where,
            "step": None if self.step < 0 else self.step,
            "at_seconds": self.at,
            "met": self.met,
            "must_be_told": self.must_be_told,
            "told": self.told,
            "said": self.said,
            "ended": self.ended,
            "starts": self.starts,
            "goes_on_from": None if self.goes_on_from < 0 else self.goes_on_from,
            "seconds": self.seconds,
            "processes": self.processes,
            "resident_bytes": self.resident if self.processes else None,
            "grown_bytes": self.grown,
            "wrong": self.wrong or None,
        }

    @property
    def must_be_told(self) -> bool:
        """Whether the run has something to say of it."""
        return self.met and self.kind.fate != "unseen" and self.kind.must_be_told

    def text(self) -> str:
        """The lines for people."""
        if not self.met:
            return f"fault {self.number}: {self.kind.name} found no place"
        text = f"fault {self.number}: {self.kind.name} at step {self.step}, {self.where}"
        if self.said:
            text += f"\n    said: {self.said}"
        place = f" from step {self.goes_on_from}" if self.goes_on_from >= 0 else ""
        text += f"\n    goes on{place}, {self.seconds:.1f} s"
        return text + (f"\n    wrong: {self.wrong}" if self.wrong else "")


def flip_bit(path: pathlib.Path, draw: int) -> bool:
    """Flips a bit of a file, in place."""
    try:
        with open(path, "r+b", buffering=0) as file:
            at, bit = divmod(draw % (8 * os.fstat(file.fileno()).st_size), 8)
            byte = os.pread(file.fileno(), 1, at)[0]
            return os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), at) == 1
    except (OSError, ZeroDivisionError):  # the file is gone, or empty
        return False


class Faults:
    """Makes faults. The generator is Python's random.Random(seed), of which random() alone is
    used: its numbers stay the same from release to release."""

    def __init__(self, run: Training, ranks: int, seed: int) -> None:
        self.run, self.ranks = run, ranks
        self.share = random.Random(seed).random
        self.begun = 0  # how often it had begun before the fault
        self.call: dict[str, Any] = {}  # that a rank made when it took its order
        # A checkpoint in which a bit was flipped: another of that name has another inode.
        self.flipped: tuple[pathlib.Path, int] | None = None

    def draw(self, count: int) -> int:
        """A number from 0, less than `count`."""
        return int(self.share() * count)

    def ready_for(self, kind: Kind) -> bool:
        """Whether such a fault can be made now: the run trains, and has enough checkpoints."""
        run = self.run
        trains = not run.over() and run.first_step >= 0 and run.next_step < run.steps
        return trains and len(run.checkpoint_steps()) >= kind.checkpoints

    def make(self, kind: Kind, number: int) -> Record:
        """Makes the fault, waits until the run has gone on beyond where it was, or is done, and
        says what came of it."""
        run = self.run
        record = Record(number, kind, run.next_step)
        self.begun = run.begun
        least = self.must_go_on_from(kind)
        since = time.monotonic()
        run.mark()
        getattr(self, kind.make)(kind, record)
        if not record.met or Wish.came:
            return record
        if kind.fate == "unseen":
            self.judge_unseen(record)
        else:
            if kind.fate == "ends" or run.failing():
                self.await_end(record)
            self.go_on(record)
        record.seconds = time.monotonic() - since
        if kind.fate != "unseen":
            self.judge(record, least)
        return record

    def must_go_on_from(self, kind: Kind) -> int:
        """The newest checkpoint that the fault leaves whole; 0: none."""
        steps = []
        for step in self.run.checkpoint_steps():
            folder = self.run.checkpoint(step)
            with contextlib.suppress(FileNotFoundError):
                if (folder, folder.stat().st_ino) != self.flipped:
                    steps.append(step)
        return max(steps[:-1] if kind.name == "flip-checkpoint" else steps, default=0)

    def alive(self) -> bool:
        """Whether it goes on without having begun anew."""
        return not self.run.over() and self.run.begun == self.begun

    def order(self, kind: Kind, record: Record) -> None:
        """Tells a rank to do it, and withdraws the order where the rank makes no such call."""
        order, taken = self.run.folder / "order.json", self.run.folder / "taken.json"
        rank, draw = self.draw(self.ranks), self.draw(1 << 53)
        timeout = self.run.timeout
        seconds = timeout + 3 if kind.longer else timeout * (0.1 + 0.4 * self.share())
        facts = {"id": record.number, "fault": kind.name, "rank": rank, "seconds": seconds}
        written = order.with_suffix(".new")
        written.write_text(json.dumps({**facts, "draw": draw}))
        written.replace(order)

        def is_taken() -> bool:
            with contextlib.suppress(FileNotFoundError):
                last = json.loads(taken.read_text())
                if last["id"] == record.number:
                    record.met = True
                    record.step = last["step"] if last["step"] >= 0 else record.step
                    record.where = f"rank {last['rank']}, {last['text']}"
                    self.call = {"rank": last["rank"], **last["call"]}
            return record.met

        self.run.watch(at_this_load(TO_BE_TAKEN), lambda: is_taken() or self.run.over())
        order.unlink(missing_ok=True)
        if not record.met:  # its process may have read the order just before
            self.run.watch(TO_BE_WITHDRAWN, is_taken)

    def kill(self, kind: Kind, record: Record) -> None:
        members = self.run.members
        processes = members.ranks if kind.name == "kill" else members.launchers
        if processes:
            process = processes[self.draw(len(processes))]
            record.where = member_text(process)
            record.met = send(process, signal.SIGKILL)

    def stand_still(self, kind: Kind, record: Record) -> None:
        members = self.run.members.ranks
        if not members:
            return
        if kind.name != "suspend":
            members = [members[self.draw(len(members))]]
        timeout = self.run.timeout
        seconds = timeout + 1.5 if kind.longer else timeout * (0.1 + 0.5 * self.share())
        whose = member_text(members[0]) if len(members) == 1 else plural(len(members), "process")
        record.where = f"{whose}, {seconds:.1f} s"
        with standing_still(members) as record.met:
            self.run.watch(seconds, lambda: Wish.came)

    def jump_clock(self, _kind: Kind, record: Record) -> None:
        seconds = self.draw(800 * DAY + 1) - 400 * DAY
        with open(self.run.clock_file, "r+b", buffering=0) as file:  # the runs have it mapped
            file.write(struct.pack("=q", seconds))
        record.met = True
        record.where = f"all processes, {seconds / DAY:+.1f} days"

    def fill_disk(self, _kind: Kind, record: Record) -> None:
        members = self.run.members.ranks
        for process in members:
            limit_files(process, limited=True)
        record.met = bool(members)
        record.where = "all processes"
        self.await_notice(record)
        for process in members:
            limit_files(process, limited=False)

    def close_folder(self, _kind: Kind, record: Record) -> None:
        """Root may write to any folder, so for root a file stands in the folder's place."""
        folder, away = self.run.checkpoints, self.run.folder / "away"
        try:
            if os.geteuid() == 0:
                folder.rename(away)
                folder.touch()
            else:
                folder.chmod(0o500)
        except FileNotFoundError:
            return
        record.met = True
        record.where = "mode 500" if os.geteuid() else "a file stands in its place"
        self.await_notice(record)
        if os.geteuid() == 0:
            folder.unlink()
            away.rename(folder)
        else:
            folder.chmod(0o700)

    def end_at_once(self) -> None:
        self.run.members.kill()
        self.run.clear_away(at_this_load(TO_GO_ON))

    def flip_in_file(self, kind: Kind, record: Record) -> None:
        """The run is killed first, since it reads such files only when it starts."""
        run = self.run
        self.end_at_once()
        files = [run.run_file]
        if kind.name == "flip-checkpoint":
            steps = run.checkpoint_steps()
            folder = run.checkpoint(steps[-1]) if len(steps) > 1 else run.checkpoints / "none"
            files = sorted(folder.glob("*"))
            if files:
                self.flipped = (folder, folder.stat().st_ino)
        if files:
            path = files[self.draw(len(files))]
            record.met = flip_bit(path, self.draw(1 << 53))
            record.where = str(path.relative_to(run.folder))
        if not record.met:
            run.start()  # it was killed in vain

    def flip_in_data(self, _kind: Kind, record: Record) -> None:
        """A bit of a copy of the data, while the run reads it or while it is not running. The bit
        stays until the run has ended, or was refused; then it is as before, as if somebody had put
        the file back."""
        run, reads = self.run, self.draw(2) == 1
        path = run.started.data[self.draw(len(run.started.data))]
        bit = self.draw(1 << 53)
        if not reads:
            self.end_at_once()
            run.mark()
        record.met = flip_bit(path, bit)
        when = "while it is read" if reads else "before a start"
        record.where = f"{path.relative_to(run.folder)}, {when}"
        if not reads:
            run.start()
        if record.met:
            self.await_end(record)
            record.said = run.complaint()
            flip_bit(path, bit)

    def await_notice(self, record: Record) -> None:
        """Waits until the run says something of its files, or has ended."""
        patience = at_this_load(TO_BE_NOTICED)
        self.run.watch(patience, lambda: not self.alive() or self.run.complaint() != "")
        record.said = self.run.complaint()

    def await_end(self, record: Record) -> None:
        """Waits for the run's end, which must come soon after its ranks have waited for each other
        in vain."""
        patience = at_this_load(2 * self.run.timeout + 60)
        if self.run.watch(patience, lambda: not self.alive()):
            record.ended = True
        elif not Wish.came:
            record.wrong = f"the run has not ended in {patience:.0f} s"
            self.run.members.kill()

    def go_on(self, record: Record) -> None:
        """Starts the run again until it has done a step that it had not done before."""
        run, starts, most = self.run, 0, self.run.farthest
        while True:
            patience = at_this_load(TO_GO_ON)
            moves = run.watch(patience, lambda: run.next_step > most or run.over())
            record.ended = record.ended or not self.alive()
            if Wish.came or run.done():
                break
            if not moves:
                record.wrong = f"no new step in {patience:.0f} s"
                run.stop()
            if not run.over():
                break
            if starts == MOST_STARTS:
                record.wrong = f"it does not go on: {run.complaint()}"
                break
            starts += 1
            if not run.clear_away(at_this_load(TO_GO_ON)):
                record.wrong = "a process was left"
            if starts == 1 and not record.said:
                record.said = run.complaint()
            most = run.farthest
            run.start()
            record.starts = starts
        if run.begun > self.begun and run.first_step >= 0:
            record.goes_on_from = run.first_step
        if record.ended and record.kind.fate == "passes":
            record.wrong = f"the run has ended: {run.complaint()}"

    def names(self, record: Record, sign: str) -> bool:
        """Whether the run names the rank or the file, in its text or in the table of where each
        rank was."""
        run = self.run
        text = record.said + run.said
        if re.search(rf"{re.escape(sign)}(?!\d)", text):  # "rank 1" is not in "rank 12"
            return True
        if record.kind.make == "flip_in_data":  # of data that differ before a start: the key
            return "data.content" in text
        # What the rank sends is called "recv 2 -> 3".
        if record.kind.name == "lost" and f" {sign.split()[1]} -> " in text:
            return True
        places = [p for line in run.results for p in line.get("last_collectives") or []]
        return record.kind.names == "rank" and any(
            {"rank": place.get("rank"), **(place.get("in") or {})}.items() >= self.call.items()
            for place in places
        )

    def judge(self, record: Record, least: int) -> None:
        run, kind = self.run, record.kind
        record.said = readable(record.said or run.complaint()).split("\n")[0]
        sign = record.where.split(",")[0]  # "rank 2", or a file
        if kind.names == "file":
            sign = pathlib.Path(sign).name
        record.told = bool(record.said) and (not kind.names or self.names(record, sign))
        wrong = ""
        if record.must_be_told and not record.told:
            wrong = f"the run does not name {sign}" if kind.names else "the run says nothing"
        elif 0 <= record.goes_on_from < least:
            wrong = (
                f"it went on from step {record.goes_on_from}, and there was a checkpoint of step "
                f"{least}"
            )
        record.wrong = record.wrong or wrong
        if run.wrong >= 0:
            record.wrong = f"another loss at step {run.wrong}"

    def judge_unseen(self, record: Record) -> None:
        """Looks for some steps at what the fault does to the losses. Then the run is stopped, as
        checkpoints that were written since may be wrong."""
        run, until = self.run, record.step + UNSEEN_STEPS
        run.watch(
            at_this_load(TO_GO_ON),
            lambda: not self.alive() or run.wrong >= 0 or run.next_step >= until,
        )
        record.said = readable(run.complaint()).split("\n")[0]
        record.told = bool(record.said)
        record.parted = run.wrong >= 0
        if not record.told:
            record.said = (
                f"other losses from step {run.wrong}"
                if record.parted
                else f"the same losses for {UNSEEN_STEPS} steps"
            )
        run.stop()
