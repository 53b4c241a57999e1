#!/usr/bin/env python3
"""Predicted beside measured steps of this machine, on mixes that `meshwright calibrate` has not
seen.

Each mix trains for some steps; its result has the prediction of the same run. Core seconds
(`cpu_seconds_per_step` beside `predicted.cpu_seconds`) are what steps cost, wall seconds what they
take where nothing else runs. Prints each mix, and of both the mean and median of |predicted /
measured - 1|, the largest one, the bias, and Spearman's rank correlation.

Each mix trains in several rounds, the quickest of which counts, as other programs only make a step
slower; a run beside which they had more than a twentieth of a core is made again (three times at
most). `--seed` draws other mixes: what a change is tuned on is not what it is judged by."""
import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

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


def drawn(seed, count):
    """Random mixes: two layers to eight, 12 to 1024 tokens, 2 to 8 ranks, a step of 2 to 500 ms about."""
    draw, mixes = random.Random(seed), []
    forms = ["dp({w})", "zero {{ {w}, stage = 1 }}", "zero {{ {w}, stage = 2 }}", "zero {{ {w}, stage = 3 }}",
             "tp({f})", "tp({f}), sp()", "pp {{ {p}, schedule = '1f1b' }}", "pp {{ {p}, schedule = 'gpipe' }}",
             "pp {{ 2, schedule = '1f1b' }}, dp(2)", "pp {{ 2, schedule = '1f1b' }}, tp(2)", "dp(2), tp({f})",
             "sp {{ {f}, form = 'ring' }}", "sp {{ {f}, form = 'ulysses' }}", "sp {{ {f}, form = 'allgather' }}",
             "zero {{ 2, stage = 3 }}, tp(2)", "pp {{ 2, schedule = 'interleaved', chunks = 2 }}",
             "zero {{ 2, stage = 3 }}, pp {{ 2, schedule = 'looped-bfs', chunks = 2 }}", "pp {{ 2, schedule = 'zb-h1' }}"]
    while len(mixes) < count:
        heads, layers = draw.choice([4, 8]), draw.choice([4, 4, 8])
        hidden = heads * draw.choice([8, 12, 16, 20, 24, 32])
        sequence = draw.choice([16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024])
        batch, vocab, ffn = draw.choice([8, 16]), draw.choice([64, 100, 160, 256]), hidden * draw.choice([2, 3])
        plan = draw.choice(forms).format(w=draw.choice([2, 4, 8]), f=draw.choice([2, 4]), p=draw.choice([2, 4]))
        microbatch = draw.choice([1, 2]) if "pp" in plan else draw.choice([None, None, 1])
        flops = batch * sequence * layers * (24 * hidden ** 2 + 18 * hidden * ffn + 12 * sequence * hidden)
        if not 5e6 < flops < 1.2e10 or microbatch and ("(8)" in plan or "{ 8" in plan):
            continue
        model = gpt(layers, hidden, heads, vocab) if draw.random() < 0.25 else llama(layers, hidden, heads, ffn, vocab)
        mixes.append((model, sizes(sequence, batch, microbatch), plan))
    return mixes


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


def worked():
    """Core seconds of all programs, and of this one with what it ran."""
    try:
        words = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        everybody = (sum(words[:3]) + sum(words[5:8])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        everybody = 0
    own = sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
    return everybody, own


def train_alone(program, mix, steps):
    for _ in range(3):
        before, start = worked(), time.monotonic()
        result = train(program, mix, steps)
        after, seconds = worked(), time.monotonic() - start
        if (after[0] - before[0]) - (after[1] - before[1]) < 0.05 * seconds + 0.02:
            break
    return result


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
    p.add_argument("--rounds", type=int, default=4, help="in which each mix trains")
    p.add_argument("--seed", type=int, help="24 random mixes by this number in place of the usual ones")
    p.add_argument("--mixes", help="numbers, from 0: 3,5 or 0-11")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--add", action="store_true", help="to the rows that FILE has: a part of the mixes at a time")
    a = p.parse_args()
    known = MIXES if a.seed is None else drawn(a.seed, 24)
    chosen = [known[n] for n in numbers(a.mixes)] if a.mixes else known
    rows = json.loads(pathlib.Path(a.json).read_text()) if a.add and pathlib.Path(a.json).exists() else []
    made, steps = {}, {}
    for _ in range(a.rounds):
        for mix in chosen:
            if mix not in steps:
                first = train(a.meshwright, mix, 4)
                steps[mix] = max(8, min(600, int(a.seconds / a.rounds / first["step_seconds"])))
            result = train_alone(a.meshwright, mix, steps[mix])
            said = result["predicted"]
            row = made.setdefault(mix, {
                "mix": mix[2], "priced_for": said["priced_for"], "ranks": result["ranks"], "step": float("inf"),
                "predicted_step": said["step_seconds"], "cpu": float("inf"), "predicted_cpu": said["cpu_seconds"]})
            row["step"] = min(row["step"], result["step_seconds"])
            row["cpu"] = min(row["cpu"], result["cpu_seconds_per_step"])
    print(f"{'step, ms':>10} {'predicted':>10} {'':>7} {'core s, ms':>11} {'predicted':>10} {'':>7}  mix")
    for mix, row in made.items():
        rows.append(row)
        print(f"{1e3 * row['step']:10.2f} {1e3 * row['predicted_step']:10.2f} "
              f"{100 * (row['predicted_step'] / row['step'] - 1):+6.1f}% {1e3 * row['cpu']:11.2f} "
              f"{1e3 * row['predicted_cpu']:10.2f} {100 * (row['predicted_cpu'] / row['cpu'] - 1):+6.1f}%  "
              f"{mix[2]}; {mix[1]}; {mix[0].partition('mw.')[2]}", flush=True)
    print(f"\n{len(rows)} mixes, priced for: {rows[0]['priced_for']}")
    figures("core seconds", rows, "predicted_cpu", "cpu")
    figures("step seconds", rows, "predicted_step", "step")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
