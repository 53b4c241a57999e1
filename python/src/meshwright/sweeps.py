"""Reads a sweep's folder: its cells as a data frame, and their runs."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pandas as pd

from meshwright.errors import MeshwrightError
from meshwright.program import PathLike
from meshwright.runs import Run, read_run, unreadable

SCHEMA = "meshwright.sweep/1"
# The numbers of its run that a row of `cells` has beside what the sweep says.
OF_RUNS = (
    "steps",
    "loss",
    "grad_norm",
    "step_seconds",
    "tokens_per_second",
    "mfu",
    "bubble_fraction",
    "peak_bytes",
    "predicted_peak_bytes",
    "predicted_step_seconds",
    "ranks",
    "seed",
    "hash",
    "hash_without_seed",
)


class Sweep:
    """A sweep, as its folder was when it was read.

    A sweep that goes on may be read, and again.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = pathlib.Path(folder)
        file = self.folder / "sweep.json"
        try:
            index = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise unreadable(
                self.folder,
                f"it is no sweep's folder ({error})",
                "name the folder that has sweep.json, runs/NAME",
            ) from None
        schema = index.get("schema") if isinstance(index, dict) else None
        if schema != SCHEMA:
            raise unreadable(
                file,
                f"its schema is {schema!r}, and this package reads {SCHEMA!r}",
                "a newer folder needs a newer package",
            )
        self.index: dict[str, Any] = index
        self.name: str = str(index.get("name", ""))
        self.script: str = str(index.get("script", ""))
        self.axes: dict[str, list[str]] = {
            axis["key"]: axis["values"] for axis in index.get("axes", [])
        }
        self.verdict: dict[str, Any] | None = index.get("verdict")
        self._cells: pd.DataFrame | None = None
        self._runs: dict[str, Run] | None = None

    @property
    def runs(self) -> dict[str, Run]:
        """The runs by the names of their cells; a cell without a readable file has none."""
        if self._runs is None:
            self._runs = {}
            for cell in self.index.get("cells", []):
                path = self._file(cell)
                if path is None:
                    continue
                try:
                    self._runs[cell["name"]] = read_run(path)
                except MeshwrightError:
                    continue
        return self._runs

    def _file(self, cell: dict[str, Any]) -> pathlib.Path | None:
        folder = cell.get("folder")
        if not folder:
            return None
        # Written from the working directory of the sweep, or, by earlier versions, from its folder.
        within = pathlib.Path(folder)
        for place in (self.folder / within, within, self.folder / within.name):
            if (place / "run.h5").exists():
                return place / "run.h5"
        return None

    @property
    def cells(self) -> pd.DataFrame:
        """A row for each cell, in the grid's order: name, status, reason, what the sweep set, and
        its run's numbers.

        The status is the sweep's, which knows what a file cannot: that a cell took too long or
        trains differently. What the sweep set has a column for each axis, under its key.
        """
        if self._cells is None:
            rows = []
            for cell in self.index.get("cells", []):
                row = {
                    "name": cell["name"],
                    "status": cell["status"],
                    "reason": cell.get("reason") or "",
                    **cell.get("values", {}),
                    "seconds": cell.get("seconds"),
                }
                run = self.runs.get(cell["name"])
                if run is not None:
                    summary = run.summary
                    row.update({name: summary[name] for name in OF_RUNS if name not in row})
                    row["path"] = os.fspath(run.path)
                rows.append(row)
            frame = pd.DataFrame(rows).infer_objects()
            frame.attrs["units"] = {
                "seconds": "s",
                "step_seconds": "s",
                "tokens_per_second": "tokens/s",
                "peak_bytes": "bytes",
                "predicted_peak_bytes": "bytes",
                "predicted_step_seconds": "s",
                "loss": "nats",
            }
            self._cells = frame
        return self._cells

    def table(self, name: str) -> pd.DataFrame:
        """One table of all runs, one below the other, with the columns `cell` and one for each
        axis before its own.

        `name` is that of a table of Run: "steps", "memory", "communication", "work", "account", …
        """
        frames = []
        units: dict[str, str] = {}
        for cell in self.index.get("cells", []):
            run = self.runs.get(cell["name"])
            if run is None:
                continue
            frame = getattr(run, name)
            if not isinstance(frame, pd.DataFrame):
                raise TypeError(f"{name!r} is no table of a run")
            frame = frame.reset_index() if frame.index.name else frame.copy()
            units.update(getattr(run, name).attrs.get("units", {}))
            for place, (key, value) in enumerate(
                {"cell": cell["name"], **cell.get("values", {})}.items()
            ):
                # An axis may be called like a column: one of steps is.
                frame.insert(place, key if key not in frame.columns else f"values.{key}", value)
            frames.append(frame)
        whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        whole.attrs["units"] = units
        return whole

    @property
    def steps(self) -> pd.DataFrame:
        """The steps of all cells, one below the other: `table("steps")`."""
        return self.table("steps")

    def __repr__(self) -> str:
        counts = self.cells["status"].value_counts() if len(self.cells) else {}
        return (
            f"<Sweep {self.name!r}: "
            + ", ".join(f"{count} {status}" for status, count in counts.items())
            + ">"
        )


def read_sweep(folder: PathLike) -> Sweep:
    """Reads a sweep's folder (runs/NAME).

    Raises MeshwrightError where there is none, or none of this version.
    """
    return Sweep(folder)
