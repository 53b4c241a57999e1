"""meshwright chaos: faults of every kind happen to a training, whose losses stay those of one that
nobody disturbs; a training that would not is found; what cannot be disturbed is refused."""
import json
import os
import signal
import struct
import subprocess
import time
import unittest

from cases import BIN, ProgramCase, matrix

SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
local e = {
  model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 },
  data = mw.text "data.txt", sequence = 16, plan = { dp(2), tp(2) }, batch = 8, precision = "fp64",
  optimizer = mw.adamw { lr = 1e-3 }, steps = %d,
}
%s
mw.train(e)
"""
# From its third start on the script trains by another rate; the first one is without faults.
FORGETS = """
io.open("starts", "a"):write("x\\n"):close()
e.schedule = function(step)
  local starts = 0
  for _ in io.lines("starts") do starts = starts + 1 end
  return starts < 3 and 1e-3 or 2e-3
end
"""
# Each start loses the checkpoints of those before it.
LOSES_CHECKPOINTS = 'os.execute("rm -rf mw-chaos-*/checkpoints/step-*")'
# When the script is over, its run file has the first steps alone.
LOSES_ROWS = """
e.observe = function(step) if step == 3 then os.execute("cp mw-chaos-*/run.h5 old.h5 2>&-") end end
local over <close> = setmetatable({}, { __close = function()
  os.execute("for file in mw-chaos-*/run.h5; do test -f $file && cp old.h5 $file; done")
end })
"""
# With faults, the script does not come to its end after the training.
NEVER_ENDS = """
io.open("starts", "a"):write("x\\n"):close()
local starts = 0
for _ in io.lines("starts") do starts = starts + 1 end
local over <close> = setmetatable({}, { __close = function() while starts > 1 do end end })
"""
# Once a fault's line says how far its process has grown, the process takes 128 MiB.
GROWS = """
local kept
e.observe = function()
  if kept then return end
  local stat = io.open("/proc/self/stat")
  local own = '"processes":[' .. stat:read("n") .. "]"
  stat:close()
  for line in io.lines("faults.jsonl") do
    if line:find(own, 1, true) and line:find('"grown_bytes":%-?%d') then kept = ("x"):rep(128 << 20) end
  end
end
"""
# A process that takes 128 MiB some steps after its start, whatever happens to it.
STARTS_SMALL = """
local kept, done = nil, 0
e.observe = function()
  done = done + 1
  if done == 15 then kept = ("x"):rep(128 << 20) end
end
"""
# What the normal run takes of them; the matrix takes all.
THREADS = ["error", "kill", "suspend", "lost", "clock", "full", "read-only", "nan", "flip-checkpoint", "flip-shard",
           "flip-gradient"]
ALL_OF_THREADS = [*THREADS, "launcher", "pause", "slow", "delay", "flip-run-file"]
PROCESSES = ["kill", "launcher", "pause"]
IN_RANK = {"error", "slow", "delay", "lost", "nan", "flip-gradient"}


def of_run(folder):
    """What is said of each process in whose words the folder stands: its state ("T": it stands still)."""
    states = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as words:
                named = str(folder) in words.read()
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
                state = stat.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if named and state != "Z":
            states[int(process)] = state
    return states


class Chaos(ProgramCase):
    def write(self, text):
        (self.folder / "data.txt").write_text("".join(f"line {line} of some text\n" for line in range(4000)))
        return super().write(text)

    def chaos(self, *arguments, steps=1500, more="", data='mw.text "data.txt"', code=0, every=0.2, timeout=2):
        self.write((SCRIPT % (steps, more)).replace('mw.text "data.txt"', data))
        done = self.call("chaos", "script.lua", "--json", "--log", "faults.jsonl", "--every", every, "--timeout", timeout,
                         *arguments, TMPDIR=str(self.folder))
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        *faults, outcome = self.lines(done)
        self.assertEqual(list(self.folder.glob("mw-chaos-*")) != [], code != 0, "its folder is kept if something is wrong")
        written = [json.loads(line) for line in (self.folder / "faults.jsonl").read_text().splitlines()]
        self.assertEqual(faults, written)
        return faults, outcome

    def right(self, kinds, faults, outcome):
        """Each kind has happened once, was told where it had to be, and did no harm that is not in the table."""
        self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), faults)
        self.assertEqual(sorted(fault["fault"] for fault in faults), sorted(kinds))
        for sums in outcome["faults"]:
            with self.subTest(sums["fault"]):
                self.assertEqual((sums["injected"], sums["missed"]), (1, 0))
                self.assertGreaterEqual(sums["told"], sums["must_be_told"])
                self.assertEqual(sums["right"], None if sums["fault"] == "flip-gradient" else 1)
        for fault in faults:
            with self.subTest(fault["fault"]):
                if fault["fault"] in IN_RANK:
                    self.assertRegex(fault["where"], r"^rank [0-3], [\w-]+ on \S")
                if fault["fault"] == "error":
                    self.assertIn(fault["where"].split(",")[0], fault["said"])
                if fault["fault"] in ("pause", "suspend", "slow", "delay", "clock"):
                    self.assertFalse(fault["ended"], fault)
                if fault["must_be_told"] and fault["fault"] not in ("full", "read-only"):
                    self.assertTrue(fault["ended"] and fault["goes_on_from"] is not None, fault)

    def threads(self, kinds):
        faults, outcome = self.chaos("--kinds", ",".join(kinds), "--seed", 3)
        self.assertEqual((outcome["ranks"], outcome["steps"]), (4, 1500))
        self.right(kinds, faults, outcome)
        said = {fault["fault"]: fault["said"] for fault in faults}
        self.assertIn("chaos: fault", said["error"])
        self.assertIn("SIGKILL", said["kill"])
        self.assertIn("computed again, all its tensors are finite", said["nan"])
        self.assertIn("is broken", said["flip-checkpoint"])
        self.assertIn("File too large", said["full"])
        if "flip-shard" in said:
            self.assertRegex(said["flip-shard"], r"data\.txt was written while it was in use|data\.content: .* there, .* here")

    def processes(self, kinds, *arguments):
        faults, outcome = self.chaos(*arguments, "--kinds", ",".join(kinds), "--faults", len(kinds))
        self.right(kinds, faults, outcome)
        said = {fault["fault"]: fault["said"] for fault in faults}
        self.assertRegex(said["kill"], r"[Pp]rocess \d+ \(pid \d+ on \S+\) died|SIGKILL|signal 9|exit code 137")

    def test_ranks_as_threads(self):
        self.threads(THREADS)

    def test_processes(self):
        self.processes(PROCESSES, "--processes", 2)

    @matrix
    def test_all_faults_of_threads(self):
        self.threads(ALL_OF_THREADS)

    @matrix
    def test_all_faults_of_processes(self):
        self.processes([*ALL_OF_THREADS, "hang"], "--processes", 2)

    @matrix
    def test_processes_of_mpirun(self):
        user = " --allow-run-as-root" if os.geteuid() == 0 else ""
        self.processes(["kill", "launcher", "pause", "error"], "--launcher", f"mpirun -n 2 --oversubscribe{user}")

    def test_bits_that_flip_in_the_data(self):
        own = "".join(f"line {line} of some text\n" for line in range(4000))
        # By this seed one bit flips while the data is read, and one before a start.
        faults, outcome = self.chaos("--kinds", "flip-shard", "--faults", 2, "--seed", 2, steps=800, every=0)
        self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), faults)
        self.assertEqual((self.folder / "data.txt").read_text(), own, "its own file is as it was")
        said = {fault["where"].split(", ")[1]: fault["said"] for fault in faults}
        self.assertRegex(said["while it is read"], r"^(diverged: )?On rank \d: (data: text: )?\S+/data/0001/data\.txt was written while")
        self.assertRegex(said["before a start"], r"data\.content: .* there, .* here")

    def test_one_that_is_killed_lets_what_stands_still_continue(self):
        self.write(SCRIPT % (300, ""))
        with subprocess.Popen([BIN, "chaos", "script.lua", "--kinds", "suspend", "--every", "0", "--timeout", "600"],
                              cwd=self.folder, env={**os.environ, "TMPDIR": str(self.folder)}, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            self.addCleanup(process.kill)
            until = time.monotonic() + 300
            while "T" not in of_run(self.folder / "mw-chaos-").values():
                self.assertLess(time.monotonic(), until, "no process stands still")
                time.sleep(0.05)
            process.kill()
        until = time.monotonic() + 300
        while states := of_run(self.folder / "mw-chaos-"):
            self.assertLess(time.monotonic(), until, f"processes are left: {states}")
            time.sleep(0.05)

    def test_a_training_that_does_not_go_on_as_if_never_stopped(self):
        faults, outcome = self.chaos("--kinds", "kill", "--faults", 1, steps=800, more=FORGETS, code=1, every=0)
        self.assertEqual(outcome["status"], "wrong")
        self.assertRegex(faults[0]["wrong"], r"^another loss at step \d+$")
        kept, = self.folder.glob("mw-chaos-*")
        self.assertTrue((kept / "checkpoints").is_dir())

    def test_a_training_that_begins_anew_although_it_has_checkpoints(self):
        faults, outcome = self.chaos("--kinds", "kill", "--faults", 1, steps=800, more=LOSES_CHECKPOINTS, code=1, every=0)
        self.assertEqual(outcome["status"], "wrong")
        self.assertRegex(faults[0]["wrong"], r"^it went on from step 0, and there was a checkpoint of step \d+$")

    def test_a_training_that_has_gone_wrong_before_a_fault_that_nobody_sees(self):
        faults, outcome = self.chaos("--kinds", "flip-gradient", "--faults", 1, steps=800,
                                     more=FORGETS.replace("starts < 3", "starts < 2"), code=1, every=0)
        self.assertEqual(faults, [])
        self.assertRegex(outcome["wrong"][0], r"^another loss at step \d+, before fault 1$")

    def test_a_run_file_that_lacks_the_last_steps(self):
        _, outcome = self.chaos("--kinds", "clock", "--faults", 1, steps=150, more=LOSES_ROWS, code=1, every=0, timeout=300)
        # `cp` may have read the file just when rows were added, so that the copy is a broken one.
        self.assertRegex("\n".join(outcome["wrong"]), r"^(the run is done, and its file has \d of 150 steps|.*run\.h5.*)$")

    @matrix
    def test_a_run_that_does_all_steps_and_does_not_end(self):
        _, outcome = self.chaos("--kinds", "clock", "--faults", 1, steps=150, more=NEVER_ENDS, code=1, every=0, timeout=300)
        self.assertRegex(outcome["wrong"][0], r"^all steps are done, and the run has not ended in \d+ s$")

    def clocks(self, more, code):
        """Many faults that harm nothing. The training does a step or more from one to the next, whatever the load."""
        return self.chaos("--kinds", "clock", "--faults", 35, steps=150, more=more, code=code, every=0, timeout=300)

    def test_processes_that_grow_while_they_are_disturbed(self):
        faults, outcome = self.clocks(GROWS, 1)
        self.assertIn("processes have grown by 1", "\n".join(outcome["wrong"]))
        self.assertGreater(outcome["grown_bytes"], 100 << 20)
        self.assertGreater(max(fault["grown_bytes"] or 0 for fault in faults), 100 << 20)

    def test_what_a_process_takes_at_its_start_is_no_growth(self):
        faults, outcome = self.clocks(STARTS_SMALL, 0)
        self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), faults)
        compared = [fault["grown_bytes"] for fault in faults if fault["grown_bytes"] is not None]
        self.assertNotEqual(compared, [], faults)
        self.assertLess(max(compared), 64 << 20)

    def test_it_says_how_far_the_training_without_faults_is(self):
        self.write(SCRIPT % (40, ""))
        done = self.call("chaos", "script.lua", "--kinds", "flip-gradient", "--faults", 1, "--every", 0, TMPDIR=str(self.folder))
        before, after = done.stderr.split("4 ranks, 40 steps; with faults from here on")
        self.assertTrue(before.startswith("the training without faults"), before)
        self.assertRegex(before, r"(?m)^step +\d+/40  loss \d")
        self.assertRegex(before, r"(?m)^step 40/40  loss \d+\.\d{4}$")
        self.assertNotRegex(after, r"(?m)^step +\d+/40")
        parted = "other losses from step" in after + done.stdout
        said = "1 more had other losses after a fault that no training can see, and was given up"
        self.assertEqual(said in after + done.stdout, parted, after + done.stdout)

    def test_numbers_that_are_none(self):
        """One reader of numbers refuses what C reads as one: NaN, infinities, hexadecimal."""
        script = self.write("")
        for option in ("--every", "--minutes", "--timeout"):
            for number in ("nan", "-nan", "inf", "-inf", "-1", "1e999", "0x10", "5s", ""):
                with self.subTest(option=option, number=number):
                    done = self.call("chaos", script, f"{option}={number}")
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn(option, done.stderr)
        for option in ("--times", "--send", "--memory", "--joint"):
            with self.subTest(option=option):
                self.assertEqual(self.call("schedule", "1f1b", "--stages", 2, f"{option}=nan").returncode, 2)

    def test_the_copies_are_of_the_files_that_the_data_source_lists(self):
        """A text is no pattern, whatever its name has; an index of Megatron's goes with its tokens."""
        pair = self.folder / "own/second"
        pair.parent.mkdir()
        ids = [7 * token % 256 for token in range(9000)]
        pair.with_suffix(".bin").write_bytes(struct.pack("<9000H", *ids))
        pair.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQiqq", 1, 8, 1, 1, len(ids), 0, 0))
        (self.folder / "own/first.bin").write_bytes(struct.pack("<9000H", *ids))
        (self.folder / "data[1].txt").write_text("".join(f"line {line} of some text\n" for line in range(4000)))
        for data, copies in (('mw.text "data[1].txt"', r"data/0001/data\[1\]\.txt"),
                             ('mw.shards { "own/{second,fir*}.bin" }', r"data/000(1/second|2/first)\.bin")):
            with self.subTest(data):
                faults, outcome = self.chaos("--kinds", "flip-shard", "--faults", 1, "--seed", 2, steps=500, every=0, data=data)
                self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), faults)
                self.assertRegex(faults[0]["where"], f"^{copies}, ")

    def interrupted(self, *arguments, when):
        """Ends it as Ctrl-C does once `when` of its messages is true: nothing is wrong, and nothing is left."""
        self.write(SCRIPT % (100000 if arguments == () else 1500, ""))
        with subprocess.Popen([BIN, "chaos", "script.lua", *arguments], cwd=self.folder, env={**os.environ, "TMPDIR": str(self.folder)},
                              start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                if when(line):
                    break
            os.killpg(process.pid, signal.SIGINT)
            stdout, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, stdout + stderr)
        self.assertNotIn("wrong:", stdout)
        self.assertEqual(list(self.folder.glob("mw-chaos-*")), [])
        with self.assertRaises(ProcessLookupError):
            os.killpg(process.pid, 0)

    def test_one_that_is_interrupted_leaves_nothing(self):
        self.interrupted(when=lambda line: line.startswith("the training without faults"))

    def test_one_that_is_interrupted_between_faults_finds_its_checkpoints_whole(self):
        self.interrupted("--kinds", "error", "--faults", "1000", "--every", "0.2", when=lambda line: "goes on from step" in line)

    def test_what_is_refused(self):
        one, twice = SCRIPT % (2, ""), SCRIPT % (2, "mw.train(e)")
        fails = SCRIPT % (2, "e.observe = function() error('always') end")
        single = SCRIPT % (2, "e.plan = { dp(1) }")
        made = SCRIPT % (2, "e.data = mw.synthetic {}")
        for script, arguments, problem in ((one, ["--kinds", "kil"], "usage.value"), (one, ["--kinds", "hang"], "usage.value"),
                                           (single, ["--kinds", "lost"], "usage.value"),
                                           (made, ["--kinds", "flip-shard"], "usage.value"),
                                           (one, ["--processes", 2, "--launcher", "mpirun -n 2"], "usage.option"),
                                           (one, ["--minutes", -1], "usage.option"), (one, ["--log", "none/a"], "file.write"),
                                           (twice, [], "chaos.script"), (fails, [], "chaos.script")):
            with self.subTest(arguments=arguments, problem=problem):
                self.write(script)
                self.refused(2, problem, "chaos", "script.lua", *arguments)
        self.refused(2, "usage.option", "chaos", "-")


if __name__ == "__main__":
    unittest.main(verbosity=2)
