"""device = "cuda": a plan needs no device, and a run without one ends before a rank starts."""

import os
import unittest

from cases import SCRIPT, ProgramCase

CUDA = 'e.device = "cuda"'


class Device(ProgramCase):
    def test_a_plan_needs_none_and_is_the_same(self):
        plans = [self.only("plan", self.write(SCRIPT % ("dp(2)", more))) for more in ("", CUDA)]
        self.assertEqual(plans[0]["plan_hash"], plans[1]["plan_hash"])

    def test_without_a_cluster_nothing_is_said_of_what_it_can_do(self):
        """This machine's cores are no GPU: no times of theirs, and no word on what fits."""
        script = self.write(SCRIPT % ("dp(2)", CUDA))
        plan = self.only("plan", script)
        self.assertEqual(plan["peak_bytes"], plan["memory_needed"])
        for key in ("priced_for", "step_seconds", "tokens_per_second", "mfu", "peak_flops", "cpu_seconds", "fits", "memory_limit"):
            self.assertNotIn(key, plan)
        for use in plan["communication"]:
            self.assertNotIn("seconds", use)
        said = self.call("plan", script).stdout
        self.assertIn('no time is predicted: it is to run on devices of "cuda"', said)
        self.assertNotIn("tokens/s", said)
        self.assertNotIn("this machine", said)
        self.assertGreater(self.only("plan", script, "--cluster", "dgx-h100", "--nodes", "1", "--set",
                                     "precision=bf16")["step_seconds"], 0)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has a GPU")
    def test_a_run_without_one_is_refused_before_a_rank_starts(self):
        for verb in ("run", "verify"):
            with self.subTest(verb):
                done = self.call(verb, self.write(SCRIPT % ("dp(2)", CUDA + ' e.log = "runs/a.h5"')), "--json")
                self.assertEqual(done.returncode, 5, done.stdout + done.stderr)
                error = next(line for line in self.lines(done) if line["kind"] == "error")
                self.assertEqual(error["key"], "device")
                self.assertIn(error["code"], ("device.build", "device.none"))
                self.assertEqual(self.lines(done)[-1]["kind"], "error")  # no result: nothing has run

    def test_another_word_is_none(self):
        error = self.refused(2, "option.choice device", "plan", self.write(SCRIPT % ("dp(2)", 'e.device = "gpu"')))
        self.assertTrue("devices: cpu, cuda; others come from plugins" in error["hint"], error["hint"])


if __name__ == "__main__":
    unittest.main()
