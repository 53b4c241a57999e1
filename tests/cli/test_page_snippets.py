"""Every block of code in README.md and docs/ is run, or stands so in a file that is built.

Lua: a whole script is run; keys of an experiment are put into a small one, which is planned.
C++ and CMake: a file of the repository has it word for word, or another test builds it. Python runs
in test_readme.py, which has a run file to read; console blocks in test_page_plans.py.
"""
import json
import unittest

import pages
from pages import SOURCE

# Pages, or parts of them by their headings, whose blocks of a language another test takes and runs.
TAKEN = {("docs/checkpoints.md#Checkpoints", "lua"): "tests/cli/test_checkpoints.py",
         ("docs/checkpoints.md#Checkpoints", "python"): "tests/cli/test_checkpoints.py",
         ("docs/plugins.md", "cpp"): "tests/cli/test_kit.py", ("docs/plugins.md", "cmake"): "tests/cli/test_kit.py",
         ("docs/plugins.md", "lua"): "tests/cli/test_kit.py", ("docs/plugins.md", "sh"): "tests/cli/test_kit.py",
         ("docs/strategies.md#Writing a strategy in Lua, in ten lines", "lua"): "tests/cli/test_own_strategies.py",
         (pages.WALK, "lua"): "tests/cli/test_page_tutorial.py",
         ("docs/models.md#A model of one's own", "lua"): "tests/cli/test_own_model.py",
         ("docs/reading.md#Reading runs", "python"): "tests/cli/test_runs.py",
         ("docs/reading.md#Reading runs", "lua"): "tests/cli/test_runs.py",
         ("docs/reading.md#Reading runs", "sh"): "tests/cli/test_runs.py",
         ("docs/trust.md#How we test", "sh"): "tests/experiments/test_experiments.py",
         ("docs/performance.md#Performance", "sh"): "tests/cli/test_bench_train.py",
         ("docs/runs.md#Reading a run file", "python"): "tests/cli/test_readme.py",
         ("README.md", "python"): "tests/cli/test_readme.py", ("README.md", "lua"): "tests/cli/test_readme.py"}
# Outputs, drawings and formulas; console blocks are held to what is printed.
NO_CODE = {"", "console", "text"}
# Assigns to globals become keys of the experiment.
AROUND = """\
local mw = require "meshwright"
local dp, zero, tp, sp, ep, pp, diloco = mw.plugins("dp", "zero", "tp", "sp", "ep", "pp", "diloco")
local known = { mw = mw, diloco = diloco, dp = dp, zero = zero, tp = tp, sp = sp, ep = ep, pp = pp }
local said = setmetatable({}, { __index = function(_, name) return known[name] or _G[name] end })
assert(load([==[
%s]==], "=the page's block", "t", said))()
local experiment = {
  model = mw.llama { layers = 4, hidden = 64, heads = 8, ffn = 128, vocab = 256 }, data = mw.synthetic {},
  sequence = 64, plan = { dp(2) }, batch = 32, optimizer = mw.adamw { lr = 1e-3 }, steps = 4,
}
for key, value in pairs(said) do experiment[key] = value end
mw.plan(experiment)
"""


def sources():
    """Texts of the files that the build or the tests compile, and of the templates."""
    for folder, pattern in (("examples/plugins", "*/*"), ("tests/plugins", "*/*"), ("kit/templates", "*/*"), ("plugins", "*/*")):
        for path in (SOURCE / folder).glob(pattern):
            if path.is_file():
                yield path.read_text()


def each_block():
    """(page, the test that takes it or None, language, text) of every block of code."""
    for page, text in pages.pages().items():
        for heading, part in pages.parts(text):
            for language, block in pages.blocks(part):
                yield page, TAKEN.get((page, language)) or TAKEN.get((f"{page}#{heading}", language)), language, block


class Snippets(pages.PageCase):
    def test_lua(self):
        tried = 0
        for page, taken, language, block in each_block():
            if language != "lua" or taken:
                continue
            tried += 1
            with self.subTest(block, page=page):
                whole = 'require "meshwright"' in block
                (self.folder / "block.lua").write_text(block if whole else AROUND % block)
                done = self.call(["run" if whole else "plan", "block.lua", "--json"])
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                kinds = {json.loads(line)["kind"] for line in done.stdout.splitlines()}
                self.assertLessEqual({"plan"} if not whole else set(), kinds)
        self.assertGreaterEqual(tried, 5)

    def test_what_is_compiled(self):
        there = list(sources())
        for page, taken, language, block in each_block():
            if language in ("cpp", "cmake") and not taken:
                with self.subTest(block[:300], page=page):
                    self.assertTrue(any(block in source for source in there), "no file that is built has it")

    def test_no_block_is_left_out(self):
        run_here = {"lua", "cpp", "cmake"}
        for page, taken, language, block in each_block():
            with self.subTest(block[:200], page=page):
                if taken:
                    self.assertIn(page.removesuffix(".md").removeprefix("docs/"), (SOURCE / taken).read_text())
                elif language == "sh" and "pip install" in block:
                    self.assertEqual(page, "README.md")  # whose test gives it as it stands
                elif language == "sh":
                    lines = [line for line in block.splitlines() if line and not line.startswith("#")]
                    self.assertTrue(all(line.startswith(("./meshwright ", "git clone ")) for line in lines), lines)
                elif language == "json":
                    for line in block.replace("\n ", " ").splitlines():
                        json.loads(line)
                else:
                    self.assertIn(language, run_here | NO_CODE)

    def test_what_is_taken_is_there(self):
        there = {(page, language) for page, _, language, _ in each_block()}
        there |= {(f"{page}#{heading}", language) for page, text in pages.pages().items()
                  for heading, part in pages.parts(text) for language, _ in pages.blocks(part)}
        self.assertEqual(TAKEN.keys() - there, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
