"""What a script is told and may say of a run: facts, stop, held-out losses, results' fields, its
own arguments, quiet, and a loop's text."""
import json
import unittest

import h5py

from cases import SOURCE, ProgramCase
from problems import problems


class SingleRun(ProgramCase):
    def test_observe_is_told_and_may_stop(self):
        run = self.only("run", self.script("dp(2), tp(2)", """
            e.steps, e.log, e.batch = 50, "a.h5", 8
            e.observe = function(step, facts)
              if step == 3 then assert(facts.held_out_loss == nil) end
              return { twice = 2 * facts.loss, lr = facts.lr, rate = facts.tokens / facts.seconds, norm = facts.grad_norm,
                       stop = step == 6 }
            end"""))
        self.assertEqual((run["status"], run["reason"], run["steps"]), ("done", "stopped by observe after step 6", 7))
        with h5py.File(self.folder / "a.h5") as file:
            self.assertEqual([2 * loss for loss in run["losses"]], list(file["series/twice"]))
            self.assertEqual(run["grad_norms"], list(file["series/norm"]))
            self.assertEqual(set(file["series/lr"]), {1e-3})
            self.assertNotIn("stop", file["series"])
            self.assertEqual([event["kind"] for event in file["events"]], [b"stopped"])
        # At the last step nothing is left to stop; a metric may be called so.
        run = self.only("run", self.script("", "e.observe = function(step) return { stop = step == 3 } end"))
        self.assertEqual((run["status"], run["reason"], run["steps"]), ("done", None, 4))
        run = self.only("run", self.script("", 'e.log = "b.h5" e.observe = function(step) return { stop = 0.5 } end'))
        self.assertEqual(run["steps"], 4)
        with h5py.File(self.folder / "b.h5") as file:
            self.assertEqual(list(file["series/stop"]), [0.5] * 4)

    def test_results_have_known_fields(self):
        fields = """
        local run = mw.train(e)
        assert(run.reason == nil and run.check == nil and #run.losses == 4 and run.predicted.peak_bytes == run.peak_bytes)
        for key in pairs(run) do assert(run[key] ~= nil) end
        local plan = mw.plan(e)
        """
        for field, near in [("run.loses", "losses"), ("run.predicted.step_second", "step_seconds"), ("plan.fit", "fits"),
                            ("run.quite_another_thing", "it has")]:
            with self.subTest(field):
                line = self.refused_last(self.script("", fields + f"print({field}) do return end"))
                self.assertIn(near, line["hint"])
                self.assertEqual(line["line"], 15)
        # Under `plan` what a training alone has is nil, as before.
        self.only("plan", self.script("", "local run = mw.train(e) assert(run.losses == nil) do return end"))

    def refused_last(self, script):
        done = self.call("run", script, "--json")
        lines = self.lines(done)
        self.assertEqual((done.returncode, problems(lines)), (2, ["script.unknown"]), lines[-1])
        return lines[-1]

    def test_a_scripts_own_arguments(self):
        script = self.write('print(#arg, arg[0]:match("[^/]+$"), arg[1], arg[2], ...)')
        self.assertEqual(self.call("run", script, "--", "a", "--json").stdout, "2\tscript.lua\ta\t--json\ta\t--json\n")
        self.assertEqual(self.call("run", script).stdout, "0\tscript.lua\tnil\tnil\n")
        self.assertEqual(self.call("run", script, "a").returncode, 2)

    def test_quiet(self):
        script = self.script("dp(2)", "print('mine', mw.train(e).steps) e.seed = 1")
        done = self.call("run", script, "--quiet")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "mine\t4\n", ""))
        done = self.call("run", script, "--quiet", "--json")
        self.assertEqual(([json.loads(line)["seed"] for line in done.stdout.splitlines()], done.stderr), ([0, 1], "mine\t4\n"))
        done = self.call("run", script, "--quiet", "--set", "plan={dp(3)}")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("error: ", done.stderr)

    def test_a_loop_shows_a_plan_once(self):
        loop = "for seed = 1, 3 do e.seed, e.optimizer = seed, mw.adamw { lr = seed * 1e-3 } mw.train(e) end e.plan = { tp(2) }"
        said = self.call("run", self.script("dp(2)", loop)).stderr
        self.assertEqual(said.count("memory a rank"), 2)  # dp's, tp's
        self.assertEqual(said.count("dp(2), dp 2 = 2 ranks"), 3)
        self.assertEqual(said.count(": as above"), 2)

    def test_texts_by_name(self):
        self.refused(2, "file.missing data.path", "run",
                     self.script("", 'e.data, e.model.vocab = mw.text "no-such-text", 256'))
        if not (SOURCE / ".deps/text/gcide.txt").exists():
            self.skipTest("no text came with this program")
        def trained(name):
            return self.script("", f'e.data, e.model.vocab = mw.text {{ "{name}", order = "sequential" }}, 256')
        whole = self.only("run", trained("gcide"))["losses"]
        (self.folder / "gcide").mkdir()
        self.refused(2, "data.ambiguous data.path", "run", trained("gcide"))
        (self.folder / "gcide").rmdir()
        (self.folder / "gcide").write_text("a file of that name is not meant by it " * 40)
        self.refused(2, "data.ambiguous data.path", "run", trained("gcide"))
        self.assertNotEqual(self.only("run", trained("./gcide"))["losses"], whole)
        (self.folder / "gcide").unlink()
        self.assertEqual(self.only("run", trained("gcide"))["losses"], whole)


HELD_OUT = """
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep")
local function train(plan, changes)
  local e = { model = mw.llama { layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 64 }, data = mw.synthetic { seed = 1 },
              sequence = 16, plan = plan, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2, clip = 1.0 }, steps = 5,
              precision = "fp64", evaluate = { data = mw.synthetic { seed = 2 }, every = 2, batches = 3 } }
  for key, value in pairs(changes or {}) do e[key] = value end
  if e.evaluate == "none" then e.evaluate = nil end
  return mw.train(e)
end
"""
MIXES = ["", "dp(2)", "tp(2), sp()", "zero { 2, stage = 2 }, tp(2)", "zero { 4, stage = 3 }", "zero { 2, stage = 3, keep = true }",
         "pp(2), dp(2)", 'pp { 2, schedule = "zb-h1" }, zero { 2, stage = 3 }', 'pp { 2, schedule = "interleaved", chunks = 2 }',
         'pp { 2, schedule = "zbv" }', 'sp { 2, form = "ring" }, dp(2)', 'zero { 2, offload = "optimizer" }']


class HeldOut(ProgramCase):
    def test_equals_one_ranks_on_every_mix(self):
        runs = self.all("run", self.write(HELD_OUT + "".join(f"train {{ {mix} }}\n" for mix in MIXES)))
        one = runs[0]
        self.assertEqual([e["step"] for e in one["held_out"]], [1, 3, 4])
        self.assertEqual({e["tokens"] for e in one["held_out"]}, {3 * 8 * 16})
        for mix, run in zip(MIXES, runs):
            with self.subTest(mix):
                for mine, its in zip(run["held_out"], one["held_out"]):
                    self.assertLessEqual(abs(mine["loss"] - its["loss"]), 1e-10 * its["loss"])
                for mine, its in zip(run["losses"], one["losses"]):  # the training goes on as it would
                    self.assertLessEqual(abs(mine - its), 1e-10 * its)
                self.sent_as_predicted(run)
                self.assertGreater(run["predicted"]["held_out_seconds"], 0)
                self.assertEqual(run["peak_bytes"], run["predicted"]["peak_bytes"])

    def test_is_the_loss_of_those_tokens(self):
        # What one step on these tokens reports before its update, of weights that stay.
        (self.folder / "held.txt").write_bytes(bytes(97 + (7 * i * i + 3 * i) % 23 for i in range(2000)))
        held, trained = self.all("run", self.write(HELD_OUT + """
            local model = mw.llama { layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 256 }
            local still = { model = model, optimizer = mw.sgd { lr = 0 } }
            still.evaluate = { data = mw.text "held.txt", every = 5, batches = 3 }
            train({ dp(2) }, still)
            still.data, still.steps, still.evaluate = mw.text "held.txt", 3, "none"
            train({ dp(2) }, still)"""))
        self.assertAlmostEqual(held["held_out_loss"], sum(trained["losses"]) / 3, delta=1e-12)

    def test_of_endless_data_are_other_samples_of_the_same_chain(self):
        """The chain of the training, whether its seed is the run's or its own; none that it trains on."""
        runs = self.all("run", self.write(HELD_OUT + """
            local function held(changes)
              changes.evaluate = { data = mw.synthetic {}, every = 80, batches = 4 }
              train({}, changes)
            end
            held { steps = 4, optimizer = mw.sgd { lr = 0 }, data = mw.synthetic {} }
            held { steps = 80, seed = 3, data = mw.synthetic {}, precision = "fp32" }
            held { steps = 80, seed = 3, data = mw.synthetic { seed = 7 }, precision = "fp32" }"""))
        still, *learned = runs
        self.assertGreater(abs(still["held_out_loss"] - sum(still["losses"]) / 4), 1e-6)
        for run in learned:  # a loss of other chains rises beyond that of knowing nothing
            self.assertLess(run["losses"][-1], 3)
            self.assertLess(abs(run["held_out_loss"] - run["losses"][-1]), 0.5)
            self.assertLess(run["held_out_loss"], 3)

    def test_leaves_the_training_alone(self):
        pairs = [("dp(2)", "{ recompute = 'full' }"), ("dp(2)", "{ offload = 'full' }"), ("zero { 2, stage = 3 }", "{ check = true }"),
                 ("dp(2)", "{ precision = 'fp16' }"), ("dp(2), ep(2)", "{ model = moe }"), ("zero { 2, stage = 2 }", "{ model = moe }")]
        moe = """local moe = mw.moe { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, vocab = 64, experts = 4, top_k = 2,
                 balance = "bias" }\n"""
        with_, without = (self.all("run", self.write(HELD_OUT + moe + "".join(
            f"do local c = {changes} {none} train({{ {mix} }}, c) end\n" for mix, changes in pairs)))
            for none in ("", "c.evaluate = 'none'"))
        for pair, a, b in zip(pairs, with_, without):
            with self.subTest(pair):
                self.assertEqual(a["losses"], b["losses"])
                self.assertEqual(a["communication"][0]["bytes"], b["communication"][0]["bytes"])
                self.assertEqual(a.get("experts"), b.get("experts"))
                self.assertEqual(len(a["held_out"]), 3)
                self.assertNotIn("held_out", b)

    def test_is_observed_and_recorded(self):
        run = self.only("run", self.write(HELD_OUT + """train({ pp(2) }, { log = "a.h5", observe = function(step, facts)
            assert((facts.held_out_loss ~= nil) == (step % 2 == 1 or step == 4))
            return { seen = facts.held_out_loss } end })"""))
        with h5py.File(self.folder / "a.h5") as file:
            steps, losses = list(file["series/step"]), file["series/held_out_loss"][:]
            found = {int(s): x for s, x in zip(steps, losses) if x == x}
            self.assertEqual(found, {e["step"]: e["loss"] for e in run["held_out"]})
            self.assertEqual(len(file["steps"]), 5)

    def test_what_is_refused(self):
        line = "train({{ }}, {{ evaluate = {} }})"
        data = "data = mw.synthetic {}"
        self.all_refused(HELD_OUT, *((line.format(given), 2, problem) for given, problem in [
            ("{ every = 2 }", "option.missing evaluate.data"), (f"{{ {data} }}", "option.missing evaluate.every"),
            (f"{{ {data}, every = 0 }}", "option.range evaluate.every"),
            (f"{{ {data}, every = 2, batch = 3 }}", "option.unknown evaluate.batch"),
            ("{ data = mw.synthetic { sequence = 8 }, every = 2 }", "option.conflict evaluate.data.sequence")]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
