#!/usr/bin/env python3
"""Predicted beside measured steps of this machine, on mixes that `meshwright calibrate` has not
seen.

Each mix trains for some steps; its result has the prediction of the same run. Core seconds
(`cpu_seconds_per_step` beside `predicted.cpu_seconds`) are what steps cost, wall seconds what they
take where nothing else runs. Prints each mix, and of both the mean and median of |predicted /
measured - 1|, the largest one, the bias, and Spearman's rank correlation."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = """local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
mw.train { data = mw.synthetic {}, optimizer = mw.adamw { lr = 1e-4 }, threads = 1, %s }
"""


def llama(layers, hidden, heads, ffn, vocab):
    return f"model = mw.llama {{ layers = {layers}, hidden = {hidden}, heads = {heads}, ffn = {ffn}, vocab = {vocab} }}"


def gpt(layers, hidden, heads, vocab):
    return f"model = mw.gpt {{ layers = {layers}, hidden = {hidden}, heads = {heads}, vocab = {vocab} }}"


def sizes(sequence, batch, microbatch=None):
    return f"sequence = {sequence}, batch = {batch}" + (f", microbatch = {microbatch}" if microbatch else "")


TINY, SMALL, MIDDLE = llama(4, 48, 4, 96, 80), llama(6, 96, 4, 224, 128), llama(4, 192, 8, 512, 256)
MIXES = [
    (TINY, sizes(12, 8), "dp(4)"),
    (TINY, sizes(24, 8), "tp(2), dp(2)"),
    (TINY, sizes(12, 16, 1), "pp { 2, schedule = '1f1b' }, dp(2)"),
    (TINY, sizes(16, 12, 1), "pp { 4, schedule = 'gpipe' }"),
    (llama(12, 32, 4, 64, 64), sizes(16, 8, 1), "zero { 2, stage = 3 }, pp { 3, schedule = 'looped-bfs', chunks = 2 }"),
    (TINY, sizes(20, 8), "zero { 8, stage = 1 }"),
    (TINY, sizes(64, 8, 2), "sp { 2, form = 'ulysses' }, tp(2)"),
    (SMALL, sizes(40, 8), "dp(2)"),
    (SMALL, sizes(40, 8), "zero { 4, stage = 2 }"),
    (SMALL, sizes(80, 8, 2), "tp(4), sp()"),
    (SMALL, sizes(80, 8, 1), "pp { 3, schedule = '1f1b' }, tp(2)"),
    (SMALL, sizes(64, 16, 2), "pp { 2, schedule = 'interleaved', chunks = 3 }, dp(2)"),
    (SMALL, sizes(256, 4, 1), "sp { 4, form = 'ring' }"),
    (SMALL, sizes(100, 8), "zero { 2, stage = 3 }, tp(2)"),
    (MIDDLE, sizes(96, 8), "dp(2)"),
    (MIDDLE, sizes(96, 8), "tp(2)"),
    (MIDDLE, sizes(128, 8, 2), "pp { 2, schedule = 'zb-h1' }"),
    (MIDDLE, sizes(128, 8, 2), "pp { 2, schedule = '1f1b' }, tp(2)"),
    (MIDDLE, sizes(160, 8), "zero { 8, stage = 3 }"),
    (MIDDLE, sizes(768, 2), "tp(2)"),
    (MIDDLE, sizes(1024, 2, 1), "sp { 2, form = 'allgather' }, dp(2)"),
    (MIDDLE, sizes(512, 4, 1), "pp { 4, schedule = '1f1b' }"),
    (gpt(4, 160, 5, 200), sizes(64, 8), "dp(4)"),
    (gpt(3, 64, 4, 100), sizes(32, 12, 2), "tp(4)"),
]


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    of = [0] * len(values)
    for rank, i in enumerate(order):
        of[i] = rank
    return of


def spearman(a, b):
    n = len(a)
    return 1 - 6 * sum((x - y) ** 2 for x, y in zip(ranks(a), ranks(b))) / (n * (n * n - 1))


def train(program, mix, steps):
    model, size, plan = mix
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "mix.lua"
        script.write_text(HEAD % f"{model}, {size}, plan = {{ {plan} }}, steps = {steps}")
        done = subprocess.run([program, "run", script, "--json"], capture_output=True, text=True, cwd=folder,
                              env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    if done.returncode != 0:
        sys.exit(f"{plan}: exit code {done.returncode}\n{done.stdout[-800:]}{done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def numbers(text):
    """3,5 or 0-11: the numbers of mixes."""
    chosen = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    return chosen


def figures(name, rows, predicted, measured):
    errors = [row[predicted] / row[measured] - 1 for row in rows]
    size = [abs(e) for e in errors]
    print(f"{name}: mean error {100 * statistics.mean(size):.1f} %, median {100 * statistics.median(size):.1f} %, "
          f"max {100 * max(size):.1f} %, bias {100 * statistics.mean(errors):+.1f} %, Spearman "
          f"{spearman([r[predicted] for r in rows], [r[measured] for r in rows]):.3f}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--meshwright", default=str(ROOT / "build/bin/meshwright"))
    p.add_argument("--seconds", type=float, default=2.0, help="of each mix' training, about")
    p.add_argument("--mixes", help="numbers, from 0: 3,5 or 0-11")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--add", action="store_true", help="to the rows that FILE has: a part of the mixes at a time")
    a = p.parse_args()
    chosen = [MIXES[n] for n in numbers(a.mixes)] if a.mixes else MIXES
    rows = json.loads(pathlib.Path(a.json).read_text()) if a.add and pathlib.Path(a.json).exists() else []
    print(f"{'step, ms':>10} {'predicted':>10} {'':>7} {'core s, ms':>11} {'predicted':>10} {'':>7}  mix")
    for mix in chosen:
        first = train(a.meshwright, mix, 4)
        result = train(a.meshwright, mix, max(8, min(600, int(a.seconds / first["step_seconds"]))))
        said = result["predicted"]
        row = {"mix": mix[2], "priced_for": said["priced_for"], "ranks": result["ranks"],
               "step": result["step_seconds"], "predicted_step": said["step_seconds"],
               "cpu": result["cpu_seconds_per_step"], "predicted_cpu": said["cpu_seconds"]}
        rows.append(row)
        print(f"{1e3 * row['step']:10.2f} {1e3 * row['predicted_step']:10.2f} "
              f"{100 * (row['predicted_step'] / row['step'] - 1):+6.1f}% {1e3 * row['cpu']:11.2f} "
              f"{1e3 * row['predicted_cpu']:10.2f} {100 * (row['predicted_cpu'] / row['cpu'] - 1):+6.1f}%  "
              f"{mix[2]}; {mix[1]}", flush=True)
    print(f"\n{len(rows)} mixes, priced for: {rows[0]['priced_for']}")
    figures("core seconds", rows, "predicted_cpu", "cpu")
    figures("step seconds", rows, "predicted_step", "step")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
