"""The list `observers` of an experiment: functions, and observers of plugins (tests/plugins/kit).
Their numbers are in the run file, none of them changes a run, and what they may not do is said."""

import unittest

import h5py

from cases import TEST_PLUGINS, ProgramCase
from problems import problems

HEAD = """\
local mw = require "meshwright"
local dp, pp = mw.plugins("dp", "pp")
local kit = mw.plugins("kit")
local function train(changes)
  local e = {
    model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 32 }, data = mw.synthetic {}, sequence = 8,
    plan = { pp(2), dp(2) }, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 4,
  }
  for key, value in pairs(changes) do e[key] = value end
  return mw.train(e)
end
"""
PATH = ("--plugin-path", TEST_PLUGINS)


class Observers(ProgramCase):
    def ran(self, changes, *more):
        return self.only("run", self.write(f"{HEAD}train {{ {changes} }}"), *PATH, *more)

    def test_numbers_of_all_are_in_the_run_file(self):
        log = self.folder / "run.h5"
        plain = self.ran("")
        seen = self.ran(f'log = "{log}", observe = function(step, facts) return {{ twice = 2 * facts.loss }} end, '
                        "observers = { kit.shown, function(step) return { square = step * step } end, "
                        'kit.shown { "again" }, { kind = "shown", metric = "third" } }')
        self.assertEqual(seen["losses"], plain["losses"])
        self.assertEqual(seen["plan_hash"], plain["plan_hash"])
        with h5py.File(log) as run:
            series = {name: list(run["series"][name]) for name in run["series"]}
        self.assertEqual(series["twice"], [2 * loss for loss in seen["losses"]])
        self.assertEqual(series["square"], [0, 1, 4, 9])
        # Three observers watch rank 0, and each is shown all tensors.
        self.assertGreater(min(series["shown"]), 10)
        self.assertEqual(series["again"], series["shown"])
        self.assertEqual(series["third"], series["shown"])

    def test_they_make_no_other_experiment_unless_they_may_end_it(self):
        function = "observers = {{ function(step, facts) if facts.loss < {} then return {{ stop = true }} end end }}"
        changes = ["", "observers = { kit.shown }", "observers = {}", function.format(1), function.format(2),
                   "observers = { kit.shown { last = 1 } }", "observers = { kit.shown { last = 2 } }"]
        self.write(HEAD.replace("return mw.train", "return mw.plan") + "".join(f"train {{ {each} }}\n" for each in changes))
        hashes = [result["hash"] for result in self.all("plan", self.folder / "script.lua", *PATH)]
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(hashes[0], hashes[2])
        self.assertEqual(len(set(hashes)), 5, hashes)

    def test_one_that_decides_ends_the_run(self):
        log = self.folder / "run.h5"
        for more in ((), ("--processes", "2")):
            with self.subTest(more):
                ended = self.ran(f'log = "{log}", overwrite = true, observers = {{ kit.shown {{ last = 1 }} }}', *more)
                self.assertEqual((len(ended["losses"]), ended["status"]), (2, "done"))
                with h5py.File(log) as run:
                    self.assertIn(b"stopped by shown after step 1", run["events"][-1]["message"])
        # Observers are called in the order of the list, and none takes back that the run ends.
        ended = self.ran("observers = { function(step) return { stop = step == 2 } end, "
                         'kit.shown { "more", last = 3, fault = "clears" }, kit.shown }')
        self.assertEqual((len(ended["losses"]), ended["status"]), (3, "done"))

    def test_what_is_refused_before_the_run(self):
        cases = (('{ { kind = "shwon" } }', "option.choice observers[1]"), ("{ kit.shown, 5 }", "option.value observers[2]"),
                 ("{ kit.halving(2) }", "option.value observers[1]"), ("{ dp(2) }", "option.value observers[1]"), ("kit.shown", "option.type observers"),
                 ("{ kit.shown { metrc = 1 } }", "option.unknown observers[1].metrc"))
        for (observers, problem), errors in zip(cases, self.tried(HEAD, [f"train {{ observers = {o} }}" for o, _ in cases], *PATH)):
            with self.subTest(observers):
                self.assertEqual(problems(errors), [problem], errors)
                self.assertEqual("got the strategy dp(2)" in errors[0]["message"], "dp" in observers)

    def test_faults_name_the_plugin_and_the_step(self):
        for fault, words in (("throws", "On rank 1: observers[2]: the plugin \"shown\" threw while it looked at step 1: enough"),
                             ("ends", "after step 1 it ended the run, and its decides() says that it does not"),
                             ("watches", "shown (observers[2]) was shown a tensor of step 2, and threw: seen enough (in the forward of "),
                             ("elsewhere", "after step 1 it gave a number on another rank than 0, where nobody records it"),
                             ("takes", "after step 1 it changed numbers of others"),
                             ("twice", 'after step 1 it gave a number named "shown", which is there already')):
            with self.subTest(fault):
                seen = f'log = "run.h5", overwrite = true, observers = {{ function() return {{ x = 1 }} end, kit.shown {{ fault = "{fault}" }} }}'
                done = self.call("run", self.write(f"{HEAD}train {{ {seen} }}"), *PATH, "--json")
                self.assertEqual(done.returncode, 1)
                self.assertIn(words, self.lines(done)[-1]["message"])
                self.assertIn("plugin.fault", problems(self.lines(done))[0])
                with h5py.File(self.folder / "run.h5") as run:
                    self.assertEqual(list(run["steps"]["step"]), [0, 1])

    def test_one_that_does_not_return_ends_the_run(self):
        for fault in ("hangs", "hangs-alone"):
            with self.subTest(fault):
                seen = f'log = "run.h5", overwrite = true, timeout = 4, observers = {{ kit.shown {{ fault = "{fault}" }} }}'
                done = self.call("run", self.write(f"{HEAD}train {{ {seen} }}"), *PATH, "--json")
                self.assertEqual(done.returncode, 1)
                said = [line["message"] for line in self.lines(done) if line.get("kind") == "error"]
                self.assertRegex(said[0], r"On rank \d: shown \(observers\[1\]\), called after step 1, has not returned within 4 s")
                self.assertIn('"inside":"shown (observers[1]), called after step 1"', done.stdout)
                with h5py.File(self.folder / "run.h5") as run:
                    self.assertEqual(list(run["steps"]["step"]), [0, 1])

    def test_a_watcher_that_does_not_return_ends_the_run(self):
        done = self.call("run", self.write(f'{HEAD}train {{ timeout = 4, observers = {{ kit.shown {{ fault = "watch-hangs" }} }} }}'),
                         *PATH, "--json")
        self.assertEqual((done.returncode, problems(self.lines(done))[0]), (1, "plugin.timeout"))
        self.assertIn("On rank 0: shown (observers[1]), shown a tensor, has not returned within 4 s", done.stdout)

    def test_one_that_begins_wrongly_is_told(self):
        for fault, code, words in (("made-without-a-word", "run.exception", "an error without a message was thrown"),
                                   ("watches-nothing", "plugin.fault", "watch() was given no watcher")):
            with self.subTest(fault):
                done = self.call("run", self.write(f'{HEAD}train {{ observers = {{ kit.shown {{ fault = "{fault}" }} }} }}'), *PATH, "--json")
                self.assertNotEqual(done.returncode, 0)
                error, *_ = [line for line in self.lines(done) if line["kind"] == "error"]
                self.assertEqual(error["code"], code)
                self.assertIn(words, error["message"])

    def test_one_that_cannot_hear_of_a_failure_hides_none(self):
        for fault, code, words in (("failed-throws", "plugin.fault", 'it threw "not now" in failed()'),
                                   ("failed-hangs", "plugin.timeout", "it has not returned within 4 s of failed()")):
            with self.subTest(fault):
                done = self.call("run", self.write(f'{HEAD}train {{ timeout = 4, observers = {{ kit.shown {{ fault = "{fault}" }} }} }}'),
                                 *PATH, "--json")
                said = [line for line in self.lines(done) if line.get("kind") == "error"]
                self.assertEqual(done.returncode, 1)
                self.assertIn("threw while it looked at step 1: enough", said[0]["message"])
                self.assertIn(words, said[1]["message"])
                self.assertEqual(said[1]["code"], code)

    def test_the_command_line_adds_one(self):
        plain = self.ran("")
        for given in ("{}", "{ function() return { x = 1 } end }", "nil"):
            with self.subTest(given):
                log = self.folder / "run.h5"
                seen = self.ran(f'log = "{log}", overwrite = true, observers = {given}', "--set", 'observers[+]=kit.shown{ "more" }')
                self.assertEqual((seen["losses"], seen["plan_hash"]), (plain["losses"], plain["plan_hash"]))
                with h5py.File(log) as run:
                    self.assertEqual({"step", "more"} | ({"x"} if "x" in given else set()), set(run["series"]))

    def test_one_that_ends_the_process_fails_the_run(self):
        seen = 'log = "run.h5", observers = { kit.shown { fault = "exits" } }'
        done = self.call("run", self.write(f"{HEAD}train {{ {seen} }}"), *PATH, "--json")
        self.assertEqual((done.returncode, problems(self.lines(done))), (1, ["run.exit"]))
        self.assertIn("On rank 1: shown (observers[1]), called after step 1, called exit()", done.stdout)
        with h5py.File(self.folder / "run.h5") as run:
            self.assertEqual(run.attrs["status"], b"failed")
            self.assertIn(list(run["steps"]["step"]), ([0], [0, 1]))  # rank 0 may be behind

    def test_what_functions_may_not_return(self):
        done = self.call("run", self.write(f"{HEAD}train {{ observers = {{ function() return {{ [''] = 1 }} end }} }}"), "--json", *PATH)
        self.assertEqual(problems(self.lines(done)), ["function.result observers[1]"])
        two = "observers = { function() return { x = 1 } end, function() return { x = 2 } end }"
        done = self.call("run", self.write(f"{HEAD}train {{ {two} }}"), "--json", *PATH)
        self.assertEqual(problems(self.lines(done)), ["function.result observers[2]"])
        self.assertIn("observers[2](0) returned x, which the run records itself, or another observer", done.stdout)


if __name__ == "__main__":
    unittest.main()
