"""Replicas that differ (diloco { N, every = H, … }): each mix equals N replicas of one rank, torch
computes the same outer steps, nothing else is sent between replicas, runs resume bit for bit, and
what cannot be right is refused."""

import unittest

import h5py
import numpy as np
import safetensors.numpy
from cases import ProgramCase

import hf

SCRIPT = """local mw = require "meshwright"
local plugin, dp, tp, pp, zero, sp, ep = mw.plugins("diloco", "dp", "tp", "pp", "zero", "sp", "ep")
local nesterov = mw.sgd { lr = 0.7, momentum = 0.9, nesterov = true }
local function diloco(n, more)
  local all = { n, every = 4, outer = nesterov }
  for key, value in pairs(more or {}) do all[key] = value end
  return plugin(all)
end
local streaming = { fragments = 2, delay = 1, keeps = 0.25 }
local function experiment(model, plan, more)
  local all = { model = model, sequence = 16, plan = plan, batch = 16, microbatch = 2, optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 8,
    data = mw.synthetic {} }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end
local llama = mw.llama { layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 }
local moe = mw.moe { layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, expert_ffn = 16, experts = 4, top_k = 2, vocab = 64,
  balance = "bias" }
"""
MIXES = ["{ diloco(2, { every = 2, outer = 'mean' }) }", "{ diloco(1), dp(2) }", "{ diloco(2), tp(2), sp() }", "{ diloco(2), zero { 2, stage = 1 }, tp(2) }",
         "{ diloco(2, streaming), zero { 4, stage = 2, replicas = 2 } }", "{ diloco(4), zero { 2, stage = 3 } }",
         '{ diloco(2), pp { 2, schedule = "zb-h1" }, dp(2) }', '{ diloco(2, streaming), pp { 2, schedule = "zbv" }, zero { 2, stage = 2 } }',
         "{ tp(2), diloco(2, { dtype = 'bf16' }), zero { 2, stage = 1 } }", "{ diloco(2), sp(2), zero { 2, stage = 3 } }"]
EXPERTS = ["{ diloco(2), zero(2), ep(2) }", '{ diloco(2, streaming), pp { 2, schedule = "dualpipev" }, zero { 2, stage = 1 }, ep(2) }']
RUNS = [("llama", mix, "") for mix in MIXES] + [("moe", mix, "") for mix in EXPERTS] + [
    ("llama", MIXES[3], "optimizer = mw.muon { lr = 2e-3, matrices = 'owner', clip = 0.5 },"), ("llama", MIXES[5], "precision = 'bf16',"),
    ("llama", MIXES[4], "optimizer = mw.ema { mw.adamw { lr = 1e-3 }, decay = 0.5 }, microbatch = mw.microbatch.ramp { from = 8, by = 8, steps = 4, size = 2 },")]


def calls(verb, runs=RUNS):
    return "".join(f"mw.{verb}(experiment({model}, {mix}, {{ {more} }}))\n" for model, mix, more in runs)


class Replicas(ProgramCase):
    def test_each_mix_equals_replicas_of_one_rank(self):
        self.verify_all(SCRIPT + calls("verify", RUNS[:-1]))
        proofs = self.all("prove", self.write(SCRIPT + calls("prove", RUNS[:-1])))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * len(proofs))

    def test_what_is_sent_and_held_is_predicted_and_alike_where_it_must_be(self):
        runs = self.all("run", self.write(SCRIPT + calls("train").replace(" }))", ' check = "replicas" }))')))
        for run in (run for run, (model, _, _) in zip(runs, RUNS) if model == "llama"):  # experts' rows are as they come
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)
                self.held_as_predicted(run)

    def test_torch_takes_the_same_outer_steps(self):
        torch, model = hf.small_llama(self.folder / "theirs")
        names = [name for name, _ in model.named_parameters()]
        start = [p.detach().clone() for p in model.parameters()]
        tokens = np.random.default_rng(1).integers(0, 64, 12 * 128 + 2)
        tokens.astype(np.uint8).tofile(self.folder / "tokens.bin")

        def trained(every, outer, clip=None, mix=1.0, delay=0):
            replicas = [[p.clone().requires_grad_() for p in start] for _ in range(2)]
            inner = [torch.optim.AdamW(own, lr=1e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1) for own in replicas]
            anchor = [p.clone() for p in start]
            other = outer(anchor)
            losses = []
            for t in range(12):
                at = 128 * t + 16 * np.arange(8).reshape(2, 4)
                loss = []
                for r, own in enumerate(replicas):
                    rows = at[r][:, None] + np.arange(16)
                    logits = torch.func.functional_call(model, dict(zip(names, own)), (torch.from_numpy(tokens[rows]),)).logits
                    loss.append(torch.nn.functional.cross_entropy(logits.reshape(-1, 64), torch.from_numpy(tokens[rows + 1]).reshape(-1)))
                    inner[r].zero_grad()
                    loss[-1].backward()
                    if clip:
                        torch.nn.utils.clip_grad_norm_(own, clip)
                    inner[r].step()
                losses.append(sum(one.item() for one in loss) / 2)
                with torch.no_grad():
                    if (t + 1) % every == 0:
                        for k, p in enumerate(anchor):
                            p.grad = p - sum(own[k] for own in replicas) / 2
                    if t >= delay and (t + 1 - delay) % every == 0:
                        other.step()
                        for own in replicas:
                            for p, to in zip(own, anchor):
                                p.lerp_(to, mix)
            return losses

        text = SCRIPT + """
        mw.train {
          model = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64, norm_eps = 1e-6 }, weights = "theirs",
          data = mw.shards { "tokens.bin", dtype = "u8", order = "sequential" }, sequence = 16, precision = "fp64", plan = %s, batch = 8,
          microbatch = %d, steps = 12, optimizer = mw.adamw { lr = 1e-3, betas = { 0.9, 0.95 }, eps = 1e-4, weight_decay = 0.1%s } }
        """
        mean = lambda anchor: torch.optim.SGD(anchor, lr=1)
        nesterov = lambda anchor: torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
        cases = {"Local SGD, every 4 steps": ("diloco(2, { outer = 'mean' })", trained(4, mean), ""),
                 "DiLoCo, every step": ("diloco(2, { every = 1 })", trained(1, nesterov), ""),
                 "DiLoCo, every 4 steps": ("diloco(2, { every = 4 })", trained(4, nesterov, clip=0.1), ", clip = 0.1"),
                 "keeps a quarter": ("diloco(2, { every = 3, keeps = 0.25 })", trained(3, nesterov, mix=0.75), ""),
                 "two steps of delay": ("diloco(2, { every = 3, delay = 2, keeps = 0.5 })", trained(3, nesterov, mix=0.5, delay=2), "")}
        for name, (entry, losses, clip) in cases.items():
            for mix, microbatch in (("", 2), (", dp(2)", 2), (", zero { 2, stage = 3 }, tp(2)", 1), (', pp { 2, schedule = "zb-h1" }', 2)):
                with self.subTest(name, mix=mix):
                    run = self.only("run", self.write(text % ("{ " + entry + mix + " }", microbatch, clip)))
                    worst = max(abs(a - b) / a for a, b in zip(losses, run["losses"]))
                    print(f"{name}{mix}: largest relative difference from torch {worst:.1e}")
                    self.assertLess(worst, 1e-6)  # transformers computes norms and rotary angles in fp32

    def test_runs_go_on_bit_for_bit(self):
        text = SCRIPT + """mw.train(experiment(llama, %s, { steps = 12, precision = "%s", overwrite = true, resume = %s,
          checkpoint = { path = "%s", every = 1, keep = 99 } %s }))"""
        muon = ", optimizer = mw.groups { { where = function(p) return p.matrix end, mw.muon { lr = 2e-3 } }, mw.adamw { lr = 1e-3 } }"
        for n, (mix, other) in enumerate((("{ diloco(2), zero { 2, stage = 1 } }", "{ diloco(2), tp(2), sp() }"), ("{ diloco(2, streaming), dp(2) }", "{ diloco(2, streaming) }"),
                           ('{ diloco(2, streaming), pp { 2, schedule = "zbv" }, zero { 2, stage = 3 } }', "{ diloco(2, streaming), zero { 2, stage = 2 } }"))):
            for precision, more in (("fp32", ""), ("bf16", muon)):
                with self.subTest(mix, precision=precision):
                    whole = self.only("run", self.write(text % (mix, precision, "false", f"saved{n}{precision}", more)))
                    def goes_on(mix, step, more):
                        return self.only("run", self.write(text % (mix, precision, f"{{ from = 'saved{n}{precision}/step-{step:08}', changed = true }}", f"again{n}{precision}", more)))
                    for step in (3, 4, 5, 6, 7):  # before, at and after outer steps, and while a sum is under way
                        again = goes_on(mix, step, more)
                        self.assertEqual(again["losses"][-5:], whole["losses"][-5:])
                    elsewhere = goes_on(other, 5, more)
                    np.testing.assert_allclose(elsewhere["losses"][-7:], whole["losses"][-7:], rtol=1e-5 if precision == "fp32" else 5e-3)

    def test_a_fiftieth_is_sent_between_nodes(self):
        text = SCRIPT + "mw.train(experiment(llama, %s, { steps = 100, batch = 4, log = '%s', overwrite = true }))"
        def sent(mix, axis):
            self.only("run", self.write(text % (mix, axis + ".h5")))
            with h5py.File(self.folder / (axis + ".h5")) as file:
                rows = file["communication"][:]
            of = lambda phase: rows["bytes"][(rows["phase"] == phase) & (rows["rank"] == 0)].sum()
            return of(b"gradients") + of(b"outer"), of(b"report")
        every, totals = sent("{ dp(2) }", "dp")
        once, more = sent("{ diloco(2, { every = 50 }) }", "diloco")
        half, _ = sent("{ diloco(2, { every = 50, outer = 'mean', dtype = 'bf16' }) }", "diloco")
        self.assertEqual(every, 50 * once)
        self.assertEqual(once, 2 * half)
        self.assertEqual(more - totals, 100 * 2 * 8)  # the squared norm of each replica
        # predicted, for two nodes of which each has a replica
        script = """local mw = require "meshwright"
        local diloco, dp, zero = mw.plugins("diloco", "dp", "zero")
        for _, plan in ipairs { { dp(2), zero { 8, stage = 1 } }, { diloco { 2, every = 50 }, zero { 8, stage = 1 } } } do
          mw.plan { model = mw.llama { layers = 8, hidden = 1024, heads = 16, kv_heads = 16, ffn = 4096, vocab = 32000 }, sequence = 1024, batch = 64, microbatch = 4,
            precision = "bf16", data = mw.synthetic {}, optimizer = mw.adamw { lr = 1e-4 }, plan = plan, cluster = mw.cluster("dgx-h100", { nodes = 2 }), steps = 100 }
        end"""
        dp, apart = self.all("plan", self.write(script))
        self.assertLess(apart["step_seconds"], dp["step_seconds"])
        self.assertLess(apart["outer"]["seconds"], 50 * (dp["step_seconds"] - apart["step_seconds"]))

    def test_what_replicas_have_alike_is_evaluated_and_exported(self):
        text = SCRIPT + """mw.train(experiment(llama, %s, { steps = 12, precision = "%s", overwrite = true, checkpoint = { path = "saved", every = 1, keep = 99 },
          evaluate = { every = 1, batches = 2, data = mw.synthetic { seed = 7 }, by = "%s" } }))"""
        for mix in ("{ diloco(2) }", "{ diloco(2), zero { 2, stage = 1 } }", "{ diloco(2, streaming), zero { 2, stage = 3 } }"):
            for precision in ("fp64", "bf16"):
                with self.subTest(mix, precision=precision):
                    own = self.only("run", self.write(text % (mix, precision, "parameters")))
                    anchor = self.only("run", self.write(text % (mix, precision, "anchor")))
                    self.assertEqual(own["losses"], anchor["losses"])
                    found = [one["loss"] for one in anchor["held_out"]]
                    if "streaming" not in mix:
                        self.assertEqual(len(set(found)), 4)  # the first one's, and that of each outer step
                        self.assertEqual(found[3::4], [one["loss"] for one in own["held_out"]][3::4])
                    def exported(step, *state):
                        self.only("export", f"saved/step-{step:08}", "-o", "weights", "--overwrite", *state)
                        return safetensors.numpy.load_file(self.folder / "weights/model.safetensors")
                    if precision == "fp64" and "streaming" not in mix:
                        for name, weight in exported(8, "--state", "anchor").items():
                            np.testing.assert_array_equal(weight, exported(8)[name])
                            self.assertFalse(np.array_equal(weight, exported(6)[name]))

    def test_ranks_of_several_processes_do_the_same(self):
        for mix in ("{ diloco(2), tp(2), sp() }", "{ diloco(2, streaming), zero { 2, stage = 1 } }"):
            with self.subTest(mix):
                script = self.write(SCRIPT + f"mw.train(experiment(llama, {mix}))")
                alone = self.only("run", script)
                several = self.only("run", script, "--processes", "2")
                self.assertEqual(alone["losses"], several["losses"])
                self.assertEqual(self.only("verify", script, "--processes", "2")["verdict"], "equal")

    def test_what_cannot_be_right_is_refused(self):
        plan = "mw.plan(experiment(llama, { %s }, { %s }))"
        self.all_refused(
            SCRIPT,
            (plan % ("plugin { 2 }", ""), 2, "option.missing plan[1].every"),
            (plan % ("plugin { 2, every = 3 }", ""), 2, "replicas.steps steps"),
            (plan % ("plugin { 2, every = 16 }", ""), 2, "replicas.steps steps"),
            (plan % ("diloco(3)", ""), 3, "batch.uneven batch"),
            (plan % ("diloco(2, { fragments = 5 })", ""), 2, "option.value plan[1].fragments"),
            (plan % ("diloco(2, { every = 8, fragments = 5 })", ""), 3, "replicas.fragments plan[1].fragments"),
            (plan % ("diloco(2, { delay = 4 })", ""), 2, "option.value plan[1].delay"),
            (plan % ("diloco(2, { keeps = 1 })", ""), 2, "option.range plan[1].keeps"),
            (plan % ("diloco(2, { outer = mw.muon { lr = 1 } })", ""), 2, "option.value plan[1].outer"),
            (plan % ("diloco(2, { outer = mw.sgd { lr = 1, clip = 1 } })", ""), 2, "option.value plan[1].outer"),
            (plan % ("diloco(2, { outer = mw.sgd { lr = 1, nesterov = true } })", ""), 2, "option.conflict plan[1].outer.nesterov"),
            (plan % ("diloco(2, { outer = 3 })", ""), 2, "option.value plan[1].outer"),
            (plan % ("diloco(2), diloco(2)", ""), 3, "axis.twice plan[2]"),
            (plan % ("dp(2), diloco(2)", ""), 3, "replicas.order plan[2]"),
            (plan % ("diloco(2), mw.strategy { name = 's', axis = {}, rules = function() return { 'vocab', 'hidden', "
                     "{ 'heads', where = function(op) return op.kind ~= 'rope' end, axis = 'diloco' } } end }(1)", ""), 3,
             "replicas.cut plan[1]"),
            (plan % ("diloco(2), zero { 2, offload = 'optimizer' }", ""), 3, "replicas.offload plan[2].offload"),
            (plan % ("diloco(2, { outer = mw.ema { mw.sgd { lr = 1 } } })", ""), 2, "option.value plan[1].outer"),
            (plan % ("diloco(2)", "optimizer = mw.update { lr = 1, states = { 'anchor' }, step = function(p, g, s, t) s.anchor = g return p - s.anchor end }"), 3, "replicas.state optimizer"),
            ("mw.compare(experiment(llama, { diloco(2) }), experiment(llama, { diloco(2), dp(2) }))", 3, "compare.replicas plan"),
            ("mw.train(experiment(llama, { dp(2) }, { evaluate = { every = 1, data = mw.synthetic {}, by = 'anchor' } }))", 2, "option.conflict evaluate.by"))
        train = SCRIPT + """mw.train(experiment(llama, { diloco(%d, { every = %s }) }, { steps = 16, %s checkpoint = { path = "saved", every = 4 } }))"""
        self.only("run", self.write(train % (2, 4, "steps = 8,")))
        for ways, every, more, code in ((4, 4, "", "2 replicas"), (2, "4, delay = 1", "changed = true", "may be under way"), (2, 8, "", "replicas.every"), (1, 4, "changed = true", "2 replicas")):
            done = self.call("run", self.write(train % (ways, every, f"resume = {{ from = 'saved/step-00000008', {more} }}, ")), "--json")
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("checkpoint.differs", done.stdout)
            self.assertIn(code, done.stdout)


if __name__ == "__main__":
    unittest.main()
