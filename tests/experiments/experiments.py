#!/usr/bin/env python3
"""Makes random experiments by a seed, and holds each to this: it is proved, equals one rank in
float64, holds and sends what is predicted; or it is refused with a reason before anything runs. A
failure is made smaller and written as a script.

  experiments.py --count 1000                     so many of them
  experiments.py --minutes 480 --seed 7           as many as the time allows
  experiments.py --seed 7 --only 123 --show       one of them alone
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import sys
import threading
import time

from generator import experiment
from judge import judged
from lua_tree import render
from shrink import script, shrunk
from workers import VERBS, Worker

# What experiments are counted by that are accepted; each must be among them.
FORMS = ("dp zero tp sp pp ep own coshard pass directives braids llama gpt moe latent composed adamw sgd muon shampoo recompute "
         "offload precision schedule evaluate check documents masked groups frozen draws update ema diloco").split() + ["sp on tp", "text schedule"]
EVERY = 10  # seconds between two lines that say how far it is
AGAIN = 5  # times that a failure is tried alone


class Tally:
    """Outcomes, by form and in all."""

    def __init__(self):
        self.kinds, self.forms, self.refused = collections.Counter(), {}, collections.Counter()
        self.accepted, self.failures, self.lock = collections.Counter(), [], threading.Lock()

    def add(self, forms, outcome):
        with self.lock:
            self.kinds[outcome.kind] += 1
            for form in forms:
                self.forms.setdefault(form, collections.Counter())[outcome.kind] += 1
            if outcome.kind == "refused":
                self.refused[outcome.what] += 1
            elif outcome.kind == "accepted":
                self.accepted[outcome.what] += 1

    def total(self):
        return sum(self.kinds.values())

    def as_json(self):
        return {"experiments": self.total(), **{kind: self.kinds[kind] for kind in ("accepted", "refused", "failed")},
                "accepted_as": dict(self.accepted), "refused_as": dict(self.refused.most_common()),
                "forms": {form: dict(counts) for form, counts in sorted(self.forms.items())}, "failures": self.failures}

    def text(self, seconds):
        accepted, total = self.kinds["accepted"], max(1, self.total())
        lines = [f"{self.total()} experiments in {seconds:.0f} s: {accepted} accepted ({100 * accepted / total:.0f} %), "
                 f"{self.kinds['refused']} refused, {self.kinds['failed']} failed"]
        lines.append("  accepted: " + ", ".join(f"{count} {what}" for what, count in self.accepted.most_common()))
        lines.append("  refused:  " + ", ".join(f"{count} {what}" for what, count in self.refused.most_common()))
        for form, counts in sorted(self.forms.items()):
            lines.append(f"  {form:16} " + ", ".join(f"{counts[kind]} {kind}" for kind in ("accepted", "refused", "failed")
                                                    if counts[kind]))
        return "\n".join(lines)


class Session:
    def __init__(self, seed, folder, shrink_seconds=120, stop=lambda: False):
        self.seed, self.folder, self.shrink_seconds, self.stop = seed, pathlib.Path(folder), shrink_seconds, stop
        self.tally, self.signatures, self.said = Tally(), {}, time.monotonic()
        self.interrupted = False

    def one(self, worker, number):
        keys, forms = experiment(self.seed, number)
        outcome = judged(worker.run(keys, number), keys)
        self.tally.add(forms, outcome)
        if outcome.kind == "failed":
            self.failed(number, keys, outcome)
        if time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            print(f"up to number {number}: {dict(self.tally.kinds)}", flush=True)
        return outcome

    def failed(self, number, keys, outcome):
        """Tries it alone, makes it smaller if it is the first of its kind, and says so."""
        alone = Worker()
        try:
            outcomes = [judged(alone.run(keys, number), keys) for _ in range(AGAIN)]
            same = sum(found.same_as(outcome) for found in outcomes)
            with self.tally.lock:
                first = outcome.what not in self.signatures
                self.signatures.setdefault(outcome.what, []).append(number)
            facts = {"seed": self.seed, "number": number, "what": outcome.what, "why": outcome.why[-2000:],
                     "alone": f"{same} of {AGAIN}", "script": None}
            if first and self.shrink_seconds:
                small, tried = keys, 0
                if same:
                    times = 1 if same == AGAIN else AGAIN
                    small, tried = shrunk(alone, keys, outcome, VERBS, times, self.shrink_seconds)
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"seed{self.seed}-{number}.lua"
                path.write_text(script(small, self.seed, number, outcome))
                facts.update(script=str(path), tried=tried)
        finally:
            alone.end()
        with self.tally.lock:
            self.tally.failures.append(facts)
        print(f"FAILED seed {self.seed} number {number}: {outcome.what} (alone: {facts['alone']})\n  {outcome.why[:600]}\n"
              f"  {facts['script'] or 'as ' + str(self.signatures[outcome.what][0]) + ', not made smaller'}", flush=True)

    def run(self, numbers, jobs):
        """Takes the numbers one after the other, by several workers."""
        numbers, lock, ended = iter(numbers), threading.Lock(), threading.Event()

        def take():
            worker = Worker()
            try:
                while not self.stop() and not ended.is_set():
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    self.one(worker, number)
            finally:
                worker.end()

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            try:
                for done in [pool.submit(take) for _ in range(jobs)]:
                    done.result()
            except KeyboardInterrupt:  # each worker ends the experiment that it has begun
                ended.set()
                self.interrupted = True
                print("interrupted: it ends with the experiments that have begun", flush=True)
        return self.tally


def options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="how many (200, or without an end where --minutes is given)")
    parser.add_argument("--minutes", type=float, help="end after so many")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--only", type=int, help="this number alone")
    parser.add_argument("--show", action="store_true", help="print the script of --only")
    parser.add_argument("--jobs", type=int, default=min(4, len(os.sched_getaffinity(0))), help="processes")
    parser.add_argument("--out", default="experiments-failed", help="folder for scripts that show failures")
    parser.add_argument("--json", help="file for the counts")
    parser.add_argument("--shrink", type=float, default=120, help="seconds for making one failure smaller; 0: none is")
    given = parser.parse_args(arguments)
    for name in ("count", "jobs", "minutes"):
        if getattr(given, name) is not None and getattr(given, name) <= 0:
            parser.error(f"--{name} {getattr(given, name)}: say more than 0")
    if given.first < 0 or (given.only or 0) < 0:
        parser.error("experiments are numbered from 0")
    if given.json:
        try:
            pathlib.Path(given.json).touch()
        except OSError as why:
            parser.error(f"--json {given.json}: {why.strerror}")
    return given


def interrupt(_number, _frame):
    raise KeyboardInterrupt


def main(arguments=None):
    given = options(arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)
    began = time.monotonic()
    session = Session(given.seed, given.out, given.shrink,
                      lambda: bool(given.minutes) and time.monotonic() - began > 60 * given.minutes)
    if given.only is not None:
        numbers = [given.only]
        if given.show:
            print(render(experiment(given.seed, given.only)[0], 0))
    else:
        count = given.count or (10**9 if given.minutes else 200)
        numbers = range(given.first, given.first + count)
    tally = session.run(numbers, 1 if given.only is not None else given.jobs)
    print(tally.text(time.monotonic() - began))
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps({"seed": given.seed, **tally.as_json()}, indent=1) + "\n")
    return 130 if session.interrupted else 1 if tally.kinds["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
