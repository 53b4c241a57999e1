"""How a run ends: for each way the exit code, the status in the result and in the run file, and
the event that says why."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

import h5py

from cases import BIN, TEST_PLUGINS, ProgramCase

# %s: more keys; the later of two equal ones counts.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
local e = {
  model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 },
  data = mw.text { "text.txt", sequence = 16 }, plan = { dp(2), tp(2) }, batch = 4,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 6, log = "runs/a.h5", overwrite = true,
}
local function at(step) io.stderr:write("at ", step, "\\n") end
e.observe = at
%s
mw.train(e)
"""
FOREVER = "e.steps = 1000000"
LOOP = "while true do end"
# Does not come back either, from inside a function of C, where no hook of Lua's runs.
STUCK = "local _ = (('a'):rep(1000)):find(('a?'):rep(40) .. ('a'):rep(40) .. 'b')"


class Ends(ProgramCase):
    def setUp(self):
        super().setUp()
        (self.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 4000)

    def start(self, changes="", before=None, command=()):
        (self.folder / "script.lua").write_text(SCRIPT % changes)
        return subprocess.Popen([*command, BIN, "run", "script.lua", "--json", "--plugin-path", TEST_PLUGINS],
                                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=before)

    def end(self, process):
        stdout, self.stderr = process.communicate(timeout=300)
        lines = [json.loads(line) for line in stdout.splitlines()]
        return process.returncode, lines

    def call(self, changes="", **how):
        return self.end(self.start(changes, **how))

    def start_all(self, changes):
        """Of runs that mostly wait: all at the same time, each in a folder of its own."""
        around, started = self.folder, []
        for number, change in enumerate(changes):
            self.folder = around / str(number)
            self.folder.mkdir()
            shutil.copy(around / "text.txt", self.folder)
            started.append((change, self.folder, self.start("e.timeout = 1 " + change)))
        return started

    def wait_for(self, process, step):
        for line in process.stderr:
            if line.strip() == f"at {step}":
                return
        self.fail("the run ended before its time")

    def file(self, name="runs/a.h5"):
        """Status, reason and events of the run file, and how many steps it has."""
        self.assertEqual([path.name for path in (self.folder / "runs").iterdir() if path.name[0] == "."], [])
        with h5py.File(self.folder / name, locking=False) as f:
            events = [(e["kind"].decode(), int(e["step"]), int(e["rank"]), e["message"].decode()) for e in f["events"][:]]
            return f.attrs["status"].decode(), f.attrs["reason"].decode(), events, len(f["steps"])

    def ended(self, code, lines, status, kind, said, exit_code, step=None, rank=None):
        """All of them agree."""
        self.assertEqual(code, exit_code, self.stderr[-3000:])
        run = lines[0]
        self.assertEqual((run["kind"], run["status"]), ("train", status))
        self.assertIn(said, run["reason"])
        kept, reason, events, steps = self.file()
        self.assertEqual((kept, reason, steps), (status, run["reason"][:480], run["steps"]))
        event = events[-1]
        self.assertEqual(event[0], kind)
        self.assertIn(said, event[3])
        if step is not None:
            self.assertEqual(event[1], step)
        if rank is not None:
            self.assertEqual(event[2], rank)
        return run, events

    # --- Ends that are not the run's own ---

    def test_done(self):
        code, (run,) = self.call()
        self.assertEqual((code, run["status"], run["reason"]), (0, "done", None))
        self.assertEqual(self.file(), ("done", "", [], 6))
        with h5py.File(self.folder / "runs/a.h5") as f:
            categories = {row["category"].decode() for row in f["memory"][:]}
            self.assertNotIn("total", categories)
            self.assertIn("parameters", categories)
            for rank in f["rank_memory"][:]:
                own = f["memory"][:][f["memory"]["rank"][:] == rank["rank"]]
                device = own[own["category"] != b"host"]
                self.assertEqual(device["bytes"].sum(), rank["bytes"])
                self.assertGreaterEqual(device["peak_bytes"].sum(), rank["peak_bytes"])
                self.assertGreaterEqual(rank["peak_bytes"], device["peak_bytes"].max())

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(signal=number):
                process = self.start(FOREVER)
                self.wait_for(process, 2)
                process.send_signal(number)
                if number in (signal.SIGTERM, signal.SIGUSR1):  # its launcher passes it on too
                    process.send_signal(number)
                code, lines = self.end(process)
                run, events = self.ended(code, lines, "interrupted", "interrupted", number.name, 130)
                self.assertEqual(events[0][1:3], (run["steps"] - 1, -1))
                self.assertEqual(len(lines), 1)

    def test_events_that_are_taken_away(self):
        """Whoever removes or replaces the event file takes all that is written later: the run goes on, and fails at its end."""
        for take in ("os.remove(file)", "os.rename(file, file .. '-moved') io.open(file, 'w'):close()"):
            with self.subTest(take):
                shutil.rmtree(self.folder / "events", ignore_errors=True)
                code, (run, *_) = self.call(f"""e.tensorboard = "events" e.observe = function(step) if step == 2 then
                    local file = io.popen("ls events/*"):read("l") {take} end end""")
                self.assertEqual((code, run["status"], run["steps"]), (1, "failed", 6), self.stderr)
                self.assertIn("another program has removed or replaced events/events.out.tfevents.", run["reason"])

    def test_a_second_signal_leaves_a_file_that_opens(self):
        process = self.start(FOREVER + f"\ne.observe = function(step) at(step) if step == 2 then {LOOP} end end")
        self.wait_for(process, 2)
        # A batch system's warning and its end, passed on by a launcher; then somebody who means it.
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            process.send_signal(number)
            if number == signal.SIGUSR1:
                for line in process.stderr:
                    if "once more stops at once" in line:
                        break
        time.sleep(0.3)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        self.assertEqual(process.returncode, -signal.SIGINT)
        with h5py.File(self.folder / "runs/a.h5", locking=False) as f:
            self.assertEqual(f.attrs["status"], b"running")

    def test_nohup(self):
        process = self.start("e.steps = 12", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for(process, 2)
        process.send_signal(signal.SIGHUP)
        code, (run,) = self.end(process)
        self.assertEqual((code, run["status"], run["steps"]), (0, "done", 12))

    def test_nobody_listens(self):
        process = self.start()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=300), 0, process.stderr.read())
        process.stderr.close()
        self.assertEqual(self.file()[0], "done")

    def test_nobody_reads_its_progress(self):
        process = self.start()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=300), 0)
        process.stdout.close()
        self.assertEqual(self.file()[0], "done")

    def test_killed(self):
        process = self.start(FOREVER)
        self.wait_for(process, 2)
        process.kill()
        process.communicate(timeout=300)
        with h5py.File(self.folder / "runs/a.h5", locking=False) as f:
            self.assertEqual((f.attrs["status"], len(f["events"])), (b"running", 0))

    # --- Failures ---

    def test_a_rank_that_fails(self):
        # The 18th call of the last norm, over four ranks: in the fifth step, on one rank.
        code, lines = self.call('e.plan = { dp(2), tp(2), mw.plugin "failing_rank" (18) }')
        run, events = self.ended(code, lines, "failed", "failed", "a fault that was asked for", 1, step=4)
        self.assertIn(events[-1][2], range(4))
        self.assertIn(f"On rank {events[-1][2]}: ", events[-1][3])
        self.assertEqual(lines[1]["message"], run["reason"].split(" [")[0])
        # Where each rank was, to people, in the result and in the file.
        self.assertIn("where each rank was\n\n  rank  done  last collective", self.stderr)
        places = run["last_collectives"]
        self.assertEqual([place["rank"] for place in places], list(range(4)))
        self.assertEqual(places[events[-1][2]]["state"], "failed")
        self.assertTrue(all(place["done"] > 0 and place["last"]["axis"] in ("dp", "tp", "world") for place in places))
        self.assertEqual([event[:3] for event in events[:-1]], [("rank", 4, rank) for rank in range(4)])

    def test_a_rank_that_hangs(self):
        """The others wait for it as long as they may; then nothing but the end of the process ends its thread."""
        code, lines = self.call('e.timeout = 2 e.plan = { dp(2), tp(2), mw.plugin "failing_rank" { 18, hangs = true } }')
        run, events = self.ended(code, lines, "failed", "failed", "waited 2 s for rank", 1, step=4)
        self.assertEqual([line["code"] for line in lines[1:]], ["collective.timeout", "run.hang"])
        hanging, = [place for place in run["last_collectives"] if place["state"] == "computes"]
        self.assertIn(f"rank {hanging['rank']} has not come back", lines[2]["message"])
        self.assertGreaterEqual(hanging["seconds"], 1.5)
        self.assertEqual(hanging["done"], min(place["done"] for place in run["last_collectives"]))

    def test_an_observer_that_fails(self):
        code, lines = self.call('e.observe = function(step) if step == 3 then error("enough") end end')
        self.ended(code, lines, "failed", "failed", "script.lua:10: On rank 0: enough", 1, step=3, rank=0)

    def test_a_check_that_fails(self):
        code, lines = self.call("e.optimizer = mw.sgd { lr = 1e30 } e.check = true")
        self.ended(code, lines, "failed", "failed", "check: ", 1)

    def test_a_training_that_diverges_stops(self):
        # Before the update, at the first op where NaN comes up; plans whose ranks hold other parts,
        # and steps of other plans. A loss that is not finite is no overflow of scaled gradients.
        for change in ("", "e.plan = { mw.plugin('zero') { 2, stage = 3 }, tp(2) }", "e.plan = { mw.plugin('pp')(2), tp(2) } e.model.layers = 2 "
                       "e.microbatch = 2", "e.microbatch = function(step) return { batch = step < 1 and 4 or 8 } end",
                       "e.precision = 'fp16'", "e.loss_scale = 8"):
            with self.subTest(change):
                code, lines = self.call("e.optimizer = mw.sgd { lr = 1e30 }" + change)
                run, events = self.ended(code, lines, "failed", "diverged", "diverged: On rank ", 1)
                self.assertEqual(len(lines), 1)
                step = events[0][1]
                self.assertEqual(run["steps"], step + 1)
                self.assertLess(step, 5)
                self.assertIn(f" of step {step} is ", run["reason"])
                self.assertRegex(run["reason"], "its update was skipped; (NaN|Inf) appears first in the (output of|gradient)")
                self.assertIsNotNone(run["losses"][step - 1])

    def test_a_training_that_diverges_goes_on(self):
        for change in ("", " e.loss_scale = 8"):
            with self.subTest(change):
                code, lines = self.call("e.on_nan = 'continue' e.optimizer = mw.sgd { lr = 1e30 }" + change)
                run, events = self.ended(code, lines, "failed", "diverged", "diverged: ", 1)
                self.assertEqual(len(lines), 1)
                self.assertEqual(run["steps"], 6)  # it goes on
                step = events[0][1]
                self.assertIn(f"from step {step} on", run["reason"])
                finite = [loss is not None and norm is not None for loss, norm in zip(run["losses"], run["grad_norms"])]
                self.assertEqual(finite, [s < step for s in range(6)])
                self.assertIn(run["reason"] + "; Ctrl-C ends the run", self.stderr)

    def test_steps_that_overflow_are_no_divergence(self):
        code, (run,) = self.call("e.precision = 'fp16' e.loss_scale = { init = 2^100, backoff = 2^-20 } e.steps = 12")
        self.assertEqual((code, run["status"]), (0, "done"), self.stderr[-2000:])
        self.assertGreater(len(run["skipped_steps"]), 0)
        self.assertEqual(self.file()[2], [])

    # --- What the machine lacks ---

    def test_a_file_that_may_not_grow(self):
        # Few steps a second, so that the file is written before it is too large.
        slow = FOREVER + ' e.observe = function() os.execute("sleep 0.05") end'
        code, lines = self.call(slow, before=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (930_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])))
        self.assertEqual(code, 1, self.stderr[-2000:])  # and no signal
        self.assertEqual((lines[0]["status"], lines[1]["kind"]), ("failed", "error"))
        self.assertEqual(lines[1]["code"], "run-file.access")
        status, reason, events, steps = self.file()
        self.assertEqual((status, [event[0] for event in events]), ("failed", ["rank"] * 4 + ["failed"]))
        self.assertIn("File too large", reason)
        self.assertGreater(steps, 0)

    def test_a_full_disk(self):
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            self.skipTest("mounting takes root")
        disk = self.folder / "runs"
        disk.mkdir()
        mount = ["unshare", "-m", "sh", "-c"]
        if subprocess.run([*mount, f"mount -t tmpfs -o size=64k tmpfs {disk}"], capture_output=True).returncode:
            self.skipTest("no mount is allowed here")
        keep = f'mount -t tmpfs -o size=900k tmpfs {disk} && "$@"; rc=$?; cp {disk}/a.h5 kept.h5; exit $rc'
        code, lines = self.call(FOREVER, command=[*mount, keep, "sh"])
        self.assertEqual(code, 1, self.stderr[-2000:])
        self.assertEqual(lines[1]["code"], "run-file.access")
        status, reason, events, steps = self.file("kept.h5")
        self.assertEqual(status, "failed")
        self.assertIn("No space left on device", reason)

    def test_memory_that_is_not_there(self):
        # From step 2 on the process may have 200 MB more than it has:
        # the step after takes gigabytes.
        code, lines = self.call("""
            e.batch = 16384
            e.microbatch = function(step) return step < 3 and { batch = 4 } or { batch = 16384 } end
            e.observe = function(step)
              if step == 2 then
                os.execute("prlimit --pid $PPID --as=$(awk '/VmSize/ { print $2 * 1024 + 200000000 }' /proc/$PPID/status)")
              end
            end""")
        run, _ = self.ended(code, lines, "failed", "failed", "memory", 1)
        self.assertEqual(run["steps"], 3)

    def test_data_that_is_cut_off(self):
        code, lines = self.call('e.observe = function(step) if step == 2 then io.open("text.txt", "w"):close() end end')
        run, _ = self.ended(code, lines, "failed", "failed", "text.txt was cut off while it was in use", 1)
        self.assertIn(run["steps"], (3, 4))  # another rank may be a step ahead

    # --- Functions that do not return ---

    def test_functions_that_do_not_return(self):
        lines_of = {"e.observe = function(step) if step == 1 then LOOP end end": 10,
                    "e.schedule = function(step) if step == 1 then LOOP end return 1e-3 end": 10,
                    "e.precision = 'fp16' e.loss_scale = function(step) if step == 1 then LOOP end return 8 end": 10,
                    # A pcall cannot keep it.
                    "e.observe = function(step)\nwhile step == 1 do pcall(function()\nLOOP end) end end": 12,
                    "e.observe = coroutine.wrap(function() coroutine.yield()\nLOOP end)": 11,
                    "e.plan = { dp(1) } e.observe = function(step) if step == 1 then LOOP end end": 10}
        started = self.start_all(change.replace("LOOP", LOOP) for change in lines_of)
        for (change, self.folder, process), line in zip(started, lines_of.values()):
            code, lines = self.end(process)
            with self.subTest(change=change):
                self.ended(code, lines, "failed", "failed", f"script.lua:{line}: ", 1)
                self.assertEqual(lines[-1]["code"], "function.timeout")

    def test_functions_of_the_plan_that_do_not_return(self):
        started = self.start_all(change.replace("LOOP", LOOP) for change in (
            "e.microbatch = function(step) LOOP end", "e.recompute = function(op) LOOP end",
            "e.schedule = function(step) LOOP end",
            "e.plan = { mw.plugin('pp') { 2, schedule = function(s) LOOP end } } e.model.layers = 2"))
        for change, self.folder, process in started:
            code, (error,) = self.end(process)
            with self.subTest(change=change):
                self.assertEqual(code, 2, self.stderr)
                self.assertEqual((error["code"], error["line"]), ("function.timeout", 10))
                self.assertFalse((self.folder / "runs").exists())

    def test_an_interrupt_ends_a_function_that_does_not_return(self):
        process = self.start(f"e.observe = function(step) at(step) if step == 2 then {LOOP} end end")
        self.wait_for(process, 2)
        process.send_signal(signal.SIGINT)
        code, lines = self.end(process)
        run, _ = self.ended(code, lines, "interrupted", "interrupted", "script.lua:10: interrupted in this function", 130)
        self.assertEqual(run["steps"], 3)

    # --- Functions that are stuck inside C: the process ends without them ---

    def test_functions_that_are_stuck_in_c(self):
        started = self.start_all(change.replace("WAIT", STUCK) for change in (
            "e.observe = function(step) if step == 1 then WAIT end end",
            "e.schedule = function(step) if step == 1 then WAIT end return 1e-3 end",
            "e.precision = 'fp16' e.loss_scale = function(step) if step == 1 then WAIT end return 8 end",
            "e.observe = function(step) while step == 1 do pcall(function() WAIT end) end end",
            "e.plan = { dp(1) } e.observe = function(step) if step == 1 then WAIT end end"))
        for change, self.folder, process in started:
            code, lines = self.end(process)
            with self.subTest(change=change):
                self.ended(code, lines, "failed", "failed", "script.lua:10: ", 1)
                self.assertEqual(lines[-1]["code"], "function.timeout")

    def test_functions_of_the_plan_that_are_stuck_in_c(self):
        started = self.start_all(change.replace("WAIT", STUCK) for change in (
            "e.microbatch = function(step) WAIT end", "e.recompute = function(op) WAIT end",
            "e.schedule = function(step) WAIT end",
            "e.plan = { mw.strategy { name = 'mine', axis = { role = 'model' }, rules = { { dim = 'ffn', "
            "where = function(op) WAIT end } } } (2) }",
            "e.plan = { mw.plugin('pp') { 2, schedule = function(s) WAIT end } } e.model.layers = 2"))
        for change, self.folder, process in started:
            code, (error,) = self.end(process)
            with self.subTest(change=change):
                self.assertEqual(code, 2, self.stderr)
                self.assertEqual(error["code"], "function.timeout")
                self.assertIn("script.lua:10", error["file"] + f":{error['line']}")
                self.assertFalse((self.folder / "runs").exists())

    def test_signals_end_what_is_stuck_in_c(self):
        stuck = f"e.timeout = 300 e.observe = function(step) at(step) if step == 2 then {STUCK} end end"
        numbers = (signal.SIGINT, signal.SIGTERM)
        started = self.start_all([stuck] * len(numbers))
        for number, (*_, process) in zip(numbers, started):
            self.wait_for(process, 2)
            process.send_signal(number)
        for number, (_, self.folder, process) in zip(numbers, started):
            code, lines = self.end(process)
            with self.subTest(signal=number):
                run, _ = self.ended(code, lines, "interrupted", "interrupted", "interrupted in this function", 130)
                self.assertEqual(run["steps"], 3)

    def test_a_signal_ends_a_script_that_is_stuck_in_c(self):
        process = self.start(f"at(0) {STUCK}")
        self.wait_for(process, 0)
        process.send_signal(signal.SIGTERM)
        code, (error,) = self.end(process)
        self.assertEqual((code, error["code"]), (130, "run.stopped"), self.stderr)

    def test_a_second_signal_ends_what_is_stuck_in_c_at_once(self):
        process = self.start(f"e.observe = function(step) at(step) if step == 2 then {STUCK} end end")
        self.wait_for(process, 2)
        process.send_signal(signal.SIGINT)
        for line in process.stderr:
            if "stopping" in line:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        self.assertEqual(process.returncode, -signal.SIGINT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
