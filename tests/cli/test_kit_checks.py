"""What `plugins test` finds though every rank does the same: derivatives, what an update allocates
and keeps, what a hook loses for good; and that each check has one verdict."""
import collections
import unittest

from cases import TEST_PLUGINS, ProgramCase

UNSOUND = f"{TEST_PLUGINS}/unsound.so"
MODEL = """\
local mw = require "meshwright"
mw.plugins("unsound")
mw.train {
  model = mw.model { dims = { hidden = 16, ffn = 32, vocab = 32 }, layers = 2,
    block = function(x) return x + x:rms_norm {}:linear { to = { "ffn" } }:%s:linear { to = { "hidden" } } end },
  data = mw.synthetic {}, sequence = 8, plan = {}, batch = 4, microbatch = 2,
  optimizer = mw.adamw { lr = 1e-2 }, steps = 2,
}
"""
TRAIN = """\
local mw = require "meshwright"
local unsound, dp, zero, tp = mw.plugins("unsound", "dp", "zero", "tp")
local function e(more)
  local table = { model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32 },
    data = mw.synthetic {}, sequence = 8, plan = { dp(2) }, batch = 8, optimizer = mw.sgd { lr = 1e-2 }, steps = 3 }
  for key, value in pairs(more) do table[key] = value end
  return table
end
"""


class KitChecks(ProgramCase):
    def checks(self, what):
        """Of each thing that is tested, its failed checks; no check twice."""
        done = self.call("plugins", "test", what, "--plugin-path", TEST_PLUGINS, "--json")
        lines = [line for line in self.lines(done) if line["kind"] == "check"]
        names = collections.Counter((line["of"], line["check"]) for line in lines)
        self.assertEqual([name for name, count in names.items() if count > 1], [])
        self.assertEqual(done.returncode, 1 if any(line["status"] == "failed" for line in lines) else 0)
        failed = collections.defaultdict(dict)
        for line in lines:
            if line["status"] == "failed":
                self.assertTrue(line["look_at"], line)
                failed[line["of"]][line["check"]] = line["found"]
        return failed, lines

    def test_what_is_wrong_alike_everywhere_is_found(self):
        failed, _ = self.checks(UNSOUND)

        def found(of, check, *words):
            text = failed[of].get(check, "")
            for word in words or [""]:
                self.assertIn(word, text)
            self.assertIn(check, failed[of])

        found("optimizer temporary", "memory of the update", "131072 bytes", "0 are predicted")
        found("optimizer counts", "the update keeps nothing of its own", "the second time")
        found("optimizer crosses", "update element by element", "two halves")
        self.assertIn("all ranks agree, beside dp(2)", "; ".join(failed["optimizer differs"]))
        found("reduction hook forgets", "what it loses, alone", "% of the sum", "of the mean of 16")
        found("device twins", "its devices are found", "0 and 1 have the id one of two")
        found("device unloadable", "its devices are found", "threw", "no such library")
        found("data source restless", "samples are a function of their number")
        books = failed["optimizer temporary"].keys() - {"memory of the update"}
        self.assertTrue(books)
        for check in books:
            self.assertTrue(check.startswith("bytes and memory as predicted"), check)
            found("optimizer temporary", check, "peak of scratch")

    def test_a_wrong_derivative_is_found(self):
        script = self.write(MODEL % "half_square {}")
        failed, lines = self.checks(script)
        check = "gradients are the loss's derivative"
        lemma = "ops fulfil the assumptions of the proof, alone"
        self.assertEqual(list(failed["experiment 1"]), [lemma, check], failed)
        self.assertIn("is not the derivative of forward", failed["experiment 1"][lemma])
        self.assertIn(", 0.5 times that", failed["experiment 1"][lemma])
        self.assertRegex(failed["experiment 1"][check], r"the last: layers\.1\.\S+: \S+ by backward, \S+ by differences")
        # The rest of it is the same everywhere, so one rank has the same.
        self.assertIn("ok", {line["status"] for line in lines if line["check"].startswith("equals one rank")})

    def test_a_gradient_that_is_meant_to_be_none_says_so(self):
        check = "gradients are the loss's derivative"
        lemma = "ops fulfil the assumptions of the proof, alone"
        failed, _ = self.checks(self.write(MODEL % "rounded {}"))
        self.assertEqual(list(failed["experiment 1"]), [lemma, check])
        failed, lines = self.checks(self.write(MODEL % "straight {}"))
        self.assertEqual(failed, {})
        # Behind the last one: the second linear, the last norm, the head.
        found, = (line["found"] for line in lines if line["check"] == check)
        self.assertRegex(found, r"along 3 random directions; left out: 6 parameters before an op whose gradient .*")

    def test_a_right_one_is_not(self):
        failed, lines = self.checks(self.write(MODEL % "gelu {}"))
        self.assertEqual(failed, {})
        self.assertIn("gradients are the loss's derivative", [line["check"] for line in lines])

    def test_what_fails_in_a_run_names_the_plugin(self):
        for more, words in (("optimizer = unsound.throws(1e-2)", ["throws", "updated parameters", "the integer 7"]),
                            ("data = unsound.failing {}", ["failing", "made sample", "the well is dry"])):
            with self.subTest(more):
                line = self.refused(1, "plugin.fault " + more.split()[0], "run", "--plugin-path", TEST_PLUGINS,
                                    self.write(TRAIN + f"mw.train(e {{ {more} }})\n"))
                for word in words:
                    self.assertIn(word, line["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
