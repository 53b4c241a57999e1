"""One sample of all options in which every two choices that go together stand together: each mix
equals one rank, holds and sends what is predicted in its own precision, and its replicas are
alike. What does not go together is refused with the reason. The full products of a few options
each are the matrices (`./meshwright test --label matrix`)."""

import re
import unittest

from cases import ProgramCase
from pairs import cover

HEAD = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local small = { layers = 4, hidden = 24, heads = 4, kv_heads = 2, ffn = 36, vocab = 50 }
local function with(t)
  for key, value in pairs(small) do if t[key] == nil then t[key] = value end end
  return t
end
local models = {
  llama = mw.llama(with { kv_heads = 4 }), grouped = mw.llama(with { ffn = 35, vocab = 49, tied = true }), window = mw.llama(with { window = 5 }),
  gpt = mw.gpt { layers = 4, hidden = 24, heads = 4, vocab = 50, tied = true },
  moe = mw.moe(with { experts = 4, top_k = 2, shared_experts = 1, dense_layers = 1 }),
  capped = mw.moe(with { experts = 4, top_k = 1, capacity = 1.0, balance = "bias", bias_rate = 0.01 }),
  latent = mw.moe { layers = 4, hidden = 24, heads = 4, ffn = 36, vocab = 50, experts = 4, top_k = 2, expert_ffn = 20, q_lora_rank = 20,
                    kv_lora_rank = 12, qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 8 },
}
local function e(t)
  t.model, t.data, t.batch, t.threads = models[t.model], mw.synthetic {}, 8, 1
  return t
end
local function try(n, call)
  local ok, why = pcall(call)
  if not ok then io.stderr:write("refused ", n, " ", (tostring(why):gsub("\\n", " | ")), "\\n") end
end
"""

# The first of each is the plain one. Of strategies: what stands in the plan.
FACTORS = {
    "model": ["llama", "grouped", "window", "gpt", "moe", "capped", "latent"],
    "stages": ["", "pp { 2, schedule = 'gpipe' }", "pp { 2, schedule = '1f1b', layout = { 1, 3 } }",
               "pp { 2, schedule = 'interleaved', chunks = 2 }", "pp { 2, schedule = 'looped-bfs', chunks = 2 }",
               "pp { 2, schedule = 'zb-h1' }", "pp { 2, schedule = 'zb-h2' }", "pp { 2, schedule = 'zbv' }",
               "pp { 2, schedule = 'dualpipev' }"],
    "data": ["", "dp { 2, bucket = '4KiB' }", "dp { 2, reduce = 'each' }", "dp { 2, hook = 'bf16', overlap = false }",
             "dp { 2, hook = 'powersgd' }", "zero { 2, stage = 1 }", "zero { 2, stage = 2, bucket = '4KiB' }",
             "zero { 2, stage = 3 }", "zero { 2, stage = 3, prefetch = 0, keep = true }",
             "zero { 4, stage = 2, replicas = 2 }", "zero { 2, stage = 1, offload = 'optimizer' }",
             "zero { 2, stage = 3, offload = 'parameters' }"],
    "tensor": ["", "tp(2)", "tp { 2, overlap = true }", "tp(4)"],
    "sequence": ["", "sp()", "sp(2)", "sp { 2, balance = 'none' }", "sp { 2, form = 'allgather' }",
                 "sp { 2, form = 'ulysses' }", "sp { 4, ulysses = 2 }"],
    "experts": ["", "ep(2)", "ep { 2, dispatch = 'allgather' }", "ep { 2, overlap = true }"],
    "order": ["data outside", "data inside"],
    "length": ["12", "7"],
    "microbatch": ["nil", "1", "2", "3"],
    "recompute": ["'none'", "'selective'", "'full'", "{ every = 2 }", "{ what = 'none', gathers = true }"],
    "offload": ["'none'", "'full'", "{ layers = 1, prefetch = 1 }"],
    "optimizer": ["mw.adamw { lr = 1e-3, clip = 0.5 }", "mw.sgd { lr = 1e-2, momentum = 0.9 }", "mw.muon { lr = 0.02 }"],
    "precision": ["fp64", "fp32", "bf16", "bf16, main_gradients = fp32", "bf16, reductions = fp32", "fp16"],
}
EXPERTS = ("moe", "capped", "latent")
PLAIN = {name: values[0] for name, values in FACTORS.items()}
LENDING = {**PLAIN, "data": "dp { 2, bucket = '4KiB' }", "tensor": "tp(2)"}  # takes all but what is refused
FP32 = "'fp32'"


def ways(entry):
    found = re.search(r"\d+", entry)
    return int(found[0]) if found else 1


def ranks(c):
    return ways(c["stages"]) * ways(c["data"]) * ways(c["tensor"]) * ways(c["sequence"])


# What the planner refuses: what is wrong, and words of the refusal.
REFUSED = [
    (lambda c: c["experts"] and c["model"] not in EXPERTS, "the model has no experts"),
    (lambda c: c["experts"] and ranks(c) == ways(c["stages"]), "the plan has none of these axes"),
    (lambda c: c["sequence"] == "sp()" and not c["tensor"], "the plan has no tp"),
    (lambda c: "ulysses" in c["sequence"] and ways(c["tensor"]) == 4, "cannot share out 1 heads"),
    (lambda c: c["microbatch"] == "3" and ways(c["data"]) == 4, "3 sequences are more than the 2 of each rank"),
    (lambda c: "powersgd" in c["data"] and c["precision"] in ("bf16", "bf16, reductions = fp32", "fp16"),
     'main_gradients = "fp32"'),
]


def allowed(c):
    """Of few ranks, where two axes alone do not make more."""
    axes = sum(ways(c[name]) > 1 for name in ("stages", "data", "tensor", "sequence"))
    return (ranks(c) <= 8 or axes == 2) and not any(wrong(c) for wrong, _ in REFUSED)


def lua(c, verb):
    inner = [c["data"], c["sequence"], c["tensor"]]
    if c["order"] == "data inside":
        inner = inner[1:] + inner[:1]
    plan = ", ".join(entry for entry in (c["stages"], *inner, c["experts"]) if entry)
    precision, _, more = c["precision"].partition(", ")
    more = f", {more.replace('fp32', FP32)}" if more else ""
    own = ", check = true, steps = 1" if verb == "mw.train" else ", steps = 2"
    return (f"{verb}(e {{ model = '{c['model']}', plan = {{ {plan} }}, sequence = {c['length']}, microbatch = {c['microbatch']}, "
            f"recompute = {c['recompute']}, offload = {c['offload']}, optimizer = {c['optimizer']}, "
            f"precision = '{precision}'{more}{own} }})")


class Pairs(ProgramCase):
    def judge(self, c, verdict, run):
        if "hook" in c["data"]:
            self.assertEqual((verdict["verdict"], verdict["first_divergence"]), ("different", None), verdict["divergence"])
            self.assertIn("sends less than the gradients", verdict["note"])
        else:
            self.assertEqual(verdict["verdict"], "equal", verdict["divergence"])
            self.assertLessEqual(max(verdict["max_relative_error"].values()), 1e-10)
        self.assertEqual((run["status"], run["ranks"], run["check"]["unused"]), ("done", ranks(c), []))
        # How many rows go to experts elsewhere is known only when they have been chosen.
        sure = c["model"] not in EXPERTS or not c["experts"]
        sent = lambda uses: {(u["axis"], u["op"], u["phase"]): (u["calls"], u["bytes"] if sure else None)
                             for u in uses if u["phase"] != "check"}
        predicted = run["predicted"]
        self.assertEqual(sent(run["communication"]), sent(predicted["communication"]))
        most = lambda what: max(rank[what] for rank in predicted["memory"])
        for category in ("parameters", "gradients", "optimizer"):
            self.assertEqual(run["memory"][category], most(category), category)
        if c["model"] in EXPERTS:
            return
        self.assertEqual(run["memory"]["host"], most("host"))
        slack = 4096 if c["precision"] in ("fp64", "fp32") else 65536  # workspaces of kernels
        self.assertAlmostEqual(run["peak_bytes"], most("peak"), delta=0.02 * most("peak") + slack)

    def test_every_two_choices_that_go_together(self):
        cases, _ = cover(FACTORS, allowed)
        self.assertTrue(all(map(allowed, cases)))
        calls = "\n".join(f"try({n}, function() {lua(c, verb)} end)" for n, c in enumerate(cases) for verb in ("mw.verify", "mw.train"))
        done = self.call("run", "--json", self.write(HEAD + calls))
        refused = [line for line in done.stderr.splitlines() if line.startswith("refused ")]
        self.assertEqual([f"{lua(cases[int(line.split()[1])], '')}: {line}" for line in refused], [])
        results = self.lines(done)
        self.assertEqual(len(results), 2 * len(cases), done.stderr[-3000:])
        for c, verdict, run in zip(cases, results[::2], results[1::2]):
            with self.subTest(lua(c, "")):
                self.judge(c, verdict, run)
        print(f"{len(cases)} mixes of up to {max(map(ranks, cases))} ranks")

    def test_every_two_that_do_not_are_refused(self):
        _, impossible = cover(FACTORS, allowed)
        tried = [{**LENDING, **dict(pair)} for pair in impossible] + [{**PLAIN, "model": "moe", "experts": "ep(2)"}]
        done = self.call("run", self.write(
            HEAD + "\n".join(f"try({n}, function() {lua(c, 'mw.plan')} end)" for n, c in enumerate(tried))))
        said = [line for line in done.stderr.splitlines() if line.startswith("refused ")]
        self.assertEqual(len(said), len(tried), done.stderr)
        for c, text in zip(tried, said):
            with self.subTest(lua(c, "")):
                words = [words for wrong, words in REFUSED if wrong(c)]
                self.assertTrue(any(each in text for each in words), text)
        self.assertTrue(all(any(words in text for text in said) for _, words in REFUSED), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
