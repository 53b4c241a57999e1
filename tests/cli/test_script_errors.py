"""Errors of scripts and of --set: each blames what is at fault, and says what would do."""
import unittest

from cases import TEST_PLUGINS, ProgramCase

HEAD = """\
local mw = require "meshwright"
local dp, tp, pp, sp, zero = mw.plugins("dp", "tp", "pp", "sp", "zero")
local function e(plan, more)
  local table = { model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32 }, plan = plan,
    data = mw.synthetic {}, sequence = 8, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 2 }
  for key, value in pairs(more or {}) do table[key] = value end
  return table
end
"""
OWN = """\
local mw = require "meshwright"
mw.train {
  model = mw.model { dims = { hidden = 16, ffn = 32, wide = { 64, like = "ffn" }, vocab = 32 }, layers = 2,
    block = function(x) return x + x:linear { to = { "ffn" } }:linear { to = { "hidden" } }
      + x:linear { to = { "wide" } }:linear { to = { "hidden" } } end },
  data = mw.synthetic {}, sequence = 8, plan = {}, batch = 8, optimizer = mw.sgd { lr = 1e-2 }, steps = 1,
}
"""


class ScriptErrors(ProgramCase):
    def said(self, calls, *arguments):
        """Message and hint of each call's first problem."""
        return [f'{errors[0]["message"]} [{errors[0]["hint"]}]' for errors in self.tried(HEAD, calls, *arguments)]

    def error(self, text, *arguments, verb="run"):
        done = self.call(verb, self.write(text), *arguments, "--json")
        self.assertIn(done.returncode, (1, 2, 3), done.stderr)
        return next(line for line in self.lines(done) if line["kind"] == "error")

    def test_strategies(self):
        field, taken, namesakes, form, chosen = self.said([
            'mw.plan(e { mw.strategy { name = "n", axis = { role = "model" }, rules = { { "ffn", where = '
            'function(op) return op.knd == "linear" end } } } (2) })',
            'mw.plan(e { tp(2), mw.strategy { name = "n", rules = { { "hidden", axis = "model", where = function(op) '
            'return op.kind == "add" or op.kind == "rms_norm" end } } }, sp() })',
            'mw.plan(e { tp(2), mw.strategy { name = "n", rules = { { "hidden", axis = "model" } } }, '
            'mw.strategy { name = "n", rules = { { "seq", axis = "model" } } } })',
            'mw.plan(e { zero { 2, form = "ring" } })',
            'mw.plan(e { dp { 2, hook = function() return { kind = "powersgd", rank = 0 } end } })'])
        self.assertRegex(field, r'no field knd \[did you mean "kind"')
        self.assertRegex(taken, r"seq -> tp .*takes none \[.*of these, .*hidden -> tp of n \(plan\[2\]\) takes \d+ ops")
        self.assertRegex(namesakes, r"plan\[3\]: its name, n, is that of plan\[2\], which is another table")
        self.assertRegex(form, r"plan\[1\]\.form is not a known option \[form is an option of sp; ")
        self.assertIn("rank", chosen)
        self.assertNotIn("the function returned", chosen)  # the hook that it chose was refused, and says why

    def test_names_of_strategies_that_plugins_brought(self):
        said, = self.tried(HEAD + 'mw.plugins("unsound")\n', ['mw.strategy { name = "spread", rules = { "ffn" } }'],
                           "--plugin-path", TEST_PLUGINS)
        self.assertEqual((said[0]["code"], said[0]["message"]),
                         ("plugin.twice", "spread.name: there is a plugin's strategy named spread"))

    def test_a_record_that_is_none(self):
        base = 'mw.plan(e({}, { model = mw.model { dims = { hidden = 16, vocab = 32 }, layers = 1, block = { %s } } }))'
        for record in ('{ ops = { { op = 3 } } }', '{ ops = { { op = "add", inputs = { { 0, 1 }, { 7, 1 } } } } }',
                       '{ ops = { { op = "add", inputs = { { 0, 1 }, "x" } } } }', '{ ops = {}, result = { 0, 4 } }'):
            problem, = self.tried(HEAD, [base % record])[0]
            self.assertEqual((problem["code"], problem["key"]), ("option.type", "model.block"), problem)

    def test_settings(self):
        script = HEAD + "mw.train(e { dp(2) })\n"
        line = self.error(script, "--set", "plan={tpp(2)}")
        self.assertEqual((line["code"], line["message"]),
                         ("set.value", "there is nothing called tpp here: no plugin, nothing of mw, no variable"))
        self.assertIn('"tp"', line["hint"])
        line = self.error(script, "--set", 'schedule=function(s) return "x" end')
        self.assertIn('the function returned "x" as the learning rate of step 0', line["message"])
        done = self.call("run", self.write(script), "--set", "optimzer.lr=1")
        self.assertIn("--set optimzer.lr=1: optimzer is not a known option", done.stderr)
        self.assertIn('did you mean "optimizer"?', done.stderr)
        done = self.call("run", self.write(script), "--st", "x=1")
        self.assertIn("nothing here takes --st x=1", done.stderr)
        self.assertIn('did you mean "--set"?', done.stderr)
        for given, meant in ((["--steps", "5"], "--set steps=…"), (["--batch=4"], "--set batch=4"), (["--jsn"], '"--json"')):
            self.assertIn(meant, self.call("run", self.write(script), *given).stderr)
        self.assertNotIn("--set", self.call("report", "--steps", "5").stderr)
        (self.folder / "scripts").mkdir()
        (self.folder / "scripts/mine.lua").write_text(script)
        self.assertIn("did you mean scripts/mine.lua?", self.call("run", "mine.lua").stderr)

    def test_all_errors_of_a_table_at_once(self):
        """A number that is wrong hides none that would be looked at with it."""
        for keys, codes in (("batch = 0, microbatch = -1", {"option.range batch", "option.value microbatch"}),
                            ("batch = 0, microbatch = mw.microbatch.ramp { from = 0 }",
                             {"option.range batch", "option.range microbatch.from"}),
                            ("steps = 0, trace = { -1 }, name = ' ', recompute = 'ful'",
                             {"option.range steps", "option.value trace", "option.value name", "option.choice recompute"}),
                            ("steps = 0, loss_scale = 'x', seed = -1",
                             {"option.range steps", "option.value loss_scale", "option.range seed"})):
            with self.subTest(keys):
                errors, = self.tried(HEAD, ["mw.plan(e({ dp(2) }, { %s }))" % keys])
                self.assertEqual({f'{error["code"]} {error["key"]}' for error in errors}, codes, errors)

    def test_ranks_that_a_plan_has_not(self):
        good = self.only("plan", self.write(HEAD + "mw.train(e({ dp(2), tp(4) }, { ranks = 8 }))"))
        plain = self.only("plan", self.write(HEAD + "mw.train(e({ dp(2), tp(4) }))"))
        self.assertEqual((good["ranks"], good["hash"]), (8, plain["hash"]))
        script = self.write(HEAD + "\nmw.train(e({ dp(2), tp(4) }))")
        done = self.call("run", script, "--set", "ranks=16", "--json")
        error, = self.lines(done)
        self.assertEqual((done.returncode, error["code"], error["key"], error["stage"]), (3, "ranks.differ", "ranks", "plan"))
        self.assertEqual(error["message"], "ranks: 16 are asked for, and the plan has 8: dp 2 x tp 4 = 8 ranks")
        self.assertEqual(error["hint"], "nearest: { dp(4), tp(4) }, or ranks = 8")
        self.assertIn("--set ranks=16", done.stderr)
        said = self.said(["mw.plan(e({ tp(4) }, { ranks = 2 }))",          # another than data
                          "mw.plan(e({ dp(4) }, { ranks = 3 }))",          # 8 sequences: no dp(3)
                          "mw.plan(e({}, { ranks = 8 }))",
                          "mw.plan(e({ dp(2), zero { 2, stage = 3 } }, { ranks = 8, batch = 16 }))"])
        self.assertEqual([one.split("[")[1] for one in said],
                         ["nearest: tp(2), or ranks = 4]", "nearest: ranks = 4]", "nearest: ranks = 1]",
                          "nearest: { dp(4), zero { 2, stage = 3 } }, or ranks = 4]"])
        self.assertEqual(self.error(HEAD + "mw.train(e({ dp(2) }, { ranks = 0 }))")["code"], "option.range")

    def test_a_tail_call_has_a_line(self):
        """Lua keeps none of `return mw.train { … }`: the last thing that was made for it has one."""
        line = self.error(HEAD + "\nreturn mw.train {\n  model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32 },\n"
                          "  data = mw.synthetic {}, sequence = 8, plan = {}, batch = 8, steps = 0,\n  optimizer = mw.sgd { lr = 1e-2 },\n}\n")
        self.assertTrue(line["file"].endswith("script.lua"), line)
        self.assertEqual((line["code"], line["key"], line["line"]), ("option.range", "steps", 13))
        # A line of another file, however far down, is none of the script's.
        (self.folder / "models.lua").write_text("local mw = require 'meshwright'\n" + "\n" * 100 +
                                                "local m = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32 }\nreturn m\n")
        line = self.error(HEAD + "\nreturn mw.train {\n  model = require 'models',\n"
                          "  data = mw.synthetic {}, sequence = 8, plan = {}, batch = 8, steps = 0,\n  optimizer = mw.sgd { lr = 1e-2 },\n}\n")
        self.assertTrue(line["file"].endswith("script.lua"), line)
        self.assertEqual((line["code"], line["key"]), ("option.range", "steps"))

    def test_other_options_are_named_as_they_were_given(self):
        script = self.write(HEAD + "mw.train(e { dp(2) })\n")
        done = self.call("plan", script, "--stack", "megatron-core")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("error: --stack megatron-core: stack is given, and no cluster", done.stderr)
        self.assertNotIn("--set", done.stderr)
        done = self.call("plan", script, "--cluster", "selen", "--nodes", "2")
        self.assertIn("error: --cluster selen --nodes 2: ", done.stderr)
        done = self.call("plan", script, "--cluster", "selene", "--nodes", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("--set", done.stderr)

    def test_a_sweeps_options_are_blamed_where_they_stand(self):
        sweep = HEAD + 'local s = mw.sweep { name = "s", base = e({}), over = { plan = { { dp(2) }, { tp(2) } } } }\n%s\n'
        script = self.write(sweep % "s:go {}")
        for given, place in (("--shard 3/2", "--shard 3/2: shard: got"), ("--time -1", "--time -1: time must be"),
                             ("--only nothing", "--only nothing: only: no cell"), ("--retry some", "--retry some: retry must be")):
            done = self.call("sweep", script, *given.split())
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("error: " + place, done.stderr)
        line = self.error(sweep % "\ns:go { worker = 3 }", verb="sweep")
        self.assertEqual((line["code"], line["line"]), ("option.unknown", 11))

    def test_a_dims_size_leaves_what_it_is_like(self):
        done = self.call("plan", self.write(OWN), "--set", "model.dims.wide=96")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('model.dims.wide = 96 (was 64; { like = "ffn" } stays)', done.stderr + done.stdout)
        plain = self.only("plan", self.write(OWN))["parameters"]
        self.assertEqual(self.only("plan", self.write(OWN), "--set", "model.dims.wide=96")["parameters"],
                         plain + 2 * 2 * 16 * 32)

    def test_an_entry_without_a_name_leaves_those_with_names(self):
        script = HEAD + "local s = e { dp(2) }\ns.recompute = { 'none', 'full', like = 'x' }\nmw.plan(s)\n"
        done = self.call("plan", self.write(script), "--set", "recompute.1=selective")
        self.assertIn('recompute[1] = "selective" (was "none")', done.stderr + done.stdout)

    def test_only_fields_of_results_are_said_to_be_missing(self):
        own = self.error(HEAD + "local t = {}\nprint(t.foo.bar)\n", verb="plan")
        self.assertNotIn("mw.train", own["hint"])
        result = self.error(HEAD + "local r = mw.train(e { dp(2) })\nprint(r.losses.x)\n", verb="plan")
        self.assertIn("mw.train returns what mw.plan does", result["hint"])

    def test_compare_names_what_differs(self):
        said, = self.said(["local other = e { dp(2) } other.model = mw.gpt { layers = 2, hidden = 16, heads = 4, vocab = 32 } "
                           "mw.compare(e { dp(2) }, other)"])
        self.assertIn("model: a has llama", said)
        self.assertNotIn("made_of", said)

    def test_a_scheduler_that_makes_one_size_alone(self):
        script = self.write(HEAD + 'mw.plugins("unsound")\nmw.verify(e { pp { 2, schedule = "picky" } })\n')
        self.assertEqual(self.only("run", script, "--plugin-path", TEST_PLUGINS)["verdict"], "equal")

    def test_plugins_are_opened_where_a_hint_needs_them(self):
        script = self.write(HEAD + "mw.train(e { dp(2) })\n")
        fits = self.call("run", script, "--plugin-path", TEST_PLUGINS, "--set", "memory=1GiB")
        self.assertEqual(fits.returncode, 0, fits.stderr)
        self.assertNotIn("unsound was opened", fits.stderr)
        not_so = self.call("run", script, "--plugin-path", TEST_PLUGINS, "--set", "memory=1KiB")
        self.assertIn("unsound was opened", not_so.stderr)
        self.assertIn("no thin spread", not_so.stderr)  # a strategy in a file of another name is tried too


if __name__ == "__main__":
    unittest.main(verbosity=2)
