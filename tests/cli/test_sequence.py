"""Sequence and context parallelism: every form equals one rank, alone and in mixes; what is sent
is what the closed forms say; what cannot be is refused."""

import collections
import unittest

import pandas

from cases import ProgramCase, matrix

MODELS = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp = mw.plugins("dp", "tp", "sp", "zero", "pp")
local models = {
  mha = mw.llama { layers = 2, hidden = 48, heads = 12, ffn = 40, vocab = 50 },
  gqa = mw.llama { layers = 2, hidden = 48, heads = 12, kv_heads = 4, ffn = 40, vocab = 50 },
  gpt = mw.gpt { layers = 2, hidden = 48, heads = 12, vocab = 50, tied = true },
  window = mw.llama { layers = 2, hidden = 48, heads = 12, kv_heads = 4, ffn = 40, vocab = 50, window = 7 },
}
local function e(model, plan, verb)
  return verb { model = models[model], data = mw.synthetic {}, sequence = 24, plan = plan, batch = 8,
    microbatch = 2, optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2 }
end
"""

MIXES = MODELS + """
local mixes = {
  { tp(2), sp() }, { tp(4), sp() }, { dp(2), tp(2), sp() }, { zero { 2, stage = 3 }, tp(2), sp() },
  { pp { 2, schedule = "zb-h1" }, tp(2), sp() }, { sp(), tp(3) },
}
for _, form in ipairs { "ring", "allgather", "ulysses" } do
  for _, ways in ipairs { 2, 3, 4 } do
    table.insert(mixes, { sp { ways, form = form } })
    if form ~= "ulysses" then table.insert(mixes, { sp { ways, form = form, balance = "none" } }) end
  end
  if form ~= "ulysses" then
    table.insert(mixes, { sp { 4, form = form, ulysses = 2 } })
    table.insert(mixes, { sp { 6, form = form, ulysses = 2, balance = "none" }, tp(2) })
    table.insert(mixes, { tp(2), sp(), sp { 4, form = form, ulysses = 2 } })
  end
  table.insert(mixes, { sp { 2, form = form }, tp(2) })
  table.insert(mixes, { tp(2), sp { 2, form = form } })
  table.insert(mixes, { zero { 2, stage = 3 }, sp { 2, form = form } })
  table.insert(mixes, { pp { 2, schedule = "1f1b" }, sp { 2, form = form } })
  table.insert(mixes, { pp { 2, schedule = "zb-h1" }, zero { 2, stage = 2 }, sp { 3, form = form }, tp(2) })
end
for model in pairs(models) do
  for _, mix in ipairs(mixes) do e(model, mix, mw.verify) end
end
"""


class Sequence(ProgramCase):
    @matrix
    def test_every_form_equals_one_rank(self):
        results = self.verify_all(MIXES)
        self.assertEqual(len(results), 4 * (6 + 3 * 8 + 2 * 6))

    def sent(self, *cases):
        """For each model and plan the bytes of a rank and step by axis and op, forward and backward; and the peak of
        its activations."""
        results = self.all("run", self.write(MODELS + "".join(f'e("{model}", {plan}, mw.train)\n' for model, plan in cases)))
        found = []
        for (model, plan), result in zip(cases, results, strict=True):
            with self.subTest(model=model, plan=plan):
                self.sent_as_predicted(result)
                predicted = result["predicted"]["memory"][0]
                self.assertAlmostEqual(result["memory"]["activations"] / predicted["activations"], 1, delta=0.02)
            total = collections.Counter()
            for c in result["communication"]:
                if c["phase"] in ("forward", "backward"):
                    total[c["axis"], c["op"]] += c["bytes"]
            found.append((total, result["memory"]["activations"]))
        return found

    def test_megatrons_volume_is_that_of_tensor_parallelism(self):
        for ways in (2, 4):
            (plain, whole), (cut, parts) = self.sent(("mha", f"{{ tp({ways}) }}"), ("mha", f"{{ tp({ways}), sp() }}"))
            # Cross-entropy's sums stay all-reduces; the rest is a reduce-scatter and an
            # all-gather each.
            self.assertEqual(cut["tp", "all-gather"], cut["tp", "reduce-scatter"])
            self.assertEqual(cut["tp", "all-gather"] + cut["tp", "reduce-scatter"] + cut["tp", "all-reduce"],
                             plain["tp", "all-reduce"])
            self.assertLess(parts, whole)

    def sent_by_ways(self, all_ways, plan):
        """Key heads, ways and bytes: of both kinds of attention, with each number of ways."""
        cases = [(model, kv, ways) for model, kv in (("mha", 12), ("gqa", 4)) for ways in all_ways]
        sent = self.sent(*((model, plan % ways) for model, _, ways in cases))
        return [(kv, ways, total) for (_, kv, ways), (total, _) in zip(cases, sent)]

    def test_gathered_keys_by_the_closed_form(self):
        for kv, ways, total in self.sent_by_ways((2, 3, 4), '{ sp { %d, form = "allgather" } }'):
            # K and V of 8 sequences x 24 tokens x kv heads x 4, in fp32, over two layers.
            whole = 2 * 2 * 8 * 24 * kv * 4 * 4
            self.assertEqual(total["cp", "all-gather"], whole * (ways - 1) // ways)
            self.assertEqual(total["cp", "reduce-scatter"], whole * (ways - 1) // ways)

    def test_ring_by_the_closed_form(self):
        for kv, ways, total in self.sent_by_ways((2, 3, 4), "{ sp(%d) }"):
            # K and V take n - 1 steps each way; their gradients,
            # on their way with them, one more: home.
            part = 2 * 2 * 8 * 24 * kv * 4 * 4 // ways
            self.assertEqual(total, {("cp", "send"): part * (3 * (ways - 1) + 1), ("cp", "recv"): 0})

    def test_ulysses_by_the_closed_form(self):
        for kv, ways, total in self.sent_by_ways((2, 4), '{ sp { %d, form = "ulysses" } }'):
            # q, k, v and the output, each way; a rank sends all but its own part of its part.
            whole = 2 * 2 * 8 * 24 * (2 * 12 + 2 * kv) * 4 * 4
            self.assertEqual(total["cp", "all-to-all"], whole * (ways - 1) // ways // ways)
            self.assertEqual(set(total), {("cp", "all-to-all")})

    def test_activations_shrink(self):
        (_, one), *others = self.sent(*(("mha", plan) for plan in (
            "{}", "{ sp(4) }", '{ sp { 4, form = "allgather" } }', '{ sp { 4, form = "ulysses" } }')))
        for _, activations in others:
            self.assertLess(activations, 0.5 * one)

    def test_memory_of_blocks_is_predicted_to_the_byte(self):
        script = """
local mw = require "meshwright"
local sp = mw.plugins("sp")
for _, plan in ipairs { {}, { sp(2) }, { sp(4) }, { sp { 4, balance = "none" } }, { sp { 2, form = "allgather" } } } do
  for _, window in ipairs { 4096, 300 } do
    mw.train { model = mw.llama { layers = 2, hidden = 256, heads = 8, ffn = 256, vocab = 64, window = window },
      data = mw.synthetic {}, sequence = 2048, plan = plan, batch = 1, threads = 1, optimizer = mw.sgd { lr = 1e-3 },
      steps = 1 }
  end
end"""
        for result in self.all("run", self.write(script)):
            with self.subTest(result["plan"]):
                self.assertEqual(result["memory"]["activations"], result["predicted"]["memory"][0]["activations"])

    def attention_work(self, *plans):
        """Floating-point operations of attention by rank, as the run files have them."""
        logs = [self.folder / f"{n}.h5" for n in range(len(plans))]
        self.all("run", self.write("""
local mw = require "meshwright"
local sp = mw.plugins("sp")
""" + "".join(f"""
mw.train {{ model = mw.llama {{ layers = 1, hidden = 16, heads = 2, ffn = 16, vocab = 16 }},
  data = mw.synthetic {{}}, sequence = 4096, plan = {plan}, batch = 1, optimizer = mw.adamw {{ lr = 1e-3 }},
  steps = 1, log = "{log}", overwrite = true }}""" for plan, log in zip(plans, logs))))
        work = [pandas.read_hdf(log, "work") for log in logs]
        return [table[table["op"].isin([b"attention", "attention"])].groupby("rank")["flops"].sum() for table in work]

    def test_zigzag_is_even(self):
        for form in ("ring", "allgather"):
            with self.subTest(form):
                even, uneven = self.attention_work(f'{{ sp {{ 4, form = "{form}" }} }}',
                                                   f'{{ sp {{ 4, form = "{form}", balance = "none" }} }}')
                self.assertEqual(len(even), 4)
                self.assertLess(even.max() / even.mean(), 1.05)
                self.assertGreater(even.min() / even.mean(), 0.95)
                self.assertGreater(uneven.max() / uneven.mean(), 1.5)
                self.assertAlmostEqual(even.sum() / uneven.sum(), 1, delta=0.05)
        for work in self.attention_work("{ sp(3) }", "{ sp(5) }"):  # of which 4096 is no multiple
            self.assertLess(work.max() / work.mean(), 1.05)

    def test_what_cannot_be(self):
        self.all_refused(MODELS, *((f'e("gqa", {plan}, mw.plan)', code, problem) for plan, code, problem in (
            ("{ sp() }", 3, "axis.unknown plan[1]"),
            ("{ zero { 2, sequence = true } }", 3, "axis.unknown plan[1].sequence"),
            ("{ sp { 25 } }", 3, "axis.cannot-split plan[1].ways"),
            ('{ tp(2), sp { form = "ulysses" } }', 2, "option.needs plan[2].form"),
            ('{ sp { 2, form = "circle" } }', 2, "option.choice plan[1].form"),
            ('{ sp { 8, form = "ulysses" }, tp(2) }', 3, "axis.cannot-share plan[1].ways"),
            ("{ sp(8), tp(4), sp() }", 3, "axis.too-many plan[3]"),
            ('{ tp(2), sp { balance = "none" } }', 2, "option.needs plan[2].balance"),
            ("{ sp { 6, ulysses = 4 } }", 2, "option.divides plan[1].ulysses"),
            ('{ sp { 4, form = "ulysses", ulysses = 2 } }', 2, "option.conflict plan[1].ulysses"),
        )))


if __name__ == "__main__":
    unittest.main(verbosity=2)
