"""The order of events: the training without faults, then rounds of it with one fault after the
other, and at the end a look at what is left."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

from meshwright_called import Refused, nearest
from meshwright_called.texts import plural, size
from meshwright_chaos.faults import Faults, Record
from meshwright_chaos.kinds import KINDS, Kind
from meshwright_chaos.outcome import Outcome
from meshwright_chaos.processes import Process, Wish, at_this_load, resident_bytes
from meshwright_chaos.texts import readable
from meshwright_chaos.training import Start, Training, losses_of, objects_in

TO_FINISH = 60  # seconds that the last round has to come to its end
TO_BEGIN = 120  # seconds that a start has to come to its first checkpoint
MOST_IDLE_ROUNDS = 4  # rounds in a row that end before there is a moment for a fault
MOST_BAD_ROUNDS = 3
GROWTH_THAT_COUNTS = 64 << 20  # bytes of all processes
# What a start's processes do before their memory is looked at for the first time: caches of
# allocators, the log's buffers and those of checkpoints have their size then.
STEPS_TO_SETTLE, CHECKPOINTS_TO_SETTLE = 20, 2


class Speaker:
    """What the user hears and reads."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.json, self.quiet = request["json"], request["quiet"]
        self.lost = ""  # why something that was for stdout could not be written
        self.log, self.log_lost = None, False
        if request["log"]:
            try:
                file = pathlib.Path(request["log"])
                if file.is_file() and file.read_bytes()[:16] not in (b"", b'{"kind":"fault",'):
                    raise Refused(
                        "page.foreign",
                        f"--log {file}: it is there, and it is no log of chaos",
                        "name another file; a log of chaos that is there is replaced",
                    )
                self.log = open(file, "w", encoding="utf-8")
            except OSError as error:
                raise Refused(
                    "file.write",
                    f"--log: {request['log']}: cannot write it: {error.strerror}",
                    "name a file in a folder that you may write to",
                ) from None

    def write(self, file: int, text: str) -> None:
        rest = text.encode()
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError as error:
            if file == sys.stdout.fileno() and error.errno != errno.EPIPE:
                self.lost = os.strerror(error.errno or 0)

    def note(self, text: str) -> None:
        if not self.quiet:
            self.write(sys.stderr.fileno(), readable(text) + "\n")

    def text(self, text: str) -> None:
        if not self.json and not self.quiet:
            self.write(sys.stdout.fileno(), readable(text))

    def result(self, facts: dict[str, Any]) -> None:
        if self.json:
            self.write(sys.stdout.fileno(), json.dumps(facts, separators=(",", ":")) + "\n")

    def heard(self, record: Record) -> None:
        """Tells of a fault."""
        facts = record.facts()
        if self.log:
            try:
                self.log.write(json.dumps(facts, separators=(",", ":")) + "\n")
                self.log.flush()
            except OSError:
                self.log_lost = True
        self.note(record.text())
        self.result(facts)


def unusable(what: str, hint: str) -> Refused:
    return Refused("chaos.script", f"chaos: {what}", hint, stage="script")


def train_undisturbed(
    start: Start, folder: pathlib.Path, speaker: Speaker
) -> tuple[dict[str, Any], list[dict[str, Any]], float] | None:
    """Trains as the script says, without faults, with processes that are started as they will be
    with faults: the result, the files of the data, and the seconds. None if the user wishes an end.
    """
    folder.mkdir()
    script = start.request["script"]
    settings = ["log=nil", "checkpoint=nil", "resume=nil"]
    restarts = 0 if start.request["launcher"] else None
    began = time.monotonic()
    process = Process(start.words(folder, settings, restarts))
    printed, unread, asked = b"", b"", False
    while process.running:
        out, err = process.look(0.1)
        printed += out
        *lines, unread = (unread + err).split(b"\n")
        for line in lines:  # how far it is
            if line.startswith(b"step "):
                speaker.note(line.decode(errors="backslashreplace"))
        if Wish.came and not asked:
            process.ask_to_end()
            asked = True
    seconds = time.monotonic() - began
    if Wish.came:
        return None
    results = objects_in(printed)
    if process.exit_code != 0:
        errors = [f": {line['message']}" for line in results if line.get("kind") == "error"]
        raise unusable(
            f"without any fault {script} ends with {process.exit_code}{''.join(errors[:1])}",
            f"mend the script first: meshwright run {script}",
        )
    runs = [line for line in results if line.get("kind") == "train"]
    if len(runs) != 1:
        raise unusable(
            f"{script} trains {len(runs)} times, and one training is disturbed",
            "give a script with one mw.train",
        )
    files = folder / "files.json"
    return runs[0], json.loads(files.read_text()) if files.exists() else [], seconds


def unfit(kind: Kind, ranks: int, start: Start) -> str:
    """Why a kind is not for this training; empty: it is."""
    if kind.in_rank and ranks < 2:
        return "it needs a plan of two ranks, as a rank meets it when it communicates"
    if kind.several and not start.several:
        return "it needs several processes"
    if kind.name == "clock" and not start.clock_library.exists():
        return f"{start.clock_library} is not there"
    if kind.name == "flip-shard" and not start.data:
        return "its data source lists no files, or files of more than 256 MiB, which are not copied"
    return ""


def chosen_kinds(start: Start, ranks: int, speaker: Speaker) -> list[Kind]:
    """Those that the user has named, or all that can happen to the training."""
    named, kinds = start.request["kinds"], []
    for kind in KINDS:
        if named and kind.name not in named:
            continue
        why = unfit(kind, ranks, start)
        if not why:
            kinds.append(kind)
        elif named:
            raise Refused(
                "usage.value",
                f"--kinds {kind.name}: {why}",
                "leave it out, or change the plan or --processes",
            )
        else:
            speaker.note(f"not tried: {kind.name}: {why}")
    return kinds


class Conductor:
    """Disturbs a training again and again."""

    def __init__(
        self,
        start: Start,
        folder: pathlib.Path,
        losses: list[float],
        seconds: float,
        outcome: Outcome,
        speaker: Speaker,
    ) -> None:
        self.request, self.outcome, self.speaker = start.request, outcome, speaker
        self.kinds = chosen_kinds(start, outcome.ranks, speaker)
        self.began, self.whole = time.monotonic(), seconds  # of a training without faults
        self.run = Training(start, folder, losses)
        self.faults = Faults(self.run, outcome.ranks, self.request["seed"])
        self.deck: list[Kind] = []  # to be drawn from its end
        self.bad_rounds = 0
        self.weighed: list[int] = []  # the processes of the last look
        self.begun = -1  # how often the run had begun then
        self.first_bytes: int | None = None

    def conduct(self) -> None:
        run = self.run
        run.begin_anew()
        number = 0
        while not self.enough(number):
            number += 1
            kind = self.next_kind()
            if not self.await_moment(kind):
                break
            self.weigh()
            run.mark()  # takes what the run has said until now
            if self.note_wrong_loss(f", before fault {number}"):
                run.stop()
                run.begin_anew()
                continue
            record = self.faults.make(kind, number)
            record.at = time.monotonic() - self.began
            if Wish.came:
                break
            self.take(record)
        self.finish()

    def enough(self, done: int) -> bool:
        """Whether so many faults are all."""
        faults, seconds = self.request["faults"], 60 * self.request["minutes"]
        if not faults and not seconds:
            faults = len(self.request["kinds"] or KINDS)
        late = seconds and time.monotonic() - self.began >= seconds
        return bool(Wish.came or (faults and done >= faults) or late)

    def note_wrong_loss(self, when: str) -> bool:
        """Whether the training has computed with a wrong number since the last fault was
        judged."""
        if self.run.wrong < 0:
            return False
        self.outcome.wrong.append(f"another loss at step {self.run.wrong}{when}")
        return True

    def next_kind(self) -> Kind:
        """Each kind once, in an order that is drawn, then each once more."""
        if not self.deck:
            drawn = [(self.faults.share(), kind) for kind in self.kinds]
            self.deck = [kind for _, kind in sorted(drawn, key=lambda one: one[0])]
        return self.deck.pop()

    def await_moment(self, kind: Kind) -> bool:
        """Lets the training alone for a while, and begins it anew where it is done."""
        run = self.run
        quiet = self.request["every"] * (0.5 + self.faults.share())
        for _ in range(MOST_IDLE_ROUNDS):
            since = time.monotonic()
            run.watch(quiet, run.over)
            quiet = max(0.0, quiet - (time.monotonic() - since))
            if not run.over():
                patience = at_this_load(TO_BEGIN)
                run.watch(patience, lambda: self.faults.ready_for(kind) or run.over())
            if Wish.came:
                return False
            if not run.over():
                if self.faults.ready_for(kind):
                    return True
                break
            if not self.close_round():
                self.bad_rounds += 1
                if self.bad_rounds == MOST_BAD_ROUNDS:
                    return False
            run.begin_anew()
        self.outcome.wrong.append(
            f"there was no moment for the fault {kind.name}: the training must go on for longer "
            f"than {self.request['every']:.1f} s and write checkpoints"
        )
        return False

    def close_round(self) -> bool:
        """A training has ended by itself. Whether all is well with it."""
        run = self.run
        if not run.done():
            wrong = f"a training without faults ended with {run.exit_code}: {run.complaint()}"
        else:
            wrong = run.wrong_in_result() or run.wrong_in_run_file(whole=True)
            if not wrong and run.wrong >= 0:
                wrong = f"another loss at step {run.wrong}"
        run.wrong = -1  # it has been said
        if wrong:
            self.outcome.wrong.append(wrong)
        else:
            self.outcome.rounds += 1
        return not wrong

    def take(self, record: Record) -> None:
        """Takes note of what became of a fault."""
        run, unseen = self.run, record.kind.fate == "unseen"
        record.processes, record.resident, record.grown = self.weigh()
        spoiled = unseen or run.wrong >= 0
        if not record.met:
            self.note_wrong_loss(f", before fault {record.number}")
        elif not spoiled and not record.wrong and record.kind.fate != "passes":
            # Else nothing has happened to it, and the next look sees what is wrong with it.
            record.wrong = run.wrong_in_run_file()
        self.speaker.heard(record)
        self.outcome.records.append(record)
        # A training that has computed with a wrong number is of no further use.
        if spoiled or record.wrong:
            run.stop()
            run.begin_anew()

    def weigh(self) -> tuple[list[int], int, int | None]:
        """What the processes that train hold now, and how much more that is than at the first look
        at them once they had settled."""
        run, processes = self.run, self.run.members.ranks
        now = sum(map(resident_bytes, processes))
        if not processes:
            return processes, now, None
        if processes != self.weighed:
            # Unless they have said that they begin, the known steps are of those before them.
            if run.begun == self.begun:
                return processes, now, None
            self.weighed, self.begun, self.first_bytes = processes, run.begun, None
        if self.first_bytes is not None:
            self.outcome.weighed += 1
        elif self.settled():
            self.first_bytes = now
        else:
            return processes, now, None
        grown = now - self.first_bytes
        self.outcome.grown = max(self.outcome.grown, grown)
        return processes, now, grown

    def settled(self) -> bool:
        first = self.run.first_step
        if first < 0 or self.run.next_step - first < STEPS_TO_SETTLE:
            return False
        later = [step for step in self.run.checkpoint_steps() if step > first]
        return len(later) >= CHECKPOINTS_TO_SETTLE

    def finish(self) -> None:
        """Lets the last round come to its end, if that is near, and looks at what is left."""
        run, outcome = self.run, self.outcome
        self.weigh()
        outcome.interrupted = Wish.came
        # Twice as long as without faults, and ten seconds for a start.
        left = 10 + 2 * self.whole * (run.steps - run.next_step) / run.steps
        if not outcome.interrupted and not run.over() and left < TO_FINISH:
            run.watch(TO_FINISH, run.over)
        self.look_at_end()
        if run.over() and not outcome.interrupted and self.bad_rounds < MOST_BAD_ROUNDS:
            self.close_round()
        if not run.stop():
            outcome.wrong.append("processes outlived the end of the run")
        self.note_wrong_loss(", after the last fault")
        if wrong := run.wrong_in_run_file():
            outcome.wrong.append(wrong)
        self.look_at_checkpoints()
        self.look_at_files()
        if outcome.why_untried and not outcome.interrupted:
            outcome.wrong.append(outcome.why_untried)
        if outcome.grown > GROWTH_THAT_COUNTS:
            grown = size(outcome.grown)
            outcome.wrong.append(f"processes have grown by {grown} while they were disturbed")

    def look_at_end(self) -> None:
        """A training that has done its last step comes to its end, and does not hang there."""
        run = self.run
        if self.outcome.interrupted or run.over() or run.next_step < run.steps:
            return
        patience = at_this_load(TO_FINISH)
        if not run.watch(patience, run.over) and not Wish.came:
            self.outcome.wrong.append(
                f"all steps are done, and the run has not ended in {patience:.0f} s"
            )

    def look_at_checkpoints(self) -> None:
        if self.run.checkpoint_steps():
            code, _, text = self.run.started.read("checkpoints", str(self.run.checkpoints))
            if code != 0 and not Wish.came:
                self.outcome.wrong.append(f"a checkpoint is broken: {text}")

    def look_at_files(self) -> None:
        """What a launcher that was killed leaves is cleared away by the next one, once it is ten
        seconds old."""
        run = self.run
        left = [
            str(path.relative_to(run.folder))
            for folder in (run.folder / "tmp", run.checkpoints)
            for path in (folder.iterdir() if folder.is_dir() else ())
            if not path.name.startswith(("step-", "meshwright-mpirun-"))
            and not path.name.endswith(".lock")
            and path.name != ".in-use"
        ]
        if left:
            self.outcome.wrong.append(f"temporary files are left: {', '.join(left)}")


def disturb(start: Start, folder: pathlib.Path, speaker: Speaker) -> Outcome:
    """Trains once without faults, then with them, in the folder, which is empty."""
    speaker.note("the training without faults, whose time --minutes does not count")
    undisturbed = train_undisturbed(start, folder / "undisturbed", speaker)
    outcome = Outcome(interrupted=undisturbed is None)
    if undisturbed is None:
        return outcome
    result, files, seconds = undisturbed
    losses = losses_of(result)
    outcome.ranks, outcome.steps = result.get("ranks") or 1, len(losses)
    speaker.note(
        f"{plural(outcome.ranks, 'rank')}, {plural(outcome.steps, 'step')}; with faults from here "
        f"on, seed {start.request['seed']}"
    )
    if "flip-shard" in (start.request["kinds"] or [kind.name for kind in KINDS]):
        start.copy_data(files, folder / "data")
    conductor = Conductor(start, folder, losses, seconds, outcome, speaker)
    try:
        conductor.conduct()
    finally:
        conductor.run.stop()
    return outcome


def conduct(request: dict[str, Any]) -> dict[str, Any]:
    """Does what the command was asked for, and says the exit code. Raises Refused."""
    signal.signal(signal.SIGTERM, Wish.take)
    known = [kind.name for kind in KINDS]
    for name in request["kinds"]:
        if name not in known:
            raise Refused(
                "usage.value",
                f"--kinds {name}: there is no fault of that name",
                nearest(name, known),
            )
    speaker = Speaker(request)
    os.environ["MESHWRIGHT_DETERMINISTIC"] = "1"  # losses are compared to the bit
    # Its name stands in the words of all processes of the run.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mw-chaos-"))
    kept = False
    try:
        outcome = disturb(Start(request), folder, speaker)
        kept = not outcome.good
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    if speaker.log_lost:
        speaker.write(sys.stderr.fileno(), f"{request['log']} could not be written to its end\n")
    if kept:
        speaker.note(f"{folder} is kept: the run's files are in it")
    if outcome.steps:  # not ended during the training without faults
        speaker.text(outcome.text())
    speaker.result(outcome.facts())
    if speaker.lost:
        raise Refused(
            "output.lost",
            f"stdout cannot be written: {speaker.lost}; what this command says is lost there",
            "make room, or send stdout to another place, and run the command again",
            stage="run",
        )
    return {"exit_code": 130 if outcome.interrupted else 0 if outcome.good else 1}
