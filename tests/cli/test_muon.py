"""Muon from outside: every mix equals one rank, and what a script gets wrong is named."""

import unittest

from cases import ProgramCase, matrix
from problems import problems

BOUND = 1e-10

SCRIPT = """\
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep")
local llama = mw.llama { layers = 2, hidden = 48, heads = 12, kv_heads = 4, ffn = 41, vocab = 50, tied = true }
local moe = mw.moe { layers = 2, hidden = 48, heads = 12, kv_heads = 4, ffn = 40, vocab = 50, experts = 4, top_k = 2,
                     expert_ffn = 20 }
local function check(model, mix, microbatch, more)
  local optimizer = { lr = 0.02, clip = 0.5, adamw = { lr = 1e-3 } }
  for key, value in pairs(more or {}) do optimizer[key] = value end
  mw.verify { model = model, data = mw.synthetic {}, sequence = 8, plan = mix, batch = 8, microbatch = microbatch,
              optimizer = mw.muon(optimizer), steps = 3 }
end
check(llama, { dp(2) })
check(llama, { dp { 2, bucket = "16KiB" } }, 1)
check(llama, { tp(2) }, 2)
check(llama, { tp(2), sp() }, 2)
check(llama, { sp(2), tp(2) }, 2)
for stage = 1, 3 do
  check(llama, { zero { 2, stage = stage }, tp(2) }, 2)
  check(llama, { zero { 4, stage = stage, replicas = 2, bucket = stage < 3 and "16KiB" or nil } }, 1)
end
check(llama, { zero { 2, stage = 1, offload = "optimizer" } }, 2, { adjust_lr = "match_rms_adamw", nesterov = false })
check(llama, { pp { ways = 2, schedule = "1f1b" } }, 1)
check(llama, { pp { ways = 2, schedule = "zb-h1" }, zero { 2, stage = 2 }, tp(2) }, 1)
check(moe, { dp(2), ep(2) }, 2)
check(moe, { dp(2), ep(2), tp(2) }, 2)
check(moe, { zero { 4, stage = 3 }, ep(2) }, 1)
"""

TRAIN = """\
local mw = require "meshwright"
local zero, tp = mw.plugins("zero", "tp")
local function train(optimizer)
  return mw.train { model = mw.llama { layers = 2, hidden = 64, heads = 4, ffn = 96, vocab = 64 },
                    data = mw.synthetic {}, sequence = 16, plan = { zero { 2, stage = 1 }, tp(2) }, batch = 8,
                    optimizer = optimizer, steps = 40 }
end
train(mw.adamw { lr = 3e-3, weight_decay = 0 })
train(mw.muon { lr = 0.02, weight_decay = 0, adamw = { lr = 3e-3 } })
"""

WRONG = """\
local mw = require "meshwright"
mw.plan { model = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 16, vocab = 16 }, data = mw.synthetic {},
          sequence = 4, batch = 2, steps = 1,
          optimizer = mw.muon { lr = 0.02, adjust_lr = "rms", adamw = { beta = 1 } } }
"""


class Muon(ProgramCase):
    def run_script(self, verb, text):
        done = self.call(verb, self.write(text), "--json")
        return done, self.lines(done)

    @matrix
    def test_every_mix_equals_one_rank(self):
        done, results = self.run_script("verify", SCRIPT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(results), 17)
        for number, result in enumerate(results):
            with self.subTest(number=number, plan=result.get("plan")):
                self.assertEqual(result["verdict"], "equal")
                self.assertLessEqual(result["max_relative_error"]["parameters"], BOUND)
                self.assertGreater(result["max_relative_error"]["parameters"], 0)

    def test_it_learns_and_keeps_half_of_adamws_state_for_matrices(self):
        done, (adamw, muon) = self.run_script("run", TRAIN)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(muon["losses"][-1], muon["losses"][0] - 1)
        self.assertLess(muon["memory"]["optimizer"], 0.75 * adamw["memory"]["optimizer"])
        phases = {(c["axis"], c["op"]) for c in muon["communication"] if c["phase"] == "optimizer"}
        self.assertEqual(phases, {("zero", "all-gather"), ("tp", "all-gather")})

    def test_what_is_wrong_is_named(self):
        done, results = self.run_script("plan", WRONG)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(problems(results), ["option.choice optimizer.adjust_lr"])


if __name__ == "__main__":
    unittest.main()
