"""What a plugin registers beside strategies, used in a script's keys as what is built in is: one of
each kind, from one file (tests/plugins/kit)."""

import unittest

from cases import TEST_PLUGINS, ProgramCase
from problems import problems

SCRIPT = """\
local mw = require "meshwright"
local dp, pp = mw.plugins("dp", "pp")
local kit = mw.plugins("kit")
local e = {
  model = kit.tiny(4), data = kit.counting { sequence = 8 }, plan = { dp { 2, hook = kit.plain } },
  batch = 8, optimizer = kit.lion(1e-3), schedule = kit.halving(2), recompute = kit.norms, steps = 4, timeout = 300,
}
%s
mw.train(e)
"""


class Registered(ProgramCase):
    def make(self, verb, changes="", *more):
        return self.call(verb, self.write(SCRIPT % changes), "--json", "--plugin-path", TEST_PLUGINS, *more)

    def good(self, verb, changes="", *more):
        done = self.make(verb, changes, *more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result, = self.lines(done)
        return result

    def refused(self, code, problem, changes):
        done = self.make("plan", changes)
        self.assertEqual((done.returncode, problems(self.lines(done))), (code, [problem]), done.stdout)

    def test_a_run_of_them_all(self):
        result = self.good("run")
        self.assertLess(result["losses"][-1], result["losses"][0])
        self.assertEqual(result["communication"], result["predicted"]["communication"])

    def test_they_equal_one_rank_beside_forms(self):
        for changes in ("", 'e.microbatch = kit.halves {}\ne.plan = { pp { 2, schedule = "backwards" }, dp(2) }',
                        "e.microbatch = kit.halves\ne.plan = { pp { 2, schedule = kit.backwards } }",
                        'e.recompute, e.plan = "norms", { dp { 2, hook = "plain" } }'):
            with self.subTest(changes=changes):
                self.assertEqual(self.good("verify", changes)["verdict"], "equal")

    def test_each_decides_what_its_key_says(self):
        base = self.good("plan")
        halves = self.good("plan", "e.microbatch = kit.halves {}")
        self.assertNotEqual(base["hash"], halves["hash"])
        kept = self.good("plan", 'e.recompute = "none"')
        self.assertNotEqual(base["hash"], kept["hash"])
        self.assertNotEqual(base["hash"], self.good("plan", "e.optimizer = kit.lion(2e-3)")["hash"])
        self.assertNotEqual(base["hash"], self.good("plan", "e.schedule = kit.halving(1)")["hash"])

    def test_set_finds_them(self):
        result = self.good("plan", "", "--set", "optimizer=kit.lion(0.5)", "--set", "model=kit.tiny { layers = 2 }")
        self.assertIn("plan", result)

    def test_what_is_refused(self):
        self.refused(2, "option.value optimizer", "e.optimizer = kit.tiny(2)")
        self.refused(2, "option.value model", "e.model = mw.adamw { lr = 1 }")
        self.refused(2, "option.value optimizer", "e.optimizer = dp(2)")
        self.refused(2, "option.value plan[1]", "e.plan = { kit.lion(1) }")
        self.refused(2, "option.range model.layers", "e.model = kit.tiny(9)")
        self.refused(2, "option.value optimizer.betas", "e.optimizer = kit.lion { 1e-3, betas = { 1 } }")
        self.refused(2, "option.unknown data.idds", "e.data = kit.counting { idds = 3, sequence = 8 }")
        self.refused(2, "data.vocab model.vocab", "e.data = kit.counting { ids = 33, sequence = 8 }")
        self.refused(2, "option.choice plan[1].schedule", 'e.plan = { pp { 2, schedule = "backward" } }')
        self.refused(3, "hook.dtype plan[1].hook", "e.plan = { dp { 2, hook = kit.plain { refuse = true } } }")
        self.refused(2, "script.argument", "e.optimizer = kit.loin(1)")

    def test_a_name_that_is_taken(self):
        self.refused(2, "plugin.taken", 'mw.plugins("taken")')

    def test_show(self):
        done = self.call("plugins", "show", "kit", "--json", "--plugin-path", TEST_PLUGINS)
        shown, = self.lines(done)
        brought = {one["name"]: one for one in shown["brings"]}
        self.assertEqual([brought[name]["kind"] for name in ("lion", "tiny", "backwards", "plain")],
                         ["optimizer", "model", "scheduler", "hook"])
        self.assertEqual([option["name"] for option in brought["lion"]["options"]], ["lr", "betas"])
        text = self.call("plugins", "show", "kit", "--plugin-path", TEST_PLUGINS).stdout
        self.assertIn('local kit = mw.plugins("kit")  …  optimizer = kit.lion { … }', text)
        text = self.call("plugins", "show", "llama").stdout
        self.assertRegex(text, r"(?s)^model llama: .*kv_heads.*model = mw\.llama \{ … \}\nBuilt in\n$")
        self.assertIn("schedule = mw.cosine", self.call("plugins", "show", "cosine").stdout)
        self.assertIn("microbatch = mw.microbatch.ramp", self.call("plugins", "show", "ramp").stdout)

    def test_schedulers_of_plugins_are_drawn(self):
        done = self.call("schedule", "backwards", "--stages", 2, "--microbatches", 2, "--json", "--plugin-path",
                         TEST_PLUGINS)
        drawn, = self.lines(done)
        self.assertEqual(drawn["order"], ["0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0"])
        listed = self.call("schedule", "--plugin-path", TEST_PLUGINS, "--help").stdout
        self.assertRegex(listed, r"(?m)^  backwards +the last microbatch")
        self.assertRegex(listed, r"(?m)^  zbv +two chunks")

    def test_types_for_editors(self):
        made = self.call("lua-types", "--plugin-path", TEST_PLUGINS).stdout
        self.assertIn("---@class meshwright.plugin.kit.lion\n---@field lr number", made)
        self.assertRegex(made, r"---@field tiny fun\(options\?: meshwright\.plugin\.kit\.tiny\|integer\): "
                               r"meshwright\.Model")


if __name__ == "__main__":
    unittest.main()
