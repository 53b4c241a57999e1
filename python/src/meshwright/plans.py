"""Plans as data frames: what the command `plan` says of a script, without training it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import pandas as pd

from meshwright.program import PathLike, Settings, call, words_of

UNITS = {
    "step_seconds": "s",
    "compute_seconds": "s",
    "exposed_seconds": "s",
    "cpu_seconds": "s",
    "seconds": "s",
    "tokens_per_second": "tokens/s",
    "tokens_per_second_per_device": "tokens/s",
    "flops_per_step": "flop",
    "hardware_flops_per_step": "flop",
    "peak_flops": "flop/s",
    "peak_bytes": "bytes",
    "memory_needed": "bytes",
    "memory_limit": "bytes",
    "bytes": "bytes",
    "training_seconds": "s",
}
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers", "scratch", "host", "peak")


class Plan:
    """What one experiment would hold, send and take."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result

    def __getitem__(self, key: str) -> Any:
        return self.result[key]

    @property
    def name(self) -> str:
        """The experiment's name, or its mix."""
        return str(self.result.get("name", ""))

    @property
    def summary(self) -> pd.Series:
        """All of it that is one number or text: ranks, parameters, step_seconds, mfu, fits, …"""
        return pd.Series(
            {
                key: value
                for key, value in self.result.items()
                if key != "kind" and not isinstance(value, (dict, list))
            },
            dtype=object,
        )

    @property
    def memory(self) -> pd.DataFrame:
        """A row for each stage: bytes of a rank by category, and their peak."""
        frame = pd.DataFrame(self.result.get("memory", []))
        frame.attrs["units"] = {name: "bytes" for name in CATEGORIES if name in frame}
        return frame

    @property
    def communication(self) -> pd.DataFrame:
        """A row for each axis, op and phase: calls and bytes of a rank and step, seconds, and
        those not hidden."""
        frame = pd.DataFrame(self.result.get("communication", []))
        frame.attrs["units"] = {name: UNITS[name] for name in frame if name in UNITS}
        return frame

    def __repr__(self) -> str:
        ranks, seconds = self.result.get("ranks"), self.result.get("step_seconds")
        return f"<Plan {self.name!r}: {ranks} ranks, {seconds} s a step>"


class Plans(Sequence[Plan]):
    """The plans that a script makes, in its order, and tables of all of them.

    `results` has every line that the program printed, those of mw.search, mw.goodput and sweeps
    too.
    """

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self.results = results
        self._plans = [Plan(result) for result in results if result.get("kind") == "plan"]

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> list[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | list[Plan]:
        return self._plans[index]

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def summary(self) -> pd.DataFrame:
        """A row for each plan."""
        frame = (
            pd.DataFrame([plan.summary for plan in self._plans])
            .reset_index(drop=True)
            .infer_objects()
        )
        frame.attrs["units"] = {name: UNITS[name] for name in frame if name in UNITS}
        return frame

    @property
    def memory(self) -> pd.DataFrame:
        """A row for each plan and stage; the column `plan` is the plan's number, from 0."""
        return self._table("memory")

    @property
    def communication(self) -> pd.DataFrame:
        """A row for each plan, axis, op and phase."""
        return self._table("communication")

    def _table(self, name: str) -> pd.DataFrame:
        frames, units = [], {}
        for number, plan in enumerate(self._plans):
            frame = getattr(plan, name)
            units.update(frame.attrs["units"])
            frame.insert(0, "plan", number)
            frames.append(frame)
        whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        whole.attrs["units"] = units
        return whole

    def __repr__(self) -> str:
        return f"<Plans: {self._plans!r}>"


def plan(
    script: PathLike,
    set: Settings | None = None,
    *,
    cluster: str | None = None,
    nodes: int | None = None,
    stack: str | None = None,
    options: Iterable[str] = (),
    arguments: Iterable[str] = (),
    program: PathLike | None = None,
    cwd: PathLike | None = None,
) -> Plans:
    """Resolves and predicts a script's experiments (`meshwright plan`); nothing is trained.

    `set` changes keys of the experiment: {"steps": 5, "plan[2].ways": 4, "plan": "{tp(2),
    dp(2)}"}; a text is a word or an expression of Lua. `cluster`, `nodes` and `stack` say what it
    is priced for. `options` are more options of the command, `arguments` the script's own. Raises
    MeshwrightError where the plan is refused (exit code 3) or the script is wrong (2).
    """
    more = [str(option) for option in options]
    for name, value in (("--cluster", cluster), ("--nodes", nodes), ("--stack", stack)):
        if value is not None:
            more += [name, str(value)]
    return Plans(call(words_of("plan", script, set, more, arguments), program=program, cwd=cwd))
