#!/usr/bin/env python3
"""Many ranks as threads: a step beside what its compute instructions take alone.

Each mix runs twice. First on one core, where its ranks run in turns and nothing runs beside an
instruction: a traced step says how long each took. Then on all cores, as it would be run. The limit
of a step is the first run's compute instructions over the cores; what the step takes above it is
collectives, waits, changes of threads and the engine itself.

"in turn" takes for each instruction what the median rank needed, times the ranks: a rank that gets
the core finds its weights and activations in memory, not in a cache. "at best" takes the least that
any rank needed: what it takes where its operands happen to be in a cache. The step's totals are
left out, although they stand among the ops: each rank waits in them for all others. Step and
instructions are timed by a clock, so the machine must be idle; "others" says how many cores other
programs had. Where they had some, "cpu over" tells more: CPU seconds over those "in turn"."""

import argparse
import collections
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import h5py

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0")
CORES = sorted(os.sched_getaffinity(0))
# Each: ranks, and the plan. Every rank has one sequence a step for each part of its batch.
MIXES = {
    "one": (1, "{}"),
    "dp64": (64, "{dp(64)}"),
    "zero3-64": (64, "{zero{64, stage=3}}"),
    "pp4-dp16": (64, '{pp{4, schedule="1f1b"}, dp(16)}'),
    "dp16-tp4": (64, "{dp(16), tp(4)}"),
    "dp256": (256, "{dp(256)}"),
    "zero3-256": (256, "{zero{256, stage=3}}"),
    "dp64-tp4": (256, "{dp(64), tp(4)}"),
    "dp16-pp4-tp4": (256, '{dp(16), pp{4, schedule="1f1b"}, tp(4)}'),
}
SCRIPT = """local mw = require "meshwright"
local dp, tp, pp, zero = mw.plugins("dp", "tp", "pp", "zero")
mw.train {
  model = mw.llama { layers = 4, hidden = 128, heads = 8, ffn = 352, vocab = 256 }, data = mw.synthetic {},
  sequence = 128, batch = %d, microbatch = 1, plan = %s, optimizer = mw.adamw { lr = 1e-3 },
  steps = %d, threads = 1, trace = { %s }, log = "%s",
}
"""


def busy_seconds():
    """CPU seconds that the machine has spent since it started, on anything."""
    n = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(n) - n[3] - n[4]) / os.sysconf("SC_CLK_TCK")


def run(program, mix, steps, traced, cores, folder):
    """The file of a run on these cores, its resources, and the cores that others had meanwhile."""
    ranks, plan = MIXES[mix]
    script, log = folder / "ranks.lua", folder / "ranks.h5"
    script.write_text(SCRIPT % (max(ranks, 64), plan, steps, traced, log))
    log.unlink(missing_ok=True)
    begin, busy = time.monotonic(), busy_seconds()
    child = subprocess.Popen([*program, "run", str(script)], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    said = child.stderr.read().decode()
    _, status, use = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{mix} ended with {child.returncode}:\n{said[-3000:]}")
    own, wall = use.ru_utime + use.ru_stime, time.monotonic() - begin
    return h5py.File(log), use, max(0.0, (busy_seconds() - busy - own) / wall)


def alone(file):
    """Seconds of a step's compute instructions, all ranks together: by the median rank, and at best."""
    took = collections.defaultdict(list)
    for row in file["trace"][:]:
        if row["kind"] == b"op" and row["phase"] != b"report":
            took[row["stage"], row["name"], row["phase"], row["label"]].append(float(row["end"] - row["start"]))
    return (sum(statistics.median(times) * len(times) for times in took.values()),
            sum(min(times) * len(times) for times in took.values()))


def measured(program, mix, arguments, folder):
    steps = arguments.steps
    file, _, others = run(program, mix, 3, "2", CORES[:1], folder)
    in_turn, at_best = alone(file)
    file.close()
    file, use, others_then = run(program, mix, steps, "", CORES, folder)
    rows = file["steps"][:][2:]
    file.close()
    step = statistics.median(float(s) for s in rows["seconds"])
    cpu = statistics.median(float(s) for s in rows["cpu_seconds"])
    return {"mix": mix, "ranks": MIXES[mix][0], "step_s": step, "cpu_s": cpu, "in_turn_s": in_turn,
            "at_best_s": at_best, "over_in_turn": step * len(CORES) / in_turn, "cpu_over_in_turn": cpu / in_turn,
            "over_at_best": step * len(CORES) / at_best, "switches_a_step": (use.ru_nvcsw + use.ru_nivcsw) / steps,
            "others_cores": max(others, others_then)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshwright", default=str(ROOT / "build/bin/meshwright"), help="the program")
    parser.add_argument("--mixes", default=",".join(MIXES), help="of " + ",".join(MIXES))
    parser.add_argument("--steps", type=int, default=8, help="of each run; the first two do not count")
    parser.add_argument("--rounds", type=int, default=3, help="of each mix; medians count")
    parser.add_argument("--json", help="writes the rows there")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps must be 3 at least")
    unknown = [mix for mix in arguments.mixes.split(",") if mix not in MIXES]
    if unknown:
        parser.error(f"no mix is called {unknown[0]}: there are {', '.join(MIXES)}")
    print(f"{'mix':>13} {'step s':>8} {'cpu s':>8} {'in turn s':>10} {'at best s':>10} {'over in turn':>13} "
          f"{'cpu over':>9} {'over at best':>13} {'switches':>9} {'others':>7}")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for mix in arguments.mixes.split(","):
            rounds = [measured(shlex.split(arguments.meshwright), mix, arguments, pathlib.Path(name))
                      for _ in range(arguments.rounds)]
            row = {key: value if isinstance(value, (str, int)) else statistics.median(r[key] for r in rounds)
                   for key, value in rounds[0].items()}
            rows.append(row)
            print(f"{mix:>13} {row['step_s']:8.3f} {row['cpu_s']:8.3f} {row['in_turn_s']:10.3f} "
                  f"{row['at_best_s']:10.3f} {row['over_in_turn']:13.2f} {row['cpu_over_in_turn']:9.2f} "
                  f"{row['over_at_best']:13.2f} "
                  f"{row['switches_a_step']:9.0f} {row['others_cores']:7.2f}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
