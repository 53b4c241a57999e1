#!/usr/bin/env python3
"""Training speed beside a baseline trainer's, in one run: tokens/s and CPU seconds per step.

Baseline and Meshwright take turns (A B A B …) on the same weights, tokens and optimizer, one
thread a rank, and both report medians of their own steps after warm-up. Ratios above 1 favour
Meshwright. The losses of the two are compared as well. What else ran on the machine is measured
beside each run; a pair that was disturbed is run again. See bench/README.md for what the
baseline must understand."""

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
    "long": dict(layers=2, hidden=256, heads=8, ffn=688, vocab=256, sequence=8192, batch=1),
}


def pipeline(ways, theirs, ours, chunks=1):
    options = [f"--pp={ways}", f"--schedule={theirs}", "--microbatches=8"]
    options += [f"--chunks={chunks}"] if chunks > 1 else []
    # Their schedules in a V do not start on gloo with the warm-up of transfers.
    options += ["--no-p2p-warmup"] if theirs in ("ZBVZeroBubble", "DualPipeV") else []
    more = f", chunks={chunks}" if chunks > 1 else ""
    return dict(ranks=ways, theirs=["pp", *options], plan=f'{{pp{{{ways}, schedule="{ours}"{more}}}}}',
                microbatches=8, least=1.0, beside="one8")


# Each: what the baseline is told, our plan, microbatches of a step, the tokens/s wanted over the
# baseline's, and the mix of one rank that does the same work.
MIXES = {
    "one": dict(ranks=1, theirs=["single"], plan="{}", least=1.0),
    "dp2": dict(ranks=2, theirs=["ddp"], plan="{dp(2)}", beside="one"),
    "dp4": dict(ranks=4, theirs=["ddp"], plan="{dp(4)}", beside="one"),
    "tp2": dict(ranks=2, theirs=["tp"], plan="{tp(2)}", beside="one"),
    "tp4": dict(ranks=4, theirs=["tp"], plan="{tp(4)}", beside="one"),
    "one8": dict(ranks=1, theirs=None, plan="{}", microbatches=8),  # ours alone: the pipelines' work
    "pp2-gpipe": pipeline(2, "GPipe", "gpipe"),
    "pp2-1f1b": pipeline(2, "1F1B", "1f1b"),
    "pp4-1f1b": pipeline(4, "1F1B", "1f1b"),
    "pp2-int": pipeline(2, "Interleaved1F1B", "interleaved", 2),
    "pp2-bfs": pipeline(2, "LoopedBFS", "looped-bfs", 2),
    "pp2-zbh1": pipeline(2, "InterleavedZeroBubble", "zb-h1"),  # theirs is chunked only
    "pp2-zbv": pipeline(2, "ZBVZeroBubble", "zbv", 2),
    "pp2-dualpipev": pipeline(2, "DualPipeV", "dualpipev", 2),
}
# ZeRO 2 and 3 are both beside fully_shard, whose gradients and parameters lie in parts.
MIXES.update({
    f"zero{stage}-4": dict(ranks=4, theirs=["zero1" if stage == 1 else "fsdp2"], plan=f"{{zero{{4, stage={stage}}}}}",
                           least=1.0, beside="one") for stage in (1, 2, 3)})
# Experts: 8 of half the width, 2 of which a token chooses; no balancing loss, as in the baseline.
MIXES.update({
    f"moe-{ways}": dict(ranks=ways, theirs=["single" if ways == 1 else "ep"],
                        plan="{}" if ways == 1 else f"{{dp({ways}), ep({ways})}}", experts=8, least=1.0,
                        beside="moe-1") for ways in (1, 2, 4)})
# Ours alone: the baseline has no context parallelism.
MIXES.update({
    "onelong": dict(ranks=1, theirs=None, plan="{}"),
    "cp8-ring": dict(ranks=8, theirs=None, plan="{sp(8)}", beside="onelong"),
    "cp8-uneven": dict(ranks=8, theirs=None, plan='{sp{8, balance="none"}}', beside="onelong"),
    "cp8-gathered": dict(ranks=8, theirs=None, plan='{sp{8, form="allgather"}}', beside="onelong"),
    "cp8-ulysses": dict(ranks=8, theirs=None, plan='{sp{8, form="ulysses"}}', beside="onelong"),
    "cp8-both": dict(ranks=8, theirs=None, plan="{sp{8, ulysses=2}}", beside="onelong")})
CONTEXT = [name for name in MIXES if name.startswith("cp") or name == "onelong"]
PIPELINES = [name for name in MIXES if name.startswith("pp") or name == "one8"]
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

    def baseline_command(self, size, ranks, experts, *rest):
        s = SIZES[size]
        head = self.baseline
        if ranks > 1:
            head = [head[0], "-m", "torch.distributed.run", "--standalone",
                    f"--nproc-per-node={ranks}", *head[1:]]
        shape = [f"--{key}={s[key]}" for key in ("layers", "hidden", "heads", "ffn", "vocab", "batch")]
        if experts:
            shape += [f"--experts={experts}", "--topk=2", f"--ffn={s['ffn'] // 2}"]
        return [*head, *shape, f"--seq={s['sequence']}", "--threads=1", *rest]

    def theirs(self, size, mix):
        a, m = self.arguments, MIXES[mix]
        if m["theirs"] is None:
            return None
        name, *options = m["theirs"]
        result, others = run(self.baseline_command(size, m["ranks"], m.get("experts"), f"--mix={name}", *options, f"--steps={a.steps}",
                                                   "--lr=0.001", f"--data={a.data}"))
        return dict(step=result["step_s"], cpu=result["cpu_s_per_step"], losses=result["losses"],
                    startup=result["startup_from_launch_s"], others=others)

    def ours(self, size, mix, weights):
        s, a = SIZES[size], self.arguments
        model = ", ".join(f"{key}={s[key]}" for key in ("layers", "hidden", "heads", "ffn", "vocab"))
        kind = "llama"
        if "experts" in MIXES[mix]:
            kind = "moe"
            model += f', experts={MIXES[mix]["experts"]}, top_k=2, expert_ffn={s["ffn"] // 2}, balance="none"'
        settings = [f"model={kind}{{{model}}}", f"plan={MIXES[mix]['plan']}", f"sequence={s['sequence']}",
                    f"batch={s['batch']}", f"steps={a.steps}", f"weights={weights}",
                    f'data=text{{"{a.data}", order="sequential"}}']
        if "microbatches" in MIXES[mix]:
            settings.append(f"microbatch={s['batch'] // MIXES[mix]['microbatches']}")
        sets = [part for setting in settings for part in ("--set", setting)]
        result, others = run([*shlex.split(a.meshwright), "run", ROOT / "bench/mixes.lua", "--json", *sets])
        return dict(step=result["step_seconds"], cpu=result["cpu_seconds_per_step"], losses=result["losses"],
                    startup=result["startup_seconds"], others=others)

    def pair(self, size, mix, weights):
        """One run of each, again while others disturb it; the quietest counts."""
        best = None
        for _ in range(1 + self.arguments.retries):
            pair = self.theirs(size, mix), self.ours(size, mix, weights)
            others = max(side["others"] for side in pair if side)
            if best is None or others < best[0]:
                best = others, pair
            if others <= self.arguments.quiet:
                break
        return best[1]

    def row(self, size, mix, weights):
        pairs = [self.pair(size, mix, weights) for _ in range(self.arguments.rounds)]
        middle = lambda side, key: statistics.median(pair[side][key] for pair in pairs)
        tokens = SIZES[size]["batch"] * SIZES[size]["sequence"]
        row = dict(size=size, mix=mix, ranks=MIXES[mix]["ranks"], tokens_per_second=tokens / middle(1, "step"),
                   cpu_seconds=middle(1, "cpu"), startup_seconds=middle(1, "startup"), losses=pairs[0][1]["losses"],
                   other_cores=max(side["others"] for pair in pairs for side in pair if side))
        if MIXES[mix]["theirs"] is not None:
            a, b = pairs[0][0]["losses"], pairs[0][1]["losses"]
            ratios = sorted(p[0]["step"] / p[1]["step"] for p in pairs)
            row.update(baseline_tokens_per_second=tokens / middle(0, "step"),
                       speed=middle(0, "step") / middle(1, "step"), speed_range=[ratios[0], ratios[-1]],
                       baseline_cpu_seconds=middle(0, "cpu"), cpu=middle(0, "cpu") / middle(1, "cpu"),
                       baseline_startup_seconds=middle(0, "startup"),
                       loss_difference=max(abs(x - y) / abs(x) for x, y in zip(a, b)))
        return row


HEAD = ("size   mix            tokens/s   baseline   ratio   (range)        CPU s/step   over one rank   baseline   ratio   "
        "start-up s   baseline   losses differ   others' cores")


def line(r):
    own = f"{r['over_one']:.2f}x" if "over_one" in r else "-"
    if "speed" not in r:
        return (f"{r['size']:6} {r['mix']:13} {r['tokens_per_second']:9.0f} {'-':>10} {'-':>7}  {'':11} "
                f"{r['cpu_seconds']:14.3f} {own:>15} {'-':>10} {'-':>7} {r['startup_seconds']:12.2f} {'-':>10} "
                f"{'-':>15} {r['other_cores']:15.2f}")
    return (f"{r['size']:6} {r['mix']:13} {r['tokens_per_second']:9.0f} {r['baseline_tokens_per_second']:10.0f} "
            f"{r['speed']:6.2f}x  ({r['speed_range'][0]:.2f}-{r['speed_range'][1]:.2f}) "
            f"{r['cpu_seconds']:14.3f} {own:>15} {r['baseline_cpu_seconds']:10.3f} {r['cpu']:6.2f}x "
            f"{r['startup_seconds']:12.2f} {r['baseline_startup_seconds']:10.2f} "
            f"{r['loss_difference']:15.1e} {r['other_cores']:15.2f}")


def beside_one(row, rows):
    """CPU seconds over those of one rank that does the same work in the same way."""
    for other in rows:
        if other["size"] == row["size"] and other["mix"] == MIXES[row["mix"]].get("beside"):
            row["over_one"] = row["cpu_seconds"] / other["cpu_seconds"]


def verdict(rows):
    """What falls short of its target."""
    short = []
    for r in rows:
        target = MIXES[r["mix"]].get("least", 1.2)
        if "speed" in r and r["speed"] < target:
            short.append(f"{r['size']} {r['mix']}: {r['speed']:.2f}x, target {target}x")
        if r["mix"].startswith("pp") and r.get("over_one", 0) > 1.05:
            short.append(f"{r['size']} {r['mix']}: {r['over_one']:.2f} times one rank's CPU seconds, target 1.05")
        if r["mix"].startswith(("zero", "dp")) and r.get("over_one", 0) > 1.10:
            short.append(f"{r['size']} {r['mix']}: {r['over_one']:.2f} times one rank's CPU seconds, target 1.10")
        if r["mix"] == "moe-4" and r.get("over_one", 0) > 1.15:
            short.append(f"{r['size']} {r['mix']}: {r['over_one']:.2f} times one rank's CPU seconds, target 1.15")
        if r["mix"] == "cp8-ring" and r.get("over_one", 0) > 1.15:
            short.append(f"{r['size']} {r['mix']}: {r['over_one']:.2f} times one rank's CPU seconds, target 1.15")
        if r.get("loss_difference", 0) > 1e-4:
            short.append(f"{r['size']} {r['mix']}: losses differ by {r['loss_difference']:.1e}")
    return short


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--baseline", default=os.environ.get("MESHWRIGHT_BASELINE"), metavar="COMMAND",
                   help="'python path/to/train.py' (or MESHWRIGHT_BASELINE)")
    p.add_argument("--meshwright", default=str(ROOT / "meshwright"), metavar="COMMAND")
    p.add_argument("--data", default=str(ROOT / ".deps/text/gcide.txt"), help="text that both read")
    p.add_argument("--sizes", default="tiny,small", help="of " + ", ".join(SIZES))
    p.add_argument("--mixes", default="one,dp2,dp4,tp2,tp4",
                   help="of " + ", ".join(MIXES) + "; or pipelines; or context (of size long)")
    p.add_argument("--rounds", type=int, default=3, help="pairs of runs")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--quiet", type=float, default=0.1, metavar="CORES",
                   help="a pair beside which others used more is run again")
    p.add_argument("--retries", type=int, default=2)
    p.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    p.add_argument("--json", metavar="FILE", help="also write the rows there")
    a = p.parse_args()
    a.mixes = a.mixes.replace("pipelines", ",".join(PIPELINES)).replace("context", ",".join(CONTEXT))
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
            weights = {}
            for mix in a.mixes.split(","):
                experts = MIXES[mix].get("experts")
                if experts not in weights:
                    weights[experts] = os.path.join(folder, f"{size}-{experts}.safetensors")
                    made = subprocess.run(
                        bench.baseline_command(size, 1, experts, f"--save-weights={weights[experts]}"),
                        env=ENVIRONMENT, capture_output=True, text=True)
                    if made.returncode != 0:
                        sys.exit(f"the baseline wrote no weights:\n{made.stderr[-3000:]}")
                rows.append(bench.row(size, mix, weights[experts]))
                beside_one(rows[-1], rows)
                print(line(rows[-1]), flush=True)
    short = verdict(rows)
    for text in short:
        print(text)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1) + "\n")
    return 1 if a.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
