"""Passes and directives that a script writes: what they move equals one rank, is counted, and is
refused where it matches nothing, contradicts dataflow or changes more than the pass says."""

import re
import unittest

from cases import ProgramCase

SMALL = """\
local mw = require "meshwright"
local dp, tp, ep, zero, pp = mw.plugins("dp", "tp", "ep", "zero", "pp")
local e = { model = mw.moe { layers = 2, hidden = 16, heads = 4, kv_heads = 2, ffn = 24, vocab = 32, experts = 4, top_k = 2 },
            data = mw.synthetic {}, sequence = 8, batch = 8, microbatch = 1, optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
local function plan(list) e.plan = list return mw.plan(e) end
"""

# Each verb, on plans where it has something to do.
VERBS = [
    ("tp(4)", """mw.pass { name = "late weights", segments = { "backward" }, edit = function(code)
       for start in code:each { code = "start", axis = "model" } do
         start:hoist { over = { piece = "wgrad" } }
       end
     end }"""),
    ("zero { 2, stage = 3 }, tp(2)", """mw.pass { name = "ahead", edit = function(code)
       for start in code:each { code = "start", move = "all-gather", axis = "zero", optional = true } do
         assert(start.code == "start" and start.bucket)
         local n = start:hoist { by = 7 }
         assert(n >= 0 and n <= 7 and tostring(start):find("all%-gather"))
       end
       for wait in code:each { code = "wait", axis = "tp" , optional = true } do wait:sink() end
     end }"""),
    ("dp(2), ep(2)", """mw.pass { name = "by hand", segments = { "forward" }, edit = function(code)
       local starts = code:list { code = "start", kind = "dispatch" }
       local first = code:list { label = "layers.0.router" }[1]
       local norm = code:list { code = "compute", label = "layers.1.*" }[1]
       starts[1]:stream "exchange"
       norm:after(first)
       code:list { code = "compute", kind = "linear" }[1]:before(starts[#starts])
     end }"""),
    ("dp(4), ep(2)", """mw.directives {
       { "order", { code = "start", axis = "ep" }, before = { code = "start", phase = "gradients", optional = true } },
       { "stream", { axis = "dp", phase = "gradients" }, "background" },
       { "stream", { axis = "ep" }, "exchange" } }"""),
    ("zero { 4, stage = 3, prefetch = 2 }", """mw.directives {
       { "budget", { code = "start", move = "all-gather" }, 1 },
       { "issue", { code = "start", move = "all-gather", phase = "forward" }, layers_ahead = 0 } }"""),
    ("pp { 2, schedule = \"1f1b\" }, dp(2)",
     'mw.directives { { "reduce", { bucket = "*" }, after = "chunk" } }'),
    ("dp(2), tp(2)", 'mw.directives { name = "each", { "reduce", { bucket = "*", axis = "dp" }, each = true } }'),
    ("dp(2), tp(2)", 'mw.directives { name = "by role", { "reduce", { bucket = "*", axis = "data" }, after = "step" } }'),
]


class Passes(ProgramCase):
    def first_problems(self, *texts):
        """Of each text the first thing that is wrong with it: code, line of the text (from 0), message, hint."""
        found, begin = [], SMALL.count("\n") + 1
        for text, errors in zip(texts, self.tried(SMALL, texts)):
            self.assertTrue(errors, text)
            first = errors[0]
            found.append((first["code"], first["line"] - begin, first["message"], first["hint"]))
            begin += text.count("\n") + 1
        return found

    def test_each_verb_equals_one_rank_and_is_proved(self):
        calls = "".join(f"e.plan = {{ {plan}, {verb} }} mw.verify(e)\n" for plan, verb in VERBS)
        self.assertEqual(len(self.verify_all(SMALL + calls)), len(VERBS))

    def test_a_note_counts_what_moved(self):
        for plan, verb in VERBS:
            with self.subTest(verb):
                shown = self.call("plan", self.write(SMALL + f"plan {{ {plan}, {verb} }}"))
                self.assertEqual(shown.returncode, 0, shown.stderr)
                self.assertRegex(shown.stdout, r"(moved, by [\d.]+ places on average|stream \w+: \d+ transfer|reduce: \d+ of \d+ bucket|changes none of)")

    def test_a_strategy_may_list_passes(self):
        own = """local late = mw.pass { name = "late", segments = { "backward" }, edit = function(code)
            for start in code:each { code = "start", axis = "tp" } do start:hoist() end end }
          local mine = mw.strategy { name = "mine", passes = { late, mw.directives { name = "calm",
            { "stream", { axis = "tp" }, "model" } } } }
          plan { tp(2), mine } plan { tp(2), late } plan { tp(2) }"""
        mine, late, without = self.all("plan", self.write(SMALL + own))
        self.assertEqual([mine["plan"], late["plan"]], ["{ tp(2), mine() }", "{ tp(2), late() }"])
        self.assertEqual(len({mine["plan_hash"], late["plan_hash"], without["plan_hash"]}), 3)
        program = self.call("plan", "--program", self.folder / "script.lua").stdout
        self.assertIn(" on stream model", program)

    def test_what_is_wrong_with_the_table_is_said_where_it_stands(self):
        edit = "edit = function(code) end"
        cases = [
            (f'mw.pass {{ {edit} }}', "script.argument", "mw.pass"),
            ('mw.pass { name = "late" }', "option.missing", "edit = function"),
            (f'mw.pass {{ name = "late", segment = {{ "backward" }}, {edit} }}', "option.unknown", '"segments"'),
            (f'mw.pass {{ name = "late", segments = {{ "backwards" }}, {edit} }}', "option.value", '"backward"'),
            (f'mw.pass {{ name = "late", changes = "orders", {edit} }}', "option.choice", "order"),
            ('mw.pass "late"', "script.argument", "mw.pass"),
            ('mw.directives { { "ordr", { axis = "ep" } } }', "option.value", '"order"'),
            ('mw.directives { { "order", { axis = "ep" } } }', "option.value", "before"),
            ('mw.directives { { "order", { axes = "ep" }, before = { axis = "dp" } } }', "option.unknown", '"axis"'),
            ('mw.directives { { "stream", { axis = "ep" } } }', "option.value", "exchange"),
            ('mw.directives { { "budget", { axis = "ep" }, 0 } }', "option.value", "budget"),
            ('mw.directives { { "issue", { axis = "ep" }, ahead = 1 } }', "option.value", "layers_ahead"),
            ('mw.directives { { "reduce", { bucket = "*" }, after = "never" } }', "option.value", "chunk"),
            ('mw.directives { { "stream", {}, "exchange" } }', "option.missing", "axis"),
            ('mw.directives { { "budget", { move = "all-redcue", code = "start", optional = true }, 2 } }', "option.choice", '"all-reduce"'),
            ('mw.directives { { "order", { axis = "ep" }, before = { segment = "bakward" } } }', "option.choice", '"backward"'),
            ('mw.directives { { "stream", { code = {} }, "exchange" } }', "option.type", "code = "),
            ('mw.pass { name = "late", changes = "order", directives = { { "reduce", { bucket = "*" }, each = true } } }',
             "pass.changes", 'changes = "numerics"'),
        ]
        for (text, code, hint), (found, at, message, said) in zip(cases, self.first_problems(*(text for text, *_ in cases))):
            with self.subTest(text):
                self.assertEqual((found, at), (code, 0), message)
                self.assertIn(hint, said, message)

    def test_what_matches_nothing_is_refused_with_the_nearest(self):
        head = "local p = mw.%s\nplan { dp(2), tp(2), ep(2), p }"
        each = 'pass { name = "late", edit = function(code)\n  for i in code:each { %s } do i:hoist() end end }'
        cases = [
            ('directives { { "stream", { axis = "epp" }, "exchange" } }', 'did you mean "ep"', 0),
            ('directives { { "order", { axis = "ep" }, before = { phase = "gradient" } } }', '"gradients"', 0),
            ('directives { { "stream", { kind = "attention" }, "side" } }', "of the instructions that start a transfer, kind is one of", 0),
            ('directives { { "budget", { axis = "ep", phase = "gradients" }, 2 } }', "of the instructions that start a transfer, there are", 0),
            (each % 'code = "compute", axis = "ep"', "none is all of it", 1),
            (each % 'layer = 7', "layer is one of", 1),
        ]
        for (text, hint, line), (code, at, message, said) in zip(cases, self.first_problems(*(head % text for text, *_ in cases))):
            with self.subTest(text):
                self.assertEqual(code, "pass.matches", message)
                self.assertEqual(at, line, message)
                self.assertIn(hint, said, message)
                self.assertEqual("} and starts a transfer, and no" in message, '"stream"' in text or '"budget"' in text, message)
        for text, hint, line in ((each % 'axis = { "ep", "tpp" }', '"tp"', 1), (each % 'axis = "epp", optional = true', '"ep"', 1),
                                 (each.replace("hoist()", "hoist { over = { axis = 'epp' } }") % 'axis = "ep"', '"ep"', 1),
                                 ('directives { { "stream", { axis = { "ep", "modle" } }, "side" } }', '"model"', 0)):
            (code, at, message, said), = self.first_problems(head % text)
            self.assertIn(code, ("option.choice", "script.argument"), message)
            self.assertEqual(at, line, message)
            self.assertIn(hint, said, message)
        self.only("plan", self.write(SMALL + head % each % 'axis = { "ep", "cp", "zero" }'))
        self.only("plan", self.write(SMALL + head % each % 'axis = "rows", optional = true'))
        (code, at, message, said), = self.first_problems(head % each % 'code = "strat"')
        self.assertEqual((code, at), ("script.argument", 1), message)
        self.assertIn('"start"', said, message)

    def test_a_bucket_has_the_names_of_the_axes_that_it_is_summed_over(self):
        """And not only of the one that has borrowed them, or more; one that is summed over none has no name."""
        reduce = 'mw.directives { name = "r", { "reduce", { bucket = "*", axis = "%s" }, each = true } }'
        script = SMALL.replace("experts = 4", "experts = 8")
        for plan in ("dp(2), sp(2), ep(4)", "dp(2), sp(2), tp(2), ep(8)"):
            for axis in ("dp", "cp", "sequence"):
                shown = self.call("plan", self.write(script + f"local sp = mw.plugins('sp') plan {{ {plan}, {reduce % axis} }}"))
                self.assertEqual(shown.returncode, 0, f"{plan} {axis} {shown.stderr}")
                self.assertRegex(shown.stdout, r"reduce: [1-9]\d* of [1-9]", f"{plan} {axis}")
        (code, *_), = self.first_problems(f"plan {{ dp(2), ep(2), tp(2), {reduce % 'tp'} }}")
        self.assertEqual(code, "pass.matches")

    def test_what_dataflow_forbids_names_both(self):
        edit = 'local p = mw.pass { name = "p", segments = { "forward" }, edit = function(code)\n  %s end }\nplan { tp(2), p }'
        cases = [
            ('local a, b = code:list { code = "start" }[1], code:list { code = "wait" }[1] b:before(a)',
             r"wait of .* cannot stand before start .*, on which it depends"),
            ('local all = code:list { code = "compute" } all[1]:after(all[#all])',
             r"forward of .* cannot stand before forward of"),
            ('local a = code:list { code = "compute" }[1] a:before(a)', "before itself"),
            ('code:list { code = "compute" }[1]:stream(3)', "a stream has a name"),
            ('code:list { code = "compute" }[1]:before(3.5)', "takes an instruction"),
            ('local i = code:list { code = "compute" }[1] print(i.lair)', "no field lair"),
            ('for i in code:each { code = "compute" } do i:hoist { past = 3 } end', "takes `over`"),
            ('for i in code:each { cod = "compute" } do end', "has no cod"),
            ('for i in code:each { bytes = { atleast = 1 } } do end', "a range has no atleast"),
            ('kept = code', None),
        ]
        found = self.first_problems(*(edit % text for text, words in cases if words))
        for (text, words), (_, at, message, _) in zip(cases, found):
            with self.subTest(text):
                self.assertRegex(message, words)
                self.assertEqual(at, 1, message)
        kept = SMALL + edit % "kept = code" + "\nkept:list { code = 'start' }\n"
        done = self.call("plan", self.write(kept))
        self.assertEqual(done.returncode, 2)
        self.assertIn("only while its function `edit` runs", done.stderr)

    def test_what_changes_nothing_says_why(self):
        late = 'mw.pass { name = "late", segments = { "forward" }, edit = function(code) %s end }'
        cases = [
            ("tp(2)", late % 'for i in code:each { code = "start" } do i:hoist { by = 0 } end', "hoist changes none of .* (is to move by 0 places|is the first of its segment)"),
            ("tp(2)", late % 'local w = code:list { code = "wait" }[1] w:hoist { over = { code = "start" } }',
             "hoist changes none of 1 instruction, because wait .* cannot stand before start .*, on which it depends"),
            ("tp(2)", late % 'local a = code:list { code = "compute" } a[1]:before(a[2])', "before changes none of .* stand so already"),
            ("dp { 2, overlap = false }", 'mw.directives { name = "d", { "reduce", { bucket = "*" }, after = "step" } }',
             "reduce changes none of .*, because of bucket 0, it is reduced at the end of the step already"),
            ("zero { 2, stage = 2 }", 'mw.directives { name = "d", { "reduce", { bucket = "*" }, after = "step" } }',
             "reduce changes none of .* kept in shards"),
            ("pp(2), mw.strategy { name = 'across', axis = { role = 'data' }, rules = { 'batch' }, overlap = true }(2), zero { 2, stage = 1 }",
             'mw.directives { name = "d", { "reduce", { bucket = "*" }, after = "gradients" } }',
             "reduce changes none of .* already; the sums over zero alone are begun there; those of their shards .* at the end of the step"),
        ]
        self.write(SMALL + "".join(f"print(plan {{ {plan}, {verb} }})\n" for plan, verb, _ in cases))
        done = self.call("plan", self.folder / "script.lua")
        self.assertEqual(done.returncode, 0, done.stderr)
        notes = [note for note in re.findall(r"(?m)^  note +(.*(?:\n {8,}.*)*)", done.stdout) if "changes" in note]
        self.assertEqual(len(notes), len(cases), done.stdout)
        for (_, verb, words), note in zip(cases, notes):
            with self.subTest(verb):
                self.assertRegex(" ".join(note.split()), words)

    def test_transfers_of_a_stream_take_the_order_of_a_pass(self):
        """Smallest first, on the groups' own streams and on a named one: proved, and equal to one rank."""
        verify = ""
        for stream in ("", 's:stream "background"'):
            verify += f"""e.plan = {{ pp {{ 2, schedule = "1f1b" }}, dp {{ 2, bucket = "2KiB", overlap = false }}, tp(2), mw.pass {{
              name = "small first", segments = {{ "reduce" }}, edit = function(code)
                local list = code:list {{ code = "start", axis = "dp" }}
                for _, s in ipairs(list) do {stream} end
                local moved = 0
                table.sort(list, function(a, b) return a.bytes < b.bytes end)
                for i = 2, #list do moved = moved + list[i]:after(list[i - 1]) end
                assert(#list > 2 and moved > 0)
                local now = code:list {{ code = "start", axis = "dp" }}
                for i = 2, #now do assert(now[i - 1].bytes <= now[i].bytes) end
              end }} }} mw.verify(e)\n"""
        self.assertEqual(len(self.verify_all(SMALL + verify)), 2)
        rows = """plan { dp(2), ep(2), mw.pass { name = "p", segments = { "forward" }, edit = function(code)
          local list = code:list { code = "start", axis = "ep" } list[#list]:before(list[1]) end } }"""
        (code, _, message, _), = self.first_problems(rows)
        self.assertEqual(code, "pass.order")
        self.assertRegex(message, "exchanges of rows keep their order|on which it depends")

    def test_a_send_goes_on_no_stream(self):
        text = 'plan { pp { 2, schedule = "1f1b" }, mw.directives { { "stream", { axis = "pp" }, "between" } } }'
        (code, _, message, _), = self.first_problems(text)
        self.assertEqual(code, "pass.stream")
        self.assertIn("a transfer between stages", message)

    def test_diff_shows_what_a_pass_changes(self):
        script = self.write(SMALL + f"plan {{ {VERBS[0][0]}, {VERBS[0][1]} }}")
        shown = self.call("plan", "--diff", "late weights", script)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        text = shown.stdout[shown.stdout.index("the pass"):]
        self.assertRegex(text, r"before +proved\n +after +proved")
        taken, put = (sorted(line[1:] for line in text.splitlines() if re.match(rf"[{side}]  \w", line)) for side in "-+")
        self.assertTrue(taken)
        self.assertEqual(taken, put)  # the same instructions, in other places
        result = self.only("plan", "--diff", "late weights", script)["pass"]
        self.assertTrue(result["proved"] and result["proved_before"])
        self.assertEqual(result["before"]["sent_bytes"], result["after"]["sent_bytes"])
        self.assertNotEqual(result["before"]["plan_hash"], result["after"]["plan_hash"])
        wrong = self.call("plan", "--diff", "late weigths", script)
        self.assertEqual(wrong.returncode, 3)
        self.assertIn('did you mean "late weights"', wrong.stderr)

    def test_by_strategy_adds_them_up(self):
        script = self.write(SMALL + "plan { dp(2), tp(2), ep(2) }")
        rows = self.only("plan", "--by-strategy", script)["by_strategy"]
        self.assertEqual([row["added"] for row in rows], ["one rank", "dp", "tp", "ep"])
        self.assertEqual([row["ranks"] for row in rows], [1, 2, 4, 4])
        self.assertEqual(rows[0]["sent_bytes"], 0)
        whole = self.only("plan", script)
        self.assertEqual(rows[-1]["plan_hash"], whole["plan_hash"])
        text = self.call("plan", "--by-strategy", script).stdout
        self.assertRegex(text, r"\+ dp: 2 ranks, sends .*\n +\+\d+ all-reduce on dp, ")


if __name__ == "__main__":
    unittest.main()
