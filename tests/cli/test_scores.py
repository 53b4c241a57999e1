"""Ops around scores in models of one's own: biases and sinks of attention, a softmax over a dim,
the largest. Each equals one rank in each mix, is proved, and holds what is predicted."""

import unittest

from cases import ProgramCase

SCRIPT = """local mw = require "meshwright"
local dp, tp, pp, zero, sp = mw.plugins("dp", "tp", "pp", "zero", "sp")
local function decoder(name, dims, made, attend)
  dims.hidden, dims.heads, dims.ffn, dims.vocab = 32, 4, 48, 64
  return mw.model { name = name, dims = dims, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local x, shared = m.tokens:lookup(w), made and made(m)
    for _ in m:layers(2) do
      local h = x:rms_norm()
      local function heads(part) return h:linear { { "heads", "head_dim" }, name = part } end
      x = x + attend(m, heads "q", heads "k", heads "v", shared):linear "hidden"
      x = x + x:rms_norm():mlp()
    end
    return x:rms_norm():linear { w }:cross_entropy(m.labels)
  end }
end
local function table_of(m) return m:weight { "bias", "buckets", "heads", std = 1 } end
local function sinks(m) return m:weight { "sinks", "heads", std = 1 } end
local models = {
  -- Biases of relative positions, as T5's (Raffel et al. 2019).
  decoder("t5", { buckets = 8 }, function(m) return m.positions:distance { 8, furthest = 20 }:lookup(table_of(m)) end,
    function(_, q, k, v, bias) return q:attend(k, v, bias, { biased = true }) end),
  -- ALiBi (Press et al. 2021), whose slopes are trained here.
  decoder("alibi", {}, function(m) return m.positions:distance() * m:weight { "slopes", "heads", std = 0.5 } end,
    function(_, q, k, v, bias) return q:attend(k, v, -bias, { biased = true }) end),
  decoder("sinks", {}, nil, function(m, q, k, v) return q:attend(k, v, sinks(m), { sinks = true, window = 5 }) end),
  decoder("both", { buckets = 8 }, function(m) return m.positions:distance { 8, furthest = 20, causal = false }:lookup(table_of(m)) end,
    function(m, q, k, v, bias)
      return q:attend(k, v, bias, sinks(m), { biased = true, sinks = true, causal = false, softcap = 3 })
    end),
  -- A bias of each sample's own, as masks of padding are; its gradient goes to what made it.
  decoder("samples", { rows = 1 }, nil, function(m, q, k, v)
    local seen = m.labels:lookup(m:weight { "seen", "vocab", "rows", std = 1 }):sum "rows"
    return q:attend(k, v, seen:as { "batch", "keys" }, { biased = true, causal = false })
  end),
  decoder("gate", {}, nil, function(_, q, k, v)
    local a = q:attend(k, v)
    return a * q:softmax "head_dim" + a * k:max "head_dim"
  end),
}
local function experiment(model, plan)
  return { model = model, data = mw.synthetic { sequence = 16 }, plan = plan, batch = 4, microbatch = 1,
           optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
end
"""
MIXES = ["{}", "{ dp(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" }, tp(2) }',
         '{ sp { 2, form = "ulysses" } }', '{ sp { 2, form = "allgather" } }']

# A ring lays the tokens of a sequence out of their order.
ORDERS = [*MIXES, '{ sp { 2, form = "ring" } }', '{ sp { 2, form = "ring" }, tp(2) }']


class Scores(ProgramCase):
    def each(self, verb, mixes):
        return SCRIPT + "for _, model in ipairs(models) do\n" + "".join(f"mw.{verb}(experiment(model, {mix}))\n" for mix in mixes) + "end\n"

    def test_each_mix_equals_one_rank(self):
        self.assertEqual(len(self.verify_all(self.each("verify", MIXES))), 6 * len(MIXES))

    def test_they_are_proved(self):
        """The last mix lays tokens out of their order."""
        proofs = self.all("prove", self.write(self.each("prove", MIXES[-2:])))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * 12)

    def test_they_hold_and_send_what_is_predicted(self):
        for run in self.all("run", self.write(self.each("train", ["{}", "{ tp(2), sp() }"]))):
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)
                self.held_as_predicted(run)

    def test_rows_are_gathered_by_their_places(self):
        """Also where tokens lie out of their order."""
        script = SCRIPT + """
local model = mw.model { name = "places", dims = { hidden = 32, heads = 4, vocab = 64, masked = 5 },
  inputs = { places = { "batch", "masked", below = 16 }, answers = { "batch", "masked", below = "vocab" } },
  graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local x = m.tokens:lookup(w)
    for _ in m:layers(2) do x = x + x:rms_norm():attention() end
    return x:rms_norm():gather(m.places):linear { w }:cross_entropy(m.answers)
  end }
"""
        calls = "".join(f"mw.verify(experiment(model, {mix}))\n" for mix in ORDERS)
        self.assertEqual(len(self.verify_all(script + calls)), len(ORDERS))

    def test_rows_are_scattered_and_pooled_by_their_places(self):
        """Also where tokens lie out of their order."""
        script = SCRIPT + """
local function model(by)
  return mw.model { name = "pool_" .. by, dims = { hidden = 32, heads = 4, vocab = 64, found = 6, groups = 4, two = 2 },
    inputs = { places = { "batch", "found", below = 16 }, marks = { "batch", "found", "hidden" }, far = { "batch", "seq", below = "two" } },
    graph = function(m)
      local w = m:weight { "embedding", "vocab", "hidden" }
      local x = m.tokens:lookup(w) + (m.marks * m:weight { "scale", "hidden" }):scatter(m.places, "seq")
      for _ in m:layers(2) do
        x = x + x:rms_norm():attention()
        local seen = x:rms_norm():pool { "groups", by = by }
        x = x + (seen * seen):sum "groups" + x:scatter(m.far, "two"):sum "two"
      end
      return x:rms_norm():linear { w }:cross_entropy(m.labels)
    end }
end
"""
        calls = "".join(f"mw.verify(experiment(model '{by}', {mix}))\n" for mix in ORDERS for by in ("mean", "max"))
        self.assertEqual(len(self.verify_all(script + calls)), 2 * len(ORDERS))
        calls = "".join(f"mw.prove(experiment(model '{by}', {ORDERS[-1]}))\n" for by in ("mean", "max"))
        self.assertEqual([proof["verdict"] for proof in self.all("prove", self.write(script + calls))], ["proved"] * 2)

    def test_rows_of_experts_are_computed_by_few_ops(self):
        model = ("mw.model { dims = { hidden = 16, vocab = 32, experts = 3, expert_ffn = 8 }, layers = 1, "
                 "block = function(x) local rows, places, weights = x:rms_norm():route { 1, name = 'r.router' } "
                 "local made = %s return x + made:combine(places) end }")
        plan = f"mw.plan(experiment({model}, {{}}))"
        body = "rows:expert_linear { 'expert_ffn', name = 'up' }:relu():expert_linear { 'hidden', name = 'down' } * weights"
        script = SCRIPT + plan % body
        self.assertEqual(self.only("plan", self.write(script))["kind"], "plan")
        self.all_refused(
            SCRIPT,
            (plan % f"({body}):rms_norm()", 2, "model.dims model.block"),
            (plan % f"({body}):softmax 'hidden'", 2, "model.dims model.block"),
            (plan % f"({body}) + weights:sum 'seq'", 2, "model.dims model.block"),
            (plan % f"({body}) + x:experts(1)", 2, "model.twice model.block"))

    def test_what_cannot_be_is_refused(self):
        model = "decoder('bad', {}, nil, function(m, q, k, v) return %s end)"
        plan = f"mw.plan(experiment({model}, {{}}))"
        cases = [
            (plan % "q:attend(k, v, { biased = true })", 2, "script.argument"),
            (plan % "q:attend(k, v, m:weight { 'b', 'ffn' }, { biased = true })", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v, m:weight { 's', 'ffn' }, { sinks = true })", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v, m.positions:distance { 8, furthest = 4 }:lookup(m:weight { 'b', 'ffn', 'heads' }), { biased = true })", 2,
             "option.range model.graph"),
            (plan % "q:attend(k, v, m.tokens:distance(), { biased = true })", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v, m.positions:distance { 64 }:lookup(m:weight { 'b', 'ffn', 'heads' }), { biased = true })", 2,
             "model.dims model.graph"),
            (plan % "q:attend(k, v, m.positions:distance(8):as { 'seq', 'keys' }, { biased = true })", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v):sum 'heads':as { 'batch', 'head_dim', 'seq' }:rms_norm():as { 'batch', 'seq', 'head_dim' }", 2,
             "model.dims model.graph"),
            (plan % "q:attend(k, v:max 'batch')", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v:softmax 'batch')", 2, "model.dims model.graph"),
            (plan % "q:as { 'seq', 'batch', 'heads', 'head_dim' }:attend(k:as { 'seq', 'batch', 'heads', 'head_dim' }, v:as { 'seq', 'batch', 'heads', 'head_dim' }):as { 'batch', 'seq', 'heads', 'head_dim' }", 2,
             "model.dims model.graph"),
            (plan % "q:attend(k, v):reshape { { 'ffn', 'head_dim' }, from = { 'batch', 'seq', 'heads', 'head_dim' } }", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v:softmax 'hiden')", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v) + v:max 'hidden'", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v):pool 'ffm'", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v):pool { 'ffn', of = 'batch' }", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v):pool 'ffn'", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v):pool 'seq'", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v):pool { 'heads', of = 'heads' }", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v) + q:scatter(m.labels, 'keys')", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v) + q:scatter(m.positions, 'seq')", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v) + q:scatter(m.labels, 'ffn')", 2, "model.dims model.graph"),
            (plan % "q:attend(k, v) + q:scatter(v, 'ffn')", 2, "model.dims model.graph"),
        ]
        self.all_refused(SCRIPT, *cases)


if __name__ == "__main__":
    unittest.main(verbosity=2)
