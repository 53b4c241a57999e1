"""One sample of all options in which every two choices that go together stand together: each mix
equals one rank, holds and sends what is predicted in its own precision, and its replicas are
alike. What does not go together is refused with the reason. The full products of a few options
each are the matrices (`./meshwright test --label matrix`)."""

import re
import unittest

import h5py
import numpy as np

from cases import ProgramCase
from pairs import cover

HEAD = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local function sizes(t)
  local small = { layers = t.layers, hidden = 24, heads = 4, vocab = 50 }
  for key, value in pairs(t) do small[key] = value end
  return small
end
-- Of layers that differ: side by side, or one after the other with a narrower MLP and one key head.
local function own(n)
  return mw.model { layers = n, dims = { hidden = 24, heads = 4, kv_heads = 2, ffn = 36, vocab = 50,
                                         narrow = { 18, like = "ffn" }, one = { 1, like = "kv_heads" } },
    block = function(x, layer)
      local h = x:rms_norm()
      if layer % 2 == 0 then return x + h:attention() + h:mlp() end
      x = x + h:attention { kv_heads = "one" }
      return x + x:rms_norm():mlp "narrow"
    end }
end
local models = {
  llama = function(n) return mw.llama(sizes { layers = n, ffn = 36 }) end,
  grouped = function(n) return mw.llama(sizes { layers = n, ffn = 35, kv_heads = 2, vocab = 49, tied = true }) end,
  window = function(n) return mw.llama(sizes { layers = n, ffn = 36, kv_heads = 2, window = 5 }) end,
  gpt = function(n) return mw.gpt(sizes { layers = n, tied = true }) end,
  moe = function(n) return mw.moe(sizes { layers = n, ffn = 36, kv_heads = 2, experts = 4, top_k = 2, shared_experts = 1,
                                          dense_layers = 1 }) end,
  capped = function(n) return mw.moe(sizes { layers = n, ffn = 36, experts = 4, top_k = 1, capacity = 1.0, balance = "bias",
                                             bias_rate = 0.01 }) end,
  latent = function(n) return mw.moe(sizes { layers = n, ffn = 36, experts = 4, top_k = 2, expert_ffn = 20, q_lora_rank = 20,
                                             kv_lora_rank = 12, qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 8 }) end,
  own = function(n) return own(n) end,
}
local function e(t)
  t.model, t.data, t.threads = models[t.model](t.layers), mw.synthetic {}, 1
  t.layers = nil
  return t
end
local function try(n, call)
  local ok, why = pcall(call)
  if not ok then io.stderr:write("refused ", n, " ", (tostring(why):gsub("\\n", " | ")), "\\n") end
end
"""

# The first of each is the plain one. Of strategies: what stands in the plan.
FACTORS = {
    "model": ["llama", "grouped", "window", "gpt", "moe", "capped", "latent", "own"],
    "stages": ["", "pp { 2, schedule = 'gpipe' }", "pp { 2, schedule = '1f1b', layout = { 0, 2 } }",
               "pp { 2, schedule = { kind = 'interleaved', pair = true }, chunks = 2 }",
               "pp { 2, schedule = 'looped-bfs', chunks = 2 }",
               "pp { 2, schedule = { kind = 'zb-h1', pair = true } }", "pp { 2, schedule = 'zb-h2' }", "pp { 2, schedule = 'zbv' }",
               "pp { 2, schedule = 'dualpipev' }"],
    "data": ["", "dp { 2, bucket = '4KiB' }", "dp { 2, reduce = 'each' }", "dp { 2, hook = 'bf16', overlap = false }",
             "dp { 2, hook = 'powersgd' }", "zero { 2, stage = 1 }", "zero { 2, stage = 2, bucket = '4KiB' }",
             "zero { 2, stage = 3 }", "zero { 2, stage = 3, prefetch = 0 }", "zero { 2, stage = 3, keep = true }",
             "zero { 4, stage = 2, replicas = 2 }", "zero { 2, stage = 1, offload = 'optimizer' }",
             "zero { 2, stage = 3, offload = 'parameters' }"],
    "tensor": ["", "tp(2)", "tp { 2, overlap = true }", "tp(4)"],
    "sequence": ["", "sp()", "sp(2)", "sp { 2, balance = 'none' }", "sp { 2, form = 'allgather' }",
                 "sp { 2, form = 'ulysses' }", "sp { 4, ulysses = 2 }"],
    "experts": ["", "ep(2)", "ep { 2, dispatch = 'allgather' }", "ep { 2, overlap = true }"],
    "order": ["data outside", "data inside"],
    "length": ["12", "7"],
    "microbatch": ["nil", "1", "2"],  # of three sequences on each rank
    "recompute": ["'none'", "'selective'", "'full'", "{ every = 2 }", "{ what = 'none', gathers = true }"],
    "offload": ["'none'", "'full'", "{ layers = 1, prefetch = 1 }"],
    "optimizer": ["mw.adamw { lr = 1e-3, clip = 0.5 }", "mw.sgd { lr = 1e-2, momentum = 0.9 }", "mw.muon { lr = 0.02 }",
                  "mw.shampoo { lr = 0.02 }"],
    "check": ["false", "true", "'replicas'"],
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


# What the planner refuses, and as what.
REFUSED = [
    (lambda c: c["experts"] and c["model"] not in EXPERTS, "rule.dim plan[3]"),
    (lambda c: c["experts"] and ranks(c) == ways(c["stages"]), "axis.unknown plan[1]"),
    (lambda c: c["sequence"] == "sp()" and not c["tensor"], "axis.unknown plan[2]"),
    (lambda c: "ulysses" in c["sequence"] and ways(c["tensor"]) == 4, "axis.cannot-share plan[2].ways"),
    (lambda c: "powersgd" in c["data"] and c["precision"] in ("bf16", "bf16, reductions = fp32", "fp16"),
     "hook.dtype plan[1].hook"),
]


def allowed(c):
    """Of few ranks, where two axes alone do not make more."""
    axes = sum(ways(c[name]) > 1 for name in ("stages", "data", "tensor", "sequence"))
    return (ranks(c) <= 8 or axes == 2) and not any(wrong(c) for wrong, _ in REFUSED)


def lua(c, verb, log=None):
    inner = [c["data"], c["sequence"], c["tensor"]]
    if c["order"] == "data inside":
        inner = inner[1:] + inner[:1]
    plan = ", ".join(entry for entry in (c["stages"], *inner, c["experts"]) if entry)
    precision, _, more = c["precision"].partition(", ")
    more = f", {more.replace('fp32', FP32)}" if more else ""
    chunked = any(name in c["stages"] for name in ("chunks", "zbv", "dualpipev"))
    own = f", check = {c['check']}" + (f", log = '{log}'" if log else "")
    return (f"{verb}(e {{ model = '{c['model']}', layers = {4 if chunked else 2}, plan = {{ {plan} }}, batch = {3 * ways(c['data'])}, steps = 1, sequence = {c['length']}, microbatch = {c['microbatch']}, "
            f"recompute = {c['recompute']}, offload = {c['offload']}, optimizer = {c['optimizer']}, "
            f"precision = '{precision}'{more}{own} }})")


class Pairs(ProgramCase):
    def judge(self, c, verdict, run, log):
        if "hook" in c["data"]:
            self.assertEqual((verdict["verdict"], verdict["first_divergence"]), ("different", None), verdict["divergence"])
            self.assertIn("sends less than the gradients", verdict["note"])
        else:
            self.assertEqual(verdict["verdict"], "equal", verdict["divergence"])
            self.assertLessEqual(max(verdict["max_relative_error"].values()), 1e-10)
        self.assertEqual((run["status"], run["ranks"]), ("done", ranks(c)))
        with h5py.File(self.folder / log, locking=False) as file:
            sent, memory = file["communication"][:], file["memory"][:]
        sent = sent[sent["phase"] != b"check"]
        calls = lambda uses: {(u["axis"], u["op"], u["phase"]): u["calls"] for u in uses if u["phase"] != "check"}
        self.assertEqual(calls(run["communication"]), calls(run["predicted"]["communication"]))
        for row in memory[np.isin(memory["category"], [b"parameters", b"gradients", b"optimizer"])]:
            self.assertEqual(row["bytes"], row["predicted_bytes"], row)
        self.assertEqual(set(memory["category"][memory["bytes"] > 0]) & {b"scratch"}, set())  # of a step's end
        if c["model"] in EXPERTS:  # how many rows go where is known only when experts have been chosen
            return
        self.assertTrue((sent["bytes"] == sent["predicted_bytes"]).all())
        if c["check"] == "true":
            # Softmax is the same whatever is added to all keys: the gradient of their bias is zero
            # but for rounding, and at times without.
            unused = [name for name in run["check"]["unused"] if not name.endswith(".attention.k.bias")]
            self.assertEqual(unused, [])
        for row in memory[memory["category"] != b"scratch"]:
            self.assertEqual(row["peak_bytes"], row["predicted_bytes"], row)

    def test_every_two_choices_that_go_together(self):
        cases, _ = cover(FACTORS, allowed)
        self.assertTrue(all(map(allowed, cases)))
        calls = "\n".join(f"try({n}, function() {lua(c, 'mw.verify')} {lua(c, 'mw.train', f'{n}.h5')} end)"
                          for n, c in enumerate(cases))
        done = self.call("run", "--json", self.write(HEAD + calls))
        refused = [line for line in done.stderr.splitlines() if line.startswith("refused ")]
        self.assertEqual([f"{lua(cases[int(line.split()[1])], '')}: {line}" for line in refused], [])
        results = self.lines(done)
        self.assertEqual(len(results), 2 * len(cases), done.stderr[-3000:])
        for n, (c, verdict, run) in enumerate(zip(cases, results[::2], results[1::2])):
            with self.subTest(lua(c, "")):
                self.judge(c, verdict, run, f"{n}.h5")
        print(f"{len(cases)} mixes of up to {max(map(ranks, cases))} ranks")

    def test_every_two_that_do_not_are_refused(self):
        _, impossible = cover(FACTORS, allowed)
        tried = [{**LENDING, **dict(pair)} for pair in impossible] + [{**PLAIN, "model": "moe", "experts": "ep(2)"}]
        done = self.call("run", self.write(
            HEAD + "\n".join(f"try({n}, function() {lua(c, 'mw.plan')} end)" for n, c in enumerate(tried))))
        refused = [int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("refused ")]
        self.assertEqual(refused, list(range(len(tried))), done.stderr[-3000:])
        self.all_refused(HEAD, *((lua(next(filter(wrong, tried)), "mw.plan"), 3, problem) for wrong, problem in REFUSED))


if __name__ == "__main__":
    unittest.main(verbosity=2)
