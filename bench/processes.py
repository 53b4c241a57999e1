#!/usr/bin/env python3
"""CPU seconds per step of one mix as threads of one process, as processes over MPI, and (where a
baseline is given) of the same mix by the baseline trainer over gloo, in turns on one machine.

What a step costs is found from outside and alike for all: the CPU seconds of a long run less those
of a short one, over the steps between, all processes and their threads included."""
import argparse
import json
import pathlib
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench/train"))

from mixes import MIXES as ALL, SIZES  # noqa: E402
from problem import Problem  # noqa: E402
from runs import ENVIRONMENT, Baseline, Ours  # noqa: E402

MIXES = ["dp4", "tp4", "zero3-4", "pp4-1f1b"]
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none -n {ranks}"


def cpu_of(command, text):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{text} failed ({done.returncode}): {shlex.join(map(str, command))}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def theirs(baseline, size, mix, steps, data):
    name, *options = ALL[mix]["theirs"]
    return baseline.command(size, mix, f"--mix={name}", *options, f"--steps={steps}", "--lr=0.001", f"--data={data}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--meshwright", default=str(ROOT / "build/bin/meshwright"))
    p.add_argument("--baseline", metavar="PYTHON", help="as of meshwright bench train")
    p.add_argument("--mixes", default=",".join(MIXES))
    p.add_argument("--size", default="tiny", choices=list(SIZES))
    p.add_argument("--steps", default="4,28", help="of the short and of the long run: a baseline whose start takes as "
                   "much CPU as twenty of its steps, and now and then half a second more, needs many between")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--data", default=str(ROOT / ".deps/text/gcide.txt"))
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    a.data = str(pathlib.Path(a.data).resolve())
    short, long = map(int, a.steps.split(","))
    with tempfile.TemporaryDirectory() as folder:
        try:
            baseline = a.baseline and Baseline(a.baseline, a.data, pathlib.Path(folder))
        except Problem as why:
            sys.exit(why.tell(False))
        measure(a, Ours(a.meshwright, a.data, pathlib.Path(folder)), baseline, short, long)


def measure(a, ours, baseline, short, long):
    rows = []
    print(f"{'mix':10} {'threads':>9} {'mpi':>9} {'gloo':>9}   mpi/threads  gloo/mpi   (CPU seconds a step)")
    for mix in a.mixes.split(","):
        ranks = ALL[mix]["ranks"]
        sides = {"threads": lambda n: ours.command(a.size, mix, n, None),
                 "mpi": lambda n: [*shlex.split(MPIRUN.format(ranks=ranks)), *ours.command(a.size, mix, n, None)]}
        if baseline:
            sides["gloo"] = lambda n: theirs(baseline, a.size, mix, n, a.data)
        taken = {side: [] for side in sides}
        for _ in range(a.rounds):
            for side, command in sides.items():
                spent = [cpu_of(command(n), f"{mix} by {side}") for n in (short, long)]
                taken[side].append((spent[1] - spent[0]) / (long - short))
        row = {"mix": mix, **{side: statistics.median(values) for side, values in taken.items()}, "all": taken}
        rows.append(row)
        if a.json:
            pathlib.Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")
        gloo = f"{row['gloo']:9.3f}" if "gloo" in row else f"{'-':>9}"
        ratio = f"{row['gloo'] / row['mpi']:9.2f}" if "gloo" in row else f"{'-':>9}"
        print(f"{mix:10} {row['threads']:9.3f} {row['mpi']:9.3f} {gloo}   {row['mpi'] / row['threads']:11.2f} {ratio}", flush=True)


if __name__ == "__main__":
    main()
