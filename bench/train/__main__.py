"""Measures training beside stock PyTorch, in turns on one machine: `meshwright bench train`.

Both sides train from the same weights on the same tokens with the same optimizer, one thread a
rank, and report medians of their own steps after the warm-up. Ratios above 1 are in favour of
Meshwright. What else ran on the machine is measured beside each run; a disturbed pair is run
again."""
import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile

import chart
from mixes import MIXES, SIZES, chosen
from problem import INTERRUPTED, Problem, say
from rows import HEAD, fill_page, line, machine, machine_text, missed, put_beside_one, row_of, today
from runs import Baseline, Ours, others_now


class Bench:
    """The pairs measured so far, by size and mix, and what is made of them."""
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.ours = Ours(options.meshwright, options.data, folder)
        self.baseline = Baseline(options.baseline, options.data, folder) if options.baseline else None
        self.pairs, self.failed = {}, []

    def pair_once(self, size, mix):
        steps = self.options.steps or SIZES[size]["steps"]
        weights = self.baseline.save_weights(size, mix) if self.baseline else None
        theirs = self.baseline.run(size, mix, steps) if self.baseline else None
        return theirs, self.ours.run(size, mix, steps, weights)

    def pair(self, size, mix):
        """One run of each side, again while others disturb it; the quietest counts."""
        best = None
        for tried in range(1, 2 + self.options.retries):
            pair = self.pair_once(size, mix)
            others = max(side["others"] for side in pair if side)
            if best is None or others < best[0]:
                best = others, pair
            if others <= self.options.others:
                break
            again = f"; it runs again ({tried} of {self.options.retries})" if tried <= self.options.retries else ""
            say(f"  other programs kept {others:.2f} cores busy beside {size} {mix}{again}")
        return best[1]

    def measure(self):
        """All rounds, one after the other, so that what has been measured at any time is complete."""
        for k in range(self.options.rounds):
            for size in self.options.sizes:
                for mix in self.options.mixes:
                    try:
                        pair = self.pair(size, mix)
                    except Problem as why:  # the other mixes are measured all the same
                        self.failed.append(dict(size=size, mix=mix, error=str(why)))
                        why.tell(self.options.json)
                        continue
                    self.pairs.setdefault((size, mix), []).append(pair)
                    theirs, ours = pair
                    ratio = f", {theirs['step'] / ours['step']:.2f} x the baseline's" if theirs else ""
                    say(f"round {k + 1} of {self.options.rounds}: {size} {mix}: {ours['step']:.3f} s a step{ratio}")
                    self.save()

    def rows(self):
        rows = [row_of(size, mix, pairs) for (size, mix), pairs in self.pairs.items()]
        put_beside_one(rows)
        return rows

    def result(self):
        rows = self.rows()
        return dict(date=today(), machine=machine(), baseline_torch=self.baseline and self.baseline.version,
                    missed=list(missed(rows, self.options.others)), failed=self.failed, rows=rows)

    def save(self):
        """Writes what has been measured so far: the JSON file, and a chart of each size."""
        if self.options.out is None:
            return
        self.options.out.mkdir(parents=True, exist_ok=True)
        result = self.result()
        (self.options.out / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
        for size in dict.fromkeys(row["size"] for row in result["rows"]):
            (self.options.out / f"{size}.svg").write_text(self.drawing(size, result))

    def drawing(self, size, result):
        rows = [row for row in result["rows"] if row["size"] == size]
        return chart.draw(size, rows, self.baseline and f"stock PyTorch {self.baseline.version}")

    def fill(self, page):
        """Writes the tables into a page, and the charts into the folder `pictures` beside it."""
        result = self.result()
        pictures = page.parent / "pictures"
        pictures.mkdir(parents=True, exist_ok=True)
        for size in dict.fromkeys(row["size"] for row in result["rows"]):
            (pictures / f"train-{size}.svg").write_text(self.drawing(size, result))
        fill_page(page, result, lambda size: f"pictures/train-{size}.svg")


def parse(words):
    p = argparse.ArgumentParser(prog="meshwright bench train", allow_abbrev=False)
    p.add_argument("--sizes", default="tiny")
    p.add_argument("--mixes", default="main")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--baseline")
    p.add_argument("--others", type=float, default=0.1)
    p.add_argument("--retries", type=int, default=2)
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--page", type=pathlib.Path)
    p.add_argument("--json", action="store_true")
    p.add_argument("--check", action="store_true")
    p.add_argument("--meshwright", required=True)
    p.add_argument("--data", required=True)
    return p.parse_args(words)


def check(o):
    """Raises Problem where the options cannot be."""
    o.sizes, o.mixes = chosen(o.sizes, SIZES, "size"), chosen(o.mixes, MIXES, "mix")
    if o.page and not o.page.is_file():
        raise Problem("options", "usage.value", f"--page {o.page} is no file", "name a page, as docs/performance.md")
    if o.out:
        try:
            o.out.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=o.out).close()
        except OSError as why:
            raise Problem("options", "usage.value", f"--out {o.out}: {why.strerror}", "name a folder that can be written")
    if not os.path.exists(o.data):
        raise Problem("environment", "file.missing", f"the text {o.data} is not there",
                      "./meshwright run scripts/quickstart.lua fetches it")


def report(bench):
    """Says what came of it. Returns whether a target was missed."""
    result = bench.result()
    if bench.options.json:
        for row in result["rows"]:
            print(json.dumps(row), flush=True)
    stream = sys.stderr if bench.options.json else sys.stdout
    if result["rows"]:
        print("\n".join([machine_text(result["machine"]), HEAD, *map(line, result["rows"])]), file=stream)
    for text in result["missed"]:
        print(f"missed: {text}", file=stream)
    bench.save()
    if bench.options.page and result["rows"]:
        bench.fill(bench.options.page)
    return bool(result["missed"])


def end(_number, _frame):
    raise KeyboardInterrupt


def main(words):
    options = parse(words)
    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(options)
            bench = Bench(options, pathlib.Path(folder))
        except Problem as why:
            return why.tell(options.json)
        if bench.baseline is None:
            say("no --baseline: ours is measured alone" + (", and only what mixes take over one rank is checked" if options.check else ""))
        if (busy := others_now()) > options.others:
            say(f"other programs keep {busy:.2f} cores busy now; CPU seconds are steadier than tokens/s then")
        try:
            bench.measure()
        except KeyboardInterrupt:
            say("interrupted: what stands below was measured before")
            report(bench)
            return INTERRUPTED
        short = report(bench)
        return int(bool(bench.failed) or short and options.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
