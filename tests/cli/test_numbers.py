"""Numbers that no plan can hold end at once with one error, in every verb; the largest that are
of use do not; what takes long is ended by the first signal."""

import json
import resource
import signal
import subprocess
import time
import unittest

from cases import BIN, ProgramCase

HEAD = """\
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep")
local function small()
  return {
    model = mw.llama { layers = 2, hidden = 16, heads = 2, kv_heads = 2, ffn = 24, vocab = 97, window = 5 },
    data = mw.synthetic { seed = 1, sequence = 16 }, plan = { dp(2) },
    optimizer = mw.adamw { lr = 1e-3, clip = 1.0 }, batch = 4, microbatch = 1, steps = 1, timeout = 20,
  }
end
"""
SMALL = HEAD + """\
local e = small()
%s
return mw.train(e)
"""
# Several in one process: what mw.plan says of each, on a line.
EACH = """\
do
  local e = small()
  %s
  local ok, r = pcall(mw.plan, e)
  if ok then print("ranks " .. r.ranks) else
    local said = {}
    for _, p in ipairs(r.problems) do table.insert(said, p.code .. " " .. p.key .. " [" .. p.hint .. "]") end
    print(table.concat(said, " / "))
  end
end
"""

# What is changed, exit code, the problem, and the nearest choice if there is one. A number of each
# kind of fault that was found.
REFUSED = [
    ("e.recompute = { every = 2^32 }", 2, "option.range recompute.every", "2147483647"),
    ("e.plan = { zero { 2, replicas = 2^32 } }", 2, "option.range plan[1].replicas", "1048576"),
    ("e.plan = { zero { 2, replicas = 2^31 } }", 2, "option.range plan[1].replicas", "1048576"),
    ("e.model.layers = 2^32 + 2", 2, "option.range model.layers", "4096"),
    ("e.model.layers = 2^32", 2, "option.range model.layers", "4096"),
    ("e.model.layers = 2^31", 2, "option.range model.layers", "4096"),
    ("e.model.ffn = math.maxinteger", 2, "option.range model.ffn", "2147483647"),
    ("e.model.ffn = 2^53 + 1", 2, "option.range model.ffn", "2147483647"),
    ("e.timeout = 2^62", 2, "option.range timeout", "1000000000"),
    ("e.batch = 1e12", 2, "option.range batch", "2147483647"),
    ("e.batch = 2^30", 3, "plan.size microbatch", ""),
    ("e.model.hidden, e.model.ffn = 2^30, 2^30", 3, "plan.size model", ""),
    ("e.data.sequence, e.model.window, e.batch, e.model.vocab = 2^30, nil, 2^20, 2^20", 3, "plan.size batch", ""),
    ("e.model.heads = 2^30", 2, "option.range model.heads", "65536"),
    ("e.plan = { pp { 2, layout = { 1, 2^40 } } }", 2, "option.value plan[1].layout", ""),
    ("e.plan = { pp { 2, times = { math.huge, 1, 1 } } }", 2, "option.value plan[1].times", ""),
    ("e.microbatch = { 2^40, 2^40 }", 2, "option.value microbatch[1]", ""),
    ("e.steps, e.microbatch = 2^30, mw.microbatch.ramp { from = 1, steps = 9 }", 3, "plan.size microbatch", "steps = 1048576"),
    ("e.data.sequence = 0.5", 2, "option.type data.sequence", "1"),
    ('e.data.sequence = "16"', 2, "option.type data.sequence", ""),
]

ACCEPTED = {  # ranks
    "e.data.sequence = 2^4": 2,
    "e.model.layers = 1000": 2,
    "e.data.sequence, e.model.window = 2^20, 4096": 2,
    "e.data.sequence, e.model.window = 2^20, nil": 2,
    "e.model.vocab = 256000": 2,
    """e.model = mw.llama { layers = 126, hidden = 16384, heads = 128, kv_heads = 8, ffn = 53248, vocab = 128256 }
    e.plan = { pp { 16, schedule = "1f1b" }, zero { 128, stage = 1 }, tp(8), sp() }
    e.data, e.batch, e.precision = mw.synthetic { sequence = 8192 }, 2048, "bf16" """: 16384,
}


class Numbers(ProgramCase):
    def each(self, changes):
        path = self.write(HEAD + "".join(EACH % change for change in changes))
        done = self.call("run", path)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = [line for line in done.stdout.splitlines() if line.startswith("ranks ") or "[" in line]
        self.assertGreaterEqual(len(said), len(changes), done.stdout)
        return said[: len(changes)]

    def test_what_can_never_be_is_refused(self):
        for (change, _, problem, nearest), said in zip(REFUSED, self.each([case[0] for case in REFUSED])):
            with self.subTest(change):
                self.assertTrue(said.startswith(problem + " ["), said)
                if nearest:
                    self.assertIn(f"[nearest: {nearest}", said)
                self.assertNotIn(" / ", said, "one error")

    def test_refused_in_every_verb(self):
        chosen = [next(r for r in REFUSED if r[1] == code) for code in (2, 3)]
        for change, code, problem, _ in chosen:
            path = self.write(SMALL % change)
            for verb in ("plan", "run", "verify", "compare"):
                with self.subTest(change, verb=verb):
                    self.refused(code, problem, verb, path, *([path] if verb == "compare" else []))

    def test_an_integral_float_is_an_integer(self):
        path = self.write(SMALL % "e.data.sequence, e.batch, e.plan[1].ways = 2^4, 8 / 2, 4 / 2")
        self.assertEqual(self.only("run", path)["status"], "done")
        self.assertEqual(self.only("verify", path)["verdict"], "equal")
        self.assertEqual(self.only("compare", path, path)["verdict"], "equal")

    def test_large_numbers_of_use_plan(self):
        for (change, ranks), said in zip(ACCEPTED.items(), self.each(ACCEPTED)):
            with self.subTest(change):
                self.assertEqual(said, f"ranks {ranks}")

    def test_an_endless_recursion_ends(self):
        path = self.write("local function f() return 1 + f() end\nlocal function g() f() end\ng()\n")
        for verb in ("plan", "run"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            with self.subTest(verb):
                self.assertEqual(self.refused(2, "script.error", verb, path)["line"], 1)
                self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 20)

    def test_the_first_signal_ends_planning(self):
        """Of one plan that takes seconds; the script says when it begins."""
        path = self.write(SMALL % 'e.model.layers = 4096; io.stderr:write("begun\\n")')
        for number in (signal.SIGINT, signal.SIGTERM):
            child = subprocess.Popen([BIN, "plan", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(child.kill)
            while "begun" not in child.stderr.readline():
                pass
            time.sleep(0.3)
            child.send_signal(number)
            said = child.communicate(timeout=300)
            with self.subTest(number):
                self.assertEqual(child.returncode, 130, said)
                self.assertEqual(said[1].count("interrupted"), 1, said)
                self.assertEqual(said[0], "")

    def test_memory_that_there_is_not_has_a_reason(self):
        """Under a limit of the process, an allocation fails: never a bare exception's name."""
        path = self.write('local t = {}\nlocal s = ("x"):rep(1 << 20)\nfor i = 1, 1 << 20 do t[i] = s .. i end\n')
        script = f'ulimit -v 6000000; exec "{BIN}" run --json "{path}"'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        error = json.loads(done.stdout.splitlines()[0])
        self.assertEqual(error["code"], "script.error")
        self.assertNotIn("std::", error["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
