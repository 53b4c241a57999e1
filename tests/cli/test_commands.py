"""The program from outside: exit codes, JSON lines, what bad input leads to, signals."""
import json
import signal
import subprocess
import textwrap
import unittest

from cases import BIN, SOURCE, TEST_PLUGINS, ProgramCase
from problems import problems

# A small experiment; %s takes more keys, the later of two equal keys counts.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
local e = {
  model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 },
  data = mw.text { "text.txt", sequence = 16 },
  plan = { dp(2), tp(2) },
  batch = 4,
  optimizer = mw.adamw { lr = 1e-2 },
  steps = 3,
}
%s
local run = mw.train(e)
print(run)
"""


class Commands(ProgramCase):
    def setUp(self):
        super().setUp()
        (self.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)

    def script(self, changes="", text=SCRIPT):
        path = self.folder / "script.lua"
        path.write_text(text % changes if "%s" in text else text)
        return path

    def refused(self, changes, code, *wanted, arguments=()):
        """Refused with these problems, and nothing is left behind."""
        changes += '\ne.log = "runs/refused.h5"'
        done = self.call("run", "--json", self.script(changes), *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        errors = self.lines(done)
        self.assertEqual(problems(errors), list(wanted))
        for line in errors:
            self.assertIn(line["stage"], ("script", "options", "plan"))
            self.assertIn(line["message"], done.stderr)
        self.assertFalse((self.folder / "runs").exists(), "something was written")
        return errors

    # --- Results ---

    def test_run_prints_results_as_json_lines(self):
        done = self.call("run", self.script('e.log = "runs/a.h5"'), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        (run,) = self.lines(done)
        self.assertEqual((run["kind"], run["status"], run["ranks"], run["steps"]), ("train", "done", 4, 3))
        self.assertEqual(len(run["losses"]), 3)
        self.assertEqual(len(run["grad_norms"]), 3)
        self.assertLess(run["losses"][-1], run["losses"][0])
        for key in ("plan", "plan_hash", "step_seconds", "tokens_per_second", "cpu_seconds_per_step", "mfu",
                    "startup_seconds", "peak_bytes", "memory", "communication", "bubble_fraction",
                    "predicted", "log"):
            self.assertIn(key, run)
        self.assertTrue((self.folder / "runs/a.h5").exists())
        self.assertIn("4 ranks", done.stderr)  # what the script printed

    def test_measured_bytes_are_those_predicted(self):
        (run,) = self.lines(self.call("run", self.script(), "--json"))
        def key(c):
            return (c["axis"], c["op"], c["phase"], c["calls"], c["bytes"])
        self.assertEqual(sorted(map(key, run["communication"])),
                         sorted(map(key, run["predicted"]["communication"])))
        self.assertTrue(run["communication"])
        for category in ("parameters", "gradients", "optimizer"):
            self.assertEqual(run["memory"][category], run["predicted"]["memory"][0][category])

    def test_run_prints_for_people(self):
        done = self.call("run", self.script())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("measured", done.stdout)
        self.assertNotIn("\033", done.stdout + done.stderr)
        self.assertNotIn('{"', done.stdout)

    def test_what_a_script_does_not_print_is_printed(self):
        printed = self.call("plan", self.script())
        silent = self.call("plan", self.script(text=SCRIPT.replace("print(run)", "")))
        self.assertEqual(printed.stdout, silent.stdout)
        self.assertEqual(printed.stdout.count("\n  batch "), 1)

    def test_plan_and_verify_turn_training(self):
        plan, = self.lines(self.call("plan", self.script('e.log = "runs/no.h5"'), "--json"))
        self.assertEqual((plan["kind"], plan["ranks"]), ("plan", 4))
        for key in ("parameters", "flops_per_step", "hardware_flops_per_step", "memory", "communication",
                    "step_seconds", "compute_seconds", "bubble_fraction", "tokens_per_second_per_device",
                    "mfu", "mfu_6n", "hfu", "fits"):
            self.assertIn(key, plan)
        self.assertFalse((self.folder / "runs").exists())
        done = self.call("verify", self.script(), "--json")
        verify, = self.lines(done)
        self.assertEqual(done.returncode, 0)
        self.assertEqual((verify["verdict"], verify["precision"]), ("equal", "fp64"))
        self.assertLessEqual(max(verify["max_relative_error"].values()), 1e-10)
        self.assertIsNone(verify["first_divergence"])

    def test_set_is_echoed_and_obeyed(self):
        done = self.call("run", self.script(), "--json", "--set", "steps=2", "--set", "plan={tp(2)}",
                         "--set", "optimizer.lr=1e-3")
        run, = self.lines(done)
        self.assertEqual((run["steps"], run["ranks"]), (2, 2))
        self.assertIn("--set steps = 2 (was 3)", done.stderr)
        self.assertIn("--set optimizer.lr = 0.001 (was 0.01)", done.stderr)

    def test_functions_of_the_script_are_called(self):
        done = self.call("run", "--json", self.script(textwrap.dedent("""
            e.log = "a.h5"
            e.schedule = function(step) return 1e-2 / (step + 1) end
            e.observe = function(step) io.stderr:write("seen ", step, "\\n") return { twice = 2 * step } end""")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("seen 2", done.stderr)
        failing = self.call("run", "--json", self.script("e.observe = function(step) return nothing.there end"))
        self.assertEqual(failing.returncode, 1, failing.stderr)
        run, error = self.lines(failing)
        self.assertEqual((run["kind"], run["status"], error["stage"]), ("train", "failed", "run"))
        self.assertEqual((error["code"], error["line"]), ("script.error", 11))

    def test_functions_that_fail_fail_the_run(self):
        # At the first step a schedule is the script's error (test_words.py).
        for change, problem in (('e.schedule = function(step) if step > 0 then error("no rate") end return 1 end',
                                 "script.error"),
                                ("e.schedule = function(step) return -step end", "function.result schedule"),
                                ('e.observe = function(step) return { loss = "low" } end', "function.result observe"),
                                ("e.observe = function(step) return 3 end", "function.result observe")):
            with self.subTest(change=change):
                done = self.call("run", "--json", self.script(change))
                self.assertEqual(done.returncode, 1, done.stderr)
                run, error = self.lines(done)
                self.assertEqual((run["status"], error["stage"]), ("failed", "run"))
                self.assertEqual(problems([error]), [problem])

    def test_a_schedule_with_a_state_is_asked_once_a_step(self):
        done = self.call("run", "--json", self.script(textwrap.dedent("""
            local calls = 0
            e.schedule = function(step) calls = calls + 1 return 1e-3 * calls end
            e.observe = function(step) io.stderr:write(string.format("%d calls\\n", calls)) end""")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 calls", done.stderr)
        self.assertNotIn("4 calls", done.stderr)

    def test_a_run_file_that_cannot_be_closed_hides_nothing(self):
        done = self.call("run", "--json", self.script(
            'e.log = "runs/a.h5"\n'
            'e.observe = function() os.execute("rm -r runs && touch runs") error("that is enough") end'))
        self.assertEqual(done.returncode, 1, done.stderr)
        run, error = self.lines(done)
        self.assertEqual((run["kind"], run["status"], len(run["losses"])), ("train", "failed", 1))
        self.assertEqual((error["code"], error["line"]), ("script.error", 12))
        self.assertIn("could not be closed", done.stderr)

    def test_a_run_shorter_than_its_warm_up(self):
        done = self.call("run", "--json", self.script("e.schedule = mw.cosine { warmup = 10 }"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_refused_value_of_what_has_a_default(self):
        self.refused('e.precision = "fp8"', 2, "option.choice precision")
        self.refused("e.threads = -1", 2, "option.range threads")

    def test_a_limit_of_openmp(self):
        """oneDNN's products in bf16 leave out the work of threads that they do not get: NaN, where nobody keeps the limit."""
        done = self.call("run", "--json", self.script('e.precision = "bf16" e.plan = {}'), OMP_THREAD_LIMIT="1")
        self.assertEqual((done.returncode, self.lines(done)[0]["status"]), (0, "done"), done.stderr)
        done = self.call("plan", "--json", self.script("e.threads = 2"), OMP_THREAD_LIMIT="1")
        self.assertEqual((done.returncode, self.lines(done)[0]["key"]), (2, "threads"), done.stderr)
        self.assertIn("write threads = 1", done.stderr)

    # --- Refusals ---

    def test_unknown_key(self):
        for change, problem, line in (("e.optimiser = 3", "option.unknown optimiser", 13),
                                      ("e.model.heds = 4", "option.unknown model.heds", 4)):
            error, = self.refused(change, 2, problem)
            self.assertEqual((error["file"], error["line"]), (str(self.folder / "script.lua"), line))

    def test_wrong_type(self):
        self.refused('e.steps = "many"', 2, "option.type steps")
        self.refused("e.model = 3", 2, "option.type model")

    def test_heads_that_do_not_divide(self):
        error, = self.refused("e.plan = { tp(3) }", 3, "axis.cannot-split plan[1].ways")
        self.assertEqual((error["stage"], error["hint"]), ("plan", "nearest: tp(2), tp(4)"))

    def test_ways_beyond_all_machines(self):
        for ways in (0, 2**20 + 1, 2**32 + 2, 2**62):
            self.refused(f"e.plan = {{ dp({ways}) }}", 2, "option.range plan[1].ways")
            self.refused(f"e.plan = {{ tp({ways}) }}", 2, "option.range plan[1].ways")
        errors = self.refused("e.plan = { dp(65536), tp(65536) }", 3, "plan.ranks plan")
        self.assertEqual(errors[0]["stage"], "plan")

    def test_more_ranks_than_threads_are_planned_not_trained(self):
        change = "e.model.heads = 16 e.plan = { dp(64), tp(16) } e.batch = 64"
        self.refused(change, 3, "plan.ranks plan")
        planned, = self.lines(self.call("plan", "--json", self.script(change)))
        self.assertEqual(planned["ranks"], 1024)
        done = self.call("verify", "--json", self.script(change))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(problems(self.lines(done)), ["plan.ranks plan"])

    def test_batch_that_does_not_divide(self):
        self.refused("e.batch = 5", 3, "batch.uneven batch")

    def test_missing_data_file(self):
        self.refused('e.data = mw.text { "txt.txt", sequence = 16 }', 2, "file.missing data.path")

    def test_plugin_not_found(self):
        error, = self.refused('mw.plugins("ttp")', 2, "plugin.unknown")
        self.assertEqual(error["line"], 11)
        self.refused('e.plan = { mw.plugin "./none.so" }', 2, "plugin.no-file")

    def test_all_problems_at_once(self):
        self.refused("e.stepz = 1 e.model.layers = 0 e.optimizer.lr = 'x'", 2,
                     "option.unknown stepz", "option.range model.layers", "option.type optimizer.lr")

    def test_script_errors(self):
        error, = self.refused("e.x.y = 1", 2, "script.error")
        self.assertEqual(error["line"], 11)
        for raised, said in (('{ msg = "too wide" }', "too wide"), ('{ message = "too deep", code = 3 }', "too deep"),
                             ("{ code = 3 }", "{ code = 3 }"), ("print", "a function"),
                             ('setmetatable({}, { __tostring = function() return "of its own" end })', "of its own")):
            done = self.call("run", "--json", self.script(f"error({raised})"))
            error, = self.lines(done)
            self.assertEqual((done.returncode, error["code"], error["message"]), (2, "script.error", said))
        for script, problem, line in ((self.script(text="local x =\n"), "script.error", 2),
                                      ("scrpt.lua", "script.unreadable", None)):
            done = self.call("run", script, "--json")
            self.assertEqual(done.returncode, 2)
            self.assertEqual(problems(self.lines(done)), [problem])
            self.assertEqual(self.lines(done)[0]["line"], line)

    def test_bad_set(self):
        for setting, code, wanted in (("stepz=1", 2, "option.unknown stepz"), ("steps", 2, "set.form"),
                                       ("plan=dp(2),tp(2)", 2, "set.value plan"),
                                       ("plan[2].ways=3", 3, "axis.cannot-split plan[2].ways")):
            error, = self.refused("", code, wanted, arguments=("--set", setting))
            self.assertEqual((error["file"], error["line"]), (None, None))

    def test_log_that_cannot_be_written(self):
        (self.folder / "file").write_text("")
        done = self.call("run", "--json", self.script('e.log = "file/a.h5"'))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(problems(self.lines(done)), ["log.folder log"])

    def test_usage(self):
        for arguments, problem in ((("rum", "x.lua"), "usage.command"), (("run",), "usage.option"),
                                   (("run", "x.lua", "--jsn"), "usage.option"), (("plugins", "lst"), "usage.command"),
                                   (("plugins",), "usage.option")):
            with self.subTest(arguments=arguments):
                done = self.call(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertEqual(problems(self.lines(self.call(*arguments, "--json"))), [problem])
        self.assertEqual(self.call().returncode, 2)
        for arguments in (("--help",), ("run", "--help"), ("plugins", "show", "--help"), ("--version",), ("version",)):
            with self.subTest(arguments=arguments):
                self.assertEqual(self.call(*arguments).returncode, 0)

    # --- Plugins ---

    def test_tables_of_results_print_as_what_they_hold(self):
        done = self.call("plan", self.script(text=SCRIPT.replace("print(run)", """
            print(run.experiment)
            print(run.experiment.model)
            print(run.memory[1])
            run.memory[1].mine = run.communication[1]  -- it stays a table
            print(#run.memory, run.memory[1].mine.axis)""") % ""), "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("table:", done.stdout)
        self.assertRegex(done.stdout, r"(?s)\n  model = \{\n.*\n    layers = 1,\n.*\n  \},\n")
        self.assertRegex(done.stdout, r"(?s)\n\{\n  .*  hidden = 32,\n")
        self.assertRegex(done.stdout, r"(?s)activations = \d+")
        self.assertRegex(done.stdout, r"(?m)^1\t(dp|tp)$")

    def test_a_plugin_that_throws_when_it_is_made(self):
        for how in ("throws_in_place", "throws_in_place { late = true }"):
            done = self.call("run", self.script(f'local throws_in_place = mw.plugin "throws_in_place"\n'
                                                f"e.plan = {{ {how} }}"), "--plugin-path", TEST_PLUGINS, "--json")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(problems(self.lines(done)), ["plugin.fault plan[1]"])

    def test_plugins_show(self):
        text = self.call("plugins", "show", "tp").stdout
        self.assertIn("ways", text)
        self.assertIn("1 .. 1048576", text)
        self.assertIn("required", text)
        self.assertIn("1 B .. 1 EiB", self.call("plugins", "show", "dp").stdout)
        shown, = self.lines(self.call("plugins", "show", "good", "--json", "--plugin-path", TEST_PLUGINS))
        good, = shown["brings"]
        options = {option["name"]: option for option in good["options"]}
        self.assertEqual(options["form"]["choices"], ["plain", "fancy"])
        self.assertEqual(options["bucket"]["default"], "25MiB")
        self.assertEqual((good["kind"], good["positional"]), ("strategy", "ways"))

    # --- Signals, the prompt, the rest ---

    def interrupted(self, number):
        script = self.script('e.steps = 100000\ne.log = "runs/a.h5"\n'
                             'e.observe = function(step) if step == 2 then io.stderr:write("three\\n") end end')
        process = subprocess.Popen([BIN, "run", "--json", str(script)], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in process.stderr:
            if line.startswith("three"):
                break
        process.send_signal(number)
        stdout, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130)
        run, = (json.loads(line) for line in stdout.splitlines())
        self.assertEqual(run["status"], "interrupted")
        self.assertEqual(run["steps"], len(run["losses"]))
        self.assertGreaterEqual(run["steps"], 3)

    def test_interrupt_stops_after_the_step(self):
        self.interrupted(signal.SIGINT)
        self.interrupted(signal.SIGTERM)

    def test_a_signal_in_the_last_step_leaves_the_run_done(self):
        # SIGTERM: while a shell runs, its caller ignores SIGINT.
        done = self.call("run", "--json", self.script(
            'e.observe = function(step) if step == 2 then os.execute("kill -TERM $PPID") end end'))
        self.assertIn("stopping after this step", done.stderr)
        run, = self.lines(done)
        self.assertEqual((run["status"], run["steps"], done.returncode), ("done", 3, 0))

    def test_interrupt_stops_a_verification(self):
        # Sent by the schedule in the second step of the one rank.
        done = self.call("verify", "--json", self.script(
            'e.schedule = function(step) if step == 1 then os.execute("kill -TERM $PPID") end return 1e-3 end'))
        self.assertEqual(done.returncode, 130, done.stderr)
        verify, = self.lines(done)
        self.assertEqual((verify["kind"], verify["status"], verify["verdict"]), ("verify", "interrupted", None))
        self.assertNotIn("max_relative_error", verify)
        self.assertIn("interrupted", done.stderr)

    def test_an_endless_script_stops_too(self):
        path = self.script(text='io.stderr:write("on\\n") while true do end')
        process = subprocess.Popen([BIN, "run", str(path)], cwd=self.folder, text=True, stderr=subprocess.PIPE)
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130)

    def test_repl(self):
        done = self.call("repl", stdin="=1 + 1\nmw.llama { layers = 2 }\nmw.nix\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[:2], ["2", "llama { layers = 2 }"])
        self.assertIn("there is no mw.nix", done.stderr)

    def test_lua_types_are_up_to_date(self):
        kept = (SOURCE / "scripts/meshwright.d.lua").read_text()
        made = self.call("lua-types").stdout
        self.assertEqual(kept, made, "stale: ./meshwright lua-types > scripts/meshwright.d.lua")


if __name__ == "__main__":
    unittest.main(verbosity=2)
