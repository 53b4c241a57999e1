"""Frozen weights, which have no gradient and no state, and groups of parameters with an optimizer
each: mixes equal one rank, memory is to the byte that of what is trained, transformers and torch
agree, and what cannot be right is refused by the names of parameters."""

import unittest

import numpy as np
import safetensors.numpy
from cases import ProgramCase

import hf

SCRIPT = """local mw = require "meshwright"
local dp, tp, pp, zero, sp, ep = mw.plugins("dp", "tp", "pp", "zero", "sp", "ep")
-- A low-rank sum beside each frozen linear of attention (Hu et al. 2021, "LoRA"); all else is frozen.
local function lora(layers)
  return mw.model { name = "lora", dims = { hidden = 32, heads = 4, head_dim = 8, ffn = 48, vocab = 64, rank = 4 }, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden", frozen = true }
    local x = m.tokens:lookup(w)
    local function beside(h, name, to)
      return h:linear { to, name = name, frozen = true } + h:linear { "rank", name = name .. "_a" }:linear { to, name = name .. "_b" }
    end
    for _ in m:layers(layers) do
      local h, heads = x:rms_norm { frozen = true }, { "heads", "head_dim" }
      local q, k, v = beside(h, "q", heads), beside(h, "k", heads), beside(h, "v", heads)
      x = x + q:rope():attend(k:rope(), v):linear { "hidden", name = "o", frozen = true }
      x = x + x:rms_norm { frozen = true }:mlp { frozen = true }
    end
    return x:rms_norm { frozen = true }:linear { w }:cross_entropy(m.labels)
  end }
end
-- The first half of the layers is frozen with all before it: an encoder, which has no backward.
local function encoder(layers)
  return mw.model { name = "encoder", dims = { hidden = 32, heads = 4, ffn = 48, vocab = 64, experts = 4, expert_ffn = 16 }, graph = function(m)
    local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden", frozen = true })
    for layer in m:layers(layers) do
      local frozen = layer < layers / 2
      x = x + x:rms_norm { frozen = frozen }:attention { frozen = frozen }
      if layer == layers - 1 then x = x + x:rms_norm():experts { top_k = 2 } else x = x + x:rms_norm { frozen = frozen }:mlp { frozen = frozen } end
    end
    return x:rms_norm():linear "vocab":cross_entropy(m.labels)
  end }
end
local groups = mw.groups {
  { where = function(p) return p.matrix and p.layer % 2 == 1 end, mw.muon { lr = 2e-3, weight_decay = 0 } },
  { where = { "norm", "embedding" }, mw.adamw { lr = 1e-3, weight_decay = 0 } },
  mw.adamw { lr = 5e-4, weight_decay = 0.1 }, clip = 0.5 }
local function experiment(model, plan, more)
  local all = { model = model, sequence = 16, plan = plan, batch = 16, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 2, data = mw.synthetic {} }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end
local llama = mw.llama { layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 }
"""
MIXES = ["{ dp(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 1 }, tp(2) }", "{ zero { 2, stage = 2 } }", "{ zero { 2, stage = 3 }, tp(2) }",
         '{ pp { 2, schedule = "zb-h1" }, dp(2) }', '{ pp { 2, schedule = "zbv" }, zero { 2, stage = 2 } }', '{ sp { 2 }, dp { 2, hook = "none" } }',
         '{ pp { 2, schedule = "1f1b" }, zero { 2, stage = 3 } }']
EXPERTS = ["{ zero(2), ep(2) }", '{ pp { 2, schedule = "dualpipev" }, zero { 2, stage = 1 }, ep(2) }']
TORCH = """local mw = require "meshwright"
local dp, tp, pp, zero, sp = mw.plugins("dp", "tp", "pp", "zero", "sp")
mw.train {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64, norm_eps = 1e-6 }, weights = "theirs",
  data = mw.shards { "tokens.bin", dtype = "u8", order = "sequential" }, sequence = 16, precision = "fp64",
  plan = %s, batch = 8, microbatch = 2, steps = 10, optimizer = mw.groups {
    { where = function(p) return #p.dims == 1 end, mw.adamw { lr = 2e-3, weight_decay = 0, betas = { 0.8, 0.9 }, eps = 1e-3 } },
    { where = "mlp.", mw.sgd { lr = 0.05, momentum = 0.9 } },
    mw.adamw { lr = 1e-3, weight_decay = 0.1, eps = 1e-3 }, clip = 1 } }
"""


class Groups(ProgramCase):
    def test_each_mix_with_frozen_weights_equals_one_rank(self):
        runs = [(model, mix) for model in ("lora(4)", "encoder(4)") for mix in MIXES] + [("encoder(4)", mix) for mix in EXPERTS]
        self.verify_all(SCRIPT + "".join(f"mw.verify(experiment({model}, {mix}))\n" for model, mix in runs))
        proofs = self.all("prove", self.write(SCRIPT + "".join(f"mw.prove(experiment({model}, {mix}))\n" for model, mix in runs)))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * len(runs))

    def test_each_mix_with_groups_equals_one_rank(self):
        runs = [("llama", mix) for mix in MIXES] + [("encoder(4)", mix) for mix in MIXES[:2] + EXPERTS]
        self.verify_all(SCRIPT + "".join(f"mw.verify(experiment({model}, {mix}, {{ optimizer = groups }}))\n" for model, mix in runs))

    def test_bytes_and_memory_are_those_of_what_is_trained(self):
        calls = "".join(f"mw.train(experiment(lora(4), {mix}, {{ optimizer = {by} }}))\n" for mix in ("{}", *MIXES)
                        for by in ("mw.adamw { lr = 1e-3 }", "mw.groups { { where = '_a', mw.sgd { lr = 0.1 } }, mw.adamw { lr = 1e-3 } }"))
        runs = self.all("run", self.write(SCRIPT + calls))
        for run in runs:
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)
        adapters = 4 * 3 * (32 * 4 + 4 * 32)                              # parameters of the low-rank sums
        self.assertEqual([runs[0]["memory"][c] for c in ("gradients", "optimizer")], [4 * adapters, 8 * adapters])
        self.assertEqual(runs[1]["memory"]["optimizer"], 4 * adapters)    # SGD of the first half has no state
        whole = self.only("run", self.write(SCRIPT + "mw.train(experiment(encoder(4), {}))"))
        self.assertLess(whole["memory"]["gradients"], 0.7 * whole["memory"]["parameters"])

    def test_frozen_weights_stay_and_their_stages_have_no_backward(self):
        for mix in ("{}", '{ pp { 2, schedule = "1f1b" }, zero { 2, stage = 3 } }'):
            self.only("run", self.write(SCRIPT + f'mw.train(experiment(encoder(4), {mix}, {{ checkpoint = {{ path = "saved" }}, overwrite = true }}))'))
            first = self.only("run", self.write(SCRIPT + f'mw.train(experiment(encoder(4), {mix}, {{ steps = 4, checkpoint = {{ path = "saved" }}, resume = true }}))'))
            whole = self.only("run", self.write(SCRIPT + "mw.train(experiment(encoder(4), {}, { steps = 4 }))"))
            np.testing.assert_allclose(first["losses"], whole["losses"], rtol=1e-5)
        for more in ("check = true", "trace = { 1 }", 'precision = "bf16", check = "replicas"', 'evaluate = { every = 1, batches = 1, data = mw.synthetic {} }'):
            self.only("run", self.write(SCRIPT + f"mw.train(experiment(encoder(4), {{ zero {{ 2, stage = 3 }}, tp(2) }}, {{ {more} }}))"))
        self.only("verify", self.write(SCRIPT + "mw.verify(experiment(lora(2), { dp(2) }, { steps = 5 }))"))
        self.only("compare", self.write(SCRIPT + "mw.compare(experiment(lora(2), { dp(2) }), experiment(lora(2), { tp(2) }))"))
        plan = self.only("plan", self.write(SCRIPT + "mw.plan(experiment(encoder(4), { pp(2) }))"))
        sent = {use["phase"]: use["bytes"] for use in plan["predicted"]["communication"] if use["op"] == "send"} if "predicted" in plan else {}
        self.assertEqual(sent.get("backward", 0), 0)

    def test_groups_are_resumed_swept_and_compared(self):
        layers = "{ where = function(p) return p.layer > 0 end, mw.adamw { lr = 1e-2 } }, mw.adamw { lr = 1e-3 }"
        text = SCRIPT.replace("%", "%%") + 'mw.train(experiment(llama, { dp(2) }, { optimizer = mw.groups { %s }, steps = %d, %s }))'
        whole = self.only("run", self.write(text % (layers, 4, "")))
        self.only("run", self.write(text % (layers, 2, 'checkpoint = { path = "groups" }')))
        again = self.only("run", self.write(text % (layers, 4, 'checkpoint = { path = "groups" }, resume = true')))
        self.assertEqual(again["losses"], whole["losses"])
        swept = layers.replace("mw.adamw { lr = 1e-2 }", "mw.sgd { lr = 1e-2 }")
        self.refused(2, "checkpoint.differs checkpoint.path", "run",
                     self.write(text % (swept, 4, 'checkpoint = { path = "groups" }, resume = { changed = true }')))
        changed = self.only("run", self.write(text % (layers, 2, "")), "--set", "optimizer.groups[1].optimizer.lr=0.5")
        self.assertNotEqual(changed["losses"], whole["losses"][:2])
        compared = self.only("compare", self.write(SCRIPT + "mw.compare(experiment(llama, { dp(2) }, { optimizer = mw.groups { %s } }), "
                                                   "experiment(llama, { tp(2) }, { optimizer = mw.groups { %s } }))" % (layers, layers)))
        self.assertEqual(compared["verdict"], "equal")

    def test_stages_are_balanced_by_what_is_trained(self):
        done = self.call("plan", self.write(SCRIPT + '''local model = mw.model { name = "half", dims = { hidden = 64, ffn = 256, vocab = 64 }, graph = function(m)
          local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden", frozen = true })
          for layer in m:layers(8) do x = x + x:rms_norm { frozen = layer < 4 }:mlp { frozen = layer < 4 } end
          return x:rms_norm():linear "vocab":cross_entropy(m.labels)
        end }
        mw.plan(experiment(model, { pp(2) }))'''))
        self.assertIn("5, 3 layers", done.stdout + done.stderr)

    def test_losses_are_those_of_torch(self):
        torch, model = hf.small_llama(self.folder / "theirs")
        tokens = np.random.default_rng(1).integers(0, 64, 80 * 16 + 2)
        tokens.astype(np.uint8).tofile(self.folder / "tokens.bin")
        of = {"vectors": [], "mlp": [], "rest": []}
        for name, p in model.named_parameters():
            of["vectors" if p.dim() == 1 else "mlp" if "mlp" in name else "rest"].append(p)
        adamw = torch.optim.AdamW([{"params": of["vectors"], "lr": 2e-3, "weight_decay": 0, "betas": (0.8, 0.9)},
                                   {"params": of["rest"], "lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)}], eps=1e-3)
        sgd = torch.optim.SGD(of["mlp"], lr=0.05, momentum=0.9)
        losses = []
        for step in range(10):
            at = 128 * step + np.arange(128).reshape(8, 16)
            logits = model(torch.from_numpy(tokens[at])).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 64), torch.from_numpy(tokens[at + 1]).reshape(-1))
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
            adamw.step()
            sgd.step()
            losses.append(loss.item())
        for mix in ("{}", "{ dp(2) }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" }, zero { 2, stage = 1 } }'):
            with self.subTest(mix):
                run = self.only("run", self.write(TORCH % mix))
                worst = max(abs(a - b) / a for a, b in zip(losses, run["losses"]))
                print(f"{mix}: largest relative difference from torch {worst:.1e}")
                self.assertLess(worst, 1e-6)  # transformers computes norms and rotary angles in fp32

    def test_what_cannot_be_right_is_refused(self):
        with_groups = "mw.plan(experiment(llama, {}, { optimizer = mw.groups { %s } }))"
        model = """mw.plan(experiment(mw.model { name = "frozen", dims = { hidden = 32, ffn = 48, vocab = 64 }, graph = function(m)
          local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden", frozen = true })
          for _ in m:layers(1) do x = x + %s end
          return x:linear { "vocab", frozen = true }:cross_entropy(m.labels)
        end }, {}))"""
        self.all_refused(
            SCRIPT,
            (with_groups % '{ where = "norm", mw.adamw { lr = 1e-3 } }', 3, "optimizer.groups optimizer"),
            (with_groups % '{ where = "norm", mw.adamw { lr = 1e-3 } }, { where = "attention", mw.sgd { lr = 1 } }, mw.adamw { lr = 1e-3 }', 3,
             "optimizer.groups optimizer"),
            (with_groups % '{ where = "nothing", mw.adamw { lr = 1e-3 } }, mw.adamw { lr = 1e-3 }', 3, "optimizer.groups optimizer"),
            (with_groups % 'mw.adamw { lr = 1e-3 }, { where = "norm", mw.adamw { lr = 1e-3 } }', 2, "option.value optimizer.groups[1]"),
            (with_groups % '{ where = 7, mw.adamw { lr = 1e-3 } }', 2, "option.value optimizer.groups[1]"),
            (with_groups % '{ were = "norm", mw.sgd { lr = 1 } }', 2, "option.value optimizer.groups[1]"),
            ("mw.search(experiment(llama, nil, { strategies = { sp { 2 } }, cluster = mw.cluster 'dgx-h100' }))", 2, "option.value strategies[1]"),
            (with_groups % '{ where = "norm" }', 2, "option.value optimizer.groups[1]"),
            (with_groups % '{ where = "norm", lr = 3, mw.sgd { lr = 1 } }, mw.sgd { lr = 1 }', 2, "option.value optimizer.groups[1]"),
            (with_groups % '{ where = "norm", mw.sgd { lr = 1, clip = 1 } }, mw.sgd { lr = 1 }', 2, "option.value optimizer.groups[1]"),
            (with_groups % '{ where = "norm", mw.sgd { lr = 0 } }, mw.sgd { lr = 1 }', 2, "option.value optimizer.groups[1]"),
            (with_groups % '{ where = "norm", mw.sgd { lr = 1, rate = 1 } }, mw.sgd { lr = 1 }', 2, "option.unknown optimizer.groups[1].rate"),
            (model % "x:mlp { frozen = true }", 3, "optimizer.groups optimizer"),
            (model % "x:mlp():gelu { frozen = true }", 2, "model.frozen model.graph"),
            (model % "x:mlp { frozen = 3 }", 2, "script.argument"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
