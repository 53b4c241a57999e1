"""Models as graphs in Lua (mw.model { graph = … }): those of lua/meshwright/models equal one rank
in each form that their dims allow, hold and send what is predicted; values cross layers, weights
are used twice; maps are joined; what cannot be is refused at its line."""

import math
import pathlib
import unittest

from cases import SOURCE, ProgramCase
from test_own_model import LLAMA

HEAD = """local mw = require "meshwright"
local dp, tp, zero, pp, sp = mw.plugins("dp", "tp", "zero", "pp", "sp")
"""
SIZES = "layers = 3, hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, ffn = 48, vocab = 64"
MODELS = {"gemma2": "window = 6, query_pre_attn_scalar = 24, score_cap = 2, logit_cap = 3",
          "gemma3": "window = 6, query_pre_attn_scalar = 24, every = 3",
          "qwen3": "",
          "olmo2": ""}
# Models without attention: groups that tp cuts, and one that it leaves whole.
MAMBA = "layers = 3, hidden = 32, heads = 8, head_dim = 8, state = 16, chunk = 12, vocab = 64"
# Models with experts: two layers of each kind of theirs.
EXPERTS = {"gpt_oss": f"layers = 4, {SIZES.split(', ', 1)[1]}, window = 6, experts = 4, top_k = 2, swiglu_limit = 0.5",
           "qwen3_next": "layers = 4, hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, vocab = 64, rotary = 4, every = 2, "
                         "key_heads = 2, value_heads = 4, key_dim = 8, value_dim = 8, experts = 4, top_k = 2, expert_ffn = 24, "
                         "shared_ffn = 16, chunk = 6"}
DELTA = """
-- Layers with the gated delta rule, of which every third has attention (Qwen Team 2025, "Qwen3-Next").
local delta = mw.model { name = "delta", dims = { hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, state = 16, ffn = 48, vocab = 64 },
  graph = function(m)
    local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden" })
    local function part(h, name, heads, width)
      return h:linear { { heads, width }, name = name }:conv { 4, name = name .. "_conv" }:silu()
    end
    local function unit(h) return h * (h:square():sum "state" + 1e-6):rsqrt() end
    for layer in m:layers(3) do
      local h = x:rms_norm()
      if layer == 2 then
        x = x + h:attention()
      else
        local q, k = unit(part(h, "q", "kv_heads", "state")) * 16 ^ -0.5, unit(part(h, "k", "kv_heads", "state"))
        local steps = (h:linear { "heads", name = "steps" } + m:weight { "dt_bias", "heads", init = "ones" }):softplus()
        local decay = steps:map(m:weight { "A_log", "heads" }, "-a * exp(b)")
        local rate = h:linear { "heads", name = "rates" }:sigmoid()
        local y = q:scan(k, part(h, "v", "heads", "head_dim"), decay, rate, { delta = true, chunk = 12 })
        y = y:rms_norm() * h:linear { { "heads", "head_dim" }, name = "gate" }:silu()
        x = x + y:linear { "hidden", name = "out" }
      end
      x = x + x:rms_norm():mlp()
    end
    return x:rms_norm():linear { m:weight { "head", "vocab", "hidden" } }:cross_entropy(m.labels)
  end }
"""
MIXES = ["{ dp(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" }, tp(2) }',
         '{ sp { 2, form = "ulysses" } }', '{ dp(2), sp { 2, form = "ring" } }']
# Decoders that cannot be said by blocks alone.
CROSSING = """
-- The second half of the layers attends to keys and values of one layer (Sun et al. 2024, "YOCO").
local yoco = mw.model { name = "yoco", dims = { hidden = 32, heads = 4, ffn = 48, vocab = 64 },
  graph = function(m)
    local x, k, v = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden" })
    for layer in m:layers(4) do
      local h = x:rms_norm()
      local q = h:linear { { "heads", "head_dim" }, name = "q" }:rope()
      if layer < 2 or layer == 2 then
        k = h:linear { { "kv_heads", "head_dim" }, name = "k" }:rope()
        v = h:linear { { "kv_heads", "head_dim" }, name = "v" }
      end
      x = x + q:attend(k, v):linear { "hidden", name = "o" }
      x = x + x:rms_norm():mlp()
    end
    return x:rms_norm():linear { m:weight { "head", "vocab", "hidden" } }:cross_entropy(m.labels)
  end }
-- Four residual streams (Zhu et al. 2024, "Hyper-Connections"), static weights.
local streams = mw.model { name = "streams", layers = 2,
  dims = { hidden = 32, heads = 4, ffn = 48, vocab = 64, streams = 4, mixed = 4 },
  graph = function(m)
    local wide = { "batch", "seq", "streams", "hidden" }
    local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden" })
    x = (x * m:weight { "spread", "streams", init = "ones" }):as(wide)
    for _ in m:layers() do
      local function part(name, f)
        local h = (x * m:weight { name .. "_in", "streams", std = 0.5 }):sum "streams"
        local mixed = (x * m:weight { name .. "_mix", "streams", "mixed", std = 0.5 }):sum "streams"
        x = mixed:as(wide) + f(h:rms_norm()) * m:weight { name .. "_out", "streams", init = "ones" }
      end
      part("attention", function(h) return h:attention() end)
      part("mlp", function(h) return h:mlp() end)
    end
    return x:sum "streams":rms_norm():linear { m:weight { "head", "vocab", "hidden" } }:cross_entropy(m.labels)
  end }
-- An encoder's layer for all layers (ALBERT's sharing), with two losses.
local shared = mw.model { name = "shared", dims = { hidden = 32, ffn = 48, heads = 4, vocab = 64, both = 64 },
  graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local up, down = m:weight { "up", "ffn", "hidden" }, m:weight { "down", "hidden", "ffn" }
    local gain = m:weight { "gain", "hidden", init = "ones" }
    local x = m.tokens:lookup(w)
    for _ in m:layers(3) do
      local h = x * (x:square():mean "hidden" + 1e-6):rsqrt() * gain
      x = x + h:concat(x, "both"):linear "hidden":attention() + h:linear { up * 0.5 }:gelu_erf():linear { down }
    end
    return { x:linear { w }:softcap(20):cross_entropy(m.labels),
             x:rms_norm():linear { w }:cross_entropy(m.tokens, { weight = 0.3 }) }
  end }
-- Multi-token prediction: a module that predicts the token after the next (DeepSeek-AI 2024, "DeepSeek-V3", 2.2).
local ahead = mw.model { name = "ahead", dims = { hidden = 32, ffn = 48, heads = 4, vocab = 64, both = 64 },
  graph = function(m)
    local function block(x)
      x = x + x:rms_norm():attention()
      return x + x:rms_norm():mlp()
    end
    local w, head = m:weight { "embedding", "vocab", "hidden" }, m:weight { "head", "vocab", "hidden" }
    local x, y = m.tokens:lookup(w), nil
    for _ in m:layers(3) do x = block(x) end
    for _ in m:layers(1) do
      y = block(x:rms_norm():concat(m.labels:lookup(w):rms_norm(), "both"):linear "hidden")
    end
    return { x:rms_norm():linear { head }:cross_entropy(m.labels),
             y:rms_norm():linear { head }:cross_entropy(m.labels:shift(1), { weight = 0.3 }) }
  end }
"""
TRAIN = """
local function experiment(model, plan)
  return { model = model, data = mw.synthetic { sequence = 32 }, plan = plan, batch = 4, microbatch = 1,
           optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
end
"""
REFUSED = HEAD + """
local function plan(graph, more)
  local model = { dims = { hidden = 16, vocab = 19 }, graph = graph }
  for key, value in pairs(more or {}) do model[key] = value end
  mw.plan { model = mw.model(model), data = mw.synthetic { sequence = 8 }, batch = 2, steps = 1, optimizer = mw.sgd { lr = 1 } }
end
local function within(m, f)
  local w = m:weight { "embedding", "vocab", "hidden" }
  local x = m.tokens:lookup(w)
  for _ in m:layers(1) do x = f(x, w) end
  return x:linear { w }:cross_entropy(m.labels)
end
local stolen
"""


class Models(ProgramCase):
    def mixes(self, models, mixes):
        calls = "".join(f"mw.verify(experiment({model}, {plan}))\n" for model in models for plan in mixes)
        return calls

    def test_each_model_equals_one_rank(self):
        text = HEAD + TRAIN
        for name, sizes in MODELS.items():
            text += f'local {name} = mw.{name} {{ {SIZES}, {sizes} }}\n'
            text += self.mixes([name], [mix for mix in MIXES if name != "gemma2" or "ring" not in mix])
        self.assertEqual(len(self.verify_all(text)), 4 * len(MIXES) - 1)

    def test_mamba_equals_one_rank(self):
        mixes = [*MIXES, '{ sp { 2, form = "allgather" } }', '{ sp { 2, form = "ring" } }', '{ tp(2), sp { 2, form = "ulysses" } }', "{ pp(2), tp(4) }"]
        text = HEAD + TRAIN + self.mambas() + self.mixes(["mamba_1", "mamba_2"], mixes)
        self.assertEqual(len(self.verify_all(text)), 2 * len(mixes))
        for proof in self.all("prove", self.write(text.replace("mw.verify", "mw.prove"))):
            self.assertEqual((proof["verdict"], proof["notes"]), ("proved", []), proof["plan"])

    def test_models_with_experts_equal_one_rank(self):
        mixes = ["{ dp(2), ep(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 3 }, ep(2), tp(2) }", '{ sp { 2, form = "ulysses" } }',
                 '{ pp { 2, schedule = "zb-h1" }, tp(2) }', '{ pp { 2, schedule = "zbv" }, dp(2) }']
        text = HEAD.replace("sp =", "sp, ep =").replace('"sp")', '"sp", "ep")') + TRAIN
        for name, options in EXPERTS.items():
            text += f"local {name} = mw.{name} {{ {options} }}\n" + self.mixes([name], mixes)
        self.assertEqual(len(self.verify_all(text)), 2 * len(mixes))
        for proof in self.all("prove", self.write(text.replace("mw.verify", "mw.prove"))):
            self.assertEqual((proof["verdict"], proof["notes"]), ("proved", []), proof["plan"])

    def test_the_delta_rule_equals_one_rank(self):
        mixes = [*MIXES, '{ sp { 2, form = "allgather" }, tp(2) }', '{ sp { 4, form = "ring", balance = "none" } }']
        self.assertEqual(len(self.verify_all(HEAD + TRAIN + DELTA + self.mixes(["delta"], mixes))), len(mixes))

    @staticmethod
    def mambas():
        return "".join(f"local mamba_{n} = mw.mamba2 {{ {MAMBA}, groups = {n} }}\n" for n in (1, 2))

    def test_values_cross_layers(self):
        mixes = ["{}", *(mix for mix in MIXES if "dp(2), sp" not in mix)]
        text = HEAD + TRAIN + CROSSING + self.mixes(["yoco", "streams", "shared", "ahead"], mixes)
        more = ['{ pp { 2, schedule = "zbv" }, tp(2) }', '{ pp { 2, schedule = "dualpipev" }, zero { 2, stage = 2 } }',
                '{ sp { 2, form = "ring" } }', '{ sp { 2, form = "allgather" }, tp(2) }']
        text += self.mixes(["ahead"], more)
        self.assertEqual(len(self.verify_all(text)), 4 * len(mixes) + len(more))

    def test_prediction_ahead_equals_one_rank(self):
        """Modules that predict further tokens, behind layers with experts in groups."""
        mixes = ["{ dp(2), ep(2) }", "{ tp(2), sp() }", '{ pp { 2, schedule = "zb-h1" }, tp(2) }', "{ zero { 2, stage = 3 } }"]
        text = HEAD + TRAIN + """local ep = mw.plugin "ep"
local function moe(ahead)
  return mw.moe { layers = 3, hidden = 32, heads = 4, ffn = 48, vocab = 64, experts = 8, top_k = 2, expert_ffn = 24, shared_experts = 1,
                  dense_layers = 1, score = "sigmoid", balance = "bias", groups = 4, group_top = 2, predict_ahead = ahead,
                  norm_eps = 1e-6, kv_lora_rank = 8, qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 8 }
end
"""
        text += self.mixes(["moe(1)", "moe(2)"], mixes)
        self.assertEqual(len(self.verify_all(text)), 2 * len(mixes))
        for proof in self.all("prove", self.write(text.replace("mw.verify", "mw.prove"))):
            self.assertEqual((proof["verdict"], proof["notes"]), ("proved", []), proof["plan"])

    def test_a_loss_of_tokens_further_on(self):
        """Of labels that are shifted by one, the last token of a sequence counts nothing."""
        script = HEAD + TRAIN + """
local function model(body)
  return mw.model { layers = 1, dims = { hidden = 32, heads = 4, vocab = 64 }, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden", std = 0 }  -- all logits are 0: the loss of a token is log(64)
    local x = m.tokens:lookup(w)
    for _ in m:layers() do x = x + x:rms_norm():attention() end
    return body(m, x:linear { w })
  end }
end
mw.train(experiment(model(function(m, y) return y:cross_entropy(m.labels) end), {}))
mw.train(experiment(model(function(m, y) return y:cross_entropy(m.labels:shift(1)) end), {}))
mw.train(experiment(model(function(m, y) return y:cross_entropy(m.labels:shift(1):shift { by = 3 }, { weight = 0.5 }) end), {}))
"""
        losses = [run["losses"][0] for run in self.all("run", self.write(script))]
        for loss, share in zip(losses, (1, 31 / 32, 28 / 32 / 2)):
            self.assertAlmostEqual(loss, math.log(64) * share, places=5)

    def test_they_hold_and_send_what_is_predicted(self):
        text = HEAD + TRAIN + CROSSING + f'local gemma2 = mw.gemma2 {{ {SIZES}, window = 6 }}\n'
        text += self.mambas() + DELTA
        for model in ("gemma2", "streams", "shared", "mamba_1", "mamba_2", "delta"):
            for plan in ("{}", "{ tp(2), sp() }", "{ zero { 2, stage = 3 } }"):
                text += f"mw.train(experiment({model}, {plan}))\n"
        for run in self.all("run", self.write(text)):
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)
                self.held_as_predicted(run)

    def test_an_op_may_read_a_value_twice(self):
        """Both gradients count: losses and norms are those of the same model with a copy of the value."""
        pairs = [("(g * g):linear 'hidden'", "g:square():linear 'hidden'"), ("(g / (g * g + 1)):linear 'hidden'",
                  "(g / (g:square() + 1)):linear 'hidden'"),
                 ("g:swiglu(g):linear 'hidden'", "g:swiglu(g:map 'a'):linear 'hidden'"), ("(g + g):linear 'hidden'", "(g * 2):linear 'hidden'"),
                 ("q:attend(k, k):linear 'hidden'", "q:attend(k, k:map 'a'):linear 'hidden'"), ("q:attend(q, q):linear 'hidden'", "q:attend(q:map 'a', q:map 'a'):linear 'hidden'")]
        script = HEAD + TRAIN + """
local function model(body, dims)
  dims.hidden, dims.vocab = 32, 64
  return mw.model { layers = 2, dims = dims, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden", std = 0.3 }
    local x = m.tokens:lookup(w)
    for _ in m:layers() do x = x + body(x:rms_norm()) end
    return x:linear { w }:cross_entropy(m.labels)
  end }
end
local function ffn(f) return function(h) return f(h:linear { "ffn", name = "g", std = 0.3 }) end end
local function attention(f)
  return function(h)
    return f(h:linear { { "heads", "head_dim" }, name = "q", std = 0.3 }, h:linear { { "heads", "head_dim" }, name = "k", std = 0.3 })
  end
end
"""
        for one, other in pairs:
            for body in (one, other):
                made = f"attention(function(q, k) return {body} end)" if "attend" in body else f"ffn(function(g) return {body} end)"
                if "attend" in body and "k" not in body.replace("attend", ""):
                    made = f"function(h) local q = h:linear {{ {{ 'heads', 'head_dim' }}, name = 'q', std = 0.3 }} return {body} end"
                dims = "{ heads = 4 }" if "attend" in body else "{ ffn = 48 }"
                for plan in ("{}", '{ pp { 2, schedule = "zb-h1" } }'):
                    script += f"do local e = experiment(model({made}, {dims}), {plan}) e.precision = 'fp64' e.steps = 3 mw.train(e) end\n"
        runs = self.all("run", self.write(script))
        for n, pair in enumerate(pairs):
            for plan in (0, 1):
                one, other = runs[4 * n + plan], runs[4 * n + 2 + plan]
                with self.subTest(pair[0], plan=plan):
                    for ours, theirs in zip(one["losses"], other["losses"]):
                        self.assertAlmostEqual(ours, theirs, delta=1e-9)
                    self.assertNotEqual(one["losses"][0], one["losses"][2])

    def test_what_is_made_again_is_read_by_later_layers(self):
        """A value of one layer that a later layer reads, where layers are made again in backward."""
        script = HEAD + TRAIN + CROSSING + """
-- What a module reads in its layer and a head behind it, of which some works split their backward.
local ends = mw.model { name = "ends", dims = { hidden = 32, ffn = 48, vocab = 64 }, graph = function(m)
  local w, head = m:weight { "embedding", "vocab", "hidden" }, m:weight { "head", "vocab", "hidden" }
  local x, y = m.tokens:lookup(w), nil
  for _ in m:layers(3) do x = x + x:rms_norm():mlp() end
  x = x:rms_norm()
  for _ in m:layers(1) do y = x:mlp() end
  return { x:linear { head }:cross_entropy(m.labels), y:linear { head }:cross_entropy(m.labels) }
end }
local reads = mw.model { name = "reads", dims = { hidden = 32, ffn = 64, vocab = 64 }, graph = function(m)
  local w = m:weight { "embedding", "vocab", "hidden" }
  local x, e = m.tokens:lookup(w), nil
  for l in m:layers(2) do
    x = x + x:mlp()
    if l == 0 then e = x:rms_norm() else x = x + e:mlp { act = "gelu" } end
  end
  return x:rms_norm():linear { w }:cross_entropy(m.labels)
end }
"""
        calls = "".join(f"do local e = experiment({model}, {plan}) e.recompute = '{what}' mw.verify(e) end\n"
                        for model in ("reads", "yoco", "streams") for plan in ("{}", "{ tp(2), sp() }", "{ pp(2) }")
                        for what in ("full", "selective"))
        calls += "".join(f"do local e = experiment(ends, {plan}) e.recompute = 'full' mw.verify(e) end\n"
                         for plan in ('{ pp { 2, schedule = "zb-h1" } }', '{ pp { 2, schedule = "dualpipev" } }'))
        self.assertEqual(len(self.verify_all(script + calls)), 20)

    def test_half_precision(self):
        text = HEAD + TRAIN + CROSSING + f'local gemma2 = mw.gemma2 {{ {SIZES}, window = 6 }}\n'
        text += self.mambas() + DELTA
        for model in ("gemma2", "streams", "shared", "ahead", "mamba_2", "delta"):
            text += f"do local e = experiment({model}, {{ tp(2), sp() }}) mw.train(e) e.precision = 'bf16' mw.train(e) end\n"
        runs = self.all("run", self.write(text))
        for full, half in zip(runs[::2], runs[1::2]):
            self.assertAlmostEqual(full["losses"][0], half["losses"][0], delta=0.02)

    def test_a_graph_is_what_blocks_are(self):
        """A llama as a graph has mw.llama's program."""
        graph = """
local own = mw.model {
  name = "llama", dims = { hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 },
  graph = function(m)
    local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden" }, { name = "embedding" })
    for _ in m:layers(2) do
      local h = x:rms_norm { name = "attention_norm" }
      local q = h:linear { { "heads", "head_dim" }, name = "attention.q" }
      local k = h:linear { { "kv_heads", "head_dim" }, name = "attention.k" }
      local v = h:linear { { "kv_heads", "head_dim" }, name = "attention.v" }
      q, k = q:rope { name = "attention.q_rope" }, k:rope { name = "attention.k_rope" }
      local seen = q:attend(k, v, { name = "attention" })
      x = x:add(seen:linear { "hidden", name = "attention.o" }, { name = "attention_add" })
      x = x:add(x:rms_norm { name = "mlp_norm" }:mlp { name = "mlp" }, { name = "mlp_add" })
    end
    return x:rms_norm { name = "norm" }:linear { m:weight { "head", "vocab", "hidden" }, name = "head" }
      :cross_entropy(m.labels, { name = "loss" })
  end,
}
"""
        theirs = LLAMA[LLAMA.index("local theirs"):]
        for plan in ("{}", "{ dp(2), tp(2), sp() }", "{ zero { 2, stage = 3 } }", "{ pp(2) }"):
            with self.subTest(plan):
                self.write(HEAD + graph + theirs.replace("PLAN", plan) + "mw.plan(e(own)) mw.plan(e(theirs))")
                own, llama = self.all("plan", "--program", self.folder / "script.lua")
                self.assertEqual(own["program"], llama["program"])

    def test_passes_over_memory_are_listed(self):
        """Of a map that reads two values and writes one, forward and backward; of a norm."""
        text = self.call("plan", "--program", SOURCE / "scripts/quickstart.lua", "--set", "plan={tp(2)}").stdout
        for kernel, number, passes in (("swiglu forward", 4, 3.0), ("swiglu backward", 4, 5.0), ("rms_norm forward", 9, 2.0)):
            self.assertRegex(text, rf"(?m)^  {kernel} +{number} +[\d.]+ [KM]iB +{passes} ")

    def test_maps_are_joined(self):
        """Of a chain of maps one op is left; what two ops use, and sums of two values, stay."""
        def ops(body):
            script = REFUSED + f"plan(function(m) return within(m, function(x) {body} end) end)"
            shown = self.only("plugins", "show", "--model", self.write(script))
            return [op["name"].removeprefix("layers.*.") for op in shown["ops"] if op["kind"] in ("map", "add")]

        self.assertEqual(ops("return x + ((x:silu() * 2 - x) / 3):tanh()"), ["add"])
        self.assertEqual(ops("local y = x:silu() return x + y * y:exp()"), ["silu", "add"])
        self.assertEqual(ops("local y = x + x:rms_norm() return y:silu()"), ["add", "silu"])
        self.assertEqual(ops("return x * (x:sum('hidden') + 1):rsqrt()"), ["rsqrt", "map_2"])

    def test_what_cannot_be_is_refused_at_its_line(self):
        cases = [
            ("plan(function(m) return m.tokens end)", 2, "model.unused model.graph"),
            ("plan(function(m) within(m, function(x) stolen = x:silu() return stolen end) return stolen end)", 2, "model.unused model.graph"),
            ("plan(function(m) return within(m, function(x) return x:silu(x) end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) return x * 'a' end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) return x ^ x end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) return x * (0 / 0) end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) return x:map 'sinh(a)' end) end)", 2, "option.value model.graph"),
            ("plan(function(m) return within(m, function(x) return x + m.tokens end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:lookup(x) end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:sum 'ffn' end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:as { 'batch', 'hidden' } end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:concat(x, 'hidden') end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x * x:contract(x) end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x * m.tokens:lookup(x:sum 'seq'):sum 'hidden' end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:concat(x, { 'vocab', of = { 'batch', 'batch' } }) end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) x:rms_norm() return x:silu() end) end)", 2,
             "model.unused model.graph"),
            ("plan(function(m) within(m, function(x) return x:silu() end) end)", 2, "function.result model.graph"),
            ("plan(function(m) within(m, function(x) return x:silu() end) return { 3 } end)", 2,
             "function.result model.graph"),
            ("plan(function(m) local w = m:weight { 'a', 'vocab', 'hidden' } "
             "return m.tokens:lookup(w):linear { w }:cross_entropy(m.labels) end)", 2, "model.unused model.graph"),
            ("plan(function(m) m:weight { 'embedding', 'hidden' } return within(m, function(x) return x:silu() end) end)", 2,
             "model.unused model.graph"),
            ("plan(function(m) for _ in m:layers(1) do for _ in m:layers(1) do end end end)", 2, "script.argument"),
            ("plan(function(m) for _ in m:layers(0) do end end)", 2, "script.argument"),
            ("plan(function(m) for _ in m:layers() do end end)", 2, "script.argument"),
            ("plan(function(m) return m:weight 'a' end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x, w) return x:linear { w, std = 1 } end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) stolen = stolen or x return x:silu() end) end)", 0, ""),
            ("plan(function(m) return within(m, function(x) return x + stolen end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) return x:silu() end) end, { block = function(x) return x end })",
             2, "option.conflict model.block"),
            ("plan(function(m) return within(m, function(x) return x:silu() end) end, { tied = true })", 2,
             "option.conflict model.tied"),
            ("plan(function(m) return within(m, function(x) return x:mean 'batch' end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:sum { 'hidden', 'hidden' } end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x - m:weight { 'b', 'vocab' } end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x ^ 0 end) end)", 2, "option.value model.graph"),
            ("plan(function(m) return within(m, function(x) return x:map ('a' .. (' + a'):rep(2000)) end) end)", 2,
             "option.value model.graph"),
            ("plan(function(m) local l = within(m, function(x) return x:silu() end) return { l, l } end)", 2,
             "model.twice model.graph"),
            ("plan(function(m) for _ in m:layers(1) do break end return within(m, function(x, w) "
             "return x:linear { w }:cross_entropy(m.positions) end) end)", 2, "model.unused model.graph"),
            ("plan(function(m) local w = m:weight { 'embedding', 'vocab', 'hidden' } local x = m.tokens:lookup(w) "
             "for _ in m:layers(1) do x = x:silu() end local l = x:linear { w }:cross_entropy(m.positions) return l end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) local l = within(m, function(x) return x:silu() end) "
             "return { l, m.tokens:lookup(m:weight { 'v', 'vocab', 'vocab2' }):as { 'batch', 'seq', 'vocab' }"
             ":cross_entropy(m.labels:shift(8)) } end, { dims = { hidden = 16, vocab = 19, vocab2 = 19 } })", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x * m:weight { 'g', 'batch' } end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x * m:weight { 'g' } end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) return x * 1e39 end) end)", 2, "option.value model.graph"),
            ("plan(function(m) return within(m, function(x) return x:silu() end) end, { layers = 3 })", 2,
             "option.conflict model.layers"),
            ("plan(function(m) return within(m, function(x) return x:concat(x, 'both') end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:scan(x, x, x) end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x, w) return x:conv(w) end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:sum 'hidden':conv(4) end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:conv { bias = true } end) end)", 2, "script.argument"),
            ("plan(function(m) return within(m, function(x) return x:reshape { { 'hidden', 'vocab' } } end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:reshape { 'heads' } end) end)", 2, "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x:reshape { 'vocab', from = 'vocab' } end) end)", 2,
             "model.dims model.graph"),
            ("plan(function(m) return within(m, function(x) return x + m.positions:lookup(m:weight "
             "{ 'p', 'few', 'hidden' }) end) end, { dims = { hidden = 16, vocab = 19, few = 7 } })", 2,
             "model.dims model.graph"),
            ("plan(nil)", 2, "option.missing model.layers"),
            ("plan(nil, { layers = 1 })", 2, "option.missing model.block"),
        ]
        wrong = [case for case in cases if case[1]]
        stolen = REFUSED + next(call for call, code, _ in cases if not code) + "\n"
        errors = self.all_refused(stolen, *wrong)
        first = stolen.count("\n") + 1
        for n, ((call, *_), error) in enumerate(zip(wrong, errors)):
            if error["key"] == "model.graph" and "within" not in call:
                with self.subTest(call):
                    self.assertEqual(pathlib.Path(error["file"]).name, "script.lua")
                    self.assertEqual(error["line"], first + n)

    def test_every_file_is_tested(self):
        files = {path.stem for path in (SOURCE / "lua/meshwright/models").glob("*.lua")} - {"llama", "gpt", "moe"}  # which tests/parity has
        self.assertEqual(files, {*MODELS, *EXPERTS, "mamba2"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
