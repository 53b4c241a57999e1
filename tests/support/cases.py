"""What tests of the program share: small models and scripts, and the program called in a folder
of its own."""
import functools
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import loaded
import mpi_folder
from problems import problems

BIN = os.environ["MESHWRIGHT_BIN"]
SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
TEST_PLUGINS = os.environ["MESHWRIGHT_TEST_PLUGINS"]


MATRIX = "MESHWRIGHT_MATRIX" in os.environ


def matrix(test):
    """Of a full product of options: run by `./meshwright test --label matrix`, and by nothing else."""
    test.of_the_matrix = True
    return test


# Two layers, four microbatches; the first %s is the plan, the second takes more keys.
SCRIPT = """\
local mw = require "meshwright"
local pp, dp, tp, zero = mw.plugins("pp", "dp", "tp", "zero")
local e = {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16,
  plan = { %s },
  batch = 8, microbatch = 2,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 4, timeout = 300,
}
%s
mw.train(e)
"""

# All forms, and a small model of each family.
MODELS = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local models = {
  llama = mw.llama { layers = 4, hidden = 24, heads = 4, kv_heads = 2, ffn = 40, vocab = 50 },
  gpt = mw.gpt { layers = 4, hidden = 24, heads = 4, vocab = 50, tied = true },
  moe = mw.moe { layers = 4, hidden = 24, heads = 4, kv_heads = 2, ffn = 40, vocab = 50, experts = 4, top_k = 2,
                 shared_experts = 1, dense_layers = 1 },
}
"""


# Tries each call, and prints what is wrong with it: pcall catches of a verb what --json has.
TRY = r""" do
  local ok, why = pcall(call)
  for _, p in ipairs(ok and {} or why.problems) do
    io.write(n, "\31", p.stage, "\31", p.code, "\31", p.key, "\31", p.message, "\31", p.hint, "\31", p.file or "", "\31",
             p.line or 0, "\30")
  end
end
"""
EXIT_CODES = {"script": 2, "options": 2, "plan": 3, "run": 1}


# For calls with plans that are wrong on purpose: what judges running ones has something to find.
UNPROVED = {"MESHWRIGHT_UNPROVED": "1"}


@functools.cache
def namespaces_refused():
    """What bwrap says where the kernel or a container lets it make no user namespaces: no package mends that."""
    probe = ["bwrap", "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true"]
    return subprocess.run(probe, stderr=subprocess.PIPE, text=True).stderr.strip()


class ProgramCase(unittest.TestCase):
    def needs_namespaces(self):
        if namespaces_refused():
            self.skipTest(f"no user namespaces: {namespaces_refused()}")

    def setUp(self):
        if hasattr(getattr(self, self._testMethodName), "of_the_matrix") != MATRIX:
            self.skipTest("of the matrix" if not MATRIX else "of the normal run")
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def call(self, *arguments, stdin=None, **environment):
        env = {name: value for name, value in os.environ.items() if name != "MESHWRIGHT_PLUGIN_PATH"}
        return loaded.run([BIN, *map(str, arguments)], cwd=self.folder, env={**env, **environment}, input=stdin, text=True,
                          timeout=900)

    def write(self, text):
        path = self.folder / "script.lua"
        path.write_text(text)
        return path

    def script(self, plan, more=""):
        return self.write(SCRIPT % (plan, more))

    def lines(self, done):
        return [json.loads(line) for line in done.stdout.split("\n") if line]  # not at U+2028, as splitlines does

    def all(self, *arguments):
        """The results of a call that must succeed."""
        done = self.call(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        return self.lines(done)

    def only(self, *arguments):
        """The one result of a call that must succeed."""
        result, = self.all(*arguments)
        return result

    def verify_all(self, text):
        """The verdicts of a script's plans, each of which must equal one rank."""
        results = self.all("verify", self.write(text))
        for result in results:
            with self.subTest(result["plan"]):
                self.assertEqual(result["verdict"], "equal", result["divergence"])
                self.assertLessEqual(max(result["max_relative_error"].values()), 1e-10)
        worst = max(max(result["max_relative_error"].values()) for result in results)
        print(f"{len(results)} mixes, largest relative error {worst:.1e}")
        return results

    def sent_as_predicted(self, run):
        """Calls and bytes of a run's every axis, op and phase are those predicted."""
        books = lambda uses: [[c[key] for key in ("axis", "op", "phase", "calls", "bytes")] for c in uses]
        self.assertEqual(books(run["communication"]), books(run["predicted"]["communication"]))

    def held_as_predicted(self, run, share=0.01):
        """The peak of a run's memory is that predicted, within `share` of it and one page."""
        predicted = max(rank["peak"] for rank in run["predicted"]["memory"])
        self.assertAlmostEqual(run["peak_bytes"], predicted, delta=share * predicted + 4096)

    def tried(self, head, calls, *arguments):
        """What is wrong with each call in Lua: its problems as JSON has them, [] where it succeeds. In one process; the
        first call is on the line after `head`."""
        listed = "for n, call in ipairs { " + ",\n".join(f"function() {call} end" for call in calls) + " }"
        done = self.call("run", self.write(head + listed + TRY), *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = [[] for _ in calls]
        for record in done.stdout.split("\x1e")[:-1]:
            n, stage, code, key, message, hint, file, line = record.split("\x1f")
            found[int(n) - 1].append({"kind": "error", "stage": stage, "code": code, "key": key, "message": message,
                                      "hint": hint, "file": file, "line": int(line)})
        return found

    def all_refused(self, head, *cases):
        """Cases (call in Lua, exit code, problem): each refused with one problem; what is wrong with them."""
        found = self.tried(head, [call for call, *_ in cases])
        for (call, code, problem), errors in zip(cases, found):
            with self.subTest(call):
                self.assertEqual(problems(errors), [problem], errors)
                self.assertEqual(EXIT_CODES[errors[0]["stage"]], code)
        return [errors[0] for errors in found if errors]

    def refused(self, code, problem, *arguments, **environment):
        """Refused with one problem, "option.range plan[1].ways"; returns its line."""
        done = self.call(*arguments, "--json", **environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        errors = self.lines(done)
        self.assertEqual(problems(errors), [problem], errors)
        return next(line for line in errors if line["kind"] == "error")  # a run's result may stand before
