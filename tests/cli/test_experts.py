"""Experts: every mix equals one rank, whatever is chosen; books of what was chosen, sent and
dropped; refusals."""

import re
import unittest

import pandas

from cases import ProgramCase, matrix

MODELS = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local function moe(t)
  local m = { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 40, vocab = 50, experts = 8, top_k = 2,
              expert_ffn = 24 }
  for key, value in pairs(t) do m[key] = value end
  return mw.moe(m)
end
local models = {
  moe {},
  moe { top_k = 1, capacity = 1.0 },
  moe { top_k = 4, shared_experts = 1, balance = "bias", bias_rate = 0.01, score = "sigmoid", scale = 2.5 },
  moe { top_k = 2, capacity = 0.5, shared_experts = 2, dense_layers = 1, z_weight = 0.01 },
  moe { top_k = 1, balance = "none", tied = true },
  moe { top_k = 4, capacity = 1.5, balance = "bias", normalise = false },
  moe { chosen_by = "experts", balance = "none", normalise = false },
}
local function e(model, plan, verb)
  return verb { model = models[model], data = mw.synthetic {}, sequence = 12, plan = plan, batch = 16,
    microbatch = 1, optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2 }
end
"""

# Experts 2, 4, 8 ways, with tp 1 and 2, in dp and in ZeRO's stages, in pipelines;
# the models take turns.
MATRIX = MODELS + """
local turn = 0
local function check(plan)
  turn = turn % #models + 1
  e(turn, plan, mw.verify)
end
for _, ways in ipairs { 2, 4, 8 } do
  for _, tensor in ipairs { 1, 2 } do
    for stage = 0, 3 do
      for _, schedule in ipairs { "", "1f1b", "zb-h1" } do
        local data = stage == 0 and dp(ways) or zero { ways, stage = stage }
        local plan = { data, tp(tensor), ep(ways) }
        if schedule ~= "" then table.insert(plan, 1, pp { 2, schedule = schedule }) end
        check(plan)
      end
    end
  end
end
"""

OTHERS = MODELS + """
local mixes = {
  {}, { dp(4) }, { tp(4) }, { dp(4), ep(2) }, { dp(8), ep(2) }, { zero { 8, stage = 3 }, ep(4) },
  { zero { 8, stage = 2, replicas = 2 }, ep(4) }, { zero { 4, stage = 1 }, ep(2) },
  { dp(2), tp(2), ep(4) }, { dp(2), tp(4), ep(4) }, { tp(2), ep(2) }, { tp(4), ep(2) },
  { dp(2), tp(2), sp(), ep(2) }, { dp(2), tp(2), sp(), ep(4) }, { sp(2), ep(2) }, { sp(4), dp(2), ep(4) },
  { dp(2), sp(2), ep(4) }, { dp(2), sp(2), tp(2), ep(8) }, { sp { 2, form = "allgather" }, ep(2) },
  { dp(2), sp { 2, form = "ulysses" }, ep(4) }, { dp(4), ep { 4, dispatch = "allgather" } },
  { dp(2), sp(2), ep { 4, dispatch = "allgather" } }, { dp(2), tp(2), ep { 4, dispatch = "allgather" } },
  { dp(2), tp(2), sp(), ep { 2, dispatch = "allgather" } }, { dp(4), ep { 4, overlap = true } },
  { pp { 2, schedule = "zb-h2" }, zero { 2, stage = 3 }, ep { 2, overlap = true } },
  { pp { 2, schedule = "gpipe" }, dp(2), ep(2) },
}
for model = 1, #models do
  for _, plan in ipairs(mixes) do e(model, plan, mw.verify) end
end
"""


# Ranks that are not dp's first: tp's or cp's alone, some of each, and what the script names.
BORROWED = MODELS + """
local mixes = {
  { dp(3), tp(2), ep(2) }, { zero { 3, stage = 3 }, tp(2), ep(2) }, { dp(3), sp(2), ep(2) }, { dp(3), tp(4), sp(), ep(4) },
  { dp(3), sp(2), tp(2), ep(4) }, { dp(6), tp(2), ep(4) }, { sp(3), tp(4), ep(4) }, { dp(2), tp(2), ep { 2, borrow = { "tp" } } },
  { dp(2), sp(2), tp(2), ep { 2, borrow = { "cp" } } }, { dp(2), sp(2), tp(2), ep { 4, borrow = { "tp", "cp" } } },
  { dp(2), sp(2), tp(2), sp(), ep { 4, borrow = { "tp", "dp" } } }, { dp(2), tp(4), ep { 4, borrow = { "tp", "dp" } } },
  { dp(2), sp { 4, ulysses = 2 }, ep(4) }, { sp { 4, ulysses = 2 }, ep { 2, borrow = { "ulysses" } } },
  { zero { 6, stage = 2, replicas = 3 }, tp(2), ep(4) }, { zero { 6, stage = 3, replicas = 2 }, ep(2) },
  { pp { 2, schedule = "1f1b" }, dp(3), tp(2), ep(2) }, { pp { 2, schedule = "zb-h2" }, zero { 3, stage = 2 }, tp(2), ep(2) },
  { dp(3), tp(2), ep { 2, dispatch = "allgather" } }, { dp(3), tp(2), ep { 2, overlap = true } },
  { dp(2), tp(2), ep { 2, borrow = { "tp" }, dispatch = "allgather" } },
}
local turn = 0
for _, plan in ipairs(mixes) do
  turn = turn % #models + 1
  mw.verify { model = models[turn], data = mw.synthetic {}, sequence = 12, plan = plan, batch = 12, microbatch = 1,
    optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2 }
end
"""


class Experts(ProgramCase):
    def test_whatever_ranks_are_borrowed(self):
        self.assertEqual(len(self.verify_all(BORROWED)), 21)

    @matrix
    def test_experts_beside_tensors_data_and_stages(self):
        self.assertEqual(len(self.verify_all(MATRIX)), 3 * 2 * 4 * 3)

    @matrix
    def test_other_mixes_of_every_model(self):
        self.assertEqual(len(self.verify_all(OTHERS)), 7 * 27)

    def test_one_expert_gets_all_tokens_and_the_others_none(self):
        text = self.folder / "same.txt"
        text.write_text("a" * 5000)
        for top, dispatch in ((1, "alltoall"), (2, "alltoall"), (1, "allgather")):
            script = MODELS + f"""
local plan = {{ dp(4), ep {{ 4, dispatch = "{dispatch}" }} }}
local function f(verb) return verb {{ model = moe {{ top_k = {top}, vocab = 256 }}, data = mw.text {{ "{text}" }}, sequence = 12, plan = plan,
  batch = 16, microbatch = 2, optimizer = mw.adamw {{ lr = 1e-3 }}, steps = 3 }} end
f(mw.verify)
f(mw.train)
"""
            verdict, run = self.all("run", self.write(script))
            self.assertEqual(verdict["verdict"], "equal", verdict["divergence"])
            self.assertTrue(all(loss == loss and 0 <= loss < 10 for loss in run["losses"]))
            for layer in run["experts"]["layers"]:
                self.assertEqual(sorted(layer["taken"]), [0] * (8 - top) + [192] * top)
            self.assertEqual(run["experts"]["imbalance"], 8 / top)

    def test_a_summary_names_the_imbalance_with_which_it_would_have_been_predicted(self):
        """Every token is the same: of 4 ranks one has all rows of the only layer, in every step."""
        text = self.folder / "same.txt"
        text.write_text("a" * 5000)
        script = MODELS + f"""
local function f(verb, entry, memory, log) return verb {{ model = moe {{ layers = 1, top_k = 1, vocab = 256 }}, data = mw.text {{ "{text}" }},
  sequence = 96, plan = {{ dp(4), entry }}, batch = 16, microbatch = 2, optimizer = mw.adamw {{ lr = 1e-3 }}, steps = 2,
  memory = memory, threads = 1, log = log }} end
"""
        run, told = self.all("run", self.write(script + "f(mw.train, ep(4)) f(mw.plan, ep { 4, imbalance = 4 })"))
        said = lambda entry, log="nil": self.call("run", self.write(script + f"f(mw.train, {entry}, nil, {log})")).stdout
        self.assertRegex(said("ep(4)", '"e.h5"'), r"assume that experts are chosen evenly; the fullest rank had 4\.00 times as many rows: "
                         r"ep \{ 4, imbalance = 4 \} would predict about its memory, and bytes as if every rank had so many rows\n")
        # ... and where the run is looked at later.
        note = run["experts"]["note"]
        self.assertIn(f"  {note}\n", self.call("runs", "show", "e.h5").stdout)
        self.assertEqual(self.call("report", "e.h5", "-o", "page.html").returncode, 0)
        self.assertIn("Predictions about experts assume that all experts are chosen equally often", (self.folder / "page.html").read_text())
        self.assertEqual(run["experts"]["rank_imbalance"], 4)
        self.assertGreater(run["peak_bytes"], 1.1 * run["predicted"]["peak_bytes"])
        self.assertAlmostEqual(told["peak_bytes"] / run["peak_bytes"], 1, delta=0.02)
        # A run of a plan that says it has nothing to add; and one out of its memory says what
        # would have.
        for entry in ("ep { 4, imbalance = 4 }", "ep { 1 }"):
            self.assertNotIn("predictions assume", said(entry))
        limit = (run["predicted"]["peak_bytes"] + run["peak_bytes"]) // 2
        line = self.refused(1, "memory.exceeded memory", "run", self.write(script + f"f(mw.train, ep(4), {limit})"))
        self.assertRegex(line["hint"], r"were predicted, which assumes that experts are chosen evenly; this rank had [\d.]+ times as "
                         r"many rows so far, and ep \{ 4, imbalance = [\d.]+ \} predicts for so many rows in all layers \(more may come\)")
        # Tokens differ, in several layers: what a broken step tells is said to be of its part, and
        # no more than there can be.
        uneven = script.replace("layers = 1", "layers = 3").replace(f'mw.text {{ "{text}" }}', "mw.synthetic {}")
        whole = self.only("run", self.write(uneven + "f(mw.train, ep(4))"))
        limit = (whole["predicted"]["peak_bytes"] + whole["peak_bytes"]) // 2
        self.assertGreater(whole["peak_bytes"], whole["predicted"]["peak_bytes"])
        hint = self.refused(1, "memory.exceeded memory", "run", self.write(uneven + f"f(mw.train, ep(4), {limit})"))["hint"]
        said_so_far = re.search(r"had ([\d.]+) times as many rows so far, and ep \{ 4, imbalance = ([\d.]+) \}", hint)
        self.assertIsNotNone(said_so_far, hint)
        self.assertTrue(1 < float(said_so_far[1]) <= float(said_so_far[2]) + 0.005 <= 4.005, hint)
        # A limited capacity that is not filled makes no rank the fullest.
        filled = self.only("run", self.write(MODELS + "e(2, { dp(4), ep(4) }, mw.train)"))
        self.assertGreaterEqual(filled["experts"].get("rank_imbalance", 1), 1)

    def run_and_log(self, *cases, table="experts"):
        """For each model and plan its result and a table of its run file."""
        logs = [self.folder / f"{n}.h5" for n in range(len(cases))]
        results = self.all("run", self.write(MODELS + "".join(f"""
mw.train {{ model = models[{model}], data = mw.synthetic {{}}, sequence = 12, plan = {plan}, batch = 16, microbatch = 1,
  optimizer = mw.adamw {{ lr = 1e-3 }}, steps = 2, log = "{log}", overwrite = true }}""" for (model, plan), log in zip(cases, logs))))
        return [(result, pandas.read_hdf(log, table)) for result, log in zip(results, logs, strict=True)]

    def test_what_is_chosen_does_not_depend_on_the_mix(self):
        plans = ("{}", "{ dp(4), ep(4) }", "{ dp(2), tp(2), ep(4) }", "{ sp(2), dp(2), ep(4) }",
                 "{ pp(2), zero { 2, stage = 3 }, ep(2) }", "{ tp(2) }")
        for model, top, limited in ((1, 2, False), (2, 1, True), (4, 2, True)):
            reference = None
            for plan, (result, table) in zip(plans, self.run_and_log(*((model, plan) for plan in plans))):
                with self.subTest(model=model, plan=plan):
                    counts = table[table["step"] == 0].sort_values(["layer", "expert"])
                    counts = counts[["layer", "expert", "chosen", "taken"]].values.tolist()
                    for layer in set(row[0] for row in counts):
                        rows = [row for row in counts if row[0] == layer]
                        self.assertEqual(sum(row[2] for row in rows), 16 * 12 * top)
                        self.assertEqual(all(row[2] == row[3] for row in rows), not limited)
                    reference = reference or counts
                    self.assertEqual(counts, reference)
                    self.assertEqual(result["experts"]["dropped"] > 0, limited)

    def test_a_bias_moves_against_the_load(self):
        log = self.folder / "bias.h5"
        self.only("run", self.write(MODELS + f"""
mw.train {{ model = moe {{ balance = "bias", bias_rate = 0.001 }}, data = mw.synthetic {{}}, sequence = 12,
  plan = {{ dp(2), ep(2) }}, batch = 64, optimizer = mw.sgd {{ lr = 0 }}, steps = 40, log = "{log}" }}"""))
        table = pandas.read_hdf(log, "experts")
        spread = table.groupby(["step", "layer"])["chosen"].std().groupby("step").mean()
        self.assertLess(spread.iloc[-10:].mean(), 0.5 * spread.iloc[0])

    def test_bytes_of_an_exchange(self):
        """A rank sends a share of its choices and their counts, about evenly; predicted for even choices."""
        runs = self.run_and_log(*((1, f"{{ dp({ways}), ep({ways}) }}") for ways in (2, 4)))
        for ways, (result, _) in zip((2, 4), runs):
            sent = {c["phase"]: c["bytes"] for c in result["communication"] if c["op"] == "all-to-all"}
            axes = {c["axis"] for c in result["communication"] if c["op"] == "all-to-all"}
            self.assertEqual(axes, {"ep"})  # though dp's are the same ranks
            predicted = {c["phase"]: c["bytes"] for c in result["predicted"]["communication"]
                         if c["op"] == "all-to-all"}
            # 2 layers, 16 / ways sequences of 12, 2 choices, fp32: 32 wide and a weight, 32 back.
            even = 2 * (16 // ways * 12) * 2 * (32 + 1 + 32) * 4 * (ways - 1) // ways
            counts = 2 * 16 // ways * 8 * 8 * (ways - 1) // ways
            self.assertEqual(predicted, {"forward": even + counts, "backward": even})
            for phase in predicted:
                self.assertLess(abs(sent[phase] / predicted[phase] - 1), 0.35)
            calls = lambda uses: sorted((c["axis"], c["op"], c["phase"], c["calls"]) for c in uses)
            self.assertEqual(calls(result["communication"]), calls(result["predicted"]["communication"]))

    def test_work_is_that_of_the_rows_that_came(self):
        cases = (1, "{ dp(4), ep(4) }"), (4, "{ dp(2), sp(2), ep(4) }")
        for case, (result, work) in zip(cases, self.run_and_log(*cases, table="work")):
            with self.subTest(case):
                is_expert = work["op"].isin(["expert_linear", b"expert_linear"])
                done = work[is_expert & work["piece"].isin(["forward", b"forward"])].groupby("step")["flops"].sum()
                taken = pandas.read_hdf(result["log"], "experts").groupby("step")["taken"].sum()
                for step in (0, 1):  # gate, up and down of 24 x 32
                    self.assertEqual(done[step], taken[step] * 3 * 2 * 24 * 32)

    def test_a_limited_capacity_is_predicted(self):
        peak = lambda capacity: self.only("plan", self.write(
            MODELS + f"models[1] = moe {{ capacity = {capacity} }}\ne(1, {{ dp(4), ep(4) }}, mw.plan)"))
        full, half = peak("nil"), peak("0.5")
        sent = lambda r: sum(c["bytes"] for c in r["communication"] if c["op"] == "all-to-all")
        self.assertLess(half["memory"][0]["activations"], full["memory"][0]["activations"])
        self.assertLess(sent(half), 0.75 * sent(full))

    def test_experts_choose_their_tokens(self):
        """All experts take as many, tokens have any number of them, and nothing is dropped; every mix equals one rank."""
        script = MODELS + """
for _, plan in ipairs { { dp(2), ep(2) }, { tp(2), sp(), zero { 2, stage = 3 } }, { sp(2), ep(2) }, { dp(2), sp { 2, form = "ulysses" } },
                        { pp { 2, schedule = "zb-h1" }, dp(2), ep(2) } } do e(7, plan, mw.verify) end
e(7, { dp(2), ep(2) }, mw.train)
"""
        *verdicts, run = self.all("run", self.write(script))
        self.assertEqual({one["verdict"] for one in verdicts}, {"equal"})
        self.assertEqual(run["experts"]["dropped"], 0)
        for layer in run["experts"]["layers"]:
            self.assertEqual(layer["taken"], [16 * 3] * 8)  # of 16 sequences of 12 tokens, 12 * 2 / 8 each
            self.assertEqual(layer["chosen"], layer["taken"])
        self.held_as_predicted(run)
        refused = lambda more: (f'e(1, {{}}, function(t) t.model = moe {{ chosen_by = "experts", {more} }} mw.plan(t) end)', 2)
        self.all_refused(MODELS, (*refused("normalise = false"), "option.conflict model.balance"),
                         (*refused('balance = "none"'), "option.conflict model.normalise"),
                         (*refused('balance = "none", normalise = false, groups = 2, top_k = 1'), "option.conflict model.groups"))

    def test_imbalance_is_priced(self):
        plan = lambda factor: self.only("plan", self.write(
            MODELS + f"e(1, {{ dp(4), ep {{ 4, imbalance = {factor} }} }}, mw.plan)"))
        even, uneven = plan(1.0), plan(2.0)
        self.assertGreater(uneven["memory"][0]["activations"], even["memory"][0]["activations"])
        self.assertGreater(uneven["compute_seconds"], even["compute_seconds"])

    def test_what_cannot_be(self):
        e = lambda plan: f"e(1, {plan}, mw.plan)"
        self.all_refused(
            MODELS,
            (e("{ ep(2) }"), 3, "axis.unknown plan[1]"),
            (e("{ dp(4), ep(3) }"), 3, "axis.cannot-borrow plan[2].ways"),
            (e("{ dp(16), ep(16) }"), 3, "axis.cannot-split plan[2].ways"),
            (e("{ dp(3), tp(2), ep(4) }"), 3, "axis.cannot-borrow plan[3].ways"),
            (e('{ dp(3), tp(2), ep { 3, borrow = { "tp" } } }'), 3, "axis.cannot-borrow plan[3].ways"),
            (e('{ dp(2), ep { 2, borrow = { "dp", "tp" } } }'), 3, "axis.unknown plan[2].borrow"),
            (e("{ dp(2), ep { 2, borrow = {} } }"), 2, "option.missing plan[2].borrow"),
            (e("{ dp(2), ep { 2, borrow = { 2 } } }"), 2, "option.value plan[2].borrow"),
            (e('{ dp(2), ep { 2, dispatch = "post" } }'), 2, "option.choice plan[2].dispatch"),
            ("models[1] = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 40, vocab = 50 } " + e("{ dp(2), ep(2) }"),
             3, "rule.dim plan[2]"),
            ("models[1] = moe { top_k = 9 } " + e("{}"), 2, "option.range model.top_k"),
            ("models[1] = moe { dense_layers = 2 } " + e("{}"), 2, "option.range model.dense_layers"),
            ("models[1] = moe { ahead_weight = 0.1 } " + e("{}"), 2, "option.needs model.ahead_weight"))

    def test_groups_that_cannot_be(self):
        """All that is wrong, of a kind of model and of an op in a script's own."""
        own = """local mw = require "meshwright"
mw.plan {
  model = mw.model { layers = 1, dims = { hidden = 32, heads = 4, vocab = 50, experts = 8, expert_ffn = 24 },
    block = function(x) return x + x:attention():experts { OPTIONS } end },
  data = mw.synthetic {}, sequence = 8, batch = 1, steps = 1, optimizer = mw.sgd { lr = 1 },
}
"""
        cases = {"top_k = 9, groups = 3, group_top = 5": ["nearest: groups = 2 or 4", "group_top = 3 at most", "top_k = 8 at most"],
                 "top_k = 3, groups = 4": ["top_k = 2 at most, or group_top = 2"],
                 "top_k = 5, groups = 4, group_top = 2": ["top_k = 4 at most, or group_top = 3"]}
        for options, hints in cases.items():
            for script in (MODELS + f"models[1] = moe {{ {options} }} e(1, {{}}, mw.plan)", own.replace("OPTIONS", options)):
                with self.subTest(options):
                    done = self.call("plan", self.write(script), "--json")
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertEqual([error["hint"] for error in self.lines(done) if error["kind"] == "error"], hints)


if __name__ == "__main__":
    unittest.main(verbosity=2)
