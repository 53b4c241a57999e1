"""run --processes: what signals to it, or to what starts it again, come to, and what becomes of a
run one of whose processes is killed."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest
import unittest.mock

import h5py

from cases import BIN, ProgramCase
from restarts import restart_script
FOREVER = "e.steps = 1000000 e.observe = function(step) if step == 2 then io.stderr:write('begun\\n') end end"


@unittest.skipIf(shutil.which("mpirun") is None, "MPI is not installed: the plugin was left out")
class ProcessesOption(ProgramCase):
    def start(self, more, *options, before=None):
        self.write(restart_script("dp(2)", more))
        process = subprocess.Popen([BIN, "run", "script.lua", "--processes", "2", "--json", *options], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_for_steps(self, process):
        for line in process.stderr:
            if "begun" in line:
                return
        self.fail("it ended before its third step")

    def end(self, process):
        stdout, stderr = process.communicate(timeout=300)
        lines = [json.loads(line) for line in stdout.splitlines()]
        self.assertEqual(len(lines), 1, stderr[-3000:])
        return process.returncode, lines[0]

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(signal=number):
                process = self.start(FOREVER + " e.overwrite = true")
                self.wait_for_steps(process)
                process.send_signal(number)
                code, run = self.end(process)
                self.assertEqual((code, run["status"]), (130, "interrupted"))
                self.assertIn(number.name, run["reason"])

    def test_functions_that_differ_between_processes(self):
        """What a function says for a step is compared, whatever the ranks of the processes share."""
        impure = "local n = io.open('/proc/self/stat'):read('n')"  # the process's number
        for plan in ("dp(2)", 'mw.plugin "pp" (2)'):
            for key, value in (("schedule", f"function(step) {impure} return step < 2 and 1e-3 or 1e-9 * n end"),
                               ("loss_scale", f"function(step) {impure} return step < 2 and 8 or n end")):
                with self.subTest(plan=plan, key=key):
                    process = self.start(f"e.plan = {{ {plan} }} e.steps = 4 e.overwrite = true e.{key} = {value}")
                    stdout, stderr = process.communicate(timeout=120)
                    self.assertEqual(process.returncode, 1, stderr)
                    self.assertIn("failed", stdout)
                    self.assertRegex(stderr, rf"{key}: the (learning rate|loss scale) of step 2 is .* on rank 0 and .* in process 1")

    def test_keys_that_one_process_alone_has(self):
        """Whoever writes a checkpoint or a trace would wait for the others."""
        for key, value in (("checkpoint", '{ path = "ck", every = 1 }'), ("trace", "{ 1 }"),
                           ("evaluate", "{ data = mw.synthetic {}, every = 1, batches = 1 }")):
            with self.subTest(key):
                process = self.start("e.steps = 2 e.overwrite = true "
                                     f"if os.getenv('OMPI_COMM_WORLD_RANK') == '1' then e.{key} = {value} end")
                _, stderr = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 1, stderr)
                self.assertRegex(stderr, rf"mw.train differs between process 1 .* and process 0 .*: {key}")

    def test_a_long_result_is_whole_though_a_process_dies(self):
        process = self.start(FOREVER.replace("step == 2", "step == 2500"))
        self.wait_for_steps(process)
        ranks = [one for one in self.processes_of(process.pid)[1:]
                 if pathlib.Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")[0] == str(BIN).encode()]
        self.assertEqual(len(ranks), 2)
        os.kill(self.other_than_first(ranks), signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=300)
        run, *errors = [json.loads(line) for line in stdout.splitlines()]
        self.assertEqual((process.returncode, run["status"]), (1, "failed"), stderr[-3000:])
        self.assertGreater(len(run["losses"]), 2500)
        self.assertRegex(errors[0]["message"], "Process 1 .* died")

    def test_a_launcher_that_is_killed_is_named(self):
        process = self.start(FOREVER)
        self.wait_for_steps(process)
        mpirun, = (one for one in self.processes_of(process.pid)
                   if pathlib.Path(f"/proc/{one}/cmdline").read_bytes().startswith(b"mpirun\0"))
        os.kill(mpirun, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 1, stderr[-3000:])
        errors = [json.loads(line) for line in stdout.splitlines() if '"kind":"error"' in line]
        self.assertEqual([error["code"] for error in errors], ["launch.mpirun"], stdout)
        self.assertIn("SIGKILL", errors[0]["message"])

    def test_lines_in_a_file_are_not_written_over(self):
        self.write(restart_script("dp(2)", "e.steps = 1"))
        run = f"'{BIN}' run script.lua --processes 2 --json 2>&1 >&3"
        done = subprocess.run(["sh", "-c", f"exec 3> lines; echo first >&3; {run}; echo last >&3"], cwd=self.folder, timeout=300,
                              capture_output=True, text=True)
        first, result, last = (self.folder / "lines").read_text().splitlines()
        self.assertEqual((first, json.loads(result)["status"], last), ("first", "done", "last"), done.stdout)

    def test_lines_that_nobody_reads_are_waited_for_by_nobody(self):
        self.write(restart_script("dp(2)", "e.steps = 1"))
        process = subprocess.Popen([BIN, "run", "script.lua", "--processes", "2", "--json"], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        process.stdout.close()
        _, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, stderr[-3000:])

    def other_than_first(self, ranks):
        for one in ranks:
            words = pathlib.Path(f"/proc/{one}/environ").read_bytes().split(b"\0")
            if b"OMPI_COMM_WORLD_RANK=1" in words:
                return one
        self.fail("none of these processes is process 1")

    def processes_of(self, root):
        """It and all that it has started."""
        children = {}
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                children.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        found = [root]
        for one in found:
            found += children.get(one, [])
        return found

    def lives(self, process):
        """A process that has ended, but that nobody has waited for (state Z), does not live."""
        try:
            return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False

    def listening(self, processes):
        """Local addresses, as the system writes them, of the sockets of these processes that listen."""
        sockets = set()
        for process in processes:
            for file in pathlib.Path(f"/proc/{process}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(file))
        found = []
        for kind in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    found.append(fields[1].split(":")[0])
        return found

    def test_it_listens_for_this_machine_alone(self):
        process = self.start(FOREVER)
        self.wait_for_steps(process)
        addresses = self.listening(self.processes_of(process.pid))
        self.assertTrue(addresses)  # mpirun does
        loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
        self.assertLessEqual(set(addresses), loopback)
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.end(process)[0], 130)

    def test_a_killed_launchers_folder_is_swept(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        with unittest.mock.patch.dict(os.environ, TMPDIR=str(temporary)):
            process = self.start(FOREVER)
            self.wait_for_steps(process)
            started = self.processes_of(process.pid)
            (left,) = temporary.glob("meshwright-mpirun-*")
            # While they live, nobody takes it from them, though it is old.
            os.utime(left, (1e9, 1e9))
            self.end_of_another()
            self.assertTrue(left.exists())
            process.kill()
            process.wait()
            deadline = time.monotonic() + 300
            while living := [one for one in started if self.lives(one)]:
                if time.monotonic() > deadline:
                    self.fail(f"60 s after the launcher was killed these processes still live: {living}")
                time.sleep(0.05)
            self.assertTrue(left.exists())
            os.utime(left, (1e9, 1e9))  # mpirun has removed what was in it
            self.end_of_another()
            self.assertEqual(list(temporary.glob("meshwright-mpirun-*")), [])

    def test_an_old_folder_without_a_lock_is_swept(self):
        temporary = self.folder / "tmp"
        old, young = temporary / "meshwright-mpirun-old", temporary / "meshwright-mpirun-young"
        for each in (old, young):
            each.mkdir(parents=True)
        os.utime(old, (1e9, 1e9))
        with unittest.mock.patch.dict(os.environ, TMPDIR=str(temporary)):
            self.end_of_another()
        self.assertEqual(list(temporary.glob("meshwright-mpirun-*")), [young])

    def test_it_stays_on_this_machine_in_a_batch_system(self):
        nodes = {"SLURM_NODELIST": "node-a,node-b", "SLURM_JOB_NODELIST": "node-a,node-b", "SLURM_JOB_NUM_NODES": "2",
                 "SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}
        with unittest.mock.patch.dict(os.environ, nodes):
            self.end_of_another()

    def end_of_another(self):
        other = self.folder / "other.lua"
        other.write_text(restart_script("dp(2)", "e.steps = 1 e.log = 'other.h5' e.overwrite = true"))
        done = subprocess.run([BIN, "run", "other.lua", "--processes", "2"], cwd=self.folder, capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])

    def under_mpirun(self, *command):
        return subprocess.Popen(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", BIN, *command], cwd=self.folder,
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_what_all_processes_have_to_say_is_said_once(self):
        self.write(restart_script("dp(2)", FOREVER))
        process = self.under_mpirun("run", "script.lua", "--communicator", "mppi")
        said, _ = process.communicate(timeout=300)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(said.count("there is no communicator"), 1, said)
        self.assertNotIn("stopping", said)
        process = self.under_mpirun("run", "script.lua", "--quiet")
        self.addCleanup(process.kill)
        for line in process.stdout:
            if "begun" in line:
                break
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
        self.assertEqual(said.count("stopping after this step"), 1, said)
        self.assertNotEqual(process.returncode, 0)  # OpenMPI's own, whatever its processes end with

    def test_nohup(self):
        process = self.start(FOREVER.replace("1000000", "200"), before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps(process)
        process.send_signal(signal.SIGHUP)
        code, run = self.end(process)
        self.assertEqual((code, run["status"], run["steps"]), (0, "done", 200))

    def test_a_run_that_is_killed_is_started_again(self):
        process = self.start("e.observe = function(step) if starts() < 3 and step == 2 then kill() end end", "--max-restarts", "2")
        stdout, stderr = process.communicate(timeout=240)
        runs = [json.loads(line) for line in stdout.splitlines()]
        self.assertEqual((process.returncode, runs[-1].get("status"), runs[-1].get("restarts")), (0, "done", 1), stderr[-3000:])
        self.assertEqual((self.folder / "starts").read_text(), "x\n" * 4)  # two processes, twice
        self.assertIn("restart 1 of 2 in 1 s", stderr)
        with h5py.File(self.folder / "a.h5", locking=False) as f:
            self.assertEqual((f.attrs["status"], len(f["steps"])), (b"done", 6))

    def test_what_starts_it_again_passes_a_signal_on(self):
        process = self.start(FOREVER, "--max-restarts", "2")
        self.wait_for_steps(process)
        process.send_signal(signal.SIGTERM)
        code, run = self.end(process)
        self.assertEqual((code, run["status"], (self.folder / "starts").read_text()), (130, "interrupted", "x\n" * 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
