"""A plan that this machine's memory cannot hold: `plan` says so and ends well, `run` and
`verify` refuse it before any rank starts, unless forced."""
import resource
import subprocess
import unittest

from cases import BIN, ProgramCase

SCRIPT = """\
local mw = require "meshwright"
local dp = mw.plugin "dp"
mw.train {
  model = mw.llama { layers = 2, hidden = %d, heads = 4, ffn = %d, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { dp(4) }, batch = 4,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 1, timeout = 60,%s
}
"""
LARGE = (65536, 262144)  # terabytes on four ranks: more than any machine that runs tests has


class MachineMemory(ProgramCase):
    def large(self, more=""):
        return self.write(SCRIPT % (*LARGE, more))

    def test_plan_says_so(self):
        result = self.only("plan", self.large())
        self.assertIs(result["fits"], False)
        self.assertGreater(result["memory_needed"], result["memory_limit"])
        self.assertIn("does not fit: ", self.call("plan", self.large()).stdout)

    def test_run_and_verify_refuse_it(self):
        for verb in ("run", "verify"):
            error = self.refused(3, "memory.machine plan", verb, self.large())
            self.assertEqual(error["stage"], "plan")
            self.assertIn("--force", error["hint"])

    def limited(self, *arguments, more="", size=(8192, 32768)):
        """With 6 GB of address space, a model of some 40 GB; a run that starts ends for want of memory."""
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (6_000_000_000, 6_000_000_000))
        script = self.write(SCRIPT % (*size, more))
        done = subprocess.run([BIN, *arguments, script], cwd=self.folder, capture_output=True, text=True,
                              timeout=300, preexec_fn=limit)
        return done.returncode, done.stderr

    def test_a_limit_of_the_process_counts(self):
        code, said = self.limited("run")
        self.assertEqual(code, 3, said[-2000:])
        self.assertIn("against 5.59 GiB of memory here", said)

    def test_forced_it_starts(self):
        for arguments, more in ((["run", "--force"], ""), (["run"], " force = true,")):
            code, said = self.limited(*arguments, more=more, size=LARGE)
            self.assertEqual(code, 1, said[-2000:])
            self.assertIn("forced: plan: dp(4) does not fit", said)

    def test_what_fits_runs(self):
        result = self.only("run", self.write(SCRIPT % (32, 64, "")))
        self.assertEqual(result["status"], "done")
        self.assertIs(result["predicted"]["fits"], True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
