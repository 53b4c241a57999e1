"""Optimizers that a script writes, averages of parameters, and what ops draw at random: mixes equal
one rank, torch computes the same steps, bytes and memory are those predicted, and what cannot be
right is refused."""

import shutil
import unittest

import numpy as np
import safetensors.numpy
from cases import SOURCE, ProgramCase

import hf

SCRIPT = """local mw = require "meshwright"
local updates = require "updates"
local dp, tp, pp, zero, sp, ep = mw.plugins("dp", "tp", "pp", "zero", "sp", "ep")
local matrix = function(p) return p.matrix end
local lamb = updates.lamb { lr = 1e-2 }
local adafactor = mw.groups { { where = matrix, updates.adafactor { lr = 1e-2 } }, updates.lion { lr = 1e-3 }, clip = 0.5 }
local free = updates.schedule_free { lr = 1e-3 }
local clipped = mw.groups { { where = matrix, updates.adamw { lr = 1e-3, clip_by = function(p, g) return updates.clip.adaptive(p, g, 0.01) end } },
  updates.adamw { lr = 1e-3, clip_by = function(p, g) return updates.clip.value(updates.clip.tensor(g, 0.01), 1e-3) end } }
local averaged = mw.ema { mw.groups { { where = matrix, mw.muon { lr = 2e-3 } }, mw.adamw { lr = 1e-3 } }, decay = 0.5 }
local owner = mw.muon { lr = 2e-3, matrices = "owner", clip = 0.5 }
local shards = mw.muon { lr = 2e-3, matrices = "shards", clip = 0.5 }
local function experiment(model, plan, more)
  local all = { model = model, sequence = 16, plan = plan, batch = 16, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 3, data = mw.synthetic {} }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end
local llama = mw.llama { layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 }
local moe = mw.moe { layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, expert_ffn = 16, experts = 4, top_k = 2, vocab = 64 }
local random = mw.model { name = "random", dims = { hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, ffn = 48, vocab = 64, experts = 4, expert_ffn = 16 }, graph = function(m)
  local w = m:weight { "embedding", "vocab", "hidden", std = 0.3 }
  local x = m.tokens:lookup(w):dropout(0.1)
  for layer in m:layers(4) do
    x = x + x:rms_norm():attention { std = 0.2 }:dropout(0.2):drop_path(0.3)
    if layer == 3 then
      x = x + x:rms_norm():experts { top_k = 2, jitter = 0.1, noise = 0.3 }
    else
      x = x + x:rms_norm():mlp { std = 0.2 }:dropout { p = 0.3 }:noise(0.01)
    end
  end
  return x:rms_norm():linear { w }:cross_entropy(m.labels)
end }
"""
OPTIMIZERS = ("owner", "shards", "lamb", "adafactor", "free", "clipped", "averaged")
MIXES = ["{ dp(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 1 }, tp(2) }", "{ zero { 4, stage = 2 } }", "{ zero { 2, stage = 3 }, tp(2) }",
         '{ pp { 2, schedule = "zb-h1" }, dp(2) }', '{ pp { 2, schedule = "zbv" }, zero { 2, stage = 2 } }', "{ sp(2), zero { 2, stage = 3 } }"]
EXPERTS = ["{ zero(2), ep(2) }", '{ pp { 2, schedule = "dualpipev" }, zero { 2, stage = 1 }, ep(2) }', "{ ep(2), tp(2) }"]
TORCH = """
mw.train {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64, norm_eps = 1e-6 }, weights = "theirs",
  data = mw.shards { "tokens.bin", dtype = "u8", order = "sequential" }, sequence = 16, precision = "fp64",
  plan = %s, batch = 8, microbatch = 2, steps = 10, optimizer = %s%s }
"""


class Updates(ProgramCase):
    def setUp(self):
        super().setUp()
        shutil.copy(SOURCE / "scripts/updates.lua", self.folder)

    def test_each_mix_with_a_step_of_the_script_equals_one_rank(self):
        runs = [("llama", mix, by) for mix in MIXES for by in OPTIMIZERS] + [("moe", mix, by) for mix in EXPERTS for by in OPTIMIZERS]
        calls = "".join(f"mw.verify(experiment({model}, {mix}, {{ optimizer = {by}, steps = 2 }}))\n" for model, mix, by in runs)
        self.verify_all(SCRIPT + calls)
        proofs = self.all("prove", self.write(SCRIPT + calls.replace("mw.verify", "mw.prove")))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * len(runs))

    def losses_of(self, mix, optimizer, more=""):
        run = self.only("run", self.write(SCRIPT + TORCH % (mix, optimizer, more)))
        return run["losses"]

    def test_ten_steps_are_those_of_torch(self):
        torch, model = hf.small_llama(self.folder / "theirs")
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        tokens = np.random.default_rng(1).integers(0, 64, 80 * 16 + 2)
        tokens.astype(np.uint8).tofile(self.folder / "tokens.bin")

        def trained(step_of):
            losses = []
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(start[name])
            step = step_of(dict(model.named_parameters()))
            for t in range(1, 11):
                at = 128 * (t - 1) + np.arange(128).reshape(8, 16)
                logits = model(torch.from_numpy(tokens[at])).logits
                loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 64), torch.from_numpy(tokens[at + 1]).reshape(-1))
                model.zero_grad()
                loss.backward()
                losses.append(loss.item())
                step(t)
            return losses

        def by_hand(update):
            def step_of(named):
                states = {name: {} for name in named}
                @torch.no_grad()
                def step(t):
                    for name, p in named.items():
                        update(p, p.grad, states[name], t)
                return step
            return step_of

        def adam(g, s, t, b1, b2, eps):
            s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
            s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
            return s["m"] / (1 - b1 ** t) / ((s["v"] / (1 - b2 ** t)).sqrt() + eps)

        def lamb(p, g, s, t):
            u = adam(g, s, t, 0.9, 0.999, 1e-4) + 0.01 * p
            p -= 1e-2 * (p.norm() / u.norm()) * u

        def free(p, g, s, t):                                         # the form of Defazio et al. 2024, which keeps z
            z = s.setdefault("z", p.clone())
            s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
            d = g / ((s["v"] / (1 - 0.999 ** t)).sqrt() + 1e-4)
            p.lerp_(z, 1 / t)
            p.add_(d, alpha=1e-3 * (0.9 * (1 - 1 / t) - 1))
            z.sub_(d, alpha=1e-3)

        def adafactor(named):
            matrices = [p for name, p in named.items() if "layers" in name and p.dim() == 2]
            others = [p for name, p in named.items() if not ("layers" in name and p.dim() == 2)]
            both = [torch.optim.Adafactor(matrices, lr=1e-2, eps=(1.19e-7, 1e-3)), torch.optim.SGD(others, lr=0.1)]
            return lambda t: [one.step() for one in both]

        def clipped(p, g, s, t):
            g = g * min(1, 0.01 / (g.norm().item() + 1e-6))
            g = g.clamp(-1e-3, 1e-3)
            p -= 1e-3 * (adam(g, s, t, 0.9, 0.95, 1e-4) + 0.1 * p)

        cases = {
            "lamb": ("updates.lamb { lr = 1e-2, eps = 1e-4 }", trained(by_hand(lamb))),
            "schedule-free": ("updates.schedule_free { lr = 1e-3, eps = 1e-4 }", trained(by_hand(free))),
            "adafactor": ("mw.groups { { where = matrix, updates.adafactor { lr = 1e-2 } }, mw.sgd { lr = 0.1 } }", trained(adafactor)),
            "clips": ("updates.adamw { lr = 1e-3, eps = 1e-4, clip_by = function(p, g) return updates.clip.value(updates.clip.tensor(g, 0.01), 1e-3) end }",
                      trained(by_hand(clipped))),
        }
        for name, (optimizer, losses) in cases.items():
            for mix in ("{}", "{ dp(2) }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" }, zero { 2, stage = 1 } }'):
                with self.subTest(name, mix=mix):
                    worst = max(abs(a - b) / a for a, b in zip(losses, self.losses_of(mix, optimizer)))
                    print(f"{name}, {mix}: largest relative difference from torch {worst:.1e}")
                    self.assertLess(worst, 1e-6)  # transformers computes norms and rotary angles in fp32

    def test_an_average_is_evaluated_and_exported(self):
        text = SCRIPT + """local e = experiment(llama, %s, { optimizer = averaged, steps = 4, precision = "%s", overwrite = true,
          checkpoint = { path = "saved" }, evaluate = { every = 2, batches = 2, data = mw.synthetic { seed = 7 }, by = "%s" } })
        mw.train(e)"""
        stored = ['{ zero { 2, stage = %d, offload = "%s", update = "%s" } }' % one for one in
                  ((1, "optimizer", "host"), (2, "optimizer", "host"), (3, "parameters", "host"), (3, "optimizer", "device"))]
        for mix in ("{}", "{ dp(2) }", "{ zero { 2, stage = 1 } }", "{ zero { 2, stage = 3 }, tp(2) }",
                    '{ pp { 2, schedule = "zbv" }, zero { 2, stage = 2 } }', *stored):
            for precision in ("fp64", "bf16"):
                with self.subTest(mix, precision=precision):
                    plain = self.only("run", self.write(text % (mix, precision, "parameters")))
                    run = self.only("run", self.write(text % (mix, precision, "average")))
                    self.assertEqual(run["losses"], plain["losses"])  # an evaluation leaves no trace
                    found = [one["loss"] for one in run["held_out"]]
                    self.assertNotEqual(found, [one["loss"] for one in plain["held_out"]])
                    first = first if mix != "{}" or precision != "fp64" else found
                    np.testing.assert_allclose(found, first, rtol=1e-12 if precision == "fp64" else 1e-3)
        evaluated = "evaluate = { every = 1, batches = 1, data = mw.synthetic {}, by = 'average' }"
        for inner in ("lamb", "adafactor", "free"):  # updates that read sums, and those left out by an overflow
            by = inner if inner == "free" else f"mw.ema {{ {inner} }}"
            self.only("run", self.write(SCRIPT + f"mw.train(experiment(llama, {{ zero {{ 2, stage = 1 }} }}, {{ optimizer = {by}, {evaluated} }}))"))
        self.only("run", self.write(SCRIPT + "mw.train(experiment(llama, { dp(2) }, { optimizer = mw.ema { mw.shampoo { lr = 0.1 } } }))"))
        for mix in ("{ dp(2), tp(2) }", "{ zero { 2, stage = 2 }, tp(2) }"):
            overflows = "precision = 'fp16', loss_scale = { init = 2^40, interval = 2 }, check = 'replicas'"
            run = self.only("run", self.write(SCRIPT + f"mw.train(experiment(llama, {mix}, {{ optimizer = owner, {overflows} }}))"))
            self.assertTrue(np.isfinite(run["losses"]).all())
            run = self.only("run", self.write(SCRIPT + f"mw.train(experiment(llama, {mix}, {{ optimizer = shards, {overflows} }}))"))
            self.assertTrue(np.isfinite(run["losses"]).all())
        for inner in ("lamb", "adafactor"):  # whose updates stay as they are
            calls = "".join(f"mw.train(experiment(llama, {{ zero(2) }}, {{ optimizer = {one} }}))\n" for one in (inner, f"mw.ema {{ {inner} }}"))
            alone, beside = self.all("run", self.write(SCRIPT + calls))
            self.assertEqual(alone["losses"], beside["losses"])
        # What `export --state` writes is the average of the parameters after each step.
        train = SCRIPT + """mw.train(experiment(llama, { dp(2) }, { optimizer = %s, steps = %d, precision = "fp64", overwrite = true,
          checkpoint = { path = "saved" } }))"""
        def exported(optimizer, steps, *state):
            self.only("run", self.write(train % (optimizer, steps)))
            self.only("export", "saved", "-o", "weights", "--overwrite", *state)
            return safetensors.numpy.load_file(self.folder / "weights/model.safetensors")
        average = exported("mw.sgd { lr = 0 }", 1)
        for step in range(1, 5):
            weights = exported("averaged", step)
            average = {name: 0.5 * average[name] + 0.5 * weights[name] for name in weights}
        for name, found in exported("averaged", 4, "--state", "average").items():
            np.testing.assert_allclose(found, average[name], rtol=1e-12, atol=1e-15)
        done = self.call("export", "saved", "-o", "none", "--state", "exp_avg_sqq", "--json")
        self.assertIn("export.state", done.stdout + done.stderr)

    def test_bytes_and_memory_are_as_predicted(self):
        runs = self.all("run", self.write(SCRIPT + "".join(
            f"mw.train(experiment(llama, {mix}, {{ optimizer = {by} }}))\n" for mix in ("{}", *MIXES) for by in OPTIMIZERS)))
        for run in runs:
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)
                self.assertLessEqual(run["peak_bytes"], max(rank["peak"] for rank in run["predicted"]["memory"]))
                self.held_as_predicted(run, 0.15)  # where an update peaks, one of its tensors lies in another's place

    def test_each_mix_draws_the_same(self):
        mixes = MIXES + EXPERTS + ['{ sp { 2, balance = "zigzag" }, tp(2) }', "{ sp { 2, ulysses = 2 } }", '{ pp { 2, schedule = "1f1b" }, sp(2) }']
        runs = [(mix, more) for mix in mixes for more in ("", 'recompute = "full"')]
        calls = "".join(f"mw.verify(experiment(random, {mix}, {{ steps = 2, {more} }}))\n" for mix, more in runs)
        self.verify_all(SCRIPT + calls)
        proofs = self.all("prove", self.write(SCRIPT + calls.replace("mw.verify", "mw.prove")))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * len(runs))
        of = SCRIPT + "mw.train(experiment(random, { zero { 2, stage = 2 } }, { steps = %d, seed = %d, overwrite = true, %s checkpoint = { path = 'saved' } }))"
        whole = self.only("run", self.write(of % (4, 1, "")))
        other = self.only("run", self.write(of % (4, 2, "")))
        self.assertNotEqual(whole["losses"], other["losses"])
        self.only("run", self.write(of % (2, 1, "")))
        again = self.only("run", self.write((of % (4, 1, "resume = true,")).replace("overwrite = true,", "")))
        self.assertEqual(again["losses"], whole["losses"])

    def test_masks_are_those_that_a_test_draws(self):
        torch, _ = hf.load()
        rng = np.random.default_rng(1)
        weight = rng.normal(0, 0.5, (64, 32))
        tokens = rng.integers(0, 64, 40 * 16 + 2)
        tokens.astype(np.uint8).tofile(self.folder / "tokens.bin")
        (self.folder / "theirs").mkdir()
        safetensors.numpy.save_file({"embedding.weight": weight}, self.folder / "theirs/model.safetensors")
        script = """local mw = require "meshwright"
        local dp, tp, sp, zero = mw.plugins("dp", "tp", "sp", "zero")
        mw.train { sequence = 16, precision = "fp64", seed = 5, weights = "theirs", plan = %s, batch = 8, microbatch = 2, steps = 5, optimizer = mw.sgd { lr = 0.5 },
          data = mw.shards { "tokens.bin", dtype = "u8", order = "sequential" },
          evaluate = { every = 5, batches = 1, data = mw.shards { "tokens.bin", dtype = "u8", order = "sequential" } },
          model = mw.model { name = "dropped", dims = { hidden = 32, vocab = 64 }, graph = function(m)
            local w = m:weight { "embedding", "vocab", "hidden" }
            local x = m.tokens:lookup(w)
            for _ in m:layers(1) do x = x:dropout { 0.25, name = "drop" }:drop_path { 0.5, name = "path" } end
            return x:linear { w }:cross_entropy(m.labels)
          end } }"""
        golden, all_bits = 0x9E3779B97F4A7C15, (1 << 64) - 1

        def mixed(x):
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return x ^ (x >> np.uint64(31))

        def uniform(op, draw, numbers, elements):
            key = 14695981039346656037
            for byte in op.encode():
                key = (key ^ byte) * 1099511628211 & all_bits
            bits = mixed(numbers ^ np.uint64((key + (draw + 1) * golden) & all_bits))
            if elements:
                bits = mixed(bits[..., None] + np.arange(elements, dtype=np.uint64) * np.uint64(golden))
            return (bits >> np.uint64(40)).astype(np.float64) / (1 << 24)

        w = torch.tensor(weight, requires_grad=True)
        losses, drops = [], []
        np.seterr(over="ignore")
        for step in range(6):
            at = 128 * (step % 5) + np.arange(128).reshape(8, 16)
            sample = np.uint64(8 * step) + np.arange(8, dtype=np.uint64)
            numbers = np.uint64(5 << 48) + sample[:, None] * np.uint64(16) + np.arange(16, dtype=np.uint64)
            x = w[torch.from_numpy(tokens[at])]
            if step < 5:
                keep = (uniform("layers.0.drop", 0, numbers, 32) >= 0.25) / 0.75
                path = (uniform("layers.0.path", 2, np.uint64(5 << 48) + sample, 0) >= 0.5) / 0.5
                drops.append([(keep == 0).mean(), (path == 0).mean()])
                x = x * torch.from_numpy(keep) * torch.from_numpy(path)[:, None, None]
            loss = torch.nn.functional.cross_entropy((x @ w.T).reshape(-1, 64), torch.from_numpy(tokens[at + 1]).reshape(-1))
            losses.append(loss.item())
            w.grad = None
            loss.backward()
            with torch.no_grad():
                w -= 0.5 * w.grad
        self.assertAlmostEqual(np.mean([d[0] for d in drops]), 0.25, delta=0.01)
        for mix in ("{}", "{ dp(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 3 }, sp(2) }", '{ sp { 2, balance = "zigzag" } }'):
            with self.subTest(mix):
                run = self.only("run", self.write(script % mix))
                np.testing.assert_allclose(run["losses"], losses[:5], rtol=1e-12)
                self.assertAlmostEqual(run["held_out"][-1]["loss"], losses[5], delta=1e-9)  # nothing is drawn

    def test_what_cannot_be_right_is_refused(self):
        update = "mw.plan(experiment(llama, {}, { optimizer = mw.update { lr = 0.1, %s } }))"
        self.all_refused(
            SCRIPT,
            (update % "step = 7", 2, "script.argument"),
            (update % "step = function(p, g, s, t) return 3 end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) s.m = g return p end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) return p - t.rate * g end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) return p - t.lr * g:squish() end", 2, "update.script optimizer.step"),
            (update % "step = function(p, g, s, t) return p - t.lr:sum() * g end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) return p - g:sum('heads') * g end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) if p < g then return p end return g end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) t.lr = 3 return p - t.lr * g end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) return p - (-2) ^ t.step * g end", 2, "script.argument"),
            ("local other mw.update { lr = 1, step = function(p, g) other = g return p end } " + update % "step = function(p) return p - other end", 2, "script.argument"),
            (update % "states = { 'm' }, step = function(p, g, s, t) return p - t.lr * g end", 2, "script.argument"),
            (update % "states = { r = 'rows' }, step = function(p, g, s, t) s.r = g * g return p - s.r end", 2, "script.argument"),
            (update % "states = { r = 'layers' }, step = function(p, g, s, t) return p end", 2, "script.argument"),
            (update % "states = { 'm', 'm' }, step = function(p, g, s, t) return p end", 2, "script.argument"),
            (update % "average = 'x', step = function(p, g, s, t) return p - g end", 2, "script.argument"),
            (update % "step = function(p, g, s, t) return p - g * (g * g):mean('columns') end", 3, "optimizer.groups optimizer"),
            ("mw.plan(experiment(llama, {}, { optimizer = mw.ema { mw.ema { mw.sgd { lr = 1 } } } }))", 2, "option.value optimizer"),
            ("mw.plan(experiment(llama, {}, { optimizer = mw.ema { mw.sgd { lr = 1, rate = 1 } } }))", 2, "option.unknown optimizer.optimizer.rate"),
            ("mw.train(experiment(llama, {}, { evaluate = { every = 1, data = mw.synthetic {}, by = 'average' } }))", 2, "option.conflict evaluate.by"),
            ("mw.plan(experiment(llama, { zero { 2, offload = 'optimizer' } }, { optimizer = lamb }))", 3, "optimizer.offload plan[1].offload"),
            ("""mw.plan(experiment(mw.model { name = "x", dims = { hidden = 32, vocab = 64 }, graph = function(m)
              local w, x = m:weight { "embedding", "vocab", "hidden" }
              for _ in m:layers(1) do x = m.tokens:lookup(w:map "a * uniform(1)") end
              return x:linear { w }:cross_entropy(m.labels) end }, {}))""", 2, "model.dims model.graph"))
        self.only("run", self.write(SCRIPT + "mw.train(experiment(llama, { zero { 2, offload = 'optimizer', update = 'device' } }, { optimizer = lamb }))"))


if __name__ == "__main__":
    unittest.main()
