"""What a plugin registers beside strategies, used in a script's keys as what is built in is: one of
each kind, from one file (tests/plugins/kit)."""

import unittest

from cases import TEST_PLUGINS, ProgramCase
from problems import problems

HEAD = """\
local mw = require "meshwright"
local dp, pp = mw.plugins("dp", "pp")
local kit = mw.plugins("kit")
local function with(changes)
  local e = {
    model = kit.tiny(4), data = kit.counting { sequence = 8 }, plan = { dp { 2, hook = kit.plain } },
    batch = 8, optimizer = kit.lion(1e-3), schedule = kit.halving(2), recompute = kit.norms, steps = 4, timeout = 300,
  }
  for key, value in pairs(changes) do e[key] = value end
  return e
end
"""
PATH = ("--plugin-path", TEST_PLUGINS)


class Registered(ProgramCase):
    def good(self, verb, changes="", *more):
        return self.only(verb, self.write(f"{HEAD}mw.train(with {{ {changes} }})"), *PATH, *more)

    def test_a_run_of_them_all(self):
        result = self.good("run")
        self.assertLess(result["losses"][-1], result["losses"][0])
        self.sent_as_predicted(result)

    def test_they_equal_one_rank_beside_forms(self):
        plans = ("", 'microbatch = kit.halves {}, plan = { pp { 2, schedule = "backwards" }, dp(2) }',
                 "microbatch = kit.halves, plan = { pp { 2, schedule = kit.backwards } }",
                 'recompute = "norms", plan = { dp { 2, hook = "plain" } }')
        self.write(HEAD + "".join(f"mw.train(with {{ {changes} }})\n" for changes in plans))
        for result in self.all("verify", self.folder / "script.lua", *PATH):
            self.assertEqual(result["verdict"], "equal", result)

    def test_each_decides_what_its_key_says(self):
        changes = ("", "microbatch = kit.halves {}", 'recompute = "none"', "optimizer = kit.lion(2e-3)",
                   "schedule = kit.halving(1)", "model = kit.tiny(2)", 'plan = { dp { 2, hook = "none" } }')
        self.write(HEAD + "".join(f"mw.plan(with {{ {each} }})\n" for each in changes))
        hashes = [result["plan_hash"] for result in self.all("plan", self.folder / "script.lua", *PATH)]
        self.assertEqual(len(set(hashes)), len(changes), hashes)

    def test_what_a_plugin_calls_as_itself_is_found_by_its_name_too(self):
        result = self.only("plan", self.write(HEAD + "mw.train(with { plan = { dp.dp(2) } })"), *PATH)
        self.assertEqual(result["plan"], "dp(2)")

    def test_set_finds_them(self):
        result = self.good("plan", "", "--set", "optimizer=kit.lion(0.5)", "--set", "model=kit.tiny { layers = 2 }")
        self.assertIn("plan", result)

    def test_what_is_refused(self):
        cases = (
            ("option.value optimizer", "optimizer = kit.tiny(2)"),
            ("option.value model", "model = mw.adamw { lr = 1 }"),
            ("option.value optimizer", "optimizer = dp(2)"),
            ("option.value plan[1]", "plan = { kit.lion(1) }"),
            ("option.value plan[1]", "plan = { { plugin = 5 } }"),
            ("option.range model.layers", "model = kit.tiny(9)"),
            ("option.value optimizer.betas", "optimizer = kit.lion { 1e-3, betas = { 1 } }"),
            ("option.unknown data.idds", "data = kit.counting { idds = 3, sequence = 8 }"),
            ("data.vocab model.vocab", "data = kit.counting { ids = 33, sequence = 8 }"),
            ("option.choice plan[1].schedule", 'plan = { pp { 2, schedule = "backward" } }'),
            ("option.choice recompute", 'recompute = "half"'),
            # There is a file of that name, which registers a scheduler of another one.
            ("plugin.lacks plan[1].schedule", 'plan = { pp { 2, schedule = "kit" } }'),
            ("hook.dtype plan[1].hook", "plan = { dp { 2, hook = kit.plain { refuse = true } } }"),
            ("script.argument", "optimizer = kit.loin(1)"),
            # Of a plugin that is called itself: what is misspelt is not left out in silence.
            ("script.argument", 'plan = { mw.plugins("dp") { 2, hook = mw.plugins("dp").powersdg } }'),
            ("script.argument", 'plan = { mw.plugins("tp")(mw.plugins("tp").way) }'))
        calls = [f"mw.plan(with {{ {changes} }})" for _, changes in cases] + ['mw.plugins("taken")']
        for call, problem, errors in zip(calls, [problem for problem, _ in cases] + ["plugin.taken"],
                                         self.tried(HEAD, calls, *PATH)):
            with self.subTest(call):
                self.assertEqual(problems(errors), [problem], errors)

    def test_show(self):
        done = self.call("plugins", "show", "kit", "--json", *PATH)
        shown, = self.lines(done)
        brought = {one["name"]: one for one in shown["brings"]}
        self.assertEqual([brought[name]["kind"] for name in ("lion", "tiny", "backwards", "plain")],
                         ["optimizer", "model", "scheduler", "hook"])
        self.assertEqual([option["name"] for option in brought["lion"]["options"]], ["lr", "betas"])
        text = self.call("plugins", "show", "kit", *PATH).stdout
        self.assertIn('local kit = mw.plugins("kit")  …  optimizer = kit.lion { … }', text)
        text = self.call("plugins", "show", "llama").stdout
        self.assertRegex(text, r"(?s)^model llama: .*kv_heads.*model = mw\.llama \{ … \}\nBuilt in\n$")
        self.assertIn("schedule = mw.cosine", self.call("plugins", "show", "cosine").stdout)
        self.assertIn("microbatch = mw.microbatch.ramp", self.call("plugins", "show", "ramp").stdout)

    def test_schedulers_of_plugins_are_drawn(self):
        done = self.call("schedule", "backwards", "--stages", 2, "--microbatches", 2, "--json", *PATH)
        drawn, = self.lines(done)
        self.assertEqual(drawn["order"], ["0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0"])
        listed = self.call("schedule", *PATH, "--help").stdout
        self.assertRegex(listed, r"(?m)^  backwards +the last microbatch")
        self.assertRegex(listed, r"(?m)^  zbv +two chunks")

    def test_types_for_editors(self):
        made = self.call("lua-types", *PATH).stdout
        self.assertIn("---@class meshwright.plugin.kit.lion\n---@field lr? number", made)
        self.assertRegex(made, r"---@field tiny fun\(options\?: meshwright\.plugin\.kit\.tiny\|integer\): "
                               r"meshwright\.Model")


if __name__ == "__main__":
    unittest.main()
