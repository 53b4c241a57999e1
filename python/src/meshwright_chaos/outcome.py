"""Reports the faults of a training: as JSON, and as a table by kind."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshwright_called.texts import plural, size, table
from meshwright_chaos.faults import Record
from meshwright_chaos.kinds import KINDS


@dataclasses.dataclass
class Outcome:
    """What a training has made of all its faults."""

    records: list[Record] = dataclasses.field(default_factory=list)
    ranks: int = 0
    steps: int = 0  # of the training
    rounds: int = 0  # that came to their end, with all losses right
    weighed: int = 0  # looks at the memory that were compared with a start's first one
    grown: int = 0  # bytes, at most, by which a start's processes have grown
    wrong: list[str] = dataclasses.field(default_factory=list)  # that belongs to no fault
    interrupted: bool = False

    @property
    def good(self) -> bool:
        return not self.wrong and not any(record.wrong for record in self.records)

    @property
    def why_untried(self) -> str:
        """Why nothing is known of what the training makes of faults; empty: one has come about."""
        if any(record.met for record in self.records):
            return ""
        if not self.records:
            return "nothing was tried: no fault was made"
        which = "the fault" if len(self.records) == 1 else "each of the faults"
        return f"nothing was tried: {which} found no place"

    def of_kinds(self) -> list[dict[str, Any]]:
        """The counts of each kind that was tried."""
        counts = []
        for kind in KINDS:
            tried = [record for record in self.records if record.kind == kind]
            met = [record for record in tried if record.met]
            right = None
            if kind.fate != "unseen":
                right = sum(not record.wrong for record in met)
            if tried:
                counts.append(
                    {
                        "fault": kind.name,
                        "injected": len(met),
                        "missed": len(tried) - len(met),
                        "must_be_told": sum(record.must_be_told for record in met),
                        "told": sum(record.told for record in met),
                        "ended": sum(record.ended for record in met),
                        "right": right,
                        "longest_seconds": max((record.seconds for record in met), default=0.0),
                    }
                )
        return counts

    def facts(self) -> dict[str, Any]:
        """The last line of JSON."""
        status = "interrupted" if self.interrupted else "right" if self.good else "wrong"
        return {
            "kind": "chaos",
            "status": status,
            "ranks": self.ranks,
            "steps": self.steps,
            "rounds": self.rounds,
            "grown_bytes": self.grown if self.weighed else None,
            "wrong": self.wrong,
            "faults": self.of_kinds(),
        }

    def text(self) -> str:
        """The table, and what was wrong."""
        about = {kind.name: kind for kind in KINDS}
        rows = [["fault", "injected", "told", "run ended", "resumed right", "longest", ""]]
        for sums in self.of_kinds():
            kind = about[sums["fault"]]
            told, must, met, missed = (
                sums[key] for key in ("told", "must_be_told", "injected", "missed")
            )
            note = kind.about
            if kind.fate == "unseen":
                note += ": cannot be seen, trains on"
            if missed:
                note += f" ({missed} found no place)"
            rows.append(
                [
                    kind.name,
                    str(met),
                    f"{told} of {must}" if must else str(told or "-"),
                    str(sums["ended"]),
                    "-" if sums["right"] is None else f"{sums['right']} of {met}",
                    f"{sums['longest_seconds']:.1f} s",
                    note,
                ]
            )
        text = table(rows, right=range(1, 6))
        parted = sum(record.parted for record in self.records)
        but = ""
        if parted:
            were = "was" if parted == 1 else "were"
            but = (
                f"; {parted} more had other losses after a fault that no training can see, and "
                f"{were} given up"
            )
        memory = "no process ran long enough to measure whether its memory grew"
        if self.weighed:
            memory = f"processes grew by {size(self.grown)} at most"
        text += (
            f"\n  {plural(self.rounds, 'training')} of {plural(self.steps, 'step')} on "
            f"{plural(self.ranks, 'rank')} came to {'its' if self.rounds == 1 else 'their'} end "
            f"with the losses of the one without faults{but}; {memory}\n"
        )
        for record in self.records:
            if record.wrong:
                fault = f"fault {record.number} ({record.kind.name}; {record.where})"
                text += f"  wrong: {fault}: {record.wrong}\n"
        return text + "".join(f"  wrong: {one}\n" for one in self.wrong)
