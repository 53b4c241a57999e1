"""Reads one run: its tables as data frames, and what else its file says."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import socket
import urllib.parse
from typing import Any

import h5py
import numpy as np
import pandas as pd

from meshwright.errors import MeshwrightError, Problem
from meshwright.program import PathLike

SCHEMA = "meshwright.run/1"
# Columns in which -1 says that nothing was predicted.
PREDICTED = "predicted_bytes"
# The steps that medians of speeds leave out: the first two where there are more than FEW_STEPS,
# else the first, unless it is the only one.
WARM_UP, FEW_STEPS = 2, 4
# States of a sweep's cell that its run file does not know.
ENDS_OF_CELLS = ("failed", "skipped", "refused")
SPEEDS = ("step_seconds", "tokens_per_second", "mfu", "bubble_fraction")


def unreadable(path: pathlib.Path, why: str, hint: str = "") -> MeshwrightError:
    """The error for a file that cannot be read as a run or a sweep."""
    return MeshwrightError(2, [Problem("script", "runs.unreadable", "", f"{path}: {why}", hint)])


def texts_decoded(frame: pd.DataFrame) -> pd.DataFrame:
    """Makes Python's texts of the bytes of HDF5, and marks what was not predicted as missing."""
    for name in frame.columns:
        values = frame[name]
        if values.dtype == object:
            frame[name] = values.map(
                lambda one: one.decode("utf-8", "replace") if isinstance(one, bytes) else one
            )
        elif name == PREDICTED:
            frame[name] = values.astype("Int64").mask(values < 0)
    return frame


def frame_of(dataset: h5py.Dataset) -> pd.DataFrame:
    """A table of a run file, with the units of its columns in `attrs["units"]`."""
    rows = dataset[:]
    # One column after the other: a frame made of compound rows has bytes of a fixed size.
    frame = pd.DataFrame(
        {
            name: (rows[name].astype(object) if rows.dtype[name].kind == "S" else rows[name])
            for name in rows.dtype.names or ()
        }
    )
    frame = texts_decoded(frame)
    prefix = "units_"
    frame.attrs["units"] = {
        name.removeprefix(prefix): text_of(value)
        for name, value in dataset.attrs.items()
        if name.startswith(prefix)
    }
    return frame


def text_of(value: Any) -> str:
    """A text of HDF5, which h5py gives as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def lives(mark: str) -> bool:
    """Whether the process is there that wrote a file; its mark is its number and when it
    began."""
    number, _, began = mark.partition(" ")
    try:
        fields = pathlib.Path(f"/proc/{int(number)}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, ValueError, IndexError):
        return False
    return fields[19] == began and fields[0] != "Z"


class Run:
    """A run, as its file says.

    Tables are read when they are first asked for, and kept; `refresh` forgets them.
    A run that goes on may be read: its file is whole at any time and changes once a second. Each
    table is a pandas.DataFrame whose `attrs["units"]` has the units of its columns; docs/runs.md
    describes them all.
    """

    def __init__(self, path: PathLike) -> None:
        given = pathlib.Path(path)
        self.path = given / "run.h5" if given.is_dir() else given
        self._frames: dict[str, pd.DataFrame] = {}
        self._texts: dict[str, Any] = {}
        self._attributes: dict[str, Any] = {}
        self.refresh()

    def refresh(self) -> Run:
        """Reads the attributes anew and forgets tables, so that these are read anew too."""
        self._frames, self._texts = {}, {}
        self.__dict__.pop("_judgement", None)
        with self._open() as file:
            attributes = {
                name: text_of(value) if isinstance(value, bytes) else value
                for name, value in file.attrs.items()
            }
        schema = attributes.get("schema")
        if schema != SCHEMA:
            raise unreadable(
                self.path,
                f"its schema is {schema!r}, and this package reads {SCHEMA!r}",
                "a newer file needs a newer package",
            )
        self._attributes = attributes
        return self

    def _open(self) -> h5py.File:
        try:
            return h5py.File(self.path, "r", locking=False)
        except OSError as error:
            why = (
                "there is no such file"
                if not self.path.exists()
                else f"it is no HDF5 file ({error})"
            )
            raise unreadable(
                self.path, why, "name a run file, or the folder of a run, which has run.h5"
            ) from None

    def _table(self, name: str) -> pd.DataFrame:
        if name not in self._frames:
            with self._open() as file:
                self._frames[name] = frame_of(file[name]) if name in file else pd.DataFrame()
        return self._frames[name]

    def _text(self, name: str) -> str | None:
        if name not in self._texts:
            with self._open() as file:
                self._texts[name] = text_of(file[name][()]) if name in file else None
        found: str | None = self._texts[name]
        return found

    def _json(self, name: str) -> dict[str, Any] | None:
        text = self._text(name)
        value = json.loads(text) if text else None
        return value if isinstance(value, dict) else None

    def _attribute(self, name: str) -> str:
        return str(self._attributes.get(name, ""))

    # What the file says of the run as a whole.

    @property
    def name(self) -> str:
        """The experiment's name, or its mix."""
        return self._attribute("name")

    @property
    def hash(self) -> str:
        """16 hex digits over all that decides what is computed (docs/runs.md)."""
        return self._attribute("hash")

    @property
    def hash_without_seed(self) -> str:
        """The same without the seed: runs for which it is equal are repeats. Empty in files of
        earlier versions."""
        return self._attribute("hash_without_seed")

    @property
    def plan_hash(self) -> str:
        """The hash of the plan."""
        return self._attribute("plan_hash")

    @property
    def seed(self) -> int:
        """The seed of weights and data."""
        return int(self._attributes.get("seed", 0))

    @property
    def status(self) -> str:
        """One of "done", "failed", "interrupted", "running" and "killed"; killed is a run of this
        host whose file says running and whose process is gone. Of a sweep's cell it is the sweep's
        where that says more than the file can: that the cell trained differently."""
        status = self._attribute("status")
        if status == "done" and self._judgement.get("status") in ENDS_OF_CELLS:
            return self._judgement["status"]
        mark = self._attribute("process")
        if status != "running" or self._attribute("host") != socket.gethostname() or not mark:
            return status
        return "running" if lives(mark) else "killed"

    @property
    def reason(self) -> str:
        """Why the status is not done, or why the run ended early; else empty."""
        if self.status in ENDS_OF_CELLS and self.status != self._attribute("status"):
            return self._judgement.get("reason") or ""
        return self._attribute("reason")

    @functools.cached_property
    def _judgement(self) -> dict[str, Any]:
        """The sweep's result beside a cell's file; empty where the file is no cell's."""
        beside = self.path.parent / "result.json"
        if self.path.name != "run.h5" or not beside.exists():
            return {}
        try:
            result = json.loads(beside.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # damaged: the file's own words count
            return {}
        return result if isinstance(result, dict) and result.get("kind") == "cell" else {}

    @property
    def created(self) -> pd.Timestamp:
        """When the file was made, in UTC."""
        return pd.Timestamp(self._attribute("created"))

    @property
    def host(self) -> str:
        """Where it ran."""
        return self._attribute("host")

    @property
    def versions(self) -> dict[str, Any]:
        """The versions of meshwright, torch and the compiler."""
        value = json.loads(self._attribute("versions") or "{}")
        return value if isinstance(value, dict) else {}

    @property
    def script(self) -> str:
        """The script's text."""
        return self._text("script") or ""

    @property
    def experiment(self) -> dict[str, Any]:
        """All keys of the experiment with their defaults, `--set` applied."""
        return self._json("experiment") or {}

    @property
    def plan(self) -> dict[str, Any]:
        """Mesh, microbatches, rules and schedule."""
        return self._json("plan") or {}

    @property
    def predicted(self) -> dict[str, Any]:
        """What the plan predicted, as `plan --json` has it."""
        return self._json("predicted") or {}

    @property
    def machine(self) -> dict[str, Any]:
        """CPU, cores, memory, system and versions of where it ran."""
        return self._json("machine") or {}

    @property
    def result(self) -> dict[str, Any]:
        """What the run's result says beside the tables; empty until it has ended."""
        return self._json("result") or {}

    # Its tables.

    @property
    def steps(self) -> pd.DataFrame:
        """A row a step: seconds, loss, grad_norm, lr, tokens, tokens_per_second, mfu, bubble, and
        who used the cores."""
        return self._table("steps")

    @property
    def memory(self) -> pd.DataFrame:
        """A row for each rank and category: bytes now, peak_bytes, predicted_bytes (of the peak;
        missing: none)."""
        return self._table("memory")

    @property
    def rank_memory(self) -> pd.DataFrame:
        """A row for each rank, all categories together."""
        return self._table("rank_memory")

    @property
    def communication(self) -> pd.DataFrame:
        """A row for each step, rank, axis, op and phase: calls, bytes and seconds, measured
        beside predicted."""
        return self._table("communication")

    @property
    def work(self) -> pd.DataFrame:
        """A row for each step, rank, op and piece: calls, flops, seconds."""
        return self._table("work")

    @property
    def experts(self) -> pd.DataFrame:
        """A row for each step, layer and expert: tokens that chose it, and that it took."""
        return self._table("experts")

    @property
    def actions(self) -> pd.DataFrame:
        """What each rank did when: F, B, I, W, receives and the step's end."""
        return self._table("actions")

    @property
    def predicted_actions(self) -> pd.DataFrame:
        """The same of a step as predicted."""
        return self._table("predicted_actions")

    @property
    def events(self) -> pd.DataFrame:
        """What happened to the run: time, step, rank, kind, message."""
        return self._table("events")

    @property
    def trace(self) -> pd.DataFrame:
        """Ops, waits and transfers of the steps that were traced."""
        return self._table("trace")

    @property
    def predicted_trace(self) -> pd.DataFrame:
        """The same as predicted."""
        return self._table("predicted_trace")

    @property
    def trace_memory(self) -> pd.DataFrame:
        """What each rank held when, in the steps that were traced."""
        return self._table("trace_memory")

    @property
    def predicted_trace_memory(self) -> pd.DataFrame:
        """The same as predicted."""
        return self._table("predicted_trace_memory")

    @property
    def account(self) -> pd.DataFrame:
        """Where the seconds of the traced steps went, with `account = true` in the experiment."""
        return self._table("account")

    @property
    def bandwidth(self) -> pd.DataFrame:
        """How fast ranks read and write memory, with `account = true`."""
        return self._table("bandwidth")

    @property
    def series(self) -> pd.DataFrame:
        """What `observe` returned: a column for each name, and the steps as the index; NaN where
        a step lacks it."""
        if "series" not in self._frames:
            with self._open() as file:
                self._frames["series"] = (
                    series_of(file["series"]) if "series" in file else pd.DataFrame()
                )
        return self._frames["series"]

    @property
    def summary(self) -> pd.Series:
        """The run in a dozen numbers: last losses, the speed of the median step after the warm-up,
        the fullest rank's peak."""
        steps, memory, result = self.steps, self.rank_memory, self.result
        values: dict[str, Any] = {
            "name": self.name,
            "status": self.status,
            "reason": self.reason,
            "hash": self.hash,
            "hash_without_seed": self.hash_without_seed,
            "seed": self.seed,
            "ranks": self.plan.get("ranks", result.get("ranks")),
            "steps": len(steps),
        }
        for column in ("loss", "grad_norm"):
            values[column] = steps[column].iloc[-1] if len(steps) else np.nan
        timed = steps.iloc[WARM_UP if len(steps) > FEW_STEPS else min(1, max(len(steps) - 1, 0)) :]
        seconds = timed["seconds"].median()
        values["step_seconds"] = seconds
        values["tokens_per_second"] = timed["tokens"].median() / seconds
        values["mfu"] = (
            values["tokens_per_second"] * (timed["mfu"] / timed["tokens_per_second"]).median()
        )
        values["bubble_fraction"] = timed["bubble"].median()
        values["peak_bytes"] = memory["peak_bytes"].max() if len(memory) else pd.NA
        values["predicted_peak_bytes"] = memory[PREDICTED].max() if len(memory) else pd.NA
        values["predicted_step_seconds"] = self.predicted.get("step_seconds")
        values["path"] = os.fspath(self.path)
        # Where the run has said more exactly what these are.
        for name in SPEEDS:
            if result.get(name) is not None:
                values[name] = result[name]
        return pd.Series(values, dtype=object)

    def __repr__(self) -> str:
        return (
            f"<Run {self.name!r}: {self.status}, {len(self.steps)} steps, {os.fspath(self.path)}>"
        )


def series_of(group: h5py.Group) -> pd.DataFrame:
    """All metrics below /series, each under the name that it was given."""
    columns: dict[str, Any] = {}

    def take(place: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset) and place != "step":
            given = item.attrs.get("name")
            columns[text_of(given) if given is not None else urllib.parse.unquote(place)] = item[:]

    group.visititems(take)
    index = pd.Index(group["step"][:] if "step" in group else [], name="step")
    # A metric that came late may be shorter than the steps while the run goes on.
    length = len(index)
    padded = {
        name: np.concatenate([values[:length], np.full(max(0, length - len(values)), np.nan)])
        for name, values in columns.items()
    }
    return pd.DataFrame(padded, index=index)


def read_run(path: PathLike) -> Run:
    """Reads a run file, or the folder of a run.

    Raises MeshwrightError where there is none, or none of this version.
    """
    return Run(path)
