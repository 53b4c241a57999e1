"""meshwright chaos: faults of every kind happen to a training, whose losses stay those of one that
nobody disturbs; a training that would not is found; what cannot be disturbed is refused."""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from cases import BIN, SOURCE, ProgramCase, matrix

sys.path.append(str(SOURCE / "python/src"))
from meshwright_chaos.faults import Record  # noqa: E402
from meshwright_chaos.kinds import KINDS  # noqa: E402
from meshwright_chaos.outcome import Outcome  # noqa: E402

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
# The first start is without faults. The second one trains by another rate. The fourth one, which
# goes on after a kill, loses the checkpoints of those before it, and the sixth one, which goes on
# after another, trains by another rate.
GOES_WRONG = """
io.open("starts", "a"):write("x\\n"):close()
local function starts()
  local count = 0
  for _ in io.lines("starts") do count = count + 1 end
  return count
end
if starts() == 4 then os.execute("rm -rf mw-chaos-*/checkpoints/step-*") end
e.schedule = function(step) return (starts() == 2 or starts() == 6) and 2e-3 or 1e-3 end
"""
# When the script is over, its run file has the first steps alone.
LOSES_ROWS = """
local grow = e.observe
e.observe = function(step)
  grow(step)
  if step == 3 then os.execute("cp mw-chaos-*/run.h5 old.h5 2>&-") end
end
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
# By this seed one bit of the data flips while it is read, and one before a start.
TWO_FLIPS = 5
# What the normal run takes of them; the matrix takes all.
THREADS = ["error", "kill", "suspend", "lost", "clock", "full", "read-only", "nan", "flip-checkpoint", "flip-gradient"]
ALL_OF_THREADS = [*THREADS, "flip-shard", "launcher", "pause", "slow", "delay", "flip-run-file"]
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

    def chaos(self, *arguments, steps=500, more="", data='mw.text "data.txt"', code=0, every=0.2, timeout=2):
        self.write((SCRIPT % (steps, more)).replace('mw.text "data.txt"', data))
        done = self.call("chaos", "script.lua", "--json", "--log", "faults.jsonl", "--every", every, "--timeout", timeout,
                         *arguments, TMPDIR=str(self.folder))
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        *faults, outcome = self.lines(done)
        self.said = done.stderr
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
        faults, outcome = self.chaos("--kinds", ",".join(kinds), "--seed", 3, steps=800)
        self.assertEqual((outcome["ranks"], outcome["steps"]), (4, 800))
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
        """Copies are of the files that the data source lists: a text is no pattern, whatever its name has, and an index of
        Megatron's goes with its tokens."""
        pair = self.folder / "own/second"
        pair.parent.mkdir()
        ids = [7 * token % 256 for token in range(9000)]
        pair.with_suffix(".bin").write_bytes(struct.pack("<9000H", *ids))
        pair.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQiqq", 1, 8, 1, 1, len(ids), 0, 0))
        (self.folder / "own/first.bin").write_bytes(struct.pack("<9000H", *ids))
        own = self.folder / "data[1].txt"
        own.write_text("".join(f"line {line} of some text\n" for line in range(4000)))
        before = own.read_text()
        for data, seed, faults, copies in (('mw.text "data[1].txt"', TWO_FLIPS, 2, r"data/0001/data\[1\]\.txt"),
                                           ('mw.shards { "own/{second,fir*}.bin" }', 2, 1, r"data/000(1/second|2/first)\.bin")):
            with self.subTest(data):
                faults, outcome = self.chaos("--kinds", "flip-shard", "--faults", faults, "--seed", seed, steps=400, every=0,
                                             data=data)
                self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), faults)
                said = {}
                for fault in faults:
                    self.assertRegex(fault["where"], f"^{copies}, ")
                    said[fault["where"].split(", ")[1]] = fault["said"]
                if len(faults) == 2:
                    self.assertRegex(said["while it is read"],
                                     r"^(diverged: )?On rank \d: (data: text: )?\S+/data/0001/data\[1\]\.txt was written while")
                    self.assertRegex(said["before a start"], r"data\.content: .* there, .* here")
        self.assertEqual(own.read_text(), before, "its own file is as it was")

    def test_one_that_is_killed_lets_what_stands_still_continue(self):
        """Its conductor is killed, and the program says so. A program that is killed has its conductor clear away."""
        self.write(SCRIPT % (300, ""))
        for killed in ("conductor", "program"):
            with self.subTest(killed):
                with subprocess.Popen([BIN, "chaos", "script.lua", "--kinds", "suspend", "--every", "0", "--timeout", "600"],
                                      cwd=self.folder, env={**os.environ, "TMPDIR": str(self.folder)}, stderr=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL) as process:
                    self.addCleanup(process.kill)
                    until = time.monotonic() + 300
                    while "T" not in of_run(self.folder / "mw-chaos-").values():
                        self.assertLess(time.monotonic(), until, "no process stands still")
                        time.sleep(0.05)
                    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
                    conductor, = map(int, children.split())
                    os.kill(conductor if killed == "conductor" else process.pid, signal.SIGKILL)
                    said = process.stderr.read().decode()  # the conductor has it too
                    self.assertEqual(process.wait(), 5 if killed == "conductor" else -signal.SIGKILL)
                    self.assertEqual("which disturbs trainings" in said, killed == "conductor", said)
                until = time.monotonic() + 300
                while states := of_run(self.folder / "mw-chaos-"):
                    self.assertLess(time.monotonic(), until, f"processes are left: {states}")
                    time.sleep(0.05)
                left = list(self.folder.glob("mw-chaos-*"))
                self.assertEqual(left == [], killed == "program", left)
                for folder in left:
                    shutil.rmtree(folder)

    def test_trainings_that_go_wrong(self):
        """One that has another loss before a fault, one that begins anew although it has checkpoints, and one that does not
        go on as if never stopped."""
        faults, outcome = self.chaos("--kinds", "kill", "--faults", 3, steps=400, more=GOES_WRONG, code=1, every=0)
        self.assertEqual(outcome["status"], "wrong")
        self.assertRegex(outcome["wrong"][0], r"^another loss at step \d+, before fault 1$")
        anew, other = faults
        self.assertRegex(anew["wrong"], r"^it went on from step 0, and there was a checkpoint of step \d+$")
        # A wrong rate shows in the loss of the step after it. If the conductor has judged before
        # this step whether the run goes on, it reports the loss at the run's end.
        self.assertRegex(other["wrong"] or " ".join(outcome["wrong"][1:]), r"another loss at step \d+")
        kept, = self.folder.glob("mw-chaos-*")
        self.assertTrue((kept / "checkpoints").is_dir())

    @matrix
    def test_a_run_that_does_all_steps_and_does_not_end(self):
        _, outcome = self.chaos("--kinds", "clock", "--faults", 1, steps=150, more=NEVER_ENDS, code=1, every=0, timeout=300)
        self.assertRegex(outcome["wrong"][0], r"^all steps are done, and the run has not ended in \d+ s$")

    def clocks(self, more, code):
        """Many faults that harm nothing. The training does a step or more from one to the next, whatever the load."""
        return *self.chaos("--kinds", "clock", "--faults", 35, steps=150, more=more, code=code, every=0, timeout=300), self.said

    def test_processes_that_grow_and_a_run_file_that_lacks_the_last_steps(self):
        faults, outcome, _ = self.clocks(GROWS + LOSES_ROWS, 1)
        wrong = "\n".join(outcome["wrong"])
        self.assertIn("processes have grown by 1", wrong)
        self.assertGreater(outcome["grown_bytes"], 100 << 20)
        self.assertGreater(max(fault["grown_bytes"] or 0 for fault in faults), 100 << 20)
        # `cp` may have read the file just when rows were added, so that the copy is a broken one.
        self.assertRegex(wrong, r"(?m)^(the run is done, and its file has \d of 150 steps|.*run\.h5.*)$")

    def test_what_a_process_takes_at_its_start_is_no_growth(self):
        faults, outcome, said = self.clocks(STARTS_SMALL, 0)
        self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), faults)
        compared = [fault["grown_bytes"] for fault in faults if fault["grown_bytes"] is not None]
        self.assertNotEqual(compared, [], faults)
        self.assertLess(max(compared), 64 << 20)
        # It says how far the training without faults is.
        before, after = said.split("4 ranks, 150 steps; with faults from here on")
        self.assertTrue(before.startswith("the training without faults"), before)
        self.assertRegex(before, r"(?m)^step +1/150  loss \d")
        self.assertRegex(before, r"(?m)^step 150/150  loss \d+\.\d{4}")
        self.assertNotRegex(after, r"(?m)^step +\d+/150")

    def test_the_table_of_what_became_of_faults(self):
        kinds = {kind.name: kind for kind in KINDS}
        outcome = Outcome(ranks=4, steps=40, rounds=1)
        self.assertEqual(outcome.why_untried, "nothing was tried: no fault was made")
        outcome.records = [Record(1, kinds["kill"], 3)]
        self.assertEqual(outcome.why_untried, "nothing was tried: the fault found no place")
        outcome.records = [Record(1, kinds["kill"], 3), Record(2, kinds["kill"], 3)]
        self.assertEqual(outcome.why_untried, "nothing was tried: each of the faults found no place")
        outcome.records += [Record(3, kinds["kill"], 5, met=True, told=True, ended=True, seconds=2.26),
                            Record(4, kinds["flip-gradient"], 7, met=True, parted=True, said="other losses"),
                            Record(5, kinds["clock"], 9, met=True, where="all processes", wrong="the run has ended: of old age")]
        self.assertEqual((outcome.why_untried, outcome.good), ("", False))
        table = """\
  fault          injected    told  run ended  resumed right  longest
  -------------  --------  ------  ---------  -------------  -------  -
  kill                  1  1 of 1          1         1 of 1    2.3 s  a process is killed (SIGKILL) (2 found no place)
  clock                 1       -          0         0 of 1    0.0 s  the wall clock jumps
  flip-gradient         1       -          0              -    0.0 s  a bit flips in a gradient before its sum: cannot be seen, trains on

  1 training of 40 steps on 4 ranks came to its end with the losses of the one without faults; 1 more had other losses after a \
fault that no training can see, and was given up; no process ran long enough to measure whether its memory grew
  wrong: fault 5 (clock; all processes): the run has ended: of old age
"""
        self.assertEqual([line.rstrip(" -") for line in outcome.text().splitlines()],
                         [line.rstrip(" -") for line in table.splitlines()])

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

    def interrupted(self, *arguments, when):
        """Ends it as Ctrl-C does once `when` of its messages is true: nothing is wrong, and nothing is left."""
        self.write(SCRIPT % (100000 if arguments == () else 400, ""))
        with subprocess.Popen([BIN, "chaos", "script.lua", *arguments], cwd=self.folder, env={**os.environ, "TMPDIR": str(self.folder)},
                              start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                if when(line):
                    break
            os.killpg(process.pid, signal.SIGINT)
            stdout, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, stdout + stderr)
        self.assertEqual(bool(arguments), "run ended" in stdout, "its table")
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
                                           (one, ["--log", "script.lua"], "page.foreign"),
                                           (twice, [], "chaos.script"), (fails, [], "chaos.script")):
            with self.subTest(arguments=arguments, problem=problem):
                self.write(script)
                self.refused(2, problem, "chaos", "script.lua", *arguments)
        self.refused(2, "usage.option", "chaos", "-")
        self.refused(5, "program.missing", "chaos", "script.lua", MESHWRIGHT_PYTHON="no-such-python")


if __name__ == "__main__":
    unittest.main(verbosity=2)
