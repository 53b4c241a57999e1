"""What the program says, and with which exit code, where there is little to say or much to
explain."""

import json
import os
import stat
import unittest

import h5py

import loaded
from cases import BIN, ProgramCase
from problems import problems

# %s: more keys; the later of two equal ones counts.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp, zero, pp = mw.plugins("dp", "tp", "zero", "pp")
local e = {
  model = mw.llama { layers = 2, hidden = 24, heads = 4, kv_heads = 2, ffn = 36, vocab = 97 },
  data = mw.synthetic { seed = 1, sequence = 24 }, plan = { dp(2), tp(2) }, batch = 8,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 3, timeout = 60,
}
%s
mw.train(e)
"""


class Words(ProgramCase):
    def call(self, *arguments, stdin=None, text=True):
        done = loaded.run([BIN, *arguments], cwd=self.folder, input=stdin, text=text, timeout=300)
        self.said = done.stderr
        return done

    def script(self, text, name="script.lua"):
        (self.folder / name).write_text(text)
        return name

    def results(self, verb, changes="", code=0, arguments=()):
        done = self.call(verb, self.script(SCRIPT % changes), "--json", *arguments)
        self.assertEqual(done.returncode, code, done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines()]

    # --- names and values ---

    def test_forms_of_a_choice_and_of_a_value_without_a_name(self):
        """A choice is a name, a table that begins with it, or one of its kind; a value stands in a table or alone."""
        forms = ('schedule = "zb-h1"', 'schedule = { "zb-h1" }', 'schedule = { kind = "zb-h1" }'), \
                ('schedule = { "1f1b", pair = true }', 'schedule = { kind = "1f1b", pair = true }'), \
                ('weave = { "switch", axes = { "dp" } }, schedule = { "1f1b", pair = true }',
                 'weave = mw.weave.switch { axes = { "dp" } }, schedule = { kind = "1f1b", pair = true }')
        for same in forms:
            changes = "\n".join(f"e.plan = {{ dp(2), pp {{ 2, {form} }} }} mw.plan(e)" for form in same) + "\ne.steps = 1"
            results = self.results("plan", changes)
            with self.subTest(same):
                self.assertEqual(len({result["plan_hash"] for result in results[:-1]}), 1)
                self.assertEqual(len({result["plan"] for result in results[1:-1]}), 1)
        experiment = ('recompute = "full"', 'recompute = { "full" }', 'recompute = { every = 1 }', 'recompute = { what = "full", by_stage = true }'), \
                     ('recompute = { "full", collectives = "keep" }', 'recompute = { what = "full", collectives = "keep" }',
                      'recompute = { every = 1, collectives = "keep" }'), \
                     ('check = "replicas"', 'check = { "replicas" }', 'check = { what = "replicas", every = 10 }'), \
                     ('offload = "full"', 'offload = { "full" }'), \
                     ('schedule = "cosine"', 'schedule = { "cosine" }', 'schedule = mw.cosine { warmup = 0, total = 3 }'), \
                     ('precision = "fp16" e.loss_scale = "dynamic"', 'loss_scale = nil', 'loss_scale = { growth = 2 }'), \
                     ('loss_scale = nil e.precision = "fp32" e.microbatch = mw.microbatch.ramp { from = 4, steps = 2 }',
                      'microbatch = { "ramp", from = 4, steps = 2 }', 'microbatch = { kind = "ramp", from = 4.0, steps = 2 }'), \
                     ('data = mw.text { "t.txt", sequence = 24 }', 'data = mw.text { "./t.txt", sequence = 24 }',
                      f'data = mw.text {{ "{self.folder}/t.txt", sequence = 24 }}')
        (self.folder / "t.txt").write_text("a text " * 99)
        for same in experiment:
            with self.subTest(same):
                head = "e.model = mw.llama { layers = 2, hidden = 24, heads = 4, kv_heads = 2, ffn = 36, vocab = 256 } e.plan = { dp(2) }\n"
                results = self.results("plan", head + "\n".join(f"e.{form} mw.plan(e)" for form in same))
                self.assertEqual(len({result["plan_hash"] for result in results}), 1)
                self.assertEqual(len({result["hash"] for result in results}), 1)
        hooks = ('{ "powersgd", rank = 2 }', '{ "powersgd", 2 }', '{ kind = "powersgd", rank = 2 }')
        results = self.results("plan", "\n".join(f"e.plan = {{ dp {{ 4, hook = {hook} }} }} mw.plan(e)" for hook in hooks))
        self.assertEqual(len({result["plan_hash"] for result in results}), 1)

    def test_what_is_wrong_with_a_choice_shows_no_inner_key(self):
        for plan, said in (("pp { 2, schedule = { 2, pair = true } }", "got { 2, pair = true }"),
                           ("pp { 2, weave = { 2, axes = {} } }", "got a table"),
                           ("dp { 4, hook = { 2, rank = 3 } }", "got { 2, rank = 3 }"),
                           ('pp { 2, schedule = { "interleavd", pair = true } }', 'did you mean "interleaved"?'),
                           ('pp { 2, schedule = { "1f1b", 3 } }', "named options"),
                           ('pp { 2, schedule = { "1f1b", "gpipe" } }', 'it is one scheduler write "1f1b" or "gpipe"')):
            with self.subTest(plan):
                self.call("plan", self.script(SCRIPT % f"e.plan = {{ {plan} }}"))
                self.assertIn(said, " ".join(self.said.split()))
                self.assertNotIn("$", self.said)

    def test_a_choice_without_options_takes_none(self):
        for choice in ('{ "full", "none" }', '{ "none", 3 }'):
            with self.subTest(choice):
                self.call("plan", self.script(SCRIPT % f"e.recompute = {choice}"))
                self.assertIn("takes no options; got {", self.said)

    def test_words_of_the_field_are_understood(self):
        for given, said in (('mw.plugins("fsdp")', "fsdp is zero { N, stage = 3 }"), ('mw.plugins("cp")', 'sp { N, form = "ring" }'),
                            ('mw.plugins("ddp")', "ddp is dp(N)"), ("e.gradient_checkpointing = true", 'did you mean "recompute"?'),
                            ("e.learning_rate = 1", "learning_rate is a key of the optimizer"), ("e.clip = 1", "is a key of the optimizer"),
                            ("e.plan = { pp { 2, schedule = 'fill-drain' } }", 'did you mean "gpipe"?'),
                            ("e.optimizer = mw.adam { lr = 1 }", 'did you mean "adamw"?'),
                            ("e.optimizer = mw.adamw { learning_rate = 1 }", 'did you mean "lr"?'),
                            ("e.optimizer = mw.adamw { lerning_rate = 1 }", 'did you mean "lr"?'),
                            ("e.model = mw.llama { hidden_sise = 8 }", 'did you mean "hidden"?'),
                            ("e.schedule = 'cosin'", 'did you mean "cosine"?'), ("e.schedule = { 'linear' }", "constant, cosine"),
                            ("e.recompute = 'selektive'", 'did you mean "selective"?'), ("e.offload = { 'ful' }", 'did you mean "full"?'),
                            ("e.offload = { 'full', 3 }", "takes no options")):
            with self.subTest(given):
                self.call("plan", self.script(SCRIPT % given))
                self.assertIn(said, self.said)

    # --- verify ---

    def test_verify_of_a_training_that_becomes_nan(self):
        # Rows of tokens that no sample has: 0 / 0 in the first update, on one rank too.
        result, = self.results("verify", "e.optimizer = mw.adamw { lr = 1e-3, eps = 0 }", code=1)
        self.assertEqual(result["verdict"], "undecided")
        self.assertLess(max(result["max_relative_error"].values()), 1e-10)
        self.assertIsNone(result["first_divergence"])
        self.assertIn("embedding.weight after the update of step 0 is NaN or Inf, on one rank as in the mix", result["note"])
        self.assertIn("no proof", result["note"])
        self.assertIn("NO VERDICT", self.said)
        self.assertNotIn("DIFFERS", self.said)
        self.assertEqual(result["steps"], 1)

    def test_verify_of_a_training_that_diverges(self):
        result, = self.results("verify", "e.optimizer = mw.sgd { lr = 1e200 }", code=1)
        self.assertEqual(result["verdict"], "undecided")
        self.assertRegex(result["note"], "the (loss|gradient norm) of step 1 is NaN or Inf")
        self.assertIn("all before agrees", result["note"])

    def test_verify_where_the_optimizer_magnifies_rounding(self):
        # Steps so large that what one of them rounds is another training.
        result, = self.results("verify", "e.optimizer = mw.adamw { lr = 10, eps = 1e-300 }")
        self.assertEqual((result["verdict"], result["steps"]), ("equal", 3))
        self.assertLess(max(result["max_relative_error"].values()), 1e-10)
        self.assertIn("the optimizer magnifies rounding", result["note"])
        self.assertIn("each step by itself", self.said)

    def test_verify_says_what_agreed_where_it_differs(self):
        result, = self.results("verify", "e.optimizer = mw.sgd { lr = 1e3 }", code=1)
        self.assertEqual(result["verdict"], "different")
        self.assertIn("every gradient of the first step agree", result["note"])
        self.assertRegex(result["note"], r"all updates before step [12]; its gradients part by")

    def test_verify_makes_no_more_steps_than_there_are(self):
        for steps, made in ((1, 1), (2, 2), (50, 3)):
            changes = f"e.steps = {steps} e.schedule = function(s) assert(s < {steps}) return 1e-3 end"
            result, = self.results("verify", changes)
            self.assertEqual((result["verdict"], result["steps"]), ("equal", made))
            self.assertIn(f"after {made} step", self.said)

    def test_compare_names_a_lossy_hook(self):
        a, b = self.script(SCRIPT % "", "a.lua"), self.script(SCRIPT % "e.plan = { dp { 4, hook = 'bf16' } }", "b.lua")
        done = self.call("compare", a, b, "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        result, = [json.loads(line) for line in done.stdout.splitlines() if "verdict" in line]
        self.assertEqual(result["verdict"], "different")
        self.assertIn("the hook bf16 of b sends less than the gradients, by choice; all agrees up to", result["note"])
        self.assertIn(result["note"], done.stderr)
        done = self.call("compare", a, a, "--json")
        self.assertIsNone(json.loads(done.stdout.splitlines()[-1])["note"])

    # --- Scripts that ask for nothing, and where they come from ---

    def test_what_is_no_file_is_not_waited_for(self):
        """Named pipes that nobody writes to, and devices without an end, wherever a file is meant."""
        os.mkfifo(self.folder / "pipe")
        os.mkfifo(self.folder / "pipe.lua")
        run = SCRIPT % ""
        cases = ((("run", "pipe.lua"), "script.unreadable"), (("run", "/dev/full"), "script.unreadable"),
                 (("schedule", "pipe"), "file.read"), (("schedule", "/dev/zero"), "file.read"),
                 (("calibrate", "--from", "pipe", "-o", "mine.lua", "--cluster", "dgx-h100"), "calibration.log --from"),
                 (("calibrate", "--from", "/dev/zero", "-o", "mine.lua", "--cluster", "dgx-h100"), "calibration.log --from"),
                 (("run", self.script(run.replace("mw.train(e)", "e.weights = 'pipe' mw.train(e)"), "w.lua")), "file.read weights"),
                 (("run", self.script(run.replace("mw.train(e)", "e.data = mw.text { 'pipe', sequence = 24 } mw.train(e)"), "t.lua")), "file.read data.path"),
                 (("run", self.script(run.replace("mw.train(e)", "e.data = mw.shards { 'pipe', sequence = 24 } mw.train(e)"), "s.lua")), "file.read data.path"),
                 (("plan", self.script(run, "c.lua"), "--cluster", "./pipe.lua"), None),
                 (("run", self.script("dofile 'pipe.lua'", "d.lua")), None),
                 (("run", self.script("require 'pipe'", "r.lua")), None), (("runs", "show", "pipe"), "runs.unreadable"),
                 (("trace", "pipe"), "file.read"), (("run", self.script("package.searchpath('pipe', './?.lua') dofile(package.searchpath('pipe', './?.lua'))", "p.lua")), None),
                 (("run", self.script("package.cpath = './?' require 'pipe'", "q.lua")), None))
        for command, problem in cases:
            with self.subTest(command):
                done = self.call(*command, "--json")
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertIn("pipe" if "pipe" in done.stdout else "device", done.stdout)
                if problem is not None:
                    self.assertEqual(problems(self.lines(done)), [problem])
        (self.folder / "null").symlink_to("/dev/null")
        for target in ("pipe", "/dev/null", "null"):
            done = self.call("logits", self.script(run, "l.lua"), "-o", target, "--json")
            self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["file.write"]), done.stderr)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.folder / "pipe").st_mode))

    def test_commands_that_nobody_types_are_not_proposed(self):
        for word in ("help", "cel"):
            done = self.call(word)
            self.assertEqual(done.returncode, 2)
            self.assertNotIn("cell", done.stderr)

    def test_scripts_without_a_result(self):
        nothing = self.script('print "hello"', "nothing.lua")
        done = self.call("run", nothing)
        self.assertEqual((done.returncode, done.stdout), (0, "hello\n"))
        self.assertIn("nothing was trained", done.stderr)
        for verb in ("plan", "verify"):
            done = self.call(verb, nothing, "--json")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(problems([json.loads(done.stdout)]), ["script.no-verb"])
        # A verb that failed in a pcall of the script's own was called.
        caught = self.script((SCRIPT % "e.steps = 0").replace("mw.train(e)", "pcall(mw.train, e)\npcall(mw.train, e)"), "caught.lua")
        done = self.call("run", caught)
        self.assertEqual(done.returncode, 0)
        self.assertIn("mw.train was called 2 times and failed", done.stderr)
        for verb in ("plan", "verify"):
            done = self.call(verb, caught, "--json")
            self.assertEqual((done.returncode, problems([json.loads(done.stdout)])), (2, ["script.caught"]))
        swept = self.script("pcall(require('meshwright').sweep, {})", "swept.lua")
        done = self.call("sweep", swept, "--json")
        self.assertEqual((done.returncode, problems([json.loads(done.stdout)])), (2, ["script.caught"]))
        planned = self.script((SCRIPT % "").replace("mw.train", "mw.plan"), "planned.lua")
        for verb, code in (("run", 0), ("plan", 0), ("verify", 2)):
            done = self.call(verb, planned)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertNotIn("nothing was trained", done.stderr)

    def test_scripts_from_a_pipe(self):
        text = "#!/usr/bin/env meshwright\n" + SCRIPT % 'e.log = "a.h5"'
        for name in ("-", "/dev/stdin"):
            done = self.call("run", name, "--json", stdin=text)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["status"], "done")
            with h5py.File(self.folder / "a.h5") as f:
                self.assertEqual(f["script"].asstr()[()], text)
        done = self.call("run", "-", "--json", stdin="\n\nlocal x = nothing.there\n")
        self.assertEqual(done.returncode, 2)
        error = json.loads(done.stdout)
        self.assertEqual((error["code"], error["file"], error["line"]), ("script.error", "stdin", 3))
        for missing in ("there-is-none.lua", "."):
            self.assertEqual(self.call("run", missing).returncode, 2)

    def test_compiled_lua_is_refused(self):
        (self.folder / "m.lua").write_text("return 7")
        done = self.call("run", self.script("""
            local code = string.dump(function() return 1 end)
            local function refused(ok, why)
              assert(not ok and tostring(why):find("binary chunk"), tostring(why))
            end
            refused(load(code))
            refused(load(code, "name", "b"))
            refused(load(code, "name", "bt", {}))
            local file = io.open("compiled.lua", "wb"); file:write(code); file:close()
            refused(loadfile "compiled.lua")
            refused(loadfile("compiled.lua", "b"))
            refused(pcall(dofile, "compiled.lua"))
            refused(pcall(require, "compiled"))
            -- Text goes on as before.
            assert(load("return ...", "name", "t")(3) == 3 and load("return x", "name", nil, { x = 4 })() == 4)
            assert(load("return x", "name", "t", nil) and not load("x x"))
            assert(require "m" == 7 and dofile "m.lua" == 7 and loadfile("m.lua")() == 7)
            local parts = { "return ", "5" }
            assert(load(function() return table.remove(parts, 1) end)() == 5)
            assert(select(2, pcall(require, "nowhere")):find("nowhere"))
            """))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.call("run", "compiled.lua", "--json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(problems([json.loads(done.stdout)]), ["script.unreadable"])

    # --- Exit codes and hints ---

    def test_functions_that_fail_at_once_are_the_script_s_error(self):
        for change in ('e.schedule = function(step) error("no") end', 'e.microbatch = function(step) error("no") end',
                       'e.plan = { pp { 2, schedule = function(s) error("no") end } }',
                       'e.recompute = function(op) error("no") end', 'e.plan = { dp { 2, hook = function() error("no") end } }',
                       'e.precision = "fp16" e.loss_scale = function() error("no") end',
                       'e.plan = { pp { 2, schedule = function(s) return 7 end } }',
                       "e.schedule = function(step) return -1 end", "e.microbatch = function(step) return -1 end"):
            with self.subTest(change=change):
                done = self.call("run", self.script(SCRIPT % (change + ' e.log = "a.h5"')), "--json")
                wanted = 3 if "return 7" in change else 2
                self.assertEqual(done.returncode, wanted, done.stderr)
                error = json.loads(done.stdout)
                self.assertEqual(problems([error])[0].split()[0], "script.error" if "error" in change else "function.result")
                self.assertEqual(error["line"], 8 if "error" in change or "7" in change else 9)
                self.assertFalse((self.folder / "a.h5").exists())

    def test_replicas_that_do_not_divide(self):
        for ways, replicas, hint in ((2, 3, "nearest: replicas = 2"), (6, 4, "nearest: replicas = 3 or 6"),
                                     (4, 2**20, "nearest: replicas = 4")):
            error, = self.results("plan", f"e.plan = {{ zero {{ {ways}, replicas = {replicas} }} }} e.batch = 12", code=2)
            self.assertEqual((problems([error]), error["hint"]), (["option.divides plan[1].replicas"], hint))

    def test_whole_gradients_are_not_reduced_by_chunk(self):
        error, = self.results("plan", 'e.plan = { zero { 2, stage = 1, reduce = "chunk" } }', code=2)
        self.assertEqual(problems([error]), ["option.conflict plan[1].reduce"])

    def test_the_command_that_a_hint_names_is_there(self):
        done = self.call("plugins", "show")
        self.assertEqual(done.returncode, 2)
        self.assertIn("see meshwright plugins show --help", done.stderr)
        self.assertEqual(self.call("plugins", "show", "--help").returncode, 0)

    # --- Files ---

    def test_names_that_are_no_utf8(self):
        self.results("run", 'e.log = "a.h5"')
        name = b"run-\xff.h5"
        os.rename(self.folder / "a.h5", os.path.join(os.fsencode(self.folder), name))
        done = self.call("trace", name, "-o", b"new/t-\xff.json", "--svg", b"new/er/t-\xff.svg", "--json", text=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["run"], "run-\ufffd.h5")
        trace = os.path.join(os.fsencode(self.folder), b"new/t-\xff.json")
        with open(trace, "rb") as file:
            self.assertEqual(json.load(file)["otherData"]["run"], "run-\ufffd.h5")
        done = self.call("trace", b"none-\xff.h5", "-o", "t.json", "--json", text=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("none-\ufffd.h5", json.loads(done.stdout)["message"])
        done = self.call("plan", self.script(SCRIPT % 'e.plan = { dp { 2, hook = "\\xff" } }'), "--json", text=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(r'"\xff"', json.loads(done.stdout)["message"])
        done = self.call("run", self.script(SCRIPT % 'e.log = "log-\\xff.h5"'), "--json", text=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["log"], "log-\ufffd.h5")

    def test_a_chart_makes_its_folder(self):
        chart = 'require("meshwright").bar_chart { file = "%s", series = { "a" }, bars = { { "x", 1 } } }'
        done = self.call("run", self.script(chart % "new/er/chart.html"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("meshwright.page/1", (self.folder / "new/er/chart.html").read_text())
        done = self.call("run", self.script(chart % "script.lua/chart.html"), "--json")
        self.assertEqual(done.returncode, 2)
        error = json.loads(done.stdout)
        self.assertEqual((problems([error]), error["line"]), (["file.write"], 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
