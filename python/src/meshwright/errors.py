"""The one exception that calls of this package raise, with what the program says of a problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.runs import Run


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong, as a line of `--json` has it.

    docs/errors.md lists the codes. `stage` is "script", "options", "plan", "run" or
    "environment"; `key` is the path of what is at fault in the experiment ("plan[2].ways"), or
    empty; `file` and `line` are None for what no script says.
    """

    stage: str
    code: str
    key: str
    message: str
    hint: str = ""
    file: str | None = None
    line: int | None = None

    @staticmethod
    def of(line: Mapping[str, Any]) -> Problem:
        """The problem that a line of kind "error" describes."""
        stage, code, key, message, hint = (
            str(line.get(name) or "") for name in ("stage", "code", "key", "message", "hint")
        )
        return Problem(stage, code, key, message, hint, line.get("file"), line.get("line"))

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file else ""
        return f"{place}{self.message}" + (f" [{self.hint}]" if self.hint else "")


class MeshwrightError(Exception):
    """The program ended with another code than 0, or a file is none that can be read.

    `exit_code` is the program's (2: usage or script, 3: plan refused, 1: the run failed, 4: some
    cells failed, 5: environment, 130: interrupted), and 2 or 5 for what this package finds
    itself. `problems` has all that the program named, the first of which `stage`, `code`, `key`,
    `message` and `hint` repeat. `results` has the lines that it printed before it ended, `run`
    the run that failed where it left a file, and `stderr` its text for people.
    """

    def __init__(
        self,
        exit_code: int,
        problems: Sequence[Problem],
        *,
        results: Sequence[dict[str, Any]] = (),
        stderr: str = "",
        run: Run | None = None,
    ) -> None:
        self.exit_code = exit_code
        self.problems = list(problems)
        self.results = list(results)
        self.stderr = stderr
        self.run = run
        first = self.problems[0] if self.problems else Problem("", "", "", stderr.strip()[-2000:])
        self.stage, self.code, self.key = first.stage, first.code, first.key
        self.message, self.hint = first.message, first.hint
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        code = f"{first.code}: " if first.code else ""
        super().__init__(f"exit {exit_code}: {code}{first}{more}")
