#!/usr/bin/env python3
"""Runs libFuzzer on the readers of what comes from outside, one after the other, and says how far
each has come. What breaks a reader is kept, as small as libFuzzer gets it.

  fuzz.py --minutes 10                          ten minutes of each reader
  fuzz.py --minutes 60 --target safetensors     of one alone
  fuzz.py --target shards --input FILE          one input, with the sanitizers' words about it
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = SOURCE / "build-fuzz/bin/fuzz_readers"
CORPUS = SOURCE / "tests/fuzz/corpus"
# A fault besides a crash: more seconds, or more memory (MB, in one piece or in all).
LIMITS = ["-malloc_limit_mb=2048", "-rss_limit_mb=3072", "-max_len=65536", "-detect_leaks=0"]
SECONDS = 10
# The process that reads a run file first is given up after 10 s of CPU time, or 30 s by the clock.
SECONDS_OF = {"runs": 45}
# The files of each reader, whose functions and edges are counted: parts of paths.
READERS = {
    "attempts": ["libs/launch/restarts.cpp:Attempt", "libs/common/files.cpp"],
    "calibrations": ["predict/calibration.cpp", "predict/work_fit.cpp", "predict/log_curve.cpp"],
    "cells": ["app/sweep/folder.cpp", "app/sweep/judge.cpp", "app/sweep/summary.cpp"],
    "checkpoints": ["checkpoint/index.cpp", "checkpoint/checkpoint.cpp", "checkpoint/slices.cpp", "checkpoint/settings.cpp"],
    "clusters": ["predict/cluster.cpp", "predict/cluster_parts.cpp", "predict/stack.cpp", "predict/runs.cpp", "predict/measured.cpp"],
    "descriptors": ["registry/module.cpp"],
    "experiments": ["frontend/script/", "plan/axes.cpp", "plan/draft.cpp"],
    "launch": ["transport/launched.cpp", "transport/store_link.cpp"],
    "measured_steps": ["app/calibrate/calibrate_steps.cpp"],
    "messages": ["launch/processes.cpp", "engine/pack.h"],
    "modules": ["registry/module_file.cpp"],
    "options": ["base/options.cpp", "lua/value.cpp"],
    "run_texts": ["record/run_result.cpp", "record/run_facts.cpp", "record/cells.cpp", "common/run_timing.cpp"],
    "runs": ["record/hdf5_read.cpp", "record/hdf5_file.cpp", "record/run_reader.cpp", "record/columns.cpp"],
    "safetensors": ["checkpoint/safetensors.cpp", "common/mapped_file.cpp"],
    "schedules": ["schedule/text.cpp", "schedule/check.cpp", "schedule/timeline.cpp"],
    "scripts": ["frontend/lua/", "frontend/script/"],
    "shards": ["data/shard_data.cpp", "data/sample_order.cpp", "common/mapped_file.cpp"],
    "sweeps": ["record/cells.cpp", "record/run_set.cpp"],
    "weights": ["checkpoint/weights.cpp"],
}
FUNCTION = re.compile(r"^(?:UN)?COVERED_FUNC: hits: (\d+) edges: (\d+)/(\d+) (.*) (\S+):\d+$")


def environment(target, symbolize=True):
    options = ("abort_on_error=0:detect_leaks=0:allocator_may_return_null=0:handle_abort=1:quarantine_size_mb=32:"
               f"symbolize={symbolize:d}")
    return {**os.environ, "MESHWRIGHT_FUZZ": target, "ASAN_OPTIONS": options, "OMP_NUM_THREADS": "1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1", "MESHWRIGHT_FIRST_USE": "off"}


def limits(target):
    return [*LIMITS, f"-timeout={SECONDS_OF.get(target, SECONDS)}"]


def fuzz(target, seconds, work, log):
    """Runs the fuzzer; returns its numbers and the inputs that broke the reader."""
    corpus, broken = work / "corpus" / target, work / "broken" / target
    for folder in (corpus, broken):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(broken.iterdir())
    command = [PROGRAM, *limits(target), f"-max_total_time={seconds}", "-print_final_stats=1", f"-artifact_prefix={broken}/",
               corpus, CORPUS / target]
    # HDF5 crashes often in the processes that read a run file first, and names of functions for
    # each such crash would take nearly all of the time.
    with open(log, "w") as out:
        status = subprocess.run(command, env=environment(target, target != "runs"), stdout=out, stderr=out).returncode
    text = log.read_text(errors="replace")
    number = lambda pattern: int((re.findall(pattern, text) or ["0"])[-1])
    # libFuzzer ends with the first input that breaks the reader. An input named before broke the
    # process that reads a run file first, as it may.
    written = re.findall(r"Test unit written to (\S+)", text)
    found = [pathlib.Path(path) for path in written[-1:] if status]
    for path in set(broken.iterdir()) - before - set(found):
        path.unlink()
    return {"target": target, "status": status, "executions": number(r"stat::number_of_executed_units: (\d+)"),
            "seconds": number(r"Done \d+ runs in (\d+) second") or seconds, "edges_anywhere": number(r"cov: (\d+)"),
            "inputs": len(list(corpus.iterdir())), "peak_mb": number(r"stat::peak_rss_mb:\s+(\d+)"),
            "broken": [str(path) for path in found]}


def is_own(target, name, file):
    for wanted in READERS[target]:
        part, _, function = wanted.partition(":")
        if part in file and function in name:
            return True
    return False


def coverage(target, work):
    """How many functions and edges of the reader's own files the grown corpus reaches, and how many there are."""
    # An input that breaks the reader goes where fuzz() keeps it, not into the working directory.
    command = [PROGRAM, *limits(target), "-runs=0", "-print_coverage=1", f"-artifact_prefix={work / 'broken' / target}/",
               work / "corpus" / target, CORPUS / target]
    out = subprocess.run(command, env=environment(target), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL).stderr
    counts = {"functions": 0, "functions_of": 0, "edges": 0, "edges_of": 0}
    for line in out.decode(errors="replace").splitlines():
        found = FUNCTION.match(line)
        if not found or not is_own(target, found[4], found[5]):
            continue
        hits, edges, edges_of = (int(found[k]) for k in (1, 2, 3))
        counts["functions"] += hits > 0
        counts["functions_of"] += 1
        counts["edges"] += edges
        counts["edges_of"] += edges_of
    return counts


def row(result):
    broken = f"{len(result['broken'])} BROKEN" if result["broken"] or result["status"] else "nothing"
    return (f"{result['target']:<13} {result['seconds']:>5} s  {result['executions']:>9} runs  "
            f"edges {result['edges']:>4} of {result['edges_of']:<4}  "
            f"functions {result['functions']:>3} of {result['functions_of']:<3}  found {broken}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of each reader")
    parser.add_argument("--target", action="append", choices=sorted(READERS), help="a reader; all of them if left out")
    parser.add_argument("--work", type=pathlib.Path, default=SOURCE / "build-fuzz/work",
                        help="folder that keeps what was found: corpus/TARGET, broken/TARGET, TARGET.log")
    parser.add_argument("--input", type=pathlib.Path, help="read this one file by the one --target, and end")
    parser.add_argument("--json", type=pathlib.Path, help="file for the numbers")
    parser.add_argument("--no-build", action="store_true", help="takes the program as it is")
    return parser


def main():
    asked = arguments().parse_args()
    if not asked.no_build:
        built = subprocess.run([SOURCE / "meshwright", "build", "--preset", "fuzz", "fuzz_readers"])
        if built.returncode != 0:
            return built.returncode
    targets = asked.target or sorted(READERS)
    if asked.input:
        if len(targets) != 1:
            sys.exit("fuzz.py: --input needs one --target, the reader that gets the file")
        return subprocess.run([PROGRAM, *limits(targets[0]), asked.input], env=environment(targets[0])).returncode
    asked.work.mkdir(parents=True, exist_ok=True)
    results = []
    for target in targets:
        result = fuzz(target, max(1, round(60 * asked.minutes)), asked.work, asked.work / f"{target}.log")
        results.append({**result, **coverage(target, asked.work)})
        print(row(results[-1]), flush=True)
        for path in result["broken"]:
            print(f"  kept: {path}; its log: {asked.work / f'{target}.log'}", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if any(result["broken"] or result["status"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
