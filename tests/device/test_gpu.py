# label: gpu
"""Runs on the GPUs of this machine, by the program of the cuda preset: mixes equal one rank, what
lasts in memory is what is predicted, replicas are compared, runs go on from checkpoints and after
faults, a sandbox holds, errors are said once."""
import os
import pathlib
import shutil
import subprocess
import unittest

from cases import MODELS, TEST_PLUGINS, UNPROVED, ProgramCase
from nccl_module import OWN

CUDA = ' e.device = "cuda"'
MIXES = {
    "llama": ["dp(2), tp(4)", "zero { 2, stage = 1 }, tp(2), sp()", "pp(2), zero { 2, stage = 2 }",
              'pp { 2, schedule = "zbv", chunks = 2 }, dp(2)', "zero { 4, stage = 3 }",
              'zero { 2, stage = 3, offload = "parameters" }', 'zero { 2, stage = 2, offload = "optimizer", update = "device" }',
              'sp { 2, form = "ring" }, dp(2)', 'sp { 2, form = "ulysses" }, tp(2)',
              'pp { 2, schedule = "dualpipev" }, zero { 2, stage = 3 }', 'mw.plugin("coshard") { "ffn", slices = 4 }, tp(2)'],
    "gpt": ["tp { 2, overlap = true }, dp(2)", "pp(2), tp(2)"],
    "moe": ["dp(4), ep(4)", "zero { 4, stage = 2 }, ep(2)", 'pp { 2, schedule = "dualpipev" }, dp(2), ep(2)'],
}


@unittest.skipUnless(os.path.exists("/dev/nvidiactl"), "this machine has no GPU")
@unittest.skipUnless(OWN.exists(), "this build is without CUDA: build --preset cuda")
class Gpu(ProgramCase):
    def test_the_engine(self):
        program = pathlib.Path(os.environ["MESHWRIGHT_BUILD"]) / "bin/test_device"
        done = subprocess.run([program, "[gpu]"], capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stdout[-20000:] + done.stderr[-3000:])

    def test_doctor_counts_them(self):
        devices = next(line for line in self.all("doctor") if line["name"] == "devices")
        self.assertRegex(devices["found"], r"^cpu, [1-9]\d* of cuda$")

    def test_mixes_equal_one_rank(self):
        calls = "".join(f"""
mw.verify {{ model = models.{model}, data = mw.synthetic {{}}, sequence = 16, plan = {{ {plan} }}, batch = 8, microbatch = 2,
  optimizer = mw.adamw {{ lr = 1e-2, clip = 1 }}, steps = 3, precision = "fp64", device = "cuda", timeout = 300 }}
""" for model, plans in MIXES.items() for plan in plans)
        self.verify_all(MODELS + calls)

    def test_what_lasts_is_as_predicted(self):
        for precision in ("fp32", "bf16"):
            for plan in ("dp(2)", "zero { 2, stage = 2 }", "zero { 2, stage = 3 }", "pp(2)"):
                with self.subTest(plan, precision=precision):
                    run = self.only("run", self.script(plan, CUDA + f' e.precision = "{precision}"'))
                    self.assertEqual(run["status"], "done")
                    self.sent_as_predicted(run)
                    for name in ("parameters", "gradients", "optimizer"):
                        said = max(stage[name] for stage in run["predicted"]["memory"])
                        self.assertGreaterEqual(run["memory"][name], said)
                        self.assertLessEqual(run["memory"][name], said + 64 * 512)  # the allocator's blocks

    def test_a_run_is_predicted_by_the_cluster_that_it_names(self):
        named = ' e.precision = "bf16" e.cluster = mw.cluster("dgx-h100", { nodes = 1 }) e.stack = mw.stack("meshwright")'
        run = self.only("run", self.script("", CUDA + named))
        self.assertIn("dgx-h100", run["predicted"]["priced_for"])
        self.assertGreater(run["predicted"]["step_seconds"], 0)
        self.assertIsNotNone(run["mfu"])
        self.assertAlmostEqual(run["memory"]["buffers"] / run["predicted"]["memory"][0]["buffers"], 1, places=2)

    def test_a_run_goes_on(self):
        for plan in ("zero { 2, stage = 3 }", "zero { 2, stage = 1 }, tp(2)", "pp(2), dp(2)"):
            with self.subTest(plan):
                part = CUDA + ' e.precision = "bf16" e.checkpoint = { path = "%s" }'
                whole = self.only("run", self.script(plan, part % "whole"))
                first = self.only("run", self.script(plan, part % "part" + " e.steps = 2"))
                self.assertEqual(first["steps"], 2)
                again = self.only("run", self.script(plan, part % "part" + " e.steps = 4 e.resume = true"))
                self.assertEqual(again["resumed"]["step"], 2)  # a run that began anew has the same losses
                self.assertEqual(len(whole["losses"]), 4)
                self.assertEqual(len(again["losses"]), 4)  # those before the checkpoint too
                for here, there in zip(whole["losses"], again["losses"]):
                    self.assertAlmostEqual(here, there, places=3)
                for name in ("whole", "part"):
                    shutil.rmtree(self.folder / name)

    def test_replicas_are_compared(self):
        check = CUDA + ' e.check = { "replicas", every = 2 }'
        for plan in ("dp(2), tp(2)", "zero { 4, stage = 3, replicas = 2 }", "zero { 2, stage = 1 }, tp(2)", "pp(2), dp(2)"):
            with self.subTest(plan):
                run = self.only("run", self.script(plan, check))
                self.assertEqual(run["check"]["compared_steps"], 2)
                self.assertGreater(run["check"]["replicas"], 0)
        fault = 'mw.plugin("faults") { "missing_gradient_reduction", at = "layers.1.mlp.up.weight" }'
        script = self.script('dp { 2, bucket = "4KiB" }, ' + fault, check)
        done = self.call("run", script, "--json", "--plugin-path", TEST_PLUGINS, **UNPROVED)
        error = self.lines(done)[-1]
        self.assertEqual((done.returncode, error["code"]), (1, "check.replicas"))
        self.assertRegex(error["message"], "layers.1.*Replicate over dp.*rank 1.*step 1")

    def test_runs_repeat_to_the_bit(self):
        for plan, precision in (("dp(2), tp(2)", "fp32"), ("zero { 2, stage = 3 }, tp(2)", "bf16")):
            script = self.script(plan, CUDA + f' e.precision = "{precision}" e.steps = 20')
            first, again = (self.lines(self.call("run", script, "--json", MESHWRIGHT_DETERMINISTIC="1"))[-1] for _ in range(2))
            with self.subTest(plan):
                self.assertEqual(len(first["losses"]), 20)
                self.assertEqual(first["losses"], again["losses"])

    def test_a_run_goes_on_after_faults(self):
        kinds = ("error", "nan", "kill", "flip-checkpoint")
        done = self.call("chaos", self.script("dp(2), tp(2)", CUDA + " e.steps = 1500"), "--json", "--kinds", ",".join(kinds),
                         "--every", 2, "--timeout", 10, TMPDIR=str(self.folder))
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        *faults, outcome = self.lines(done)
        self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), faults)
        self.assertEqual(sorted(fault["fault"] for fault in faults), sorted(kinds))

    def test_a_sandbox_holds(self):
        script = self.script("dp(2)", CUDA)
        bound = self.only("run", script, "--sandbox", "--sandbox-device", "cuda")
        self.assertEqual(bound["losses"], self.only("run", script)["losses"])

    def test_memory_that_is_not_there_is_one_error(self):
        done = self.call("run", self.script("dp(2)", CUDA + """ e.sequence = 8192 e.batch = 512 e.microbatch = 256
e.model = mw.llama { layers = 2, hidden = 8192, heads = 64, ffn = 32768, vocab = 256000 }"""), "--json", "--quiet")
        errors = [line for line in self.lines(done) if line["kind"] == "error"]
        self.assertEqual(len(errors), 1, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertEqual(errors[0]["code"], "memory.machine")
        self.assertRegex(errors[0]["message"], r"of one device need ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
