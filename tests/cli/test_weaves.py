"""Weaves of scripts: what they may say, what is refused and where, and what is listed of braids."""

import re
import unittest

from cases import SOURCE, TEST_PLUGINS, ProgramCase
from problems import problems

HEAD = """\
local mw = require "meshwright"
local dp, ep, pp = mw.plugins("dp", "ep", "pp")
local function with(weave, more)
  local e = {
    model = mw.moe { layers = 2, hidden = 16, heads = 4, kv_heads = 4, ffn = 16, vocab = 32, experts = 4, top_k = 2 },
    data = mw.synthetic {}, sequence = 8, batch = 8, microbatch = 1, optimizer = mw.adamw { lr = 1e-2 }, steps = 2,
    plan = { pp { 2, schedule = { kind = "1f1b", pair = true }, weave = weave }, dp(2), ep(2) },
  }
  for key, value in pairs(more or {}) do e[key] = value end
  return e
end
"""
BY_LAYER = """mw.weave { name = "by layer", order = function(a, b)
  for al, bl in mw.zip(a:layers(), b:layers()) do
    if bl:has { through = "start", kind = "combine" } then bl:take { through = "start", kind = "combine" } end
    al:rest()
    bl:rest()
  end
end }"""


class Weaves(ProgramCase):
    def test_they_equal_one_rank_and_decide_the_hash(self):
        weaves = ("nil", '"switch"', '{ kind = "switch", axes = { "ep" } }', BY_LAYER, "mw.weave(function() end)",
                  "mw.weave(function(a, b) local l = b:left() table.move(a:left(), 1, #a:left(), #l + 1, l) return l end)",
                  '"turns"')
        head = HEAD + 'mw.plugins("kit")\n'
        self.write(head + "".join(f"mw.train(with({weave}))\n" for weave in weaves))
        results = self.all("verify", self.folder / "script.lua", "--plugin-path", TEST_PLUGINS)
        self.assertEqual([result["verdict"] for result in results], ["equal"] * len(weaves), results)
        self.write(head + "".join(f"mw.plan(with({weave}))\n" for weave in weaves))
        plans = self.all("plan", self.folder / "script.lua", "--plugin-path", TEST_PLUGINS)
        hashes = [plan["plan_hash"] for plan in plans]
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(len(set(hashes)), len(weaves) - 1, hashes)

    def test_what_is_refused(self):
        def take(filter):
            return f"mw.weave(function(a, b) a:take {filter} end)"

        swapped = "mw.weave(function(a, b) local l = a:left() l[1], l[2] = l[2], l[1] return l end)"
        kept = "(function() local old return mw.weave(function(a) if old then old:rest() end old = a end) end)()"
        cases = (
            ("script.argument", take('{ through = "start", kind = "dispach" }'), r'nothing left that is \{ code = "start", '
             r'kind = "dispach" \}', 'did you mean "dispatch"'),
            ("script.argument", "mw.weave(function(a, b) a:rest() a:take { through = 'start' } end)", "nothing left",
             r"instruction \d+, start .* was taken already"),
            ("script.argument", take("{ throgh = 1 }"), "an instruction has no throgh", 'did you mean "through"'),
            ("script.argument", take("{}"), "it says of no instruction which one it means", "start"),
            ("script.argument", "mw.weave(function(a, b) a:has() end)", "has takes a table; got nil", "through"),
            ("script.argument", swapped, r"the weave of the script on stage \d: .*instruction 2, .*, stands before "
             "instruction 1, .*; a weave can only merge", "own order"),
            ("script.argument", "mw.weave(function(a, b) return { 1 } end)", "no instruction of a lane", "left"),
            ("script.argument", "mw.weave(function(a, b) return 1 end)", "returned a number", "return"),
            ("script.argument", "mw.weave { name = 1, order = print }", "name is a text", "name"),
            ("script.argument", "mw.weave { name = 'x' }", "a function `order`", "order"),
            ("option.choice plan[1].weave", '"swich"', "swich", "switch"),
            ("option.value plan[1].weave", "7", "got 7", "switch"),
            ("option.value plan[1].weave", "function(a, b) end", "got a function$", "mw.weave"),
            ("weave.axis plan[1].weave.axes", '{ kind = "switch", axes = { "xx" } }', 'no axis "xx"', "axes are pp, dp, ep"),
            ("weave.axis plan[1].weave.axes", 'mw.weave.switch { axes = { "tp" } }', 'no axis "tp"', "pp, dp, ep"),
            ("script.argument", "mw.weave(function(a, b) for x in mw.zip(a, b) do end end)",
             r"mw\.zip takes lists; argument 1 is the lane", "layers"),
            ("script.argument", "mw.weave(function(a, b) for _ in ipairs(a) do end end)", "a lane has no 1", "no list"),
            ("script.argument", "mw.weave(function(a, b) return a.kynd end)", "a lane has no kynd", "name, kind"),
            ("script.argument", "mw.weave(function(a, b) a.take { through = 'start' } end)", "with a colon", "f:take"),
            ("script.argument", kept, "woven already", "this call"),
            ("script.argument", take('{ through = "strt" }'), 'take.code: there is no code "strt"', r'did you mean "start"\?'),
            ("script.argument", 'mw.weave(function(a) a:has { code = { "wait", "strat" } } end)', 'has.code: there is no code "strat"',
             r'did you mean "start"\?'),
            ("script.argument", 'mw.weave(function(a) a:has { kind = "dispach" } end)', 'has: there is no op of that kind', '"dispatch"'),
            ("script.argument", 'mw.weave(function(a) a:has { axis = "epp" } end)', 'has: there is no axis "epp"', 'did you mean "ep"'),
            ("script.argument", 'mw.weave(function(a) a:has { axis = { "ep", "exprts" } } end)', 'no axis "exprts"', '"experts"'),
            ("script.argument", 'mw.weave(function(a) a:has { axis = "dp*epp" } end)', r'no axis "dp\*epp"', "axes are pp, dp, ep"),
            ("script.argument", 'mw.weave(function(a) a:has { axis = "rows" } end)', 'no axis "rows"', "pp, dp, ep; .* optional = true"),
            ("script.argument", take('{ axis = "epp", optional = true }'), 'take: there is no axis "epp"', 'did you mean "ep"'),
            ("script.argument", 'mw.weave(function(a) a:has { piece = "dgard" } end)', 'there is no piece "dgard"', '"dgrad"'),
            ("script.argument", 'mw.weave(function(a) a:has { move = "allgather" } end)', 'there is no move "allgather"', '"all-gather"'),
            ("script.argument", take('{ segment = "x*" }'), r'there is no segment "x\*"', "forward"),
            ("script.argument", take('{ through = "start", kind = "x", bucket = "x" }'), "nothing left", "bucket is one of|has any bucket"),
            ("script.argument", take('{ layer = { atleast = 1 } }'), "a range has no atleast", "at_least"),
            ("script.argument", take('{ layer = "1" }'), r'take\.layer: it is a number, a range or a list; got "1"', "layer = 1"),
            ("script.argument", take("{ code = 1 }"), "take.code: it is a text, or a list; got 1", "code = "),
            ("script.argument", take("{ code = {} }"), "the list is empty", "code = "),
            ("script.argument", take('{ code = "start", last = 1 }'), "last is true or false; got 1", "last = true"),
            ("script.argument", "mw.weave(function(a, b) a:has { kindd = 1 } end)", ":has: an instruction has no kindd", "kind"),
            ("option.value plan[1].weave.axes", '{ kind = "switch", axes = { 1 } }', "got 1", "axes"))
        found = self.tried(HEAD, [f"mw.plan(with({weave}))" for _, weave, _, _ in cases])
        for (problem, weave, message, hint), errors in zip(cases, found):
            with self.subTest(weave):
                self.assertEqual(problems(errors), [problem], errors)
                self.assertRegex(errors[0]["message"], message)
                self.assertRegex(errors[0]["hint"], hint)

    def test_axes_that_only_other_plans_have_may_be_asked_for(self):
        axes = ("dp", "zero", "tp", "cp", "ulysses", "model", "e*", "dp*pp[0,1]", "world", "zero*")
        text = "".join(f'a:has {{ axis = "{axis}" }} ' for axis in axes) + 'assert(not a:has { axis = "rows", optional = true })'
        self.only("plan", self.write(HEAD + f"mw.plan(with(mw.weave(function(a, b) {text} end)))"))

    def test_conditions_are_those_of_passes(self):
        """Each condition finds in a lane just what a pass finds in the same segment before works are woven."""
        conditions = ('code = { "start", "hook_start" }', "layer = { at_least = 0 }", "layer = { 0, 7 }", 'axis = "experts"', 'axis = "ep"',
                      'code = "st*", bytes = { at_least = 1 }', 'reads = "*", code = "start"', 'segment = "backward", code = "wait"')
        script = HEAD + """\
local found, woven = {}, {}
local function note(list, key, n) list[key] = list[key] or {} list[key][n] = true end
local function count(condition, n)
  return mw.pass { name = "p" .. n, segments = { "forward", "backward" }, edit = function(code)
    if code.stage == 0 and code.vstage == 0 then note(found, n .. code.segment, #code:list(condition)) end end }
end
"""
        for n, condition in enumerate(conditions):
            script += f"""\
mw.plan(with(mw.weave {{ name = "w{n}", order = function(...)
  for _, lane in ipairs {{ ... }} do
    local n = 0
    if lane.vstage == 0 then
      while lane:has {{ {condition} }} do lane:take {{ {condition} }} n = n + 1 end
      note(woven, "{n}" .. lane.kind, n)
    end
  end
end }}))
mw.plan(with(nil, {{ plan = {{ pp {{ 2, schedule = "1f1b" }}, dp(2), ep(2), count({{ {condition}, optional = true }}, "{n}") }} }}))
"""
        script += """\
local some = {}
for key, counts in pairs(woven) do
  for n in pairs(counts) do
    assert(found[key][n], ("%s: the weave finds %d, and the pass does not"):format(key, n))
    if n > 0 then some[key:sub(1, 1)] = true end
  end
end
for n = 0, %d do assert(some[tostring(n)], n) end
"""
        done = self.call("plan", self.write(script.replace("%d do", f"{len(conditions) - 1} do")))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_hide_wants_a_device_and_braids_are_drawn(self):
        cluster = '{ cluster = mw.cluster("dgx-h100", { nodes = 1 }) }'
        self.write(HEAD + f'mw.plan(with("hide", {cluster}))\nmw.plan(with("switch", {cluster}))\n'
                          f'mw.plan(with(mw.weave.hide {{ axes = {{ "ep" }} }}, {cluster}))')
        plans = self.all("plan", self.folder / "script.lua", "--braids", "--braids-svg", "braids.svg")
        text = self.call("plan", self.folder / "script.lua", "--braids", "--full").stdout
        for plan, weave in zip(plans, ("hide", "switch", "hide")):
            self.assertTrue(plan["braids"], weave)
            for braid in plan["braids"]:
                self.assertEqual(braid["weave"], weave)
                self.assertLessEqual(braid["seconds"], braid["apart_seconds"] * (1 + 1e-9))
                self.assertLessEqual(braid["waited_seconds"], braid["apart_waited_seconds"] * (1 + 1e-9))
                self.assertRegex(text, rf"(?m)^{re.escape(braid['name'])} on stage {braid['stage']}, by {weave}: ")
        for hidden, switched in zip(plans[0]["braids"], plans[1]["braids"]):
            self.assertLessEqual(hidden["seconds"], switched["seconds"] * (1 + 1e-9))
        self.assertIn(plans[0]["braids"][0]["name"], (self.folder / "braids.svg").read_text())
        found = self.tried(HEAD, ['mw.plan(with("hide"))'])
        self.assertEqual(problems(found[0]), ["weave.times plan[1].weave"], found)
        self.assertIn("cluster", found[0][0]["hint"])
        self.write(HEAD + 'mw.plan(with(nil, { plan = { pp(2), dp(2), ep(2) } }))')
        self.assertIn("braids  none", self.call("plan", self.folder / "script.lua", "--braids").stdout)

    def test_a_braid_is_listed_in_columns(self):
        self.write(HEAD + "mw.plan(with())")
        text = self.call("plan", self.folder / "script.lua", "--program").stdout
        heads = re.findall(r"\n(\S+\+\S+) \(\d+ instructions in 2 lanes, woven by switch\)\n  (\S+)( +)(\S+)\n", text)
        self.assertTrue(heads, text[:3000])
        name, first, gap, second = heads[0]
        self.assertEqual(name, f"{first}+{second}")
        column = 2 + len(first) + len(gap)
        body = text.split(f"\n{name} (")[1].split("\n\n")[0].split("\n")[2:]
        begins = [len(line) - len(line.lstrip()) for line in body]
        self.assertEqual(set(begins), {2, column})
        self.assertGreater(sum(a != b for a, b in zip(begins, begins[1:])), 6, "the lanes take turns")
        self.assertRegex(text, rf"timeline:.* {re.escape(name)}\(\d\+\d\)")

    def test_places_and_settings_name_what_is_at_fault(self):
        self.write(HEAD + "local bad = mw.weave { name = 'bad', order = function() return { 1 } end }\n\nmw.plan(with(bad))")
        errors = self.call("plan", self.folder / "script.lua").stderr
        line = HEAD.count("\n") + 1
        self.assertRegex(errors, rf"script\.lua:{line}: the weave bad on stage \d: entry 1 of the list")
        setting = 'plan[1].weave=mw.weave { name = "x", order = function() end }'
        said = self.call("plan", self.folder / "script.lua", "--set", setting).stderr
        self.assertIn('mw.weave { name = "x", order = function(…) … end }', said)
        self.assertNotIn("$function", said)
        rows = 'plan[1].schedule=function() return { "0F0 0B0", "1F0 1X0" } end'
        errors = self.call("plan", self.folder / "script.lua", "--set", rows).stderr
        self.assertRegex(errors, r"schedule\[2\]\[2\]: schedule .*, row 2, cell 2: ")

    def test_the_script_of_the_docs(self):
        result = self.only("verify", SOURCE / "scripts/my_weave.lua", "--set", "data=mw.synthetic {}", "--set",
                           "sequence=16")
        self.assertEqual(result["verdict"], "equal", result)


if __name__ == "__main__":
    unittest.main()
