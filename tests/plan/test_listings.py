# label: unit
"""Programs of a dozen mixes, word for word: tests/plan/listings holds what `plan --program`
lists, so that a change of a program shows as a diff. With MESHWRIGHT_WRITE_LISTINGS=1 the files
are written anew: look at the diff, then commit."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

FOLDER = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"]) / "tests/plan/listings"
LLAMA = "mw.llama { layers = 1, hidden = 8, heads = 4, kv_heads = 2, ffn = 8, vocab = 16 }"
TWO = "mw.llama { layers = 2, hidden = 8, heads = 2, ffn = 8, vocab = 16, tied = true }"
MOE = "mw.moe { layers = 1, hidden = 8, heads = 2, ffn = 8, vocab = 16, experts = 4, top_k = 2 }"
TIMES = "times = { 1, 1, 1 }"
# name: model, plan, more keys of the experiment
MIXES = {
    "one-rank": (LLAMA, "", ""),
    "dp": (LLAMA, "dp(2)", "microbatch = 2"),
    "tp": (LLAMA, "tp(2)", ""),
    "tp-sp": (LLAMA, "tp(2), sp()", ""),
    "ring": (LLAMA, "sp { 2 }", ""),
    "ring-of-eight": (LLAMA, "sp { 8 }", ""),
    "ulysses": (LLAMA, 'sp { 2, form = "ulysses" }', ""),
    "zero-1-replicas": (LLAMA, "zero { 4, stage = 1, replicas = 2 }", ""),
    "zero-1-replicas-stages": (TWO, 'pp { 2, schedule = "1f1b" }, zero { 4, stage = 1, replicas = 2, bucket = "256B" }', "microbatch = 1"),
    "zero-2-tp-muon": (LLAMA, "zero { 2, stage = 2 }, tp(2)", "optimizer = mw.muon { lr = 1e-2 }"),
    "zero-2-by-chunk": (LLAMA, 'zero { 2, stage = 2, reduce = "chunk" }', "microbatch = 2"),
    "zero-3-replicas": (LLAMA, "zero { 4, stage = 3, replicas = 2 }", "microbatch = 1"),
    "zero-3-offload": (LLAMA, 'zero { 2, stage = 3, offload = "parameters" }', 'precision = "bf16"'),
    "bf16-fp32-reductions": (LLAMA, "zero { 2, stage = 1 }, tp(2)", 'precision = "bf16", reductions = "fp32"'),
    "1f1b-tied": (TWO, 'dp(2), pp { 2, schedule = "1f1b" }', "microbatch = 2"),
    "zero-bubble-tied": (TWO, f'dp(2), pp {{ 2, schedule = "zb-h1", {TIMES} }}', "microbatch = 2"),
    "pairs-zero-3": (TWO, 'pp { 2, schedule = { kind = "1f1b", pair = true } }, zero { 2, stage = 3 }', "microbatch = 1"),
    "experts": (MOE, "dp(2), ep(2)", ""),
    "recompute": (LLAMA, "tp(2)", 'recompute = "full"'),
}

SCRIPT = """local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep")
local e = {{ model = {model}, data = mw.synthetic {{ sequence = 8 }}, plan = {{ {plan} }}, batch = 8, steps = 1,
  optimizer = mw.adamw {{ lr = 1e-3 }} }}
for key, value in pairs {{ {more} }} do e[key] = value end
mw.plan(e)
"""


class Listings(unittest.TestCase):
    maxDiff = None

    def listing(self, name):
        model, plan, more = MIXES[name]
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / f"{name}.lua"
            script.write_text(SCRIPT.format(model=model, plan=plan, more=more))
            done = subprocess.run(
                [os.environ["MESHWRIGHT_BIN"], "plan", "--program", "--json", script], capture_output=True, text=True
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = json.loads(done.stdout)["program"].splitlines()
        return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"

    def test_programs_are_as_listed(self):
        for name in MIXES:
            with self.subTest(name):
                file = FOLDER / f"{name}.txt"
                listing = self.listing(name)
                if os.environ.get("MESHWRIGHT_WRITE_LISTINGS"):
                    file.write_text(listing)
                self.assertEqual(listing, file.read_text())

    def test_no_listing_is_left_over(self):
        self.assertEqual({file.stem for file in FOLDER.glob("*.txt")}, set(MIXES))


if __name__ == "__main__":
    unittest.main()
