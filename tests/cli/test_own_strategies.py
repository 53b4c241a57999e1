"""Strategies that a script writes itself: the forms that are rules alone, as Lua tables, have the
plugins' programs line for line and equal one rank; what is wrong is refused, with its line."""

import re
import unittest

import pages
from cases import SOURCE, ProgramCase

# The forms in Lua. Axes have the plugins' names, since listings show them.
MINE = """\
local mw = require "meshwright"
local plugins = {}
for _, name in ipairs { "dp", "tp", "sp", "ep", "zero", "pp" } do plugins[name] = mw.plugin(name) end

local function attention(op) return op.kind == "attention" end
local function exchanges(op) return op.kind == "dispatch" or op.kind == "combine" end
local function routes(op) return op.has.scores and op.has.seq and op.kind ~= "admit" end
local function stream(op)
  return op.has.hidden and not op.has.experts and not op.has.scores and #op.claimed == 0
end

local mine = {
  zero = plugins.zero, pp = plugins.pp,
  dp = mw.strategy {
    name = "my_dp", axis = { "dp", role = "data" }, rules = { "batch" }, bucket = "25MiB", overlap = true,
  },
  tp = mw.strategy {
    name = "my_tp", axis = { "tp", role = "model" },
    rules = { "heads", { "kv_heads", optional = true }, { "ffn", optional = true }, { "expert_ffn", optional = true },
              { "shared_ffn", optional = true }, "vocab" },
  },
  sp = mw.strategy { name = "my_sp", rules = { { "seq", axis = "model", where = stream } } },
  ulysses = mw.strategy {
    name = "my_ulysses", axis = { "cp", role = "sequence" },
    rules = { "seq", { "heads", where = attention }, { "kv_heads", where = attention, optional = true } },
  },
  ep = mw.strategy {
    name = "my_ep", axis = { "ep", role = "experts", borrow = { "data", "sequence", "model" } },
    rules = { { "experts", where = function(op) return not exchanges(op) end },
              { "seq", lent_by = { "model" }, where = function(op) return routes(op) or exchanges(op) end } },
  },
}
plugins.ulysses = function(n) return plugins.sp { n, form = "ulysses" } end

local models = {
  llama = mw.llama { layers = 2, hidden = 16, heads = 4, kv_heads = 2, ffn = 24, vocab = 32 },
  gpt = mw.gpt { layers = 2, hidden = 16, heads = 4, vocab = 32, tied = true },
  moe = mw.moe { layers = 2, hidden = 16, heads = 4, kv_heads = 2, ffn = 24, vocab = 32, experts = 4, top_k = 2,
                 shared_experts = 1, dense_layers = 1 },
}
local function e(model, plan)
  return { model = models[model], data = mw.synthetic {}, sequence = 16, plan = plan, batch = 8, microbatch = 2,
           optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2 }
end
"""

# A function of the forms: plugins or those above.
MIXES = [
    ("llama", "f.dp(2)"), ("llama", "f.tp(2)"), ("gpt", "f.tp(4)"), ("llama", "f.tp(4)"), ("llama", "f.tp(2), f.sp()"),
    ("gpt", "f.dp(2), f.tp(2), f.sp()"), ("llama", "f.ulysses(2)"), ("gpt", "f.dp(2), f.ulysses(2)"),
    ("llama", "f.zero { 2, stage = 3 }, f.tp(2), f.sp()"), ('llama', 'f.pp { 2, schedule = "1f1b" }, f.dp(2), f.tp(2)'),
    ("moe", "f.dp(2), f.ep(2)"), ("moe", "f.dp(4), f.ep(2)"), ("moe", "f.tp(2), f.ep(2)"),
    ("moe", "f.dp(2), f.tp(2), f.ep(4)"), ("moe", "f.tp(2), f.sp(), f.ep(2)"), ("moe", "f.dp(2), f.ulysses(2), f.ep(4)"),
]

SMALL = """\
local mw = require "meshwright"
local tp, pp = mw.plugins("tp", "pp")
local e = { model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 32 }, data = mw.synthetic {},
            sequence = 8, batch = 4, optimizer = mw.sgd { lr = 1 }, steps = 2 }
local function plan(list) e.plan = list return mw.plan(e) end
"""


class OwnStrategies(ProgramCase):
    maxDiff = None

    def listings(self, forms):
        calls = "".join(f'do local f = {forms} print("> ") print(mw.plan(e("{model}", {{ {plan} }}))) end\n'
                        for model, plan in MIXES)
        done = self.call("plan", "--program", self.write(MINE + calls))
        self.assertEqual(done.returncode, 0, done.stderr)
        parts = done.stdout.split("> \n")[1:]
        self.assertEqual(len(parts), len(MIXES))
        return [part[part.index("stage 0 of "):] for part in parts]

    def test_programs_are_the_plugins(self):
        for mix, own, plugin in zip(MIXES, self.listings("mine"), self.listings("plugins"), strict=True):
            with self.subTest(mix):
                self.assertGreater(len(plugin.splitlines()), 50)
                self.assertEqual(own.splitlines(), plugin.splitlines())

    def test_they_equal_one_rank(self):
        self.verify_all(MINE + "".join(f'do local f = mine mw.verify(e("{model}", {{ {plan} }})) end\n'
                                       for model, plan in MIXES))

    def test_the_plan_says_what_they_do(self):
        own = ('local mine = mw.strategy { name = "mine", axis = { "rows", ways = 2, role = "model" }, '
               'rules = { "ffn" }, note = "half the width each" }\n')
        shown = self.call("plan", self.write(SMALL + own + "print(mine, mine(4)) print(plan { mine })"))
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("mine {}\tmine { ways = 4 }", shown.stdout)
        self.assertIn("mine: half the width each", shown.stdout)
        self.assertIn("mine(2)", shown.stdout)
        # Ways as an option, as a bare number, by --set, and left out.
        for use, ways in (("mine", 2), ("mine(4)", 4), ("mine { ways = 4 }", 4), ("mine {}", 2)):
            result = self.only("plan", self.write(SMALL + own + f"plan {{ {use} }}"))
            self.assertEqual(result["ranks"], ways, use)
        changed = self.only("plan", self.write(SMALL + own + "plan { mine }"), "--set", "plan[1].ways=4")
        self.assertEqual(changed["ranks"], 4)

    def test_hashes_tell_strategies_apart(self):
        both = SMALL + """
          for _, dim in ipairs { "ffn", "vocab" } do
            local mine = mw.strategy { name = "mine", axis = { role = "model" }, rules = { dim } }
            plan { mine(2) }
            plan { mine(2) }
          end"""
        ffn, ffn_again, vocab, _ = (result["plan_hash"] for result in self.all("plan", self.write(both)))
        self.assertEqual(ffn, ffn_again)
        self.assertNotEqual(ffn, vocab)

    def test_rules_may_be_a_function_of_the_plan(self):
        own = """local mine = mw.strategy { name = "mine", axis = { role = "model" }, rules = function(plan)
            assert(plan.layers == 2 and plan.axes.mine == 2 and plan.dims.hidden == 16)
            return { plan.dims.ffn % plan.axes.mine == 0 and "ffn" or "vocab" }
          end }
          e.plan = { mine(2) } mw.verify(e)"""
        self.verify_all(SMALL + own)

    def test_several_axes(self):
        own = """local two = mw.strategy { name = "two", rules = { { "ffn", axis = "rows" }, { "heads", axis = "cols" },
            { "kv_heads", axis = "cols" } }, axis = { { "rows", ways = 2, role = "model" }, { "cols", role = "model" } } }
          e.plan = { two { cols = 2 } } mw.verify(e)
          e.plan = { two { cols = 2, rows = 4 }, mw.plugin "sp" () } mw.verify(e)"""
        first, second = self.verify_all(SMALL + own)
        self.assertEqual([first["plan"], second["plan"]], ["two { 4, cols = 2 }", "{ two { 8, cols = 2, rows = 4 }, sp() }"])

    def test_storage(self):
        own = """local shards = mw.strategy { name = "shards", axis = { role = "data" }, rules = { "batch" },
            store = { { "hidden", where = function(p) return p.name:find("mlp") ~= nil end } } }
          e.plan = { shards(2) } mw.train(e)"""
        result, = self.verify_all(SMALL + own)
        program = self.call("plan", "--program", self.folder / "script.lua").stdout
        self.assertRegex(program, r"all-gather layers\.0\.mlp\.\w+\.weight over shards")
        self.assertNotIn("all-gather layers.0.attention", program)

    def first_problems(self, *texts):
        """Of each text the first thing that is wrong with it: code and key, line of the text (from 0), message, hint."""
        found, begin = [], SMALL.count("\n") + 1
        for text, errors in zip(texts, self.tried(SMALL, texts)):
            self.assertTrue(errors, text)
            found.append((f'{errors[0]["code"]} {errors[0]["key"]}', errors[0]["line"] - begin, errors[0]["message"],
                          errors[0]["hint"]))
            begin += text.count("\n") + 1
        return found

    def test_what_is_wrong_with_the_table_is_said_where_it_stands(self):
        cases = [
            ('mw.strategy { name = "mine", rule = {} }', "option.unknown mine.rule", 'did you mean "rules"?'),
            ('mw.strategy {}', "option.missing mw.strategy.name", "text"),
            ('mw.strategy { name = "my tp" }', "option.value mw.strategy.name", "a letter"),
            ('mw.strategy { name = "tp" }', "plugin.twice tp.name", "another name"),
            ('mw.strategy "mine"', "script.argument ", "for example"),
            ('mw.strategy { name = "mine", axis = { rolle = "data" } }', "option.unknown mine.axis.rolle", '"role"'),
            ('mw.strategy { name = "mine", axis = { role = "rows" } }', "option.choice mine.axis.role", ""),
            ('mw.strategy { name = "mine", axis = { ways = 0 } }', "option.range mine.axis.ways", "nearest"),
            ('mw.strategy { name = "mine", axis = { borrow = { 3 } } }', "option.value mine.axis.borrow", "roles: data"),
            ('mw.strategy { name = "mine", rules = { dim = "ffn" } }', "option.type mine.rules", "{ { dim"),
            ('mw.strategy { name = "mine", rules = { { dims = "ffn" } } }', "option.unknown mine.rules[1].dims", '"dim"'),
            ('mw.strategy { name = "mine", rules = { { "ffn", where = "mlp" } } }', "option.type mine.rules[1].where", ""),
            ('mw.strategy { name = "mine", store = { { where = print } } }', "option.missing mine.store[1].dim", ""),
        ]
        for (text, problem, hint), (found, at, _, said) in zip(cases, self.first_problems(*(text for text, *_ in cases))):
            with self.subTest(text):
                self.assertEqual((found, at), (problem, 0))
                self.assertIn(hint, said)

    def test_what_does_not_go_with_the_plan_is_said_where_the_table_stands(self):
        head = 'local mine = mw.strategy { name = "mine", axis = { role = "model" }, rules = {\n  %s } }\nplan { mine(2)%s }'
        no = "function(op) return false end"
        cases = [
            ('"fnn"', "", "rule.dim plan[1].rules[1]", 'did you mean "ffn"?'),
            (f'"ffn", {{ "heads", where = {no} }}', "", "rule.matches-nothing plan[1].rules[2]", "attention"),
            ('{ "ffn", axis = "modle" }', "", "axis.unknown plan[1].rules[1]", "mine"),
            ('{ "ffn", axis = "data" }', "", "axis.unknown plan[1].rules[1]", 'role "data"'),
            ('"ffn", "ffn"', "", "rule.twice plan[1].rules[2]", "say it once"),
            ('"ffn", { "heads", axis = "tp" }', ", tp(2)", "rule.twice plan[2]", "leave one of them out"),
            ('"ffn", { "seq", axis = "tp" }', ", tp(2)", "rule.clash plan[2]", "axis of its own"),
            ('"ffn", { "hidden", where = function(op) return op.kind == "rms_norm" end }', "",
             "rule.matches-nothing plan[1].rules[2]", "linear"),
            ('"ffn", { "vocab", axis = "pp" }', ", pp(2)", "rule.stages plan[1].rules[2]", "name another axis, mine"),
        ]
        problems = self.first_problems(*(head % (rules, more) for rules, more, *_ in cases))
        for (rules, _, problem, hint), (found, at, message, said) in zip(cases, problems):
            with self.subTest(rules):
                self.assertEqual(found, problem, message)
                self.assertEqual(at, 0 if "rules" in problem else 2, message)
                self.assertIn(hint, said)

    def test_a_dim_that_an_op_needs_whole_is_said_to_be_so(self):
        text = ('plan { mw.strategy { name = "mine", axis = { ways = 2 }, rules = { "ffn",\n'
                '{ "hidden", where = function(op) return op.kind == "rms_norm" end } } } }')
        (_, _, message, _), = self.first_problems(text)
        self.assertIn("those that compute over hidden need it whole: rms_norm", message)

    def test_a_where_is_taken_as_if_takes_it(self):
        rules = ['function(op) return op.name:find("mlp") end', 'function(op) return op.name:find("mlp") ~= nil end',
                 'function(op) return op.name:match("mlp") end', 'function(op) return op.name:find("mlp") and {} end',
                 'function(op) if op.name:find("mlp") then return 0 end end']
        text = SMALL + "".join(
            f'plan {{ mw.strategy {{ name = "mine", axis = {{ ways = 2 }}, rules = {{ {{ "ffn", where = {where} }} }} }} }}\n'
            for where in rules)
        plans = [line["plan_hash"] for line in self.all("run", self.write(text)) if line["kind"] == "plan"]
        self.assertEqual(len(plans), len(rules))
        self.assertEqual(len(set(plans)), 1)

    def test_a_function_that_throws_names_its_own_line(self):
        text = ('local mine = mw.strategy { name = "mine", axis = {}, rules = { { "ffn", where = function(op)\n'
                '  return op.nothing.there end } } }\nplan { mine(2) }')
        (found, at, message, _), = self.first_problems(text)
        self.assertEqual((found, at), ("script.unknown ", 1), message)
        self.assertIn("nothing", message)

    def test_numbers_of_ways_are_refused_as_a_plugins(self):
        (found, _, message, hint), missing, unknown = self.first_problems(*(
            f'local mine = mw.strategy {{ name = "mine", axis = {{}}, rules = {{ {rules} }} }} plan {{ {use} }}'
            for rules, use in (('"heads", "kv_heads"', "mine(3)"), ("", "mine"), ('"ffn"', "mine { way = 2 }"))))
        self.assertEqual(found, "axis.cannot-split plan[1].ways")
        self.assertEqual((message, hint), ("mine(3) cannot split 4 heads", "nearest: mine(2), mine(4)"))
        self.assertEqual((missing[0], missing[3]), ("option.missing plan[1].ways", "an integer: ranks of the axis mine"))
        self.assertEqual(unknown[0], "option.unknown plan[1].way")

    def test_the_script_of_the_repository(self):
        text = (SOURCE / "scripts/own_strategy.lua").read_text()
        table = re.search(r"(?ms)^local \w+ = mw\.strategy \{.*?^\}$", text).group(0)
        self.assertLessEqual(table.count("\n") + 1, 10)
        for name in ("scripts", ".deps"):
            (self.folder / name).symlink_to(SOURCE / name)
        small = ("--set", "model.hidden=32", "--set", "model.ffn=40", "--set", "sequence=16", "--set", "data=mw.synthetic{}")
        verified = self.only("verify", "scripts/own_strategy.lua", *small)
        self.assertEqual((verified["verdict"], verified["plan"]), ("equal", "{ dp(2), tp2d(4), sp() }"))
        run = self.only("run", "scripts/own_strategy.lua", "--set", "steps=4")
        self.assertLess(run["losses"][-1], run["losses"][0])
        self.sent_as_predicted(run)
        self.assertTrue({"rows", "cols"} <= {use["axis"] for use in run["communication"]})

    def test_the_page_about_them(self):
        page = pages.part("strategies", "Writing a strategy in Lua, in ten lines")
        snippets = re.findall(r"(?ms)^```lua\n(.*?)^```$", page)
        self.assertEqual(len(snippets), 2)
        for snippet in snippets:
            self.verify_all(snippet)
        # Each key that can be written has its words there.
        types = self.call("lua-types").stdout
        for kind in ("StrategyTable", "StrategyAxis", "StrategyRule", "StrategyStore", "Op", "Parameter"):
            fields = re.search(rf"(?m)^---@class meshwright\.{kind}\n((?:---@field .*\n)+)", types).group(1)
            for name in re.findall(r"@field (\w+)", fields):
                self.assertRegex(page, rf"`[^`]*\b{name}\b[^`]*`", f"{kind}.{name}")

    def test_ep_borrows_by_role(self):
        own = """local mw = require "meshwright"
local ep = mw.plugin "ep"
local data = mw.strategy { name = "sharer", axis = { role = "%s" }, rules = { "batch" } }
mw.verify { model = mw.moe { layers = 1, hidden = 16, heads = 2, ffn = 16, vocab = 32, experts = 4, top_k = 2 },
  data = mw.synthetic {}, sequence = 8, plan = { data(4), ep(2) }, batch = 8, optimizer = mw.sgd { lr = 1 }, steps = 2 }"""
        self.verify_all(own % "data")
        script = self.write((own % "data").replace(', axis = { role = "data" }', ', axis = {}'))
        error = self.refused(3, "axis.unknown plan[2]", "verify", script)
        self.assertRegex(error["hint"], "splits the data, in 2 ways")


if __name__ == "__main__":
    unittest.main(verbosity=2)
