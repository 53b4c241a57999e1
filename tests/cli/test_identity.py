"""What tells experiments apart: names of mixes, the hash, and the whole experiment in results and
run files."""
import json
import unittest

import h5py

from cases import ProgramCase

HEAD = """\
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep")
local function e(changes)
  local e = { model = mw.llama { layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 64 }, data = mw.synthetic {},
              sequence = 16, plan = {}, batch = 8, optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
  for key, value in pairs(changes) do e[key] = value end
  return e
end
"""
# Entries of a plan, and what the mix is called.
MIXES = {
    "dp(2), tp(2)": "{ dp(2), tp(2) }",
    "zero { 4, stage = 1 }": "zero(4)",
    "zero { 4, stage = 3 }, tp { 2, overlap = false }": "{ zero { 4, stage = 3 }, tp(2) }",
    'pp { 2, schedule = "zb-h1" }': 'pp { 2, schedule = "zb-h1" }',
    'pp { 2, layout = { 1, 3 } }, dp { 2, bucket = "1MiB", overlap = false }':
        '{ pp { 2, layout = { 1, 3 } }, dp { 2, bucket = "1MiB", overlap = false } }',
    "zero { 2, stage = 2, bucket = 1000 }": 'zero { 2, bucket = "1000B", stage = 2 }',
    "tp(2), sp()": "{ tp(2), sp() }",
    'sp { 2, form = "allgather" }': 'sp { 2, form = "allgather" }',
    "dp { 2, hook = dp.powersgd { rank = 2 } }": 'dp { 2, hook = { kind = "powersgd", rank = 2 } }',
    "": "one rank",
}
# Of the experiment above, which keys make it another, and which do not.
OTHERS = ["seed = 1", "steps = 3", "optimizer = mw.adamw { lr = 2e-3 }", "data = mw.synthetic { seed = 7 }",
          "plan = { dp(2) }", "batch = 4", "memory = 2 ^ 30", "threads = 1", "schedule = function(step) return 1e-3 end",
          'precision = "fp64"', "check = true", "observe = function(step, facts) return { x = facts.loss } end",
          "evaluate = { data = mw.synthetic { seed = 9 }, every = 1 }"]
SAME = ["seed = 0", 'name = "mine"', 'log = "runs/{name}-{hash}.h5"', "overwrite = true", "timeout = 10",
        "schedule = mw.constant {}",
        *(f"model = mw.llama {{ layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 64, {more} }}"
          for more in ("kv_heads = 4", "head_dim = 8", "head_dim = 0", 'attention = "flash"', "kv_heads = 4, tied = false")),
        "optimizer = mw.adamw { lr = 1e-3, betas = { 0.9, 0.95 } }"]


class Identity(ProgramCase):
    def test_names_of_mixes(self):
        results = self.all("run", self.write(HEAD + "".join(f"mw.plan(e {{ plan = {{ {plan} }}, microbatch = 1 }})\n"
                                                            for plan in MIXES)))
        self.assertEqual([result["plan"] for result in results], list(MIXES.values()))
        self.assertEqual([result["name"] for result in results], list(MIXES.values()))
        # A name stands in a script for the mix that it names.
        named = [name for name in MIXES.values() if name != "one rank"]
        again = self.all("run", self.write(HEAD + "".join(f"mw.plan(e {{ plan = {name}, microbatch = 1 }})\n" for name in named)))
        self.assertEqual([(one["plan"], one["plan_hash"]) for one in again],
                         [(one["plan"], one["plan_hash"]) for one in results if one["plan"] != "one rank"])

    def test_names_of_mixes_that_are_set(self):
        done = self.call("plan", self.write(HEAD + "mw.plan(e { plan = { dp(2), tp(2) }, microbatch = 1 })"), "--set",
                         "plan={pp{2, schedule='zb-h1'}, tp(2)}")
        self.assertIn('plan = { pp { 2, schedule = "zb-h1" }, tp(2) } (was { dp(2), tp(2) })', done.stdout + done.stderr)

    def test_names_of_mixes_in_names_of_files(self):
        plan = self.only("run", self.write(HEAD + """mw.plan(e { plan = { pp { 2, schedule = "zb-h1" }, zero { 2, stage = 3 }, tp(2) },
          microbatch = 1, log = "runs/{name}.h5" })"""))
        self.assertEqual(plan["experiment"]["log"], "runs/pp2-schedule=zb-h1-zero2-stage=3-tp2.h5")

    def test_hashes(self):
        results = self.all("run", self.write(
            HEAD + "".join(f"mw.plan(e {{ {change} }})\n" for change in ["", *SAME, *OTHERS])))
        hashes = [result["hash"] for result in results]
        for change, found in zip(SAME, hashes[1:]):
            self.assertEqual(found, hashes[0], change)
        self.assertEqual(len(set(hashes)), 1 + len(OTHERS), hashes)

    def test_a_function_is_told_by_its_code(self):
        rate = "mw.plan(e {{ schedule = function(step) return {} end }}) "  # code has the numbers of its lines
        a, b, c = self.all("run", self.write(HEAD + rate.format("1e-3") + rate.format("1e-3") + rate.format("2e-3")))
        self.assertEqual(a["hash"], b["hash"])
        self.assertNotEqual(a["hash"], c["hash"])
        line = len(HEAD.splitlines()) + 1
        self.assertEqual(a["experiment"]["schedule"]["function"].rsplit("/")[-1], f"script.lua:{line}")
        self.assertRegex(a["experiment"]["schedule"]["hash"], "^[0-9a-f]{16}$")

    def test_where_a_function_stands_decides_nothing(self):
        """Comments, lines, spaces, another file's place, and functions that were made before."""
        keys = {
            "schedule = FUNCTION(step) return 1e-3 end", "recompute = FUNCTION(op) return op.layer == 1 end",
            "offload = FUNCTION(op) return op.layer == 1 end", "observe = FUNCTION(step) return { x = step } end",
            "microbatch = FUNCTION(step) return 2 end",
            'precision = "fp16", loss_scale = FUNCTION(step, scale, overflowed) return 64 end',
            'plan = { pp { 2, schedule = FUNCTION(s) return { "0F0 0B0", "1F0 1B0" } end } }',
            'plan = { pp { 2, schedule = mw.schedule("mine", FUNCTION(s) return { "0F0 0B0", "1F0 1B0" } end) } }',
            'plan = { dp { 2, hook = FUNCTION(bucket) return "none" end } }',
            'plan = { dp(2), mw.pass { name = "p", edit = FUNCTION(code) code:list { code = "start" } end } }',
            'plan = { dp(2), mw.pass { name = "p", edit = FUNCTION(code) local function inner() return 1 end inner() end } }',
            'plan = { mw.strategy { name = "mine", axis = { role = "data", ways = 2 }, rules = { { dim = "batch", where = FUNCTION(op) return true end } } } }',
        }
        plain = "".join(f"mw.plan(e {{ {key.replace('FUNCTION', 'function')} }})\n" for key in sorted(keys))
        moved = ("local unused = { observe = function() end }\nmw.plan(e { schedule = function(step) return 2e-3 end })\n"
                 + "".join(f"-- a comment\n\nmw.plan(e {{ {key.replace('FUNCTION', '  -- why' + chr(10) + chr(10) + ' function')} }})\n"
                           for key in sorted(keys)).replace(" return ", "\n  -- and here\n  return   "))
        before = self.all("run", self.write(HEAD + plain))
        after = self.all("run", self.write(HEAD + moved))[1:]
        (self.folder / "elsewhere").mkdir()
        there = self.all("run", self.write(HEAD + moved).rename(self.folder / "elsewhere/other.lua"))[1:]
        for key, *results in zip(sorted(keys), before, after, there):
            for name in ("hash", "plan_hash", "hash_without_seed"):
                self.assertEqual(len({result[name] for result in results}), 1, (key, name))

    def test_a_hash_without_the_seed(self):
        a, b, c = self.all("run", self.write(HEAD + "mw.plan(e {}) mw.plan(e { seed = 4 }) mw.plan(e { batch = 4 })"))
        self.assertNotEqual(a["hash"], b["hash"])
        self.assertEqual(a["hash_without_seed"], b["hash_without_seed"])
        self.assertNotEqual(a["hash_without_seed"], c["hash_without_seed"])

    def test_a_function_is_told_by_what_it_closes_over(self):
        made = ("local function made(lr) local cfg = { rates = { lr } } "
                "return function(step) return cfg.rates[1] end end\n"
                "local function seen(of, n) return function(step) of[#of + 1] = step return { n = n } end end\n")
        a, b, c, d, e, f = self.all("run", self.write(
            HEAD + made + "".join(f"mw.plan(e {{ {key} }}) " for key in (
                "schedule = made(1e-3)", "schedule = made(1e-3)", "schedule = made(1e-1)",
                "observe = seen({}, 1)", "observe = seen({ 7 }, 1)", "observe = seen({}, 2)"))))
        self.assertEqual(a["hash"], b["hash"])
        self.assertNotEqual(a["hash"], c["hash"])
        self.assertEqual(d["hash"], e["hash"], "what observe has collected makes no other run")
        self.assertNotEqual(d["hash"], f["hash"])

    def test_microbatches_said_or_derived(self):
        a, b = self.all("run", self.write(HEAD + "mw.plan(e {}) mw.plan(e { microbatch = 8 })"))
        self.assertEqual(a["hash"], b["hash"])

    def test_a_text_edited_in_place_is_another_experiment(self):
        text = self.folder / "own.txt"
        script = self.write(HEAD + 'mw.plan(e { model = mw.gpt { layers = 1, hidden = 16, heads = 2, vocab = 256 }, data = mw.text "own.txt" })')
        hashes = []
        for content in ("a rose is " * 200, "a rosE is " * 200, "a rose is " * 200):
            text.write_text(content)
            hashes.append(self.only("run", script)["hash"])
        self.assertNotEqual(hashes[0], hashes[1], "one letter in it differs")
        self.assertEqual(hashes[0], hashes[2])

    def test_results_and_file_have_it_all(self):
        script = self.write(HEAD + 'mw.train(e { name = "a b", plan = { zero { 2, stage = 2 } }, log = "runs/{name}-{seed}.h5" })')
        run = self.only("run", script, "--set", "seed=3", "--set", "optimizer.lr=0.5", "--set", "steps=1")
        whole = run["experiment"]
        self.assertEqual((run["name"], run["seed"], run["log"]), ("a b", 3, "runs/a-b-3.h5"))
        self.assertEqual(whole["optimizer"], {"lr": 0.5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "kind": "adamw"})
        self.assertEqual((whole["steps"], whole["seed"], whole["data"]["kind"], whole["plan"][0]["stage"],
                          whole["plan"][0]["prefetch"], whole["schedule"]["kind"], whole["model"]["tied"]),
                         (1, 3, "synthetic", 2, 1, "constant", False))
        with h5py.File(self.folder / run["log"]) as file:
            text = [value.decode() if isinstance(value, bytes) else value for value in (file.attrs["name"], file.attrs["hash"])]
            self.assertEqual((*text, file.attrs["seed"]), ("a b", run["hash"], 3))
            self.assertEqual(json.loads(file["experiment"][()]), whole)
            self.assertEqual(json.loads(file["machine"][()])["plugins"].keys(), {"zero"})
        plan = self.only("plan", script, "--set", "seed=3", "--set", "optimizer.lr=0.5", "--set", "steps=1")
        verified = self.only("verify", script, "--set", "seed=3", "--set", "optimizer.lr=0.5", "--set", "steps=1")
        for other in (plan, verified):
            self.assertEqual((other["name"], other["hash"], other["experiment"]), ("a b", run["hash"], whole))
        self.assertEqual(run["predicted"]["peak_bytes"], max(stage["peak"] for stage in run["predicted"]["memory"]))
        self.assertEqual(run["peak_bytes"], run["predicted"]["peak_bytes"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
