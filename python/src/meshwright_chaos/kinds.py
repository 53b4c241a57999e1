"""The faults that `meshwright chaos` knows."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault, what a training is to make of it, and what it needs."""

    name: str
    about: str
    # "ends": the run ends, says why, and goes on from its checkpoint. "passes": it goes on, and
    # need not say anything. "told": it says so, and goes on or ends. "unseen": nothing can see it,
    # and the training goes on with other numbers.
    fate: str
    make: str  # the method of Faults that makes it
    names: str = ""  # what the run must name when it tells of it: "rank" or "file"
    several: bool = False  # the run must have several processes
    longer: bool = False  # it lasts longer than ranks wait for each other, else less long
    silent: bool = False  # whatever its fate, the run need not tell of it
    checkpoints: int = 1  # so many must be there before it is made

    @property
    def in_rank(self) -> bool:
        """Whether a rank makes it, at a collective."""
        return self.make == "order"

    @property
    def must_be_told(self) -> bool:
        """Whether the run has to say something of it."""
        return self.fate != "passes" and not self.silent


KINDS = [
    Kind("error", "a rank throws at a collective", "ends", "order", names="rank"),
    Kind("kill", "a process is killed (SIGKILL)", "ends", "kill"),
    # Once the launcher is killed, nobody is left to say anything.
    Kind("launcher", "what started the processes is killed", "ends", "kill", silent=True),
    Kind(
        "hang",
        "a process stands still for longer than the timeout",
        "ends",
        "stand_still",
        several=True,
        longer=True,
    ),
    Kind("pause", "a process stands still for less than the timeout", "passes", "stand_still"),
    Kind(
        "suspend",
        "all processes stand still for longer than the timeout",
        "passes",
        "stand_still",
        longer=True,
    ),
    Kind("slow", "a rank is late at each collective for a while", "passes", "order"),
    Kind("delay", "a message comes late, within the timeout", "passes", "order"),
    Kind("lost", "a message is lost", "ends", "order", names="rank", longer=True),
    Kind("clock", "the wall clock jumps", "passes", "jump_clock"),
    Kind("full", "no file can be written beyond 4 KiB, as on a full disk", "told", "fill_disk"),
    Kind("read-only", "the folder of the checkpoints cannot be written", "told", "close_folder"),
    Kind("nan", "NaN comes up in a tensor of one rank", "ends", "order"),
    Kind(
        "flip-checkpoint",
        "a bit flips in a file of the newest checkpoint",
        "ends",
        "flip_in_file",
        names="file",
        checkpoints=2,
    ),
    # A flipped bit need not make the run file wrong.
    Kind("flip-run-file", "a bit flips in the run file", "ends", "flip_in_file", silent=True),
    Kind("flip-shard", "a bit flips in a file of the data", "ends", "flip_in_data", names="file"),
    Kind("flip-gradient", "a bit flips in a gradient before its sum", "unseen", "order"),
]
