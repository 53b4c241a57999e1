"""Fits a few shares of a description to measured seconds, of which there may be fewer.

By least squares whose weights are one over the errors, along straight lines between logarithms that
are drawn anew in each round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import ndarray as Array

ROUNDS = 12
FARTHEST = 0.4  # of a logarithm in one round: no line is straight further
MOST_LEFT_OUT = 50
LEAST_ERROR = 1e-3  # below which errors do not weigh more


@dataclasses.dataclass
class Share:
    """What is fitted: a positive number and its bounds."""

    key: str  # "device.gemm"
    value: float
    low: float
    high: float


@dataclasses.dataclass
class Fit:
    """The shares with which the rows come out best."""

    values: list[float]
    told: list[bool]  # whether any row changes with the share
    predicted: list[float]  # seconds of each row by the values
    # Seconds of each row by a fit to all others: an error on what was not fitted to. Along straight
    # lines between logarithms, from the values.
    left_out: list[float]


def fit_shares(
    shares: list[Share],
    measured: Sequence[float],
    predict: Callable[[list[float]], list[float]],
    error: float,
    change: float,
) -> Fit:
    """Shares within their bounds with the least sum of |log(predicted / measured)|, over `error`,
    and of squares of their logarithms' changes, over `change`: a few rows change what they depend
    on most, and what no row tells of stays. `predict`: the seconds of each row by these values."""
    import numpy as np  # here, as it takes longer than all that is read and checked before a fit

    start = np.array([share.value for share in shares])
    low = np.log(np.array([share.low for share in shares]) / start)
    high = np.log(np.array([share.high for share in shares]) / start)
    seconds = np.array(measured)

    def errors(x: Array) -> Array:
        return np.log(np.maximum(predict((start * np.exp(x)).tolist()), 1e-30) / seconds)

    def slopes(x: Array, at: Array) -> Array:
        columns = []
        for k, share in enumerate(np.eye(len(x))):
            step = 0.02 if x[k] + 0.02 <= high[k] else -0.02
            columns.append((errors(x + step * share) - at) / step)
        return np.stack(columns, axis=1)

    def cost(at: Array, x: Array) -> float:
        return np.abs(at).sum() / error + 0.5 * (x**2).sum() / change**2

    def solved(x: Array, at: Array, by: Array, reach: float, without: int | None = None) -> Array:
        """The best along the line, no further than `reach` from `x`, without a row."""
        least, most, now = np.maximum(low, x - reach), np.minimum(high, x + reach), x
        for _ in range(100):
            left = at + by @ (now - x)
            weight = 1 / (np.maximum(np.abs(left), LEAST_ERROR) * error)
            if without is not None:
                weight[without] = 0
            weighed = by * weight[:, None]
            normal = by.T @ weighed + np.eye(len(x)) / change**2
            pull = weighed.T @ left + now / change**2
            now = np.clip(now - 0.7 * np.linalg.solve(normal, pull), least, most)
        return now

    x = np.zeros(len(shares))
    at = errors(x)
    by, best = slopes(x, at), cost(at, x)
    for _ in range(ROUNDS):
        wanted = solved(x, at, by, FARTHEST)
        for part in (1, 0.5, 0.25, 0.125, 0.0625):
            tried = x + part * (wanted - x)
            there = errors(tried)
            if cost(there, tried) < best * (1 - 1e-6):
                break
        else:
            break
        x, at, best = tried, there, cost(there, tried)
        by = slopes(x, at)
    alone = [
        seconds[row] * np.exp(at[row] + by[row] @ (solved(x, at, by, np.inf, row) - x))
        for row in range(len(seconds) if 2 <= len(seconds) <= MOST_LEFT_OUT else 0)
    ]
    told = (np.abs(by) > 1e-3).any(axis=0).tolist()
    return Fit(
        (start * np.exp(x)).tolist(), told, (seconds * np.exp(at)).tolist(), list(map(float, alone))
    )
