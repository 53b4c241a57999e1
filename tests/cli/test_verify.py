"""`meshwright verify` from outside: dp x tp of both models equals one rank; a broken reduction of a
test-only plugin is caught, with the op and the parameter named."""

import unittest

from cases import TEST_PLUGINS, UNPROVED, ProgramCase, matrix

BOUND = 1e-10

MODELS = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
local models = {
  -- 12 heads divide by 1 to 4; 4 grouped keys do not by 3, nor does the vocabulary by 4.
  llama = mw.llama { layers = 2, hidden = 48, heads = 12, kv_heads = 4, ffn = 40, vocab = 50 },
  gpt = mw.gpt { layers = 2, hidden = 48, heads = 12, vocab = 50, tied = true },
}
local function check(model, mix, batch, microbatch)
  mw.verify {
    model = models[model], data = mw.synthetic {}, sequence = 8, plan = mix, batch = batch,
    microbatch = microbatch, optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 3,
  }
end
"""

GRID = MODELS + """
for _, model in ipairs { "llama", "gpt" } do
  for d = 1, 4 do
    for t = 1, 4 do
      for microbatches = 1, 4 do
        local batch = 12  -- its multiples are never powers of two
        while batch % (d * microbatches) ~= 0 do batch = batch + 12 end
        check(model, { dp { d, bucket = "32KiB" }, tp(t) }, batch, batch // d // microbatches)
      end
    end
  end
end
"""

BROKEN = MODELS + """
local broken = mw.plugin "broken_adjoint"
check("llama", { dp { 2, bucket = "1B" }, broken { %s } }, 12, 3)
"""


class Verify(ProgramCase):
    def verify(self, text):
        done = self.call("verify", self.write(text), "--json", "--plugin-path", TEST_PLUGINS, **UNPROVED)
        return done, self.lines(done)

    @matrix
    def test_every_mix_equals_one_rank(self):
        done, results = self.verify(GRID)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertEqual(len(results), 2 * 4 * 4 * 4)
        for result in results:
            with self.subTest(result["plan"]):
                self.assertEqual((result["kind"], result["verdict"], result["precision"], result["steps"]),
                                 ("verify", "equal", "fp64", 3))
                self.assertEqual(set(result["max_relative_error"]), {"loss", "gradients", "parameters"})
                self.assertLessEqual(max(result["max_relative_error"].values()), BOUND)
                self.assertIsNone(result["first_divergence"])
        worst = max(max(result["max_relative_error"].values()) for result in results)
        print(f"{len(results)} mixes, largest relative error {worst:.1e}")

    def broken(self, fault, at):
        done, results = self.verify(BROKEN % f'2, fault = "{fault}", at = "{at}"')
        self.assertEqual(done.returncode, 1, done.stderr[-2000:])
        result, = results
        self.assertEqual(result["verdict"], "different")
        return result

    def test_the_same_plugin_without_a_fault(self):
        done, (result,) = self.verify(BROKEN % "2")
        self.assertEqual((done.returncode, result["verdict"]), (0, "equal"), done.stderr[-2000:])

    def test_what_cannot_be_proved_is_refused(self):
        for fault, at in (("drop_forward", "layers.1.attention.o"), ("drop_backward", "d layers.0.attention_norm"),
                          ("double_backward", "d layers.1.mlp_norm"), ("drop_gradient", "layers.0.mlp.up.weight")):
            with self.subTest(fault):
                script = self.write(BROKEN % f'2, fault = "{fault}", at = "{at}"')
                for command in ("verify", "plan"):
                    done = self.call(command, script, "--json", "--plugin-path", TEST_PLUGINS)
                    self.assertEqual(done.returncode, 3, done.stderr[-2000:])
                    error, = self.lines(done)
                    self.assertTrue(error["code"].startswith("prove."), error)
                    self.assertEqual((error["stage"], error["key"]), ("plan", "plan[2]"))

    def test_a_backward_reduction_left_out(self):
        result = self.broken("drop_backward", "d layers.0.attention_norm")
        self.assertEqual(result["first_divergence"], "layers.0.attention_norm")
        self.assertIn("the gradient that reaches layers.0.attention_norm (from layers.0.attention.q, "
                      "layers.0.attention.k, layers.0.attention.v)", result["divergence"])
        # Only the embedding and this norm get their gradients through it; the loss is right.
        self.assertIn(result["worst"], ("embedding.weight", "layers.0.attention_norm.weight"))
        self.assertGreater(result["max_relative_error"]["gradients"], 1e-3)

    def test_a_backward_reduction_made_twice(self):
        result = self.broken("double_backward", "d layers.1.mlp_norm")
        self.assertEqual(result["first_divergence"], "layers.1.mlp_norm")
        self.assertIn("(from layers.1.mlp.gate, layers.1.mlp.up)", result["divergence"])

    def test_a_forward_reduction_left_out(self):
        result = self.broken("drop_forward", "layers.1.attention.o")
        # The op that reads what should have been whole, and what it reads.
        self.assertEqual(result["first_divergence"], "layers.1.attention_add")
        self.assertIn("the output of layers.1.attention_add (from layers.0.mlp_add, layers.1.attention.o)", result["divergence"])
        self.assertGreater(result["max_relative_error"]["loss"], BOUND)

    def test_a_gradient_that_is_not_reduced(self):
        result = self.broken("drop_gradient", "layers.0.mlp.up.weight")
        self.assertEqual(result["worst"], "layers.0.mlp.up.weight")
        self.assertEqual(result["first_divergence"], "layers.0.mlp.up")
        self.assertIn("the gradient of layers.0.mlp.up.weight", result["divergence"])

    def test_a_lossy_hook_is_named_and_hides_no_fault(self):
        hooked = BROKEN.replace('bucket = "1B"', 'hook = "bf16"')
        done, (result,) = self.verify(hooked % "2")
        self.assertEqual((done.returncode, result["verdict"]), (1, "different"), done.stderr[-2000:])
        self.assertIsNone(result["first_divergence"])
        self.assertIn("the hook bf16 sends less than the gradients", result["note"])
        self.assertIn(result["note"], done.stderr)
        done, (result,) = self.verify(hooked % '2, fault = "drop_backward", at = "d layers.0.attention_norm"')
        self.assertEqual(result["first_divergence"], "layers.0.attention_norm")
        self.assertIn("but what parted first is not its doing", result["note"])

    def test_a_plugin_s_own_hook(self):
        done, (result,) = self.verify(MODELS + """
check("gpt", { dp { 3, bucket = "8KiB" }, mw.plugin("scattered_sum") {} }, 12, 2)
""")
        self.assertEqual((done.returncode, result["verdict"]), (0, "equal"), done.stderr[-2000:])
        self.assertIsNone(result["note"])

    def test_reduction_after_each_microbatch(self):
        done, results = self.verify(MODELS + """
check("gpt", { dp { 3, bucket = "8KiB", reduce = "each" } }, 12, 2)
check("llama", { dp { 2, reduce = "each", overlap = false }, tp(2) }, 12, 2)
""")
        self.assertEqual([r["verdict"] for r in results], ["equal"] * 2, done.stderr[-2000:])


if __name__ == "__main__":
    unittest.main(verbosity=2)
