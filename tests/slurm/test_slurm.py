"""Trainings and sweeps as jobs of a real Slurm, on loopback: by srun, as a job array, and put back
into the queue."""
import json
import os
import subprocess
import time
import unittest

import h5py

from cases import BIN, SOURCE, TEST_PLUGINS, ProgramCase
from slurm import Slurm, why_not

# %s: more keys.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
local e = {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { dp(2), tp(2) }, batch = 8, precision = "fp64",
  optimizer = mw.adamw { lr = 1e-3 }, steps = 6, log = "runs/a.h5",
}
%s
mw.train(e)
"""
JOB = """\
#!/bin/bash
#SBATCH --ntasks=%d
#SBATCH --output=job.txt
exec srun --mpi=pmix %s run script.lua --json >result.jsonl
"""
CHAOS = """\
#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --output=job.txt
exec %s chaos script.lua --json --launcher "srun --mpi=pmix --overlap --ntasks=2 --kill-on-bad-exit=1" \\
  --kinds %s --faults %d --every 0.3 --timeout 4 --set log=nil --set steps=1500 >result.jsonl
"""
# As many steps as it takes to be interrupted in the middle.
LONG = """e.steps = 80
e.checkpoint = { path = "checkpoints", every = 10 }
e.observe = function(step) os.execute("sleep 0.05") end
"""


class InSlurm(ProgramCase):
    @classmethod
    def setUpClass(cls):
        reason = why_not()
        if reason is not None:
            if os.environ.get("CI"):  # nothing that is missing leaves a test out there
                raise AssertionError(reason)
            raise unittest.SkipTest(reason)
        cls.slurm = Slurm(cpus=8)
        cls.addClassCleanup(cls.slurm.stop)

    def losses(self, more="", name="alone"):
        """Of the same training, by threads."""
        script = self.folder / f"{name}.lua"
        script.write_text((SCRIPT % more).replace("runs/a.h5", f"runs/{name}.h5").replace('"checkpoints"', f'"{name}"'))
        return self.only("run", script)["losses"]

    def output(self, *files):
        return "".join((self.folder / file).read_text() for file in files if (self.folder / file).exists())

    def ended(self, job, *files):
        """A job that must come to a good end."""
        self.assertEqual(set(self.slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")),
                         {"COMPLETED"}, self.output(*files)[-4000:])

    def test_a_training_by_srun(self):
        self.write(SCRIPT % "")
        alone = self.losses()
        # Two processes of two ranks each, four of one.
        for tasks in (2, 4):
            with self.subTest(tasks=tasks):
                (self.folder / "job.sh").write_text(JOB % (tasks, BIN))
                job = self.slurm.submit("job.sh", self.folder)
                self.ended(job, "job.txt", "result.jsonl")
                results = [json.loads(line) for line in self.output("result.jsonl").splitlines()]
                self.assertEqual(len(results), 1, (self.output("job.txt"), self.slurm.said()))
                run, = results
                self.assertEqual((run["status"], run["ranks"], run["steps"]), ("done", 4, 6))
                for mine, theirs in zip(run["losses"], alone):
                    self.assertAlmostEqual(mine, theirs, delta=1e-12)

    def test_a_plan_that_does_not_fit_the_tasks(self):
        self.write(SCRIPT % "")
        (self.folder / "job.sh").write_text(JOB % (3, BIN))
        job = self.slurm.submit("job.sh", self.folder)
        self.assertEqual(self.slurm.wait_for(job, "COMPLETED", "FAILED"), ["FAILED"])
        errors = [json.loads(line) for line in self.output("result.jsonl").splitlines()]
        self.assertEqual([error["code"] for error in errors], ["launch.ranks"], self.output("job.txt"))

    def test_a_sweep_by_job_array(self):
        self.write(SCRIPT.replace("mw.train(e)", "mw.sweep { name = 's', base = e, over = { seed = { 1, 2, 3 } } }:go()") %
                   "e.steps = 3 e.log = nil")
        printed = self.call("sweep", "script.lua", "--print", "sbatch", "--time", "600")
        self.assertEqual(printed.returncode, 0, printed.stderr)
        (self.folder / "job.sh").write_text(printed.stdout)
        job = self.slurm.submit("job.sh", self.folder)
        self.ended(job, *[path.name for path in self.folder.glob("slurm-*")])
        cells = json.loads((self.folder / "runs/s/sweep.json").read_text())["cells"]
        self.assertEqual([cell["status"] for cell in cells], ["done"] * 3)

    def test_a_training_on_devices(self):
        """gpus.sbatch, with simulated devices and the NCCL of tests/plugins/sim_nccl: its doctor, then the training."""
        more = "mw.plugins('sim') e.device = 'sim' e.checkpoint = { path = 'saved', every = 100 }"
        self.write(SCRIPT % more)
        alone = self.losses()
        script = SOURCE / "scripts/slurm/gpus.sbatch"
        environment = {**self.slurm.environment, "MESHWRIGHT": BIN, "MESHWRIGHT_COMMUNICATOR": "sim_nccl", "MESHWRIGHT_SCRIPTS": str(script.parent),
                       "MESHWRIGHT_DEVICE": "sim", "MESHWRIGHT_PLUGIN_PATH": str(TEST_PLUGINS)}

        def submitted(**more):
            job = int(subprocess.run(
                ["sbatch", "--parsable", "--gpus-per-node=0", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=job.txt", script, "script.lua",
                 "--json"], cwd=self.folder, env={**environment, **more}, capture_output=True, text=True, check=True).stdout)
            return job, self.slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"), self.output("job.txt")
        _, states, said = submitted()
        self.assertEqual(states, ["COMPLETED"], said)
        self.assertRegex(said, r"ok +devices +each process has a device of sim of its own")
        with h5py.File(self.folder / "runs/a.h5") as file:
            losses = file["steps"]["loss"]
        for mine, theirs in zip(losses, alone, strict=True):
            self.assertAlmostEqual(mine, theirs, delta=1e-12)
        (self.folder / "job.txt").unlink()
        _, states, said = submitted(SIM_DEVICES="1")  # a node with fewer devices than tasks
        self.assertEqual(states, ["FAILED"], said)
        self.assertRegex(said, r"failed +devices +process 0 .* and process 1 .* would share sim 0 of .* has 1 device for 2 tasks")
        self.assertNotIn("step ", said)

    def test_faults_of_processes_that_srun_started(self):
        """A rank throws, a process is killed and one stands still, srun is killed: each is told, and the losses stay."""
        kinds = ["error", "kill", "launcher", "pause"]
        self.write(SCRIPT % "")
        (self.folder / "job.sh").write_text(CHAOS % (BIN, ",".join(kinds), len(kinds)))
        self.ended(self.slurm.submit("job.sh", self.folder), "job.txt", "result.jsonl")
        *faults, outcome = [json.loads(line) for line in self.output("result.jsonl").splitlines()]
        self.assertEqual((outcome["status"], outcome["wrong"]), ("right", []), self.output("job.txt"))
        self.assertEqual(sorted((sums["fault"], sums["injected"], sums["right"]) for sums in outcome["faults"]),
                         [(kind, 1, 1) for kind in kinds], faults)
        for sums in outcome["faults"]:
            self.assertGreaterEqual(sums["told"], sums["must_be_told"], faults)

    def test_a_training_that_is_put_back_goes_on(self):
        """By the warning before the time limit, as Slurm sends it: the run ends itself, its job asks to be put back."""
        self.write(SCRIPT % LONG)
        alone = self.losses(LONG.replace("sleep 0.05", "true"))
        script = SOURCE / "scripts/slurm/train.sbatch"
        environment = {**self.slurm.environment, "MESHWRIGHT": BIN}
        job = int(subprocess.run(["sbatch", "--parsable", "--ntasks=2", "--output=job.txt", script, "script.lua"],
                                 cwd=self.folder, env=environment, capture_output=True, text=True, check=True).stdout)
        end = time.monotonic() + 300
        while not list(self.folder.glob("checkpoints/step-*")):
            self.assertLess(time.monotonic(), end, self.output("job.txt")[-4000:])
            self.assertNotIn("FAILED", self.slurm.states(job), self.output("job.txt")[-4000:])
            time.sleep(0.05)
        self.slurm.call("scancel", "--signal=USR1", str(job))
        self.slurm.start_again(job)
        self.ended(job, "job.txt")
        self.assertEqual(self.slurm.restarts(job), 1, self.output("job.txt")[-4000:])
        with h5py.File(self.folder / "runs/a.h5") as f:
            self.assertEqual(f.attrs["status"], b"done" if isinstance(f.attrs["status"], bytes) else "done")
            self.assertEqual(list(f["steps"]["step"][:]), list(range(80)))
            for mine, theirs in zip(f["steps"]["loss"][:], alone):
                self.assertAlmostEqual(mine, theirs, delta=1e-12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
