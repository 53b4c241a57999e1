"""Writes runs as offline folders of Weights & Biases, which `wandb sync` uploads.

The package wandb writes them, in its offline mode: nothing is sent anywhere.
"""

from __future__ import annotations

import math
import os
import pathlib
from typing import Any

from meshwright.errors import MeshwrightError, Problem
from meshwright.program import PathLike
from meshwright.runs import Run, read_run

# Columns of /steps that are no metric: wandb counts the steps itself.
NO_METRICS = frozenset({"step"})


def to_wandb(
    run: Run | PathLike, folder: PathLike = ".", *, project: str = "meshwright"
) -> pathlib.Path:
    """Writes a run into `folder`/wandb and returns the folder that `wandb sync` takes.

    It has the experiment as its configuration, a point for each step (the columns of /steps, and
    `series/NAME` of what `observe` returned), the summary, and the script as a file. A run that
    failed or was killed is marked as failed. Its id is the run's hash and the time it was made: the
    same run written again replaces itself where it is uploaded. Raises MeshwrightError (exit code
    5) where the package wandb is missing.
    """
    try:
        import wandb
    except ImportError:
        raise MeshwrightError(
            5,
            [
                Problem(
                    "environment",
                    "wandb.missing",
                    "",
                    "the package wandb is not installed",
                    "pip install wandb",
                )
            ],
        ) from None
    read = run if isinstance(run, Run) else read_run(run)
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    given = wandb.init(
        mode="offline",
        dir=os.fspath(pathlib.Path(folder).absolute()),
        project=project,
        id=f"{read.hash}-{read.created:%Y%m%d%H%M%S}",
        name=read.name,
        config={**read.experiment, "hash": read.hash, "plan_hash": read.plan_hash},
        tags=[read.status],
        notes=read.reason or None,
        settings=wandb.Settings(
            console="off", silent=True, x_disable_stats=True, x_disable_meta=True, save_code=False
        ),
        reinit="finish_previous",
    )
    for step, metrics in metrics_of(read):
        given.log(metrics, step=step)
    for name, value in read.summary.items():
        if is_number(value):
            given.summary[f"summary/{name}"] = value
    where = pathlib.Path(given.dir)
    (where / "script.lua").write_text(read.script, encoding="utf-8")
    given.save(os.fspath(where / "script.lua"), base_path=os.fspath(where), policy="end")
    given.finish(exit_code=0 if read.status == "done" else 1)
    return where.parent


def metrics_of(run: Run) -> list[tuple[int, dict[str, Any]]]:
    """The numbers of each step by their names, without those that are not known."""
    series = run.series.to_dict("index")
    found = []
    for row in run.steps.to_dict("records"):
        step = int(row["step"])
        metrics = {name: value for name, value in row.items() if name not in NO_METRICS}
        metrics.update({f"series/{name}": value for name, value in series.get(step, {}).items()})
        # A loss that is NaN is one; a column that nobody measured has NaN too.
        kept = {
            str(name): value
            for name, value in metrics.items()
            if name in ("loss", "grad_norm") or is_number(value)
        }
        found.append((step, kept))
    return found


def is_number(value: Any) -> bool:
    """Whether it is a number, and not NaN."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return False
    return not math.isnan(float(value))
