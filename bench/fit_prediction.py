#!/usr/bin/env python3
"""Fits the shares of a type of device, or of a stack, to the published steps that `meshwright bench
prediction` plans: one set for each, nothing row by row.

Each share is changed a little, all rows are predicted anew, and the logarithms of the predictions
are taken as straight lines in those of the shares. Of all sets within bounds, the one with the
least mean error is found by least squares whose weights are one over the errors; this is repeated
from there. `--only` fits on some tables and prints the errors of all: what a fit on Korthikanti's
table alone says of the others.

    bench/fit_prediction.py a100 --rounds 2
    bench/fit_prediction.py a100 --only korthikanti5 --start plain --keys gemm,bandwidth_share

Steps of the fit price a fifth of each long table's rows (`--every`), and the last figures all of
them: some minutes on two cores. `--start plain` begins with round shares that no table gave, so
that a fit on some tables knows nothing of the others.

It needs numpy, of the tests' Python packages (`pip` in cmake/deps.txt): where the interpreter has
none, it goes on in the environment that `./meshwright test` keeps of them.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

try:
    import numpy as np
except ImportError:
    CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    PYTHON = CACHE / "meshwright/venv/bin/python"
    if not PYTHON.exists() or pathlib.Path(sys.prefix) == PYTHON.parent.parent:
        sys.exit("there is no numpy: `./meshwright test -R layout` makes the environment of cmake/deps.txt")
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of each type of device: the tables with steps on it, and what is fitted: a key of the device, or
# of nodes and networks, with its bounds.
DEVICES = {
    "a100": {
        "tables": ["korthikanti5", "narayanan1", "narayanan2-ptdp", "narayanan2-zero3", "mpt-a100", "vtrain-multi",
                   "vtrain-single"],
        "keys": {
            "gemm": (0.6, 0.95), "bandwidth_share": (0.5, 0.95), "tile_k": (10, 300), "batched": (0.3, 1.0),
            "launch": (2e-5, 1e-4), "backward_launch": (0.3, 1.0), "smooth": (2, 12),
            "slowed": (0.05, 0.9), "node.curve_share": (0.6, 1.1), "network.share": (0.6, 1.0),
            "network.partial": (0.4, 1.0),
        },
    },
    "h100": {
        "tables": ["megatron-core", "llama3", "mpt-h100"],
        "keys": {
            "gemm": (0.4, 0.9), "bandwidth_share": (0.5, 0.95), "tile_k": (10, 300), "launch": (1e-5, 1e-4),
            "slowed": (0.05, 0.9),
        },
    },
    # A stack: what no source says of it, and of the same software in fp8.
    "nvidia-2025": {
        "tables": ["nvidia-2025"],
        "keys": {"products": (0.8, 1.4), "hidden_model": (0.05, 0.95), "nvidia-2025-fp8.products": (0.8, 1.4)},
    },
}
# Shares as one would guess them from data sheets, whatever was measured.
PLAIN = {
    "gemm": 0.8, "bandwidth_share": 0.8, "tile_k": 100, "batched": 0.6, "launch": 5e-5, "backward_launch": 0.5,
    "smooth": 4, "slowed": 0.3, "node.curve_share": 1, "network.share": 0.9, "network.partial": 0.5,
}
# What the square of a change costs, where a table's mean error is worth its share of the bound: few
# rows fit many shares all too well.
HOLD = 0.5
# Mean errors in per cent that tables are held to, which weigh them.
BOUNDS = {
    "korthikanti5": 2.5, "narayanan1": 3.5, "narayanan2-ptdp": 2, "narayanan2-zero3": 9, "mpt-a100": 5.5,
    "vtrain-multi": 7, "vtrain-single": 7, "megatron-core": 5, "llama3": 2, "mpt-h100": 4.5,
    "nvidia-2025": 4,
}


def word(device, key, value):
    return f"{key}={value:.6g}" if "." in key else f"{device}.{key}={value:.6g}"


def predict(program, tables, words, every=1):
    """{(table, row, number): (predicted, published)}; tables one beside the other."""
    def rows_of(table):
        done = subprocess.run([program, "bench", "prediction", "--json", table, *words,
                               *([f"every={every}"] if every > 1 else [])], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{table}: {done.stderr or done.stdout}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    rows = {}
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for found in workers.map(rows_of, tables):
            for row in found:
                if row.get("predicted") and row.get("unit", "s") == "s":
                    number = 0  # of rows of one name
                    while (row["table"], row["row"], number) in rows:
                        number += 1
                    rows[row["table"], row["row"], number] = (row["predicted"], row["published"])
    return rows


def standing(device):
    """The shares as the file of the device or of the stack has them; of nodes and networks those of
    clusters/vtrain.lua."""
    shares = {}
    for key in DEVICES[device]["keys"]:
        of, _, name = key.rpartition(".")
        own = [ROOT / f"clusters/{kind}/{of or device}.lua" for kind in ("devices", "stacks")]
        text = next((path.read_text() for path in own if path.exists()), None)
        if text is None:
            text = (ROOT / "clusters/vtrain.lua").read_text().split(of + " = ", 1)[1]
        found = re.search(rf"\b{name} = ([\d.e+-]+)", text)
        shares[key] = float(found.group(1)) if found else 1.0
    return shares


def summary(rows):
    means = {}
    for (table, *_), (predicted, published) in rows.items():
        means.setdefault(table, []).append(abs(predicted / published - 1))
    return {table: 100 * float(np.mean(errors)) for table, errors in means.items()}


def fit(program, device, tables, keys, rounds, start, every):
    shares = standing(device)
    if start == "plain":
        shares.update({k: PLAIN[k] for k in shares})
    bounds = DEVICES[device]["keys"]
    for round_ in range(rounds):
        words = [word(device, k, v) for k, v in shares.items()]
        base = predict(program, tables, words, every)
        print(f"round {round_}: " + ", ".join(f"{t} {e:.2f} %" for t, e in summary(base).items()), flush=True)
        names = list(base)
        at = np.log([base[n][0] for n in names])
        to = np.log([base[n][1] for n in names])
        slopes = np.zeros((len(names), len(keys)))
        step = 0.03
        for j, key in enumerate(keys):
            changed = dict(shares, **{key: shares[key] * (1 + step)})
            rows = predict(program, tables, [word(device, k, v) for k, v in changed.items()], every)
            slopes[:, j] = (np.log([rows[n][0] for n in names]) - at) / np.log(1 + step)
        counts = {}
        for name in names:
            counts[name[0]] = counts.get(name[0], 0) + 1
        weight = np.array([1 / counts[n[0]] / BOUNDS[n[0]] for n in names])
        low = np.array([np.log(bounds[k][0] / shares[k]) for k in keys])
        high = np.array([np.log(bounds[k][1] / shares[k]) for k in keys])
        low, high = np.maximum(low, -0.25), np.minimum(high, 0.25)  # straight no further
        change = np.zeros(len(keys))
        for _ in range(200):
            left = to - at - slopes @ change
            w = weight / np.maximum(np.abs(left), 0.003)
            # Something is asked for every change: shares that no row tells of stay.
            normal = slopes.T @ (w[:, None] * slopes) + HOLD * np.eye(len(keys))
            change = np.clip(change + 0.5 * np.linalg.solve(normal, slopes.T @ (w * left) - HOLD * change), low, high)
        shares.update({k: shares[k] * float(np.exp(c)) for k, c in zip(keys, change)})
        print("  " + ", ".join(f"{k} = {shares[k]:.4g}" for k in keys), flush=True)
    return shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=DEVICES)
    parser.add_argument("--only", help="tables to fit on, by commas; all of the device if left out")
    parser.add_argument("--keys", help="what is fitted, by commas; all if left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=int, default=5, help="of a table's rows, in the steps of the fit")
    parser.add_argument("--start", choices=["standing", "plain"], default="standing")
    parser.add_argument("--program", default=os.environ.get("MESHWRIGHT", str(ROOT / "meshwright")))
    given = parser.parse_args()
    of = DEVICES[given.device]
    tables = given.only.split(",") if given.only else of["tables"]
    keys = given.keys.split(",") if given.keys else list(of["keys"])
    shares = fit(given.program, given.device, tables, keys, given.rounds, given.start, given.every)
    rows = predict(given.program, of["tables"], [word(given.device, k, v) for k, v in shares.items()])
    print("all tables: " + ", ".join(f"{t} {e:.2f} %" for t, e in summary(rows).items()))
    for key, value in shares.items():
        print(f"{key} = {value:.4g}")


if __name__ == "__main__":
    main()
