"""Sizes that divide by nothing: every form that cuts the sequence equals one rank with odd ones,
beside experts too, and holds and sends what is predicted, rank by rank."""

import unittest

import h5py

from cases import ProgramCase, matrix

MODELS = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local dense = {
  mw.llama { layers = 2, hidden = 24, heads = 12, kv_heads = 4, ffn = 20, vocab = 25 },
  mw.gpt { layers = 2, hidden = 24, heads = 12, vocab = 25, tied = true },
  mw.llama { layers = 2, hidden = 24, heads = 12, ffn = 20, vocab = 25, window = 4 },
}
local function moe(t)
  local m = { layers = 2, hidden = 24, heads = 12, kv_heads = 4, ffn = 20, vocab = 25, experts = 24, top_k = 2,
              expert_ffn = 13 }
  for key, value in pairs(t) do m[key] = value end
  return mw.moe(m)
end
local experts = {
  moe {},
  moe { top_k = 1, capacity = 1.0 },
  moe { top_k = 4, shared_experts = 1, balance = "bias", bias_rate = 0.01, score = "sigmoid" },
  moe { top_k = 2, capacity = 0.5, shared_experts = 2, dense_layers = 1, z_weight = 0.01 },
}
local function e(model, plan, sequence, verb, more)
  local t = { model = model, data = mw.synthetic {}, sequence = sequence, plan = plan, batch = 6, microbatch = 1,
    optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2 }
  for key, value in pairs(more or {}) do t[key] = value end
  return verb(t)
end
local turn = 0
local function verify(models, plan, sequence)
  turn = turn % #models + 1
  e(models[turn], plan, sequence, mw.verify)
end
"""

DENSE = MODELS + """
for n, sequence in ipairs { 5, 7, 9 } do
  local ways = n + 1
  verify(dense, { tp(ways), sp() }, sequence)
  for _, form in ipairs { "ring", "allgather", "ulysses" } do
    for _, balance in ipairs { "zigzag", "none" } do
      if form ~= "ulysses" or balance == "none" then
        verify(dense, { sp { 5 - n, form = form, balance = balance } }, sequence)
      end
    end
  end
  verify(dense, { sp { 4, form = "ring", ulysses = 2 } }, sequence)
  verify(dense, { sp { 2, form = n == 1 and "allgather" or "ring" }, tp(2), sp() }, sequence)
  verify(dense, { pp { 2, schedule = "zb-h1" }, zero { 2, stage = 2 }, sp(2), tp(2) }, sequence)
  verify(dense, { zero { 2, stage = 3 }, tp(ways), sp() }, sequence)
end
verify(dense, { tp(2), sp(), sp { 4, ulysses = 2 } }, 9)  -- tp's parts hold cp's
-- More stages than layers: the loss stands alone, and the embedding too.
verify(dense, { pp(3), dp(2) }, 5)
verify(dense, { pp(4), zero { 2, stage = 2 } }, 5)
"""

EXPERTS = MODELS + """
for n, sequence in ipairs { 5, 7, 9 } do
  for _, ways in ipairs { 2, 3, 4 } do verify(experts, { tp(ways), ep(ways) }, sequence) end
  local ways = 5 - n
  verify(experts, { tp(ways), sp(), ep(ways) }, sequence)
  verify(experts, { dp(2), tp(ways), ep(2 * ways) }, sequence)
  verify(experts, { sp(ways), ep(ways) }, sequence)
  verify(experts, { zero { 2, stage = 3 }, tp(ways), ep { ways, borrow = { "tp" } } }, sequence)
  verify(experts, { tp(4), ep(2) }, sequence)
  verify(experts, { sp(2), tp(2), sp(), ep(4) }, sequence)
  verify(experts, { tp(2), ep { 2, dispatch = "allgather" } }, sequence)
end
verify(experts, { tp(2), ep { 2, overlap = true } }, 7)
verify(experts, { pp { 2, schedule = "1f1b" }, tp(2), ep(2) }, 7)
verify(experts, { pp { 2, schedule = "zb-h1" }, dp(2), tp(2), sp(), ep(4) }, 7)
verify(experts, { pp { 2, schedule = "zb-h2" }, zero { 2, stage = 2 }, tp(2), ep(2) }, 7)
for model = 1, #experts do  -- fewer tokens than ranks: all are gathered
  verify(experts, { tp(4), ep(4) }, 3)
end
"""


class OddSizes(ProgramCase):
    def test_dense_models(self):
        self.assertEqual(len(self.verify_all(DENSE)), 3 * 10 + 3)

    @matrix
    def test_experts(self):
        self.assertEqual(len(self.verify_all(EXPERTS)), 3 * 10 + 4 + 4)

    def test_what_each_rank_holds_and_sends_is_predicted(self):
        plans = ("{ tp(2), sp() }", "{ tp(4), sp() }", "{ sp(2) }", "{ sp(4) }", '{ sp { 4, balance = "none" } }',
                 '{ sp { 3, form = "allgather" } }', '{ sp { 3, form = "ulysses" } }', "{ sp { 4, ulysses = 2 } }",
                 "{ sp(2), tp(2), sp() }", '{ pp { 2, schedule = "zb-h1" }, sp(3) }', "{ tp(2), sp(), sp(2) }")
        cases = [(plan, model, self.folder / f"{n}-{model}.h5") for n, plan in enumerate(plans) for model in (1, 2)]
        self.all("run", self.write(MODELS + "\n".join(
            f'e(dense[{model}], {plan}, 9, mw.train, {{ steps = 1, precision = "fp64", threads = 1, log = "{log}" }})'
            for plan, model, log in cases)))
        for plan, model, log in cases:
            with self.subTest(plan, model=model), h5py.File(log) as file:
                memory, sent = file["memory"][:], file["communication"][:]
                self.assertTrue((sent["bytes"] == sent["predicted_bytes"]).all())
                for row in memory[memory["category"] != b"scratch"]:
                    self.assertEqual(row["peak_bytes"], row["predicted_bytes"], row)

    def test_an_exchange_of_odd_sequences_is_predicted(self):
        plans = ("{ tp(2), ep(2) }", "{ tp(2), sp(), ep(2) }", '{ tp(3), ep { 3, borrow = { "tp" } } }')
        runs = self.all("run", self.write(MODELS + "\n".join(
            f"e(experts[1], {plan}, 9, mw.train, {{ batch = 24 }})" for plan in plans)))
        for plan, run in zip(plans, runs):
            with self.subTest(plan):
                calls = lambda uses: sorted((c["axis"], c["op"], c["phase"], c["calls"]) for c in uses)
                self.assertEqual(calls(run["communication"]), calls(run["predicted"]["communication"]))
                bytes_of = lambda uses, exchanges: sum(
                    c["bytes"] for c in uses if (c["op"] == "all-to-all") == exchanges)
                self.assertEqual(bytes_of(run["communication"], False),
                                 bytes_of(run["predicted"]["communication"], False))
                self.assertAlmostEqual(bytes_of(run["communication"], True) /
                                       bytes_of(run["predicted"]["communication"], True), 1, delta=0.35)

    def test_a_note_where_tokens_are_too_few(self):
        plan = self.call("plan", self.write(MODELS + "e(experts[1], { tp(4), ep(4) }, 3, mw.plan)")).stdout
        self.assertIn("3 tokens are too few to share out among 4 ranks", plan)

    def test_what_cannot_be(self):
        self.all_refused(MODELS, ("e(dense[1], { tp(6), sp() }, 5, mw.plan)", 3, "axis.too-many plan[2]"),
                         ("e(dense[1], { sp(6) }, 5, mw.plan)", 3, "axis.cannot-split plan[1].ways"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
