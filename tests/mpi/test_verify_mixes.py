"""Mixes whose ranks are processes of mpirun's, each held to one rank in float64: every form, over
four processes and over eight."""
import math
import os
import shutil
import subprocess
import unittest

from cases import BIN, MODELS, TEST_PLUGINS, UNPROVED, ProgramCase

BOUND = 1e-10

CHECK = MODELS + """
local function check(model, plan, batch, microbatch)
  mw.verify {
    model = models[model], data = mw.synthetic {}, sequence = 16, plan = plan, batch = batch, microbatch = microbatch,
    optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2, timeout = 120,
  }
end
"""

FOUR = CHECK + """
check("gpt", { tp(4) }, 4)
check("llama", { pp { 4, schedule = "1f1b" } }, 4, 1)
check("llama", { zero { 4, stage = 3 } }, 8)
check("llama", { sp { 4, form = "ring" } }, 4)
check("moe", { dp(4), ep(4) }, 8)
check("llama", { pp { 2, schedule = "zb-h1" }, tp(2), sp() }, 4, 2)
"""

EIGHT = CHECK + """
check("llama", { pp(2), dp(2), tp(2) }, 8, 2)
check("llama", { zero { 2, stage = 3 }, sp { 2, form = "ring" }, tp(2) }, 4)
check("moe", { pp { 2, schedule = "interleaved", chunks = 2 }, dp(4), ep(2) }, 16, 2)
check("gpt", { zero { 4, stage = 3 }, pp(2) }, 16, 2)
"""

# A fault for each way to look: an op's output, the gradient that reaches an op, a parameter's own.
WRONG = CHECK + """
local broken, faults = mw.plugins("broken_adjoint", "faults")
check("llama", { pp(2), tp(2), faults { "missing_all_reduce", at = "layers.3" } }, 4, 2)
check("llama", { dp(2), broken { 2, fault = "drop_backward", at = "d layers.0.attention_norm" } }, 4, 2)
check("llama", { pp(2), tp(2), sp(), faults { "missing_gradient_reduction", at = "layers.3.mlp_norm" } }, 4, 2)
"""


@unittest.skipIf(shutil.which("mpirun") is None, "MPI is not installed: the plugin was left out")
class VerifyMixes(ProgramCase):
    def verify(self, processes, script):
        return subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(processes),
                               BIN, "verify", self.write(script), "--json", "--quiet", "--plugin-path", TEST_PLUGINS],
                              cwd=self.folder, capture_output=True, text=True, timeout=600,
                              env={**os.environ, **UNPROVED, "OMP_NUM_THREADS": "1"})

    def equal_over(self, processes, script, mixes):
        done = self.verify(processes, script)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-3000:])
        results = self.lines(done)
        self.assertEqual(len(results), mixes, done.stdout[-2000:])
        for result in results:
            with self.subTest(result["plan"]):
                self.assertEqual((result["verdict"], result["precision"]), ("equal", "fp64"), result)
                for what, error in result["max_relative_error"].items():
                    self.assertLessEqual(error, BOUND, (what, result["worst"]))

    def test_six_mixes_over_four_processes(self):
        self.equal_over(4, FOUR, 6)

    def test_four_mixes_over_eight_processes(self):
        self.equal_over(8, EIGHT, 4)

    def test_what_is_wrong_is_found_in_the_same_place(self):
        found = []
        for processes in (1, 4):
            done = self.verify(processes, WRONG)
            self.assertEqual(done.returncode, 1, done.stdout[-2000:] + done.stderr[-3000:])
            found.append(self.lines(done))
            self.assertEqual([line["verdict"] for line in found[-1]], ["different"] * 3, done.stdout[-3000:])
        for alone, shared in zip(*found):
            with self.subTest(alone["plan"]):
                self.assertIsNotNone(alone["first_divergence"])
                for key in ("first_divergence", "divergence", "worst", "steps"):
                    self.assertEqual(shared[key], alone[key])
                for what, error in alone["max_relative_error"].items():
                    self.assertTrue(math.isclose(shared["max_relative_error"][what], error, rel_tol=1e-6, abs_tol=1e-12), what)


if __name__ == "__main__":
    unittest.main(verbosity=2)
