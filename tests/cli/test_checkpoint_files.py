"""What becomes of checkpoints when processes die, disks are full, files are cut off, and folders
are another's."""
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

import h5py

from cases import BIN, ProgramCase

# %s: more keys; the later of two equal ones counts.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp, zero, pp = mw.plugins("dp", "tp", "zero", "pp")
local e = {
  model = mw.llama { layers = 1, hidden = 16, heads = 4, ffn = 24, vocab = 30 },
  data = mw.synthetic {}, sequence = 8, plan = { zero { 2, stage = 3 } }, batch = 4, threads = 1,
  optimizer = mw.adamw { lr = 1e-2 }, steps = 6, timeout = 120, checkpoint = { path = "ck", every = 1 },
}
%s
mw.train(e)
"""
KILLS = 4


class CheckpointFiles(ProgramCase):
    def train(self, more="", **environment):
        return self.only("run", self.write(SCRIPT % more))

    def says(self, more, *arguments):
        """What a run that succeeds says, and its result."""
        done = self.call("run", self.write(SCRIPT % more), "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr, self.lines(done)[-1]

    def listed(self, path="ck", code=0):
        done = self.call("checkpoints", path, "--json")
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return self.lines(done)

    def file(self, step, name="rank-00001.safetensors"):
        return self.folder / f"ck/step-{step:08}/{name}"

    def test_what_is_kept_and_listed(self):
        result = self.train("e.checkpoint.keep = 2")
        self.assertEqual((result["checkpoints"]["written"], result["checkpoints"]["last"]), (6, 6))
        self.assertEqual(sorted(os.listdir(self.folder / "ck")), [".lock", "step-00000005", "step-00000006"])
        rows = self.listed()
        self.assertEqual([(row["step"], row["whole"], row["ranks"], row["mix"], row["tokens"]) for row in rows],
                         [(step, True, 2, "zero { 2, stage = 3 }", step * 32) for step in (5, 6)])
        self.assertEqual(rows[0]["bytes"], sum(self.file(5, f"rank-{rank:05}.safetensors").stat().st_size
                                               for rank in range(2)))
        self.assertIn("whole", self.call("checkpoints", "ck").stdout)
        # At the end alone, and in a folder by the run's name.
        result = self.train('e.checkpoint = { path = "{name}-{seed}" }; e.name = "mine"; e.seed = 3')
        self.assertEqual(os.listdir(self.folder / "mine-3"), [".lock", "step-00000006"])
        # All done: nothing is left to do, and all losses are there.
        said, again = self.says('e.checkpoint = { path = "{name}-{seed}" }; e.name = "mine"; e.seed = 3; e.resume = true')
        self.assertIn("nothing is left to do", said)
        self.assertEqual(again["losses"], result["losses"])

    def test_a_checkpoint_is_no_folder_of_checkpoints(self):
        """A later run would not find what a run writes into it."""
        self.train("e.steps = 2")
        for more in ("", "e.resume = true;"):
            with self.subTest(more):
                error = self.refused(2, "checkpoint.folder checkpoint.path", "run",
                                     self.write(SCRIPT % (more + 'e.checkpoint.path = "ck/step-00000002"')))
                self.assertIn("ck/step-00000002 is a checkpoint", error["message"])

    def test_the_log_of_a_run_that_has_ended_before_its_own_first_checkpoint(self):
        """A run that goes on from the same checkpoint, by the mix that wrote it, takes the log over."""
        more = ('function stops_at() return %d end e.plan = { %s }; e.resume = true; e.log = "a.h5"; e.steps = 9; '
                'e.checkpoint.every = 3; e.observe = function(step) if step == stops_at() then error("enough") end end')
        for stops_at, plan, code in ((4, "dp(2)", 1), (4, "dp(2), tp(2)", 1), (99, "dp(2)", 0)):
            done = self.call("run", self.write(SCRIPT % (more % (stops_at, plan))), "--json")
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn("goes on from step 3", done.stderr)
        with h5py.File(self.folder / "a.h5", locking=False) as file:
            self.assertEqual(list(file["steps"]["step"]), list(range(9)))
            self.assertEqual(sorted(set(file["communication"]["step"])), list(range(9)))

    def test_the_log_of_a_run_that_is_done_keeps_what_was_measured(self):
        """A run that has nothing left to do has no memory or times of its own to write."""
        self.train('e.resume = true; e.log = "runs/a/"; e.account = true; e.trace = { 2 }')
        folder = self.folder / "runs/a"
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        said, again = self.says('e.resume = true; e.log = "runs/a/"; e.plan = { dp(2) }')
        self.assertIn("has all steps, and stays as it is", said)
        self.assertEqual((again["status"], len(again["losses"])), ("done", 6))
        self.assertEqual({file.name: file.read_bytes() for file in folder.iterdir()}, before)
        # A longer training goes on in it.
        self.train('e.resume = true; e.log = "runs/a/"; e.steps = 8')
        with h5py.File(folder / "run.h5", locking=False) as file:
            self.assertEqual([len(file["steps"]), *(len(file[name]) > 0 for name in ("memory", "account", "bandwidth"))],
                             [8, True, True, True])

    def test_standard_streams_that_are_closed(self):
        """What the run prints must not go into a file that it opens."""
        for closed in ("2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
            with self.subTest(closed):
                shutil.rmtree(self.folder / "ck", ignore_errors=True)
                subprocess.run(["/bin/sh", "-c", f'exec "$0" run "$1" {closed}', BIN, self.write(SCRIPT % 'e.log = "a.h5"')],
                               cwd=self.folder, check=True, timeout=600)
                self.assertRegex((self.folder / "ck/.lock").read_text(), r"^\d+$")
                self.assertEqual([row["whole"] for row in self.listed()], [True] * 6)
                with h5py.File(self.folder / "a.h5", locking=False) as file:
                    self.assertEqual((file.attrs["status"], len(file["steps"])), (b"done", 6))

    def test_a_folder_that_was_made_anew(self):
        """It is locked again; what another run has taken meanwhile is left alone."""
        waits = ("e.observe = function(step) if step == 2 then io.open('waits', 'w'):close() "
                 "while not io.open('go') do os.execute('sleep 0.1') end end end")
        for taken in (False, True):
            with self.subTest(taken):
                process = subprocess.Popen([BIN, "run", self.write(SCRIPT % waits), "--json"], cwd=self.folder,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.addCleanup(process.kill)
                until = time.monotonic() + 300
                while not ((self.folder / "waits").exists() and (self.folder / "ck/step-00000002").exists()):
                    self.assertLess(time.monotonic(), until)
                    time.sleep(0.05)
                shutil.rmtree(self.folder / "ck")
                (self.folder / "ck").mkdir()
                with open(self.folder / "ck/.lock", "w", encoding="utf-8") as lock:
                    if taken:
                        fcntl.flock(lock, fcntl.LOCK_EX)
                    (self.folder / "go").touch()
                    _, said = process.communicate(timeout=300)
                there = sorted(file for file in os.listdir(self.folder / "ck") if file != ".lock")
                if taken:
                    self.assertEqual((process.returncode, there), (1, []), said)
                    self.assertIn("no checkpoint of step 6: checkpoint.path: another run writes its checkpoints to ck", said)
                else:
                    self.assertEqual((process.returncode, there[-1]), (0, "step-00000006"), said)
                    self.assertEqual((self.folder / "ck/.lock").read_text(), str(process.pid))
                for file in ("waits", "go"):
                    (self.folder / file).unlink()

    def test_one_of_a_later_step_than_the_last_is_refused(self):
        """A run of four steps cannot go on after six, nor end there."""
        self.train("e.checkpoint.keep = 9")
        for more in ("e.resume = true", 'e.resume = { from = "ck" }; e.checkpoint = nil'):
            with self.subTest(more):
                error = self.refused(2, "checkpoint.past steps", "run", self.write(SCRIPT % (more + "; e.steps = 4")))
                self.assertIn("the run is of 4 steps", error["message"])
                self.assertIn("written after 6", error["message"])
                self.assertIn("nearest: steps = 6", error["hint"])
                self.assertIn('step-00000004" }, after step 4, and another checkpoint.path', error["hint"])
        self.train("e.resume = { from = 'ck/step-00000004' }; e.checkpoint.path = 'other'; e.steps = 5")

    def test_a_broken_one_is_found_and_the_one_before_is_taken(self):
        whole = self.train('e.checkpoint.path = "other"')
        self.train("e.observe = function(step) return { stop = step == 4 } end")

        def flip(path):
            text = bytearray(path.read_bytes())
            text[-5] ^= 1
            path.write_bytes(text)

        def cut(path):
            os.truncate(path, path.stat().st_size // 2)

        def zeros(path):
            path.write_bytes(bytes(path.stat().st_size))

        breaks = [(5, lambda: flip(self.file(5))), (4, lambda: cut(self.file(4))), (3, lambda: self.file(3).unlink()),
                  (2, lambda: cut(self.file(2, "index.json")))]
        for step, damage in breaks:
            damage()
            rows = self.listed(code=1)
            self.assertEqual([row["step"] for row in rows if row["broken"]], list(range(step, 6)))
        self.assertEqual(self.listed("ck/step-00000001")[0]["step"], 1)
        shutil.copytree(self.folder / "ck", self.folder / "all")
        said, resumed = self.says("e.resume = true")
        self.assertEqual(said.count("is broken"), 4)
        self.assertEqual(resumed["resumed"]["step"], 1)
        self.assertEqual(resumed["losses"], whole["losses"])
        self.assertTrue(all(row["whole"] for row in self.listed()))  # those that were broken are new, or gone
        # None whole: refused, since to begin anew is not what was asked for.
        zeros(self.folder / "all/step-00000001/rank-00000.safetensors")
        self.refused(2, "checkpoint.broken checkpoint.path", "run", self.write(SCRIPT % 'e.resume = true; e.checkpoint.path = "all"'))

    def test_what_is_no_checkpoint_is_not_removed(self):
        mine = self.file(1, "a.txt")
        mine.parent.mkdir(parents=True)
        mine.write_text("of the user")
        for more in ("e.overwrite = true", "e.resume = true"):
            error = self.refused(2, "checkpoint.folder checkpoint.path", "run", self.write(SCRIPT % (more + "; e.steps = 1")))
            self.assertIn("step-00000001 has the name of a checkpoint and is none", error["message"])
        self.assertEqual(mine.read_text(), "of the user")

    def test_whose_they_are(self):
        said, first = self.says("e.steps = 3; e.resume = true")
        self.assertIn("there is no checkpoint in ck yet: the run begins anew", said)
        named = self.only("run", self.write(SCRIPT.replace("mw.train(e)", "mw.plan(e)") % "e.steps = 3; e.checkpoint = nil"))
        self.assertEqual(first["hash"], named["hash"])
        other = "e.model = mw.llama { layers = 1, hidden = 16, heads = 4, ffn = 32, vocab = 30 }"
        for more, problem in [
                (other, "checkpoint.taken checkpoint.path"),
                (other + "; e.resume = true", "checkpoint.differs checkpoint.path"),
                ("e.optimizer = mw.sgd { lr = 1e-2 }; e.resume = { changed = true }", "checkpoint.differs checkpoint.path"),
                ("e.optimizer = mw.adamw { lr = 1 }; e.resume = true", "checkpoint.differs checkpoint.path"),
                ("e.seed = 1", "checkpoint.taken checkpoint.path"),
                ('e.resume = { from = "nowhere" }; e.checkpoint = nil', "checkpoint.missing resume.from"),
                ('e.resume = { from = "ck/step-00000001" }', "checkpoint.taken resume.from"),
                ("e.resume = true; e.checkpoint = nil", "option.missing checkpoint"),
                ("e.resume = 3", "option.value resume"),
                ('e.checkpoint.path = ""', "option.value checkpoint.path"),
                ('e.resume = { from = "" }', "option.value resume.from"),
                ('e.log = ""', "option.value log"),
                ('e.weights = ""', "option.value weights"),
                ('e.tensorboard = ""', "option.value tensorboard"),
                ('e.checkpoint.path = "{nme}"', "log.word checkpoint.path"),
                ("e.checkpoint.keep = 0", "option.range checkpoint.keep"),
                ('e.checkpoint.path = "script.lua"', "checkpoint.folder checkpoint.path"),
                ('e.checkpoint.path = "/proc/none"', "checkpoint.folder checkpoint.path")]:
            with self.subTest(more):
                error = self.refused(2, problem, "run", self.write(SCRIPT % more))
                if "lr = 1 }" in more:
                    self.assertIn("optimizer.lr: 0.01 there, 1", error["message"])
        # What may differ, where it is meant; the data goes on where it was.
        said, changed = self.says("e.optimizer = mw.adamw { lr = 1e-3 }; e.batch = 2; e.steps = 5; e.resume = { changed = true }")
        self.assertIn("changed since then: batch: 4 there, 2 here; optimizer.lr", said)
        self.assertEqual(changed["losses"][:3], first["losses"])
        self.assertEqual([row["tokens"] for row in self.listed()], [32, 64, 96, 96 + 16, 96 + 32])
        # Another's may be overwritten.
        self.train(other + "; e.overwrite = true; e.steps = 2")
        self.assertEqual([row["step"] for row in self.listed()], [1, 2])

    def test_another_function_is_another_experiment(self):
        def refused(problem, more, said):
            self.assertIn(said, self.refused(2, f"{problem} checkpoint.path", "run", self.write(SCRIPT % more))["message"])

        still = ('e.checkpoint.path = "%s"; e.steps = %d; local factor = %s; e.schedule = function() return factor end; '
                 'e.loss_scale = function() return 8 * %d end; e.model = mw.model { layers = 1, '
                 'dims = { hidden = 16, ffn = 24, vocab = 30 }, block = function(x) %s end }; ')
        block = "return x + x:rms_norm {}:mlp {}"
        self.train(still % ("ck", 1, 0.5, 1, block))
        for factor, scale, key in [(0.25, 1, "schedule"), (0.5, 2, "loss_scale")]:
            other = still % ("ck", 2, factor, scale, block)
            refused("checkpoint.taken", other, f"up to step 1: {key}: another function")
            refused("checkpoint.differs", other + "e.resume = true", f"of another experiment: {key}: another function")
        said, _ = self.says(still % ("ck", 2, 0.25, 1, block) + "e.resume = { changed = true }")
        self.assertIn("changed since then: schedule: another function", said)
        # A block that makes the same graph is the same model, however it is written.
        said, _ = self.says(still % ("ck", 3, 0.25, 1, "local h = x:rms_norm {}; return x + h:mlp {}") + "e.resume = true")
        self.assertIn("goes on from step 2", said)
        refused("checkpoint.differs", still % ("ck", 4, 0.25, 1, "return x + (x + x:rms_norm {}:mlp {})") +
                "e.resume = { changed = true }", "model: its functions record other ops")

    def test_another_sequence_goes_on_at_the_same_token(self):
        """Of a text; a source without an end makes its next sample, whatever its length."""
        text = bytes(97 + (7 * i * i + 3 * i) % 23 for i in range(2000))
        (self.folder / "all.txt").write_bytes(text)
        still = ('e.model = mw.llama { layers = 1, hidden = 16, heads = 4, ffn = 24, vocab = 256 }; e.precision = "fp64"; '
                 'e.optimizer = mw.sgd { lr = 0 }; e.data = mw.text { "%s.txt", order = "sequential" }; ')
        self.train(still % "all" + "e.steps = 2")
        longer = "e.sequence = 12; e.batch = 2; "
        said, changed = self.says(still % "all" + longer + "e.steps = 4; e.resume = { changed = true }")
        self.assertIn("sequence: 8 there, 12 here", said)
        # 64 tokens are five samples of 12 and a part of the sixth, which is not read twice.
        (self.folder / "rest.txt").write_bytes(text[6 * 12:])
        rest = self.train(still % "rest" + longer + 'e.steps = 2; e.checkpoint.path = "rest"')
        for mine, its in zip(changed["losses"][2:], rest["losses"], strict=True):
            self.assertAlmostEqual(mine, its, delta=1e-12)
        self.train('e.steps = 2; e.checkpoint.path = "endless"')
        _, endless = self.says('e.sequence = 16; e.steps = 3; e.checkpoint.path = "endless"; e.resume = { changed = true }')
        self.assertEqual([row["tokens"] for row in self.listed("endless")], [32, 64, 12 * 16])
        self.assertEqual(len(endless["losses"]), 3)

    def test_a_run_without_a_loss_scale_has_none_of_its_checkpoint(self):
        still = "e.optimizer = mw.sgd { lr = 0 }; "
        plain = self.train(still + 'e.steps = 2; e.checkpoint.path = "plain"')["grad_norms"]
        tiny, = self.train(still + "e.steps = 1; e.loss_scale = 4e-39")["grad_norms"]
        self.assertGreater(abs(tiny / plain[0] - 1), 1e-5)  # gradients lose digits in fp32, or vanish
        _, resumed = self.says(still + "e.steps = 2; e.resume = { changed = true }")
        self.assertAlmostEqual(resumed["grad_norms"][1] / plain[1], 1, delta=1e-6)

    def test_data_that_were_edited_are_refused(self):
        data = 'e.model = mw.llama { layers = 1, hidden = 16, heads = 4, ffn = 24, vocab = 256 }; e.data = mw.text "a.txt"; '
        text = self.folder / "a.txt"
        text.write_text("the quick brown fox\n" * 50)
        whole = self.train(data + 'e.checkpoint.path = "whole"')
        self.train(data + "e.steps = 3")
        before = text.read_bytes()
        text.write_bytes(b"T" + before[1:])
        error = self.refused(2, "checkpoint.differs checkpoint.path", "run", self.write(SCRIPT % (data + "e.resume = true")))
        self.assertRegex(error["message"], r"experiment: data\.content: \"[0-9a-f]{16}\" there, \"[0-9a-f]{16}\" here$")
        said, _ = self.says(data + "e.steps = 4; e.resume = { changed = true }")
        self.assertIn("changed since then: data.content", said)
        shutil.rmtree(self.file(4).parent)
        text.write_bytes(before)
        _, resumed = self.says(data + "e.resume = true")
        self.assertEqual(resumed["losses"], whole["losses"])

    def test_one_run_at_a_time(self):
        script = self.write(SCRIPT % 'e.steps = 1000000; e.checkpoint.every = 1000000; e.observe = function(step) if '
                                     'step == 0 then io.stderr:write("begun\\n") end end')
        process = subprocess.Popen([BIN, "run", script, "--quiet"], cwd=self.folder, stderr=subprocess.PIPE)
        try:
            while b"begun" not in process.stderr.readline():
                self.assertIsNone(process.poll())
            self.refused(2, "checkpoint.in-use checkpoint.path", "run", self.write(SCRIPT % ""))
            process.send_signal(signal.SIGTERM)  # writes one, and leaves
            process.communicate(timeout=300)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self.assertEqual(process.returncode, 130)
        row, = self.listed()
        self.assertTrue(row["whole"] and row["step"] >= 1)

    def test_a_disk_that_is_full(self):
        # Files of this many bytes at most: too few for what a rank writes.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        script = self.write(SCRIPT % "e.steps = 3")
        done = subprocess.run([BIN, "run", script, "--json"], cwd=self.folder, capture_output=True, text=True,
                              preexec_fn=limit, timeout=300)
        result = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((done.returncode, result["status"], result["steps"]), (1, "failed", 3), done.stderr)
        self.assertIn("File too large", result["reason"])
        self.assertEqual([failed["step"] for failed in result["checkpoints"]["failed"]], [1, 2, 3])
        self.assertEqual(os.listdir(self.folder / "ck"), [".lock"])
        # What was whole before stays.
        self.train("e.steps = 2")
        subprocess.run([BIN, "run", self.write(SCRIPT % "e.resume = true; e.checkpoint.keep = 1"), "--json"], cwd=self.folder,
                       capture_output=True, preexec_fn=limit, timeout=300)
        self.assertEqual([(row["step"], row["whole"]) for row in self.listed()], [(1, True), (2, True)])

    def test_what_is_not_finite_is_not_kept(self):
        done = self.call("run", self.write(SCRIPT % "e.schedule = function(step) return step < 3 and 1e-2 or 1e30 end"), "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertTrue(all(row["whole"] for row in self.listed()))

    def test_a_loss_that_is_not_finite_leaves_the_checkpoint_before_whole(self):
        """Those under way when it comes up are brought to their end, in each process that carries ranks."""
        more = ('e.model = mw.llama { layers = 2, hidden = 256, heads = 4, ffn = 512, vocab = 30 }; e.checkpoint.every = 3; '
                'e.schedule = function(step) return step < 2 and 1e-2 or 1e30 end')
        for processes in ((), ("--processes", "2")):
            if processes and shutil.which("mpirun") is None:
                continue  # the plugin mpi is left out
            with self.subTest(processes=processes):
                shutil.rmtree(self.folder / "ck", ignore_errors=True)
                done = self.call("run", self.write(SCRIPT % more), "--json", *processes)
                self.assertEqual(done.returncode, 1, done.stderr)
                result = self.lines(done)[0]
                self.assertRegex(result["reason"], "its update was skipped")
                self.assertEqual(result["steps"], 4, result["reason"])  # the next one after the checkpoint
                self.assertEqual([(row["step"], row["whole"]) for row in self.listed()], [(3, True)])
                self.assertEqual(sorted(os.listdir(self.folder / "ck")), [".lock", "step-00000003"])

    def test_what_hooks_keep_stays_with_their_mix(self):
        more = ('e.model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 30 }; e.steps = %d; '
                'e.plan = { dp { %d, hook = dp.powersgd { rank = %d } } }; e.resume = true')
        self.train(more % (2, 2, 1))
        belongs = "what its reduction hooks have kept is not taken along: it belongs to the ranks of dp { 2, hook = { kind = \"powersgd\", rank = 1 } }"
        for steps, ways, rank, said in [(3, 2, 1, False), (4, 4, 1, True)]:
            with self.subTest(ways=ways, rank=rank):
                text, result = self.says(more % (steps, ways, rank))
                self.assertEqual(result["resumed"]["step"], steps - 1)
                self.assertEqual(belongs in text, said, text)

    def test_killed_at_random_moments(self):
        steps = 60
        more = f'e.steps = {steps}; e.log = "run.h5"; e.checkpoint = {{ path = "ck", every = 2, keep = 2 }}; e.resume = true'
        whole = self.train(f'e.steps = {steps}; e.checkpoint = nil')
        chance = random.Random(7)
        reached = [0]
        script = self.write(SCRIPT % (more + '; e.observe = function() os.execute("sleep 0.01") end'))
        start = lambda: subprocess.Popen([BIN, "run", script, "--json"], cwd=self.folder, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE)
        for kill in range(KILLS):
            process = start()
            # The first one is killed as it begins, the others some checkpoints further on.
            wanted = reached[-1] + chance.choice((2, 4, 6)) if kill else 0
            while not (self.newest() >= wanted if kill else (self.folder / "ck/.lock").exists()):
                self.assertIsNone(process.poll())
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.05))
            process.kill()
            process.communicate()
            there = [row for row in self.listed() if row["kind"] == "checkpoint"] if self.newest() else []
            self.assertTrue(all(row["whole"] for row in there), there)
            reached.append(there[-1]["step"] if there else 0)
            self.assertGreaterEqual(reached[-1], wanted)
            self.assertEqual(reached, sorted(reached))
        process = start()
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, err.decode())
        result = json.loads(out.decode().splitlines()[-1])
        self.assertEqual(result["losses"], whole["losses"])
        with h5py.File(self.folder / "run.h5", locking=False) as file:
            self.assertEqual(file["steps"]["step"].tolist(), list(range(steps)))
            self.assertEqual(file["steps"]["loss"].tolist(), whole["losses"])
        # A kill between the last checkpoint and the removal of the oldest one leaves that one too.
        there = [row["step"] for row in self.listed()]
        self.assertIn(there, ([steps - 2, steps], [steps - 4, steps - 2, steps]))
        self.assertEqual(sorted(os.listdir(self.folder / "ck"))[0], ".lock")

    def newest(self):
        """The step of the newest checkpoint; 0 if there is none."""
        return max((int(path.name.split("-")[1]) for path in (self.folder / "ck").glob("step-*")), default=0)


if __name__ == "__main__":
    unittest.main()
