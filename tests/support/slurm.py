"""A Slurm of the tests' own: munged, slurmctld and slurmd on this machine's loopback, with all
that they keep in a
temporary folder. One node, as many processors as asked for, whatever the machine has."""
import atexit
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue")
FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # where daemons lie, which not everybody's PATH has


def die_with_parent():
    """In a child: it ends when this process does, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def find(program):
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))


def why_not():
    """Why there can be no Slurm here; None if there can."""
    missing = [program for program in PROGRAMS if find(program) is None]
    if missing:
        return f"{', '.join(missing)}: not installed (the packages munge, slurmctld, slurmd and slurm-client)"
    if os.geteuid() != 0:
        return "slurmd takes root"
    return None


CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,requeue_delay=1
KillWait=15
MaxArraySize=64
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Sockets={cpus} CoresPerSocket=1 ThreadsPerCore=1 RealMemory=100000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Starts the daemons; stop() ends them and all jobs. Commands run with the environment `environment`."""

    def __init__(self, cpus=8):
        # A socket's path may have 107 characters, and munged asks that nobody else may write to the
        # folders around it.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir="/run" if os.access("/run", os.W_OK) else None))
        self.daemons = []
        self.logs = []
        atexit.register(self.stop)
        os.chmod(self.folder, 0o755)
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(CONF.format(host=host, folder=self.folder, ports=free_ports(2), cpus=cpus))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.environment["SLURM_CONF"] = str(self.conf)
        self.environment["PATH"] = os.pathsep.join([self.environment.get("PATH", ""), *FOLDERS])
        munge = self.folder / "munge"
        self.daemon("munged", "-F", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
                    f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        self.wait(lambda: (munge / "socket").exists(), "munged")
        self.daemon("slurmctld", "-D", "-c")
        self.wait(lambda: "UP" in self.call("scontrol", "ping", check=False), "slurmctld")
        self.daemon("slurmd", "-D", "-c")
        self.wait(lambda: "idle" in self.call("sinfo", "-h", "-o", "%T", check=False), "slurmd")

    def daemon(self, name, *arguments):
        log = open(self.folder / f"{name}.out", "wb")
        self.logs.append(log)
        self.daemons.append(subprocess.Popen([find(name), *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
                                             preexec_fn=die_with_parent))

    def wait(self, ready, what, seconds=60):
        end = time.monotonic() + seconds
        while not ready():
            dead = [d for d in self.daemons if d.poll() is not None]
            if dead or time.monotonic() > end:
                said = self.said()
                self.stop()
                raise RuntimeError(f"{what} does not start{said}")
            time.sleep(0.1)

    def said(self):
        """The ends of the daemons' logs."""
        return "".join(f"\n--- {log.name}\n" + log.read_text(errors="replace")[-2000:]
                       for log in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")))

    def call(self, *command, check=True, cwd=None, timeout=300):
        done = subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if not check else "")

    def submit(self, script, cwd):
        """Submits a file; the job's number."""
        return int(self.call("sbatch", "--parsable", script, cwd=cwd).split(";")[0])

    def states(self, job):
        """Of each of a job's tasks, of arrays too."""
        lines = self.call("scontrol", "-o", "show", "job", str(job), check=False).splitlines()
        return [field.split("=")[1] for line in lines for field in line.split() if field.startswith("JobState=")]

    def restarts(self, job):
        text = self.call("scontrol", "-o", "show", "job", str(job))
        return int(next(f.split("=")[1] for f in text.split() if f.startswith("Restarts=")))

    def wait_for(self, job, *states, seconds=240):
        end = time.monotonic() + seconds
        while True:
            now = self.states(job)
            if now and all(state in states for state in now):
                return now
            if time.monotonic() > end:
                raise RuntimeError(f"job {job}: {now}, not {states}, after {seconds} s\n" +
                                   (self.folder / "slurmctld.log").read_text()[-3000:])
            time.sleep(0.2)

    def start_again(self, job):
        """A job that is put back into the queue waits there for two minutes; not here. Returns once it runs again, or has
        ended."""
        end = time.monotonic() + 240
        is_back = lambda: self.restarts(job) > 0 and self.states(job) == ["PENDING"]
        while not is_back():
            if time.monotonic() > end or self.states(job) in (["COMPLETED"], ["FAILED"], ["CANCELLED"]):
                raise RuntimeError(f"job {job} is not put back: {self.states(job)}\n" + self.said())
            time.sleep(0.1)
        # Within a second or two slurmd takes the new start for the one whose end it has just been
        # told, and refuses it: "Job credential revoked". And while the job is being put back, what
        # it is to wait for is set once more.
        time.sleep(3)
        while is_back():
            if time.monotonic() > end:
                raise RuntimeError(f"job {job} does not start again\n" + self.said())
            self.call("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
            time.sleep(0.5)

    def stop(self):
        if self.folder.exists() and self.daemons and self.daemons[-1].poll() is None:
            try:
                self.call("scancel", "--user", "root", check=False, timeout=20)
                end = time.monotonic() + 20
                while self.call("squeue", "-h", check=False, timeout=20).strip() and time.monotonic() < end:
                    time.sleep(0.2)
            except (OSError, subprocess.TimeoutExpired):
                pass
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for log in self.logs:
            log.close()
        self.daemons, self.logs = [], []
        shutil.rmtree(self.folder, ignore_errors=True)
