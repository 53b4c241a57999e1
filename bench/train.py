#!/usr/bin/env python3
"""Training speed beside a baseline trainer's, in one run: tokens/s and CPU seconds per step.

Baseline and Meshwright take turns (A B A B …) on the same weights, tokens and optimizer, one thread a
rank, and both report medians of their own steps after warm-up. Ratios above 1 favour Meshwright. The
losses of the two are compared as well. What else ran on the machine is measured beside each run; a
pair that was disturbed is run again. See bench/README.md for what the baseline must understand.
"""

import argparse
import json
import os
import pathlib
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {
    "tiny": dict(layers=4, hidden=256, heads=8, ffn=688, vocab=256, sequence=128, batch=16),
    "small": dict(layers=8, hidden=512, heads=8, ffn=1376, vocab=256, sequence=256, batch=8),
}
MIXES = {"one": (1, "single", "{}"), "dp2": (2, "ddp", "{dp(2)}"), "dp4": (4, "ddp", "{dp(4)}"),
         "tp2": (2, "tp", "{tp(2)}"), "tp4": (4, "tp", "{tp(4)}")}
# Wait passively: threads that spin beside other ranks take their cores. OpenMP reads this at start.
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0")


def busy_seconds():
    """CPU seconds that the machine has spent since it started, on anything."""
    n = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(n) - n[3] - n[4]) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def run(command):
    """The JSON object in a command's last line, and how many cores others kept busy meanwhile."""
    begin, busy, own = time.monotonic(), busy_seconds(), children_seconds()
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    wall = time.monotonic() - begin
    others = (busy_seconds() - busy - (children_seconds() - own)) / wall
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]), max(0.0, others)


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.baseline = shlex.split(arguments.baseline)

    def baseline_command(self, size, ranks, *rest):
        s = SIZES[size]
        head = self.baseline
        if ranks > 1:
            head = [head[0], "-m", "torch.distributed.run", "--standalone",
                    f"--nproc-per-node={ranks}", *head[1:]]
        shape = [f"--{key}={s[key]}" for key in ("layers", "hidden", "heads", "ffn", "vocab", "batch")]
        return [*head, *shape, f"--seq={s['sequence']}", "--threads=1", *rest]

    def theirs(self, size, mix):
        ranks, name, _ = MIXES[mix]
        a = self.arguments
        result, others = run(self.baseline_command(size, ranks, f"--mix={name}", f"--steps={a.steps}",
                                                   "--lr=0.001", f"--data={a.data}"))
        return dict(step=result["step_s"], cpu=result["cpu_s_per_step"], losses=result["losses"],
                    startup=result["startup_from_launch_s"], others=others)

    def ours(self, size, mix, weights):
        s, a = SIZES[size], self.arguments
        model = ", ".join(f"{key}={s[key]}" for key in ("layers", "hidden", "heads", "ffn", "vocab"))
        settings = [f"model=llama{{{model}}}", f"plan={MIXES[mix][2]}", f"sequence={s['sequence']}",
                    f"batch={s['batch']}", f"steps={a.steps}", f"weights={weights}",
                    f'data=text{{"{a.data}", order="sequential"}}']
        sets = [part for setting in settings for part in ("--set", setting)]
        result, others = run([*shlex.split(a.meshwright), "run", ROOT / "bench/mixes.lua", "--json", *sets])
        return dict(step=result["step_seconds"], cpu=result["cpu_seconds_per_step"], losses=result["losses"],
                    startup=result["startup_seconds"], others=others)

    def pair(self, size, mix, weights):
        """One run of each, again while others disturb it; the quietest counts."""
        best = None
        for _ in range(1 + self.arguments.retries):
            pair = self.theirs(size, mix), self.ours(size, mix, weights)
            others = max(side["others"] for side in pair)
            if best is None or others < best[0]:
                best = others, pair
            if others <= self.arguments.quiet:
                break
        return best[1]

    def row(self, size, mix, weights):
        pairs = [self.pair(size, mix, weights) for _ in range(self.arguments.rounds)]
        middle = lambda side, key: statistics.median(pair[side][key] for pair in pairs)
        tokens = SIZES[size]["batch"] * SIZES[size]["sequence"]
        a, b = pairs[0][0]["losses"], pairs[0][1]["losses"]
        ratios = sorted(p[0]["step"] / p[1]["step"] for p in pairs)
        return dict(size=size, mix=mix, ranks=MIXES[mix][0],
                    tokens_per_second=tokens / middle(1, "step"),
                    baseline_tokens_per_second=tokens / middle(0, "step"),
                    speed=middle(0, "step") / middle(1, "step"), speed_range=[ratios[0], ratios[-1]],
                    cpu_seconds=middle(1, "cpu"), baseline_cpu_seconds=middle(0, "cpu"),
                    cpu=middle(0, "cpu") / middle(1, "cpu"),
                    startup_seconds=middle(1, "startup"), baseline_startup_seconds=middle(0, "startup"),
                    loss_difference=max(abs(x - y) / abs(x) for x, y in zip(a, b)),
                    other_cores=max(side["others"] for pair in pairs for side in pair))


HEAD = ("size   mix   tokens/s   baseline   ratio   (range)        CPU s/step   baseline   ratio   "
        "start-up s   baseline   losses differ   others' cores")


def line(r):
    return (f"{r['size']:6} {r['mix']:4} {r['tokens_per_second']:9.0f} {r['baseline_tokens_per_second']:10.0f} "
            f"{r['speed']:6.2f}x  ({r['speed_range'][0]:.2f}-{r['speed_range'][1]:.2f}) "
            f"{r['cpu_seconds']:14.3f} {r['baseline_cpu_seconds']:10.3f} {r['cpu']:6.2f}x "
            f"{r['startup_seconds']:12.2f} {r['baseline_startup_seconds']:10.2f} "
            f"{r['loss_difference']:15.1e} {r['other_cores']:15.2f}")


def verdict(rows):
    """What falls short of its target: one rank at least as fast, the mixes 1.2 times."""
    short = [f"{r['size']} {r['mix']}: {r['speed']:.2f}x, target {target}x" for r in rows
             for target in [1.0 if r["mix"] == "one" else 1.2] if r["speed"] < target]
    return short + [f"{r['size']} {r['mix']}: losses differ by {r['loss_difference']:.1e}"
                    for r in rows if r["loss_difference"] > 1e-4]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--baseline", default=os.environ.get("MESHWRIGHT_BASELINE"), metavar="COMMAND",
                   help="'python path/to/train.py' (or MESHWRIGHT_BASELINE)")
    p.add_argument("--meshwright", default=str(ROOT / "meshwright"), metavar="COMMAND")
    p.add_argument("--data", default=str(ROOT / ".deps/text/gcide.txt"), help="text that both read")
    p.add_argument("--sizes", default="tiny,small", help="of " + ", ".join(SIZES))
    p.add_argument("--mixes", default=",".join(MIXES), help="of " + ", ".join(MIXES))
    p.add_argument("--rounds", type=int, default=3, help="pairs of runs")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--quiet", type=float, default=0.1, metavar="CORES",
                   help="a pair beside which others used more is run again")
    p.add_argument("--retries", type=int, default=2)
    p.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    p.add_argument("--json", metavar="FILE", help="also write the rows there")
    a = p.parse_args()
    if not a.baseline:
        p.error("--baseline 'python path/to/train.py' is needed: see bench/README.md")
    for chosen, known in ((a.sizes, SIZES), (a.mixes, MIXES)):
        for name in chosen.split(","):
            if name not in known:
                p.error(f"{name!r} is none of {', '.join(known)}")
    a.data = str(pathlib.Path(a.data).resolve())
    if not os.path.exists(a.data):
        p.error(f"{a.data} is not there: ./meshwright run scripts/quickstart.lua fetches it")
    return a


def main():
    a = arguments()
    bench, rows = Bench(a), []
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for size in a.sizes.split(","):
            weights = os.path.join(folder, f"{size}.safetensors")
            made = subprocess.run(bench.baseline_command(size, 1, f"--save-weights={weights}"),
                                  env=ENVIRONMENT, capture_output=True, text=True)
            if made.returncode != 0:
                sys.exit(f"the baseline wrote no weights:\n{made.stderr[-3000:]}")
            for mix in a.mixes.split(","):
                rows.append(bench.row(size, mix, weights))
                print(line(rows[-1]), flush=True)
    short = verdict(rows)
    for text in short:
        print(text)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1) + "\n")
    return 1 if a.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
