"""Runs one mix of either side and says what it took, and what else kept the machine busy."""
import json
import os
import pathlib
import shlex
import signal
import subprocess
import time

from mixes import MIXES, SHAPE, SIZES
from problem import Problem

HERE = pathlib.Path(__file__).resolve().parent
# Both sides run in the environment that the launcher gives to ours: transparent huge pages, and
# threads that wait do not spin (they would take the cores of other ranks). A rank has one thread.
# Nothing is measured for predictions at a machine's first run, which would be in the start-up.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0",
               "MESHWRIGHT_FIRST_USE": "off"}
ENVIRONMENT.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")


def failed(what, stderr):
    lines = stderr.strip().splitlines()[-12:]
    return Problem("run", "program.failed", what + (":\n" + "\n".join(lines) if lines else ""))


def busy_seconds():
    """CPU seconds that the machine has spent since it started, on anything."""
    n = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(n) - n[3] - n[4]) / os.sysconf("SC_CLK_TCK")


def others_now(seconds=0.5):
    """Cores that other processes keep busy at the moment."""
    begin, busy, own = time.monotonic(), busy_seconds(), time.process_time()
    time.sleep(seconds)
    return max(0.0, (busy_seconds() - busy - (time.process_time() - own)) / (time.monotonic() - begin))


def finish(child):
    """The child's usage once it has ended. An interrupted wait ends the child and all that it started."""
    try:
        _, status, usage = os.wait4(child.pid, 0)
    except BaseException:
        # torchrun ends its ranks when it is told to end, and they stand in groups of their own.
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        raise
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage


def run(command, folder, name, environment):
    """The JSON object in a command's last line, with its peak resident memory and others' load added."""
    begin, busy = time.monotonic(), busy_seconds()
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with open(out, "w") as stdout, open(err, "w") as stderr:
        child = subprocess.Popen([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL,
                                 stdout=stdout, stderr=stderr, start_new_session=True)
        usage = finish(child)
    wall = time.monotonic() - begin
    lines = [line for line in out.read_text(errors="replace").splitlines() if line.startswith("{")]
    if child.returncode != 0 or not lines:
        said = "ended with %d" % child.returncode if child.returncode else "printed no JSON line"
        raise failed(f"{shlex.join(map(str, command))} {said}", err.read_text(errors="replace"))
    spent = usage.ru_utime + usage.ru_stime
    return dict(json.loads(lines[-1]), own_rss=usage.ru_maxrss * 1024,
                others=max(0.0, (busy_seconds() - busy - spent) / wall))


class Ours:
    """Meshwright: its threads share one process, whose peak is the resident memory."""
    def __init__(self, program, data, folder):
        self.program, self.data, self.folder = program, data, folder

    def command(self, size, mix, steps, weights):
        s, m = SIZES[size], MIXES[mix]
        model = ", ".join(f"{key}={s[key]}" for key in SHAPE)
        kind = "llama"
        if "experts" in m:
            kind = "moe"
            model += f', experts={m["experts"]}, top_k=2, expert_ffn={s["ffn"] // 2}, balance="none"'
        settings = [f"model={kind}{{{model}}}", f"plan={m['plan']}", f"sequence={s['sequence']}",
                    f"batch={s['batch']}", f"steps={steps}", f'data=text{{"{self.data}", order="sequential"}}']
        if weights:
            settings.append(f"weights={weights}")
        if "microbatches" in m:
            settings.append(f"microbatch={s['batch'] // m.get('data', 1) // m['microbatches']}")
        sets = [part for setting in settings for part in ("--set", setting)]
        return [self.program, "run", HERE / "mixes.lua", "--json", *sets]

    def run(self, size, mix, steps, weights):
        r = run(self.command(size, mix, steps, weights), self.folder, "ours", ENVIRONMENT)
        return dict(step=r["step_seconds"], cpu=r["cpu_seconds_per_step"], losses=r["losses"],
                    startup=r["startup_seconds"], resident=r["own_rss"], others=r["others"])


class Baseline:
    """Stock PyTorch: a process a rank, started by torchrun, whose own memory counts as well."""
    def __init__(self, python, data, folder):
        self.python, self.data, self.folder = python, data, folder
        # Each bench compiles anew, once: later rounds find what the first has compiled.
        self.environment = dict(ENVIRONMENT, TORCHINDUCTOR_CACHE_DIR=str(folder / "compiled"))
        self.version = self.look()

    def look(self):
        """The version of its torch. Raises Problem where it cannot be the baseline."""
        make = (f"make one with: python3 -m venv FOLDER && FOLDER/bin/pip install -r {HERE / 'requirements.txt'}, "
                "then --baseline FOLDER/bin/python")
        ask = [self.python, "-c", "import numpy, safetensors, torch; print(torch.__version__)"]
        try:
            done = subprocess.run(ask, env=self.environment, capture_output=True, text=True)
        except OSError as why:
            raise Problem("environment", "program.missing",
                          f"--baseline {self.python} cannot be started: {why.strerror}", make) from why
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            raise Problem("environment", "program.missing",
                          f"--baseline {self.python} lacks what the baseline needs: {why}", make)
        return done.stdout.strip()

    def command(self, size, mix, *rest):
        s, m = SIZES[size], MIXES[mix]
        head = [self.python]
        if m["ranks"] > 1:
            head += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={m['ranks']}"]
        shape = [f"--{key}={s[key]}" for key in (*SHAPE, "batch")]
        if "experts" in m:
            shape += [f"--experts={m['experts']}", "--topk=2", f"--ffn={s['ffn'] // 2}"]
        return [*head, HERE / "baseline.py", *shape, f"--seq={s['sequence']}", "--threads=1", *rest]

    def save_weights(self, size, mix):
        """The file of the weights that both sides start from."""
        path = self.folder / f"{size}-{MIXES[mix].get('experts', 0)}.safetensors"
        if not path.exists():
            one = "moe-1" if "experts" in MIXES[mix] else "one"
            done = subprocess.run(list(map(str, self.command(size, one, f"--save-weights={path}"))),
                                  env=self.environment, capture_output=True, text=True)
            if done.returncode != 0:
                raise failed("the baseline wrote no weights", done.stderr)
        return path

    def run(self, size, mix, steps):
        if MIXES[mix]["theirs"] is None:
            return None
        name, *options = MIXES[mix]["theirs"]
        r = run(self.command(size, mix, f"--mix={name}", *options, f"--steps={steps}", "--lr=0.001",
                             f"--data={self.data}"), self.folder, "baseline", self.environment)
        return dict(step=r["step_s"], cpu=r["cpu_s_per_step"], losses=r["losses"],
                    startup=r["startup_from_launch_s"], first_step=r["first_step_s"],
                    resident=(r["rss_sum_mib"] + r["launcher_rss_mib"]) * 2**20,
                    proportional=(r["pss_sum_mib"] + r["launcher_rss_mib"]) * 2**20, others=r["others"])
