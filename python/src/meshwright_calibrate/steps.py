"""Fits a described cluster and its stack to steps that were measured there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from meshwright_calibrate.description import Description
from meshwright_calibrate.links import rounded
from meshwright_calibrate.problems import Problems
from meshwright_calibrate.shares import Fit, Share, fit_shares
from meshwright_calibrate.texts import duration, number
from meshwright_called.texts import plural

STEP_ERROR = 0.02  # of a measured step, as the fit weighs it
SHARE_CHANGE = 0.2  # of a share's logarithm, between one software and another
# Each share with its bounds.
KNOBS = {
    "device.gemm": (0.1, 1, "what large products reach of the peak"),
    "device.bandwidth_share": (0.1, 1, "what streams reach of the memory's bandwidth"),
    "node.curve_share": (0.3, 1.1, "what collectives keep within a step of what they reach alone"),
    "network.share": (0.1, 1.1, "what collectives reach of the NICs"),
    "stack.host": (0.05, 20, "what the host takes to launch an op, over the device's launch"),
    "stack.data_share": (0.1, 1, "what collectives of data axes get of the NICs"),
}

# Seconds of each step by these shares, and the shares.
PriceSteps = Callable[[dict[str, float]], tuple[list[float], dict[str, float]]]


def fit_steps(
    cluster: Description, stack: Description, steps: list[dict[str, Any]], price: PriceSteps
) -> tuple[list[Share], Fit, list[float]]:
    """Puts into both descriptions the shares with which the steps come out best: of the device what
    products and streams reach, of a node what collectives keep within a step, of the stack what the
    host takes and what data axes get of the NICs. Returns the shares with what they were before,
    the fit, and the seconds of each step by the shares as they were."""
    before, values = price({})
    several = any(step["nodes"] > 1 for step in steps)
    # Logs tell of the network alone, and better.
    network = several and "network.share" not in cluster.sources
    shares = [
        Share(key, values[key], min(low, values[key]), max(high, values[key]))
        for key, (low, high, _) in KNOBS.items()
        if values[key] > 0 and (network or key != "network.share")
    ]
    fit = fit_shares(
        shares,
        [step["seconds"] for step in steps],
        lambda tried: price({share.key: value for share, value in zip(shares, tried)})[0],
        STEP_ERROR,
        SHARE_CHANGE,
    )
    for share, value, told in zip(shares, fit.values, fit.told):
        part, key = share.key.split(".")
        own = stack if part == "stack" else cluster
        start = number(rounded(share.value))
        if not told:
            what = KNOBS[share.key][2]
            own.unknown.append(
                f"no measured step changes with {share.key} ({what}): it stays {start}"
            )
            continue
        # As a ratio: a device that is held to less power reads as less than its table says.
        table = stack.table if part == "stack" else cluster.table.setdefault(part, {})
        table[key] = rounded(table[key] * value / share.value if key in table else value)
        source = f"fitted to {plural(len(steps), 'measured step')}; it was {start}"
        own.sources[key if part == "stack" else share.key] = source
    cluster.table.setdefault("device", {})["fitted"] = stack.table["fitted"] = True
    return shares, fit, before


def is_explained(times: float) -> bool:
    """Whether a step takes less than twice what is priced of it, and more than half: so much may
    other software of the same kind explain. `times`: measured over priced."""
    return 0.5 < times < 2


def refuse_repeated(steps: list[dict[str, Any]], problems: Problems) -> None:
    """Refuses each step that is in the list twice."""

    def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
        if (a["nodes"], a["settings"]) != (b["nodes"], b["settings"]):
            return False
        return a["script"] == b["script"] or is_same_file(a["script"], b["script"])

    for k, step in enumerate(steps):
        earlier = next((one for one in steps[:k] if same(one, step)), None)
        if earlier:
            problems.refuse(
                "calibration.twice",
                f"it is the step of {earlier['place']}, which would count twice",
                "give each step once: the median of all that were measured",
                place=step["place"],
            )


def refuse_unexplained(
    step: dict[str, Any], priced: float, nearest: float, base: str, problems: Problems
) -> None:
    """Refuses a step that is not explained even by `nearest`, the seconds that it takes with all
    that a fit may change. `priced`: the seconds that it takes on the base."""
    if is_explained(step["seconds"] / nearest):
        return
    units = (("milliseconds", 300, 3000), ("microseconds", 3e5, 3e6), ("minutes", 1 / 120, 1 / 30))
    over = step["seconds"] / priced
    unit = next((name for name, low, high in units if low < over < high), None)
    problems.refuse(
        "calibration.steps",
        f"{duration(step['seconds'])} measured, and {duration(priced)} priced by {base}, "
        f"{duration(nearest)} with all that a fit may change",
        (
            f'"step" is in seconds: are these {unit}?'
            if unit
            else '"step" is in seconds of a whole step; does the script plan what was measured, '
            'with its "set" and "nodes"?'
        ),
        key=f"{step['place']}.step",
        place=step["place"],
    )


def is_same_file(one: str, other: str) -> bool:
    """Whether both names lead to one file that is there."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False
