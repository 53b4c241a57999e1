"""What a run would leave out, read twice or take away without a word: each is refused, or the run
says so."""
import array
import fcntl
import json
import os
import shutil
import subprocess
import termios
import time
import unittest

import h5py

import cases
from problems import problems

SCRIPT = """\
local mw = require "meshwright"
local e = {
  model = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 24, vocab = 256 }, sequence = 8, batch = 4, threads = 1,
  data = mw.synthetic {}, plan = { mw.plugins("dp")(2) }, optimizer = mw.sgd { lr = 0.1 }, steps = 4, timeout = 120,
}
%s
mw.train(e)
"""
STOP = 'e.observe = function(step) if step == 1 and os.getenv("STOP") then os.execute("kill -TERM $PPID") end end'


class LeftOut(cases.ProgramCase):
    def train(self, more, code=0, verb="run"):
        """The result, and what was said of it."""
        stop = {"STOP": "1"} if code == 130 else {}
        done = self.call(verb, self.write(SCRIPT % more), "--json", **stop)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return self.lines(done)[-1], done.stderr

    def refusal(self, problem, more):
        """The message of the one problem."""
        error = self.refused(2, problem, "plan", self.write(SCRIPT % more))
        return error["message"]

    def notes(self, more):
        return self.train(more, verb="plan")[0].get("notes", [])

    def put(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    # --- Exports ---

    def test_an_export_leaves_other_files_alone(self):
        self.train('e.export = "out"')
        mine = {"README.md": b"mine", "runs/precious.h5": b"rows", "tokenizer.json": b"{}", "old.safetensors": b"weights"}
        for name, content in mine.items():
            self.put(f"out/{name}", content)
        self.train('e.export = "out"')
        self.train('e.export = "out" e.seed = 1 e.overwrite = true')
        for name, content in mine.items():
            self.assertEqual((self.folder / "out" / name).read_bytes(), content)
        self.put("thesis/chapter.tex", b"words")
        self.train('e.export = "thesis" e.overwrite = true')
        self.assertEqual(sorted(os.listdir(self.folder / "thesis")), ["chapter.tex", "config.json", "model.safetensors"])
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".")], [])

    def test_an_export_that_was_killed_between_two_names_loses_nothing(self):
        self.train('e.export = "out"')
        self.put("out/README.md", b"mine")
        (self.folder / "out").rename(self.folder / ".out.earlier")
        self.train('e.export = "out"')
        self.assertEqual(sorted(os.listdir(self.folder / "out")), ["README.md", "config.json", "model.safetensors"])
        self.assertFalse((self.folder / ".out.earlier").exists())

    def test_an_interrupted_run_leaves_the_weights_of_all_steps(self):
        whole = self.folder / "out/model.safetensors"
        export = 'e.export = "out" e.steps = 40 ' + STOP
        result, _ = self.train(export, code=130)
        self.assertEqual(result["export"], str(self.folder / "out"))
        self.train(export)
        trained = whole.read_bytes()
        result, said = self.train(export, code=130)
        self.assertEqual((whole.read_bytes() == trained, "export" in result), (True, False))
        self.assertIn("out stays as it was", said)

    # --- Checkpoints ---

    def test_a_checkpoint_that_cannot_be_read_is_not_a_broken_one(self):
        keep = 'e.checkpoint = { path = "ck", every = 1 }'
        self.train(keep + " e.steps = 3")
        index = self.folder / "ck/step-00000003/index.json"
        text = index.read_bytes()
        index.unlink()
        index.symlink_to("index.json")  # ELOOP, which root gets too
        done = self.call("run", self.write(SCRIPT % (keep + " e.resume = true")), "--json")
        self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["file.read"]), done.stderr)
        index.unlink()
        index.write_bytes(text[:-20])
        _, said = self.train(keep + " e.resume = true")
        self.assertIn("the broken one goes once this run's first checkpoint is complete", said)

    def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(self):
        (self.folder / "ck").symlink_to("ck")
        self.refused(2, "file.read", "checkpoints", "ck")
        self.refused(2, "checkpoint.missing", "checkpoints", "nowhere")

    def test_checkpoints_behind_a_link_to_nowhere_are_not_missing(self):
        (self.folder / "ck").symlink_to("disk/ck")
        self.refused(2, "file.read checkpoint.path", "run", self.write(SCRIPT % 'e.checkpoint = { path = "ck" } e.resume = true'))
        self.assertFalse((self.folder / "disk").exists())

    def test_quiet_says_why_a_run_failed(self):
        lost = ('e.checkpoint = { path = "ck" } e.observe = function(step) if step == 3 then '
                'os.execute("rm -r ck; echo > ck") end end')
        done = self.call("run", self.write(SCRIPT % lost), "--quiet")
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn("error: the checkpoint at its end is missing", done.stderr)

    def test_a_log_whose_rows_cannot_be_read_stays(self):
        both = 'e.log = "runs/a.h5" e.checkpoint = { path = "ck", every = 1 } e.resume = true e.steps = 40 '
        self.train(both + STOP, code=130)
        with h5py.File(self.folder / "runs/a.h5", "r+") as file:
            del file["work"]
            file["work"] = [1, 2]
        result, said = self.train(both)
        self.assertEqual(len(result["losses"]), 40)
        self.assertIn("the earlier steps in runs/a.h5 cannot be read", said)
        self.assertTrue((self.folder / "runs/a.earlier.h5").exists())
        with h5py.File(self.folder / "runs/a.h5") as file:
            self.assertTrue(any(b"cannot be read" in row["message"] for row in file["events"]))

    def test_quiet_hides_no_lost_protection(self):
        script = self.write(SCRIPT % 'e.checkpoint = { path = "ck", every = 1 } e.resume = true')
        done = self.call("run", script, "--quiet")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertIn("the run begins anew", done.stderr)
        self.assertEqual(self.call("run", script, "--quiet").stderr, "")

    def mounted(self, mount, *words):
        """The program in a view of the files of its own; root alone may make one."""
        view = ["unshare", "-m", "sh", "-ec", f"{mount}; exec \"$@\"", "sh"]
        if os.geteuid() or not shutil.which("unshare"):
            self.skipTest("mounting takes root")
        if subprocess.run([*view, "true"], cwd=self.folder, capture_output=True).returncode:
            self.skipTest("no mount is allowed here")
        return subprocess.run([*view, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300)

    def test_room_for_all_checkpoints_that_are_kept(self):
        (self.folder / "ck").mkdir()
        script = self.write(SCRIPT % 'e.checkpoint = { path = "ck", every = 1, keep = 1 }')
        done = self.mounted("mount -t tmpfs -o size=48k tmpfs ck", cases.BIN, "run", script)
        self.assertEqual(done.stderr.count("2 checkpoints of"), 1, done.stderr)
        done = self.mounted("mount -t tmpfs -o size=8m tmpfs ck", cases.BIN, "run", script)
        self.assertNotIn("are to be there", done.stderr)

    def test_a_checkpoint_that_cannot_be_removed(self):
        keep = 'e.checkpoint = { path = "ck", every = 1, keep = 1 } e.resume = true '
        self.train(keep + "e.steps = 1")
        script = self.write(SCRIPT % (keep + "e.steps = 2"))
        done = self.mounted("mount --bind ck/step-00000001 ck/step-00000001", cases.BIN, "run", script, "--quiet")
        self.assertIn("step-00000001 cannot be removed", done.stderr)

    def test_output_that_is_cut_off(self):
        (self.folder / "cell").mkdir()
        (self.folder / "cell/output.txt").symlink_to("/dev/full")
        _, said = self.train('e.log = "cell/" e.overwrite = true')
        self.assertIn("output.txt could not be written to its end", said)

    def test_a_pipe_that_is_full_for_a_moment(self):
        words = [cases.BIN, "plan", self.write((SCRIPT % "").replace("layers = 1", "layers = 4")), "--program"]
        whole = subprocess.run(words, cwd=self.folder, capture_output=True, timeout=300).stdout
        ours, theirs = os.pipe()
        room = fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
        self.assertGreater(len(whole), room)
        os.set_blocking(theirs, False)
        process = subprocess.Popen(words, cwd=self.folder, stdout=theirs, stderr=subprocess.PIPE)
        os.close(theirs)
        waiting = array.array("i", [0])
        while process.poll() is None and waiting[0] < room:
            time.sleep(0.01)
            fcntl.ioctl(ours, termios.FIONREAD, waiting)
        with open(ours, "rb") as pipe:
            self.assertEqual(pipe.read(), whole)
        self.assertEqual((process.wait(), process.stderr.read()), (0, b""))
        process.stderr.close()

    # --- The machine ---

    def test_variables_that_mean_nothing(self):
        script = self.write(SCRIPT % "")
        for name, value in (("OMP_THREAD_LIMIT", "abc"), ("OMP_THREAD_LIMIT", "1e3"), ("MESHWRIGHT_FIRST_USE", "OFF")):
            error = self.refused(5, "environment.value", "plan", script, **{name: value})
            self.assertIn(name, error["message"])
        self.refused(2, "plugin.path", "plan", script, MESHWRIGHT_PLUGIN_PATH="/nowhere")

    def test_an_mpirun_that_says_nothing(self):
        self.put("bin/mpirun", b"#!/bin/sh\nexit 1\n").chmod(0o755)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        script = self.write(SCRIPT % "")
        done = self.call("run", script, "--processes", "2", PATH=path)
        self.assertEqual(done.returncode, 5)
        self.assertIn("exit code 1 before its processes had met", done.stderr)
        self.put("bin/mpirun", b"#!/bin/sh\necho mpirun is ill >&2\nexit 1\n")
        done = self.call("run", script, "--processes", "2", PATH=path)
        self.assertEqual(done.returncode, 5)
        self.assertTrue(done.stderr.startswith("mpirun is ill\nerror: "), done.stderr)
        self.assertIn("what it said of the reason stands above", done.stderr)

    def test_keys_in_a_home_that_no_variable_names(self):
        """Of a user whose home is this folder, as /etc/passwd has it."""
        self.needs_namespaces()
        script = self.write(SCRIPT % "")
        self.put("passwd", f"root:x:0:0:root:{self.folder}:/bin/sh\n".encode())
        bind = f"mount --bind {self.folder / 'passwd'} /etc/passwd; unset HOME"
        self.assertIn("your home folder is in that folder", self.mounted(bind, cases.BIN, "plan", "--sandbox", script).stderr)

    # --- Runs ---

    def test_runs_in_linked_and_in_deep_folders(self):
        self.train('e.log = "store/a.h5"')
        (self.folder / "runs").mkdir()
        (self.folder / "runs/linked").symlink_to("../store")
        (self.folder / "runs/again").symlink_to("../runs")
        self.assertEqual([run["name"] for run in self.listed("runs")], ["dp(2)"])
        shutil.copytree(self.folder / "store", self.folder / "deep/1/2/3/4/5/6/7/8")
        run, = self.listed("deep")
        self.assertEqual((run["status"], run["reason"]), ("unreadable", "deeper than 8 folders"))

    def listed(self, folder):
        return [line for line in self.all("runs", "list", folder) if line["kind"] == "run"]

    def test_a_run_of_another_host(self):
        self.train('e.log = "a.h5"')
        with h5py.File(self.folder / "a.h5", "r+") as file:
            for name, text in (("host", "node7"), ("status", "running")):
                file.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", 16))
        run, = self.listed("a.h5")
        self.assertEqual((run["status"], run["reason"]), ("running", "on node7: whether it still runs cannot be seen from here"))

    def test_a_run_that_cannot_be_compared(self):
        for seed in range(3):
            self.train(f'e.log = "{seed}.h5" e.seed = {seed}')
        with h5py.File(self.folder / "0.h5", "r+") as file:
            del file["steps"]
            file["steps"] = [1, 2]
        text = self.call("runs", "compare", "0.h5", "1.h5", "2.h5").stdout
        self.assertIn("0.h5: unreadable", text)
        self.assertIn("loss at step 3", text)

    # --- Data ---

    def test_a_folder_of_tokens(self):
        self.put("data/a.bin", bytes(800))
        self.assertIn("is a folder", self.refusal("file.missing data.path", 'e.data = mw.shards { "data", dtype = "u16" }'))


    def test_a_folder_of_text_is_read_in_full(self):
        self.put("data/a.txt", b"words " * 100)
        self.assertEqual(self.notes('e.data = mw.text "data"'), [])
        self.put("data/more/b.txt", b"words")
        self.put("data/.hidden", b"words")
        note, = self.notes('e.data = mw.text "data"')
        self.assertIn("1 folder (more) and 1 hidden file", note)
        (self.folder / "data/c.txt").symlink_to("/mnt/nowhere/c.txt")
        self.assertIn("leads nowhere", self.refusal("file.read data.path", 'e.data = mw.text "data"'))
        (self.folder / "data/c.txt").unlink()
        os.mkfifo(self.folder / "data/d.txt")
        self.assertIn("named pipe", self.refusal("file.read data.path", 'e.data = mw.text "data"'))

    def test_a_file_is_named_once(self):
        self.put("s1.bin", bytes(2 * 400))
        self.put("s2.bin", bytes(2 * 400))
        self.refusal("data.twice data.path", 'e.data = mw.shards { { "s*.bin", "s1.bin" }, dtype = "u16" }')
        os.link(self.folder / "s1.bin", self.folder / "t.bin")
        self.refusal("data.twice data.path", 'e.data = mw.shards { { "s1.bin", "t.bin" }, dtype = "u16" }')
        self.put("a.txt", b"words " * 100)
        self.refusal("data.twice data.path", 'e.data = mw.text { { "a.txt", "./a.txt" } }')

    def test_tokens_that_are_read_again(self):
        self.put("a.txt", bytes(range(32, 102)))
        note, = self.notes('e.data = mw.text "a.txt"')
        self.assertIn("70 tokens are 8 samples of 8, and the run takes 16: each is read 2 times", note)
        self.put("b.txt", b"words " * 100)
        self.assertEqual(self.notes('e.data = mw.text "b.txt"'), [])
        note, = self.notes('e.data = mw.text "b.txt" e.evaluate = { data = mw.text "a.txt", every = 2, batches = 4 }')
        self.assertIn("an evaluation takes 16", note)
        result, said = self.train('e.data = mw.text "a.txt"')
        self.assertIn("read 2 times", result["notes"][0])
        self.assertIn("read 2 times", said)

    def test_keys_that_change_nothing(self):
        for key, given in (("overwrite", "e.overwrite = true"), ("loss_scale", 'e.precision = "bf16" e.loss_scale = 8'),
                           ("reductions", 'e.reductions = "fp32"'), ("main_gradients", 'e.main_gradients = "fp32"')):
            with self.subTest(given):
                self.assertEqual([note.split(":")[0] for note in self.notes(given)], [key])
        for given in ('e.overwrite = true e.log = "run.h5"', 'e.precision = "fp16" e.loss_scale = 8',
                      'e.precision = "bf16" e.reductions = "fp32"'):
            with self.subTest(given):
                self.assertEqual(self.notes(given), [])

    def test_held_out_tokens_that_are_trained_on(self):
        self.put("b.txt", b"words " * 100)
        pair = 'e.data = mw.text { "b.txt"%s } e.evaluate = { data = mw.text { "./b.txt"%s }, every = 2, batches = 1 }'
        for train, held_out, both in (("", "", True), (", part = { 0, 0.9 }", ", part = { 0.9, 1 }", False),
                                      (", part = { 0.5, 1 }", ", part = { 0, 0.5 }", False),
                                      (", part = { 0, 0.9 }", ", part = { 0.8, 1 }", True), ("", ", part = { 0.9, 1 }", True)):
            with self.subTest(train=train, held_out=held_out):
                self.assertEqual([note.startswith("evaluate.data: it is no held-out data") for note in
                                  self.notes(pair % (train, held_out))], [True] * both)

    def test_parts_are_of_files_in_their_order(self):
        self.put("b.txt", b"words " * 100)
        self.put("c.txt", b"other " * 100)
        pair = ('e.data = mw.text { { "b.txt", "c.txt" }, part = { 0, 0.5 } } '
                'e.evaluate = { data = mw.text { { %s }, part = { 0.5, 1 } }, every = 2, batches = 1 }')
        for held_out, both in (('"b.txt", "c.txt"', False), ('"c.txt", "b.txt"', True)):
            self.assertEqual(["it is no held-out data" in note for note in self.notes(pair % held_out)], [True] * both)

    def test_a_run_that_ends_in_its_warm_up(self):
        note, = self.notes("e.schedule = mw.cosine { warmup = 1000 }")
        self.assertEqual(note, "schedule: the run ends in its warm-up, after 4 of 1000 steps")
        self.assertEqual(self.notes("e.schedule = mw.cosine { warmup = 2 }"), [])

    # --- Weights ---

    def test_weights_without_their_config(self):
        self.train('e.export = "out"')
        self.assertEqual(self.notes('e.weights = "out"'), [])
        os.remove(self.folder / "out/config.json")
        note, = self.notes('e.weights = "out" e.export = "more"')
        self.assertIn("rope_theta = 10000", note)
        self.assertIn("nor does the export get a tokenizer", note)

    # --- Sweeps and reports ---

    def test_predictions_that_were_cut_off(self):
        script = self.write((SCRIPT % "").replace("mw.train(e)", 'mw.sweep { name = "s", base = e, over = { batch = { 4, 8 } } }'))
        self.all("sweep", script, "--predict")
        file, = self.folder.glob("**/predicted.jsonl")
        lines = file.read_text().splitlines(keepends=True)
        file.write_text(lines[0] + lines[1][:-40])
        error = self.refused(2, "file.format", "report", file.parent, "-o", "page.html")
        self.assertIn("line 2", error["message"])
        shutil.copy(file, self.folder / "plans.jsonl")
        self.refused(2, "file.format", "report", "plans.jsonl", "--figures", "figures")
        self.all("sweep", script, "--predict")
        self.assertEqual(len([json.loads(line) for line in file.read_text().splitlines()]), 2)

    def test_a_result_that_was_cut_off_is_run_again_and_said(self):
        script = self.write((SCRIPT % "").replace("mw.train(e)", 'mw.sweep { name = "s", base = e, over = { seed = { 0, 1 } } }'))
        self.all("sweep", script)
        file = sorted(self.folder.glob("**/result.json"))[0]
        file.write_text(file.read_text()[:50])
        done = self.call("sweep", script, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("its result.json cannot be read as a result, so it runs again"), 1, done.stderr)
        index, = self.folder.glob("**/sweep.json")
        for text in (index.read_text()[:50], '{"of": "the user"}'):
            index.write_text(text)
            done = self.call("sweep", script, "--json")
            self.assertEqual((done.returncode, problems(self.lines(done))), (5, ["file.format"]), done.stderr)
            self.assertEqual(index.read_text(), text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
