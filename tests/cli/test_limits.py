"""What a system may lack: locks, room for the output, cores, threads, a launcher, HOME. Each is
said, or another way is taken."""
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

from cases import BIN, SCRIPT, SOURCE, ProgramCase

SMALL = """\
local mw = require "meshwright"
local dp = mw.plugins "dp"
local e = {
  model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 48, vocab = 128 }, data = mw.synthetic {}, sequence = 16,
  plan = { dp(%d) }, batch = 4, optimizer = mw.adamw { lr = 1e-3 }, steps = 3, timeout = 300,
}
%s
mw.train(e)
"""


class Limits(ProgramCase):
    def write(self, text, name="script.lua"):
        (self.folder / name).write_text(text)
        return self.folder / name

    def small(self, ranks=1, more="", name="script.lua"):
        return self.write(SMALL % (ranks, more), name)

    def lacking(self, what):
        """The environment of a program on a system that lacks it."""
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("there is no C compiler")
        library = self.folder / "lacking.so"
        if not library.exists():
            subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE / "tests/support/lacking.c", "-ldl"], check=True)
        return {"LD_PRELOAD": str(library), "LACKING": what}

    def start(self, *arguments, **environment):
        process = subprocess.Popen([BIN, *map(str, arguments)], cwd=self.folder, text=True, env={**os.environ, **environment},
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, path, process):
        until = time.monotonic() + 300
        while not (self.folder / path).exists():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)


class NoLocks(Limits):
    WAITS = ("e.observe = function(step) if step == 1 then io.open('waits', 'w'):close() "
             "while not io.open('go') do os.execute('sleep 0.05') end end end ")

    def test_a_second_run_is_refused_as_with_locks(self):
        for more, code in (("e.log = 'a.h5' ", "log.in-use log"),
                           ("e.checkpoint = { path = 'ck', every = 1 } ", "checkpoint.in-use checkpoint.path")):
            with self.subTest(code):
                first = self.start("run", self.small(1, more + self.WAITS), "--quiet", **self.lacking("locks"))
                self.wait_for("waits", first)
                said = self.refused(2, code, "run", self.small(1, more, "other.lua"), **self.lacking("locks"))["message"]
                self.assertIn(f"process {first.pid} on ", said)
                (self.folder / "go").touch()
                self.assertEqual(first.wait(300), 0, first.stderr.read())
                for file in ("waits", "go"):
                    (self.folder / file).unlink()

    def test_what_a_killed_run_has_left_stops_nobody(self):
        more = "e.log = 'a.h5' e.checkpoint = { path = 'ck', every = 1 } "
        first = self.start("run", self.small(1, more + self.WAITS), "--quiet", **self.lacking("locks"))
        self.wait_for("waits", first)
        first.send_signal(signal.SIGKILL)
        first.wait()
        done = self.call("run", self.small(1, more + "e.overwrite = true", "other.lua"), "--quiet", **self.lacking("locks"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([file for file in os.listdir(self.folder) if file.endswith(".held")], [])

    def test_each_cell_of_a_sweep_runs_once(self):
        self.write("""\
local mw = require "meshwright"
local sweep = mw.sweep {
  name = "shared", over = { ["optimizer.lr"] = { 0.1, 0.3, 1e-4, 1e-3 } },
  base = { model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 48, vocab = 128 }, data = mw.synthetic {},
           sequence = 16, plan = {}, batch = 4, optimizer = mw.adamw { lr = 1e-3 }, steps = 4,
           observe = function(step, facts) if step == 3 then local f = io.open("cells.txt", "a")
                     f:write(facts.lr, "\\n") f:close() end os.execute("sleep 0.05") end },
}
for _, c in ipairs(sweep:go { workers = 1, reruns = 0, quiet = true }) do print(c.name, c.status, c.reason or "") end
""", "sweep.lua")
        both = [self.start("run", "sweep.lua", "--quiet", **self.lacking("locks")) for _ in range(2)]
        for process in both:
            said, error = process.communicate(timeout=300)
            self.assertEqual((process.returncode, said.count("\tdone")), (0, 4), said + error)
        self.assertEqual(len(set((self.folder / "cells.txt").read_text().split())), 4)
        self.assertEqual(len((self.folder / "cells.txt").read_text().split()), 4)


class Outputs(Limits):
    """Files that a user names are replaced only by what is of their kind, and by all of it."""

    def setUp(self):
        super().setUp()
        self.small(1, "e.log = 'run.h5'")
        self.assertEqual(self.call("run", "script.lua").returncode, 0)
        self.write("of the user", "keep.txt")

    def kept(self, name, code, *command):
        before = (self.folder / name).read_bytes()
        self.refused(2, code, *command)
        self.assertEqual((self.folder / name).read_bytes(), before, command)

    def test_another_kind_and_inputs_stay(self):
        drawn = "schedule", "1f1b", "--stages", "2", "--microbatches", "2"
        self.assertEqual(self.call(*drawn, "--csv", "order.csv").returncode, 0)
        for name, code, *command in (
                ("run.h5", "file.write", "trace", "run.h5", "--svg", "run.h5"),
                ("keep.txt", "page.foreign", "trace", "run.h5", "-o", "keep.txt"),
                ("script.lua", "page.foreign", "logits", "script.lua", "-o", "script.lua"),
                ("script.lua", "file.write", "plan", "script.lua", "--trace", "script.lua"),
                ("keep.txt", "page.foreign", "plan", "script.lua", "--html", "keep.txt"),
                ("keep.txt", "page.foreign", *drawn, "--svg", "keep.txt"),
                ("keep.txt", "page.foreign", *drawn, "--csv", "keep.txt"),
                ("order.csv", "file.write", "schedule", "order.csv", "--csv", "order.csv"),
                ("keep.txt", "page.foreign", "calibrate", "--quick", "-o", "keep.txt")):
            with self.subTest(command):
                self.kept(name, code, *command)
        before = (self.folder / "run.h5").read_bytes()
        done = self.call("runs", "export", "run.h5", "-o", "run.h5")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("it is there, and it is no table of runs", done.stderr)
        self.assertEqual((self.folder / "run.h5").read_bytes(), before)
        for command in (("trace", "run.h5", "-o", "x", "--svg", "./x"), ("plan", "script.lua", "--html", "x", "--trace", "x")):
            self.refused(2, "file.write", *command)
            self.assertFalse((self.folder / "x").exists())
        for _ in range(2):  # its own kind is replaced
            done = self.call(*drawn, "--csv", "order.csv", "--svg", "a.svg", "--trace", "/dev/stdout")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn('"traceEvents"', done.stdout)

    def test_a_file_that_finds_no_room_leaves_the_one_before(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for name, *command in (("r.html", "report", "run.h5", "-o", "r.html"), ("t.json", "trace", "run.h5", "-o", "t.json"),
                               ("s.svg", "schedule", "1f1b", "--stages", "2", "--microbatches", "2", "--svg", "s.svg")):
            with self.subTest(command):
                self.assertEqual(self.call(*command).returncode, 0)
                before = (self.folder / name).read_bytes()
                done = subprocess.run([BIN, *command], cwd=self.folder, preexec_fn=limit, capture_output=True, text=True,
                                      timeout=300)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"{name}: cannot write it: File too large", done.stderr)
                self.assertEqual((self.folder / name).read_bytes(), before)
        with open(self.folder / "said", "w", encoding="utf-8") as said:
            done = subprocess.run([BIN, "lua-types"], stdout=said, stderr=subprocess.PIPE, text=True, preexec_fn=limit, timeout=300)
        self.assertEqual(done.returncode, 1)
        self.assertIn("stdout cannot be written: File too large", done.stderr)

    def test_names_that_no_file_can_have(self):
        long = "x" * 300
        done = self.call("run", "script.lua", "--set", f"export={long}")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("File name too long", done.stderr)
        self.assertNotIn("filesystem error", done.stderr)
        done = self.call("runs", "list", "/proc/self/mem")
        self.assertNotIn("HDF5-DIAG", done.stderr)
        self.assertNotIn("basic_filebuf", self.call("calibrate", "-o", "q.lua", "--from", "/proc/self/mem").stderr)


class FullOutput(Limits):
    def full(self, *arguments, code=1, **environment):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([BIN, *map(str, arguments)], cwd=self.folder, stdout=full, stderr=subprocess.PIPE,
                                  text=True, env={**os.environ, **environment}, timeout=300)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual((done.returncode, len(errors)), (code, 1), (arguments, done.stderr))
        self.assertRegex(errors[0], "^error: stdout cannot be written(: No space left on device)?; "
                                    "what this command says is lost there$")

    def test_every_command_says_so(self):
        script = self.small(1, "e.log = 'run.h5' print('of the script') io.write('and more')")
        self.assertEqual(self.call("run", script).returncode, 0)
        shown = self.write("print('nothing else')", "print.lua")
        for command in (["--version"], ["--help"], ["run", "--help"], ["version"], ["run", script], ["run", script, "--json"],
                        ["run", script, "--quiet"], ["plan", script], ["plan", script, "--json"], ["plan", script, "--program"],
                        ["verify", script], ["prove", script], ["prove", script, "--json"], ["runs", "list", "run.h5"],
                        ["runs", "show", "run.h5"], ["runs", "list", "run.h5", "--json"], ["plugins", "list"], ["lua-types"],
                        ["completion", "bash"], ["schedule", "1f1b", "--stages", "2", "--microbatches", "2"], ["run", shown]):
            with self.subTest(command):
                self.full(*command)

    def test_a_pipe_that_is_closed_is_no_fault(self):
        script = self.small(1, "for i = 1, 20000 do print('line', i) end")
        for command in (f'"$0" run {script} | head -n 1', '"$0" lua-types | head -n 1'):
            done = subprocess.run(["/bin/bash", "-c", command, str(BIN)], cwd=self.folder, capture_output=True, text=True,
                                  timeout=300)
            self.assertNotIn("error", done.stderr, command)

    @unittest.skipIf(shutil.which("mpirun") is None, "MPI is not installed: the plugin was left out")
    def test_processes_say_so_too(self):
        script = self.small(2)
        for more in ([], ["--json"]):
            self.full("run", script, "--processes", 2, *more)

    def test_the_launcher(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for command in (["--help"], ["build", "--help"]):
                done = subprocess.run([SOURCE / "meshwright", *command], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=60)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("No space left on device", done.stderr)


class Cores(Limits):
    def cores(self, **environment):
        run, = self.lines(self.call("run", self.small(1), "--json", **environment))
        doctor = {line["name"]: line["found"] for line in self.lines(self.call("doctor", "--json", **environment))}
        return run["timing"]["cores"], run["timing"]["wanted_cores"], doctor["machine"]

    def test_a_control_group_leaves_fewer(self):
        for version, files in (("2", {"cpu.max": "100000 100000"}),
                               ("1", {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"})):
            with self.subTest(version):
                root = self.folder / f"root{version}"
                group = root / ("sys/fs/cgroup/a" if version == "2" else "sys/fs/cgroup/cpu/a")
                group.mkdir(parents=True)
                (root / "proc/self").mkdir(parents=True)
                (root / "proc/self/cgroup").write_text("0::/a/b\n" if version == "2" else "3:cpu,cpuacct:/a/b\n")
                for name, text in files.items():
                    (group / name).write_text(text + "\n")
                cores, wanted, machine = self.cores(MESHWRIGHT_SYSTEM_ROOT=str(root))
                self.assertEqual((cores, wanted), (1, 1))
                self.assertRegex(machine, r", 1( of \d+)? cores?\b")

    def test_places_of_openmp_leave_no_fewer(self):
        """OpenMP binds the first thread to a place while it is loaded: the process has its cores all the same."""
        before = self.cores()
        for name, value in (("OMP_PROC_BIND", "true"), ("OMP_PLACES", "{0}"), ("GOMP_CPU_AFFINITY", "0")):
            with self.subTest(name):
                self.assertEqual(self.cores(**{name: value}), before)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "there is one core")
    def test_affinity_leaves_fewer(self):
        before = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, before)
        os.sched_setaffinity(0, {max(before)})
        cores, wanted, machine = self.cores()
        self.assertEqual((cores, wanted), (1, 1))
        self.assertIn(f", 1 of {os.cpu_count()} cores", machine)


class NoThreads(Limits):
    def test_one_error_wherever_they_end(self):
        script = self.write(SCRIPT % (
            "pp(2), dp(2)", "e.log = 'a.h5' e.checkpoint = { path = 'ck', every = 1 } e.overwrite = true e.resume = true "
                            "e.observe = function() end e.threads = 1"))
        refused = 0
        for limit in range(12):
            with self.subTest(limit):
                done = self.call("run", script, "--quiet", **self.lacking(f"threads={limit}"))
                if done.returncode == 0:
                    continue
                refused += 1
                self.assertIn(done.returncode, (1, 5), done.stderr)
                self.assertNotIn("terminate called", done.stderr)
                self.assertRegex(done.stderr, r"the system does not start another thread: Resource temporarily unavailable; "
                                              r"this process has \d+ threads?|no checkpoint of step"
                                              r"|^\s*libgomp: Thread creation failed")  # which ends a process itself
        self.assertGreater(refused, 4)

    def test_plan_and_verify(self):
        for command in ("plan", "verify", "prove"):
            done = self.call(command, self.small(2), **self.lacking("threads=0"))
            self.assertIn(done.returncode, (0, 1, 5), done.stderr)
            self.assertNotIn("terminate called", done.stderr)


class Launchers(Limits):
    def test_one_that_is_no_program(self):
        (self.folder / "file").write_text("")
        for launcher in ("nope", "nope -n 2", "./nope", "./file"):
            with self.subTest(launcher):
                done = self.call("run", self.small(), "--max-restarts", 0, "--launcher", launcher)
                self.assertEqual(done.returncode, 5, done.stderr)
                self.assertIn("finds no program of this name", done.stderr)
                self.assertIn(f'error: --launcher "{launcher}": exit code 12', done.stderr)

    def test_one_that_starts_nothing(self):
        for launcher, code in (("true", 0), ("false", 1), ("sh -c 'exit 9'", 9)):
            done = self.call("run", self.small(), "--max-restarts", 0, "--launcher", launcher)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(f'--launcher "{launcher}" ended with exit code {code}, and no process of the run has begun',
                          done.stderr)
        done = self.call("run", self.small(), "--max-restarts", 0, "--launcher", "env A=1", "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = self.call("run", self.small(1, "io.stderr:write('said')"), "--max-restarts", 0, "--launcher",
                         "env A=1 2>said.txt", "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual((self.folder / "said.txt").read_text(), "said")

    def test_processes_that_do_not_fit_are_refused_before_they_start(self):
        (self.folder / "bin").mkdir()
        mpirun = self.folder / "bin/mpirun"
        mpirun.write_text("#!/bin/sh\ntouch started\nexit 0\n")
        mpirun.chmod(0o755)
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        for verb in ("run", "verify"):
            for count in (3, 99):
                error = self.refused(3, "launch.ranks plan", verb, self.small(4), "--processes", count, PATH=path)
                self.assertIn("start", error["hint"])
        for count in ("0", "-1"):
            self.assertEqual(self.call("run", self.small(4), "--processes", count, PATH=path).returncode, 2)
        self.assertFalse((self.folder / "started").exists())
        # A script that is run up to its first experiment writes nothing meanwhile.
        self.call("run", self.small(4, "io.open('written', 'w'):close()"), "--processes", 99, PATH=path)
        self.assertTrue((self.folder / "started").exists())
        self.assertFalse((self.folder / "written").exists())

    def test_an_mpirun_that_crashes_is_named(self):
        (self.folder / "bin").mkdir()
        mpirun = self.folder / "bin/mpirun"
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        for number, hint in (("ABRT", "what it said stands above; mpirun -n 2 true shows"), ("KILL", "dmesg")):
            mpirun.write_text(f"#!/bin/sh\necho 'a line before' >&2\nkill -{number} $$\n")
            mpirun.chmod(0o755)
            error = self.refused(1, "launch.mpirun", "run", self.small(2), "--processes", 2, PATH=path)
            self.assertIn(f"mpirun was ended by SIG{number}", error["message"])
            self.assertIn(hint, error["hint"])
        mpirun.write_text("#!/bin/sh\nexit 7\n")
        done = self.call("run", self.small(2), "--processes", 2, PATH=f"{self.folder}/bin:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("mpirun ended with exit code 7 before its processes had met", done.stderr)
        self.assertIn(f"of which ulimit -n allows {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}", done.stderr)


class OneOfSeveral(Limits):
    def test_a_process_that_cannot_join_does_not_train_alone(self):
        script = self.small()
        self.assertEqual(self.call("version", RANK="1").returncode, 0)
        done = self.call("run", script, "--quiet", RANK="1", WORLD_SIZE="2")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn('WORLD_SIZE is "2", RANK is "1", MASTER_ADDR is not set', done.stderr)

    def test_microbatches_that_differ_between_processes_are_refused(self):
        script = self.small(2, "e.microbatch = function() return math.random(1, 2) end e.steps = 40")
        done = self.call("run", script, "--quiet", "--processes", "2")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("what its functions return differ", done.stderr)


class Home(Limits):
    def test_without_a_home(self):
        for environment in ({"HOME": None}, {"HOME": ""}, {"HOME": "/nonexistent"}, {"XDG_CACHE_HOME": "relative", "HOME": "."}):
            env = {**os.environ, "XDG_CACHE_HOME": None, **environment}
            env = {name: value for name, value in env.items() if value is not None}
            with self.subTest(environment):
                done = subprocess.run([BIN, "run", self.small(1), "--quiet"], cwd=self.folder, env=env,
                                      capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertFalse((self.folder / "relative").exists())
                help_ = subprocess.run([SOURCE / "meshwright", "--help"], env=env, capture_output=True, text=True, timeout=60)
                self.assertEqual((help_.returncode, help_.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
