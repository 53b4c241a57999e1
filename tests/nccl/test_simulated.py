"""The plugin nccl's own code over a library that stands for NCCL (tests/plugins/sim_nccl): mixes of
processes and threads on simulated devices equal one rank, nothing is out of order, and what would
deadlock on GPUs does so here, with the rank and the op named."""
import json
import os
import re
import signal
import subprocess
import unittest

from cases import BIN, TEST_PLUGINS, ProgramCase, matrix
from ports import free_ports

SCRIPT = """local mw = require "meshwright"
local dp, zero, tp, pp, sp, ep, diloco = mw.plugins("dp", "zero", "tp", "pp", "sp", "ep", "diloco")
local llama = mw.llama { layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 }
local moe = mw.moe { layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, expert_ffn = 16, experts = 4, top_k = 2, vocab = 64 }
mw.plugins("sim")
mw.train { model = %s, data = mw.synthetic {}, precision = "fp64", sequence = 16, plan = %s, batch = 8, microbatch = 1,
  optimizer = %s, steps = %d, device = %s, timeout = %d }
"""
LAUNCHERS = re.compile(r"OMPI_|PMIX|PMI_|MV2_|SLURM_|MASTER_|TORCHELASTIC|RANK|WORLD_SIZE|LOCAL_RANK")
ADAMW = "mw.adamw { lr = 1e-3, clip = 1 }"
# The plan, the number of processes, the model.
MIXES = [
    ("{ dp(2), tp(2), sp() }", 2, "llama"), ("{ zero { 2, stage = 3 }, tp(2) }", 4, "llama"), ("{ sp(2), dp(2) }", 4, "llama"),
    ('{ pp { 2, schedule = "zbv" }, zero { 2, stage = 2 } }', 2, "llama"), ('{ pp { 2, schedule = "dualpipev" }, sp(2) }', 4, "llama"),
    ("{ zero { 2, stage = 1 }, ep(2) }", 2, "moe"), ('{ tp { 2, overlap = true }, sp() }', 2, "llama"),
    ('{ dp(2), mw.directives { { "stream", { axis = "dp", phase = "gradients" }, "background" } } }', 2, "llama"),
]
MORE = [
    ('{ pp { 4, schedule = "1f1b" }, dp(2) }', 4, "llama"), ('{ sp { 4, form = "ring" } }', 4, "llama"), ('{ sp { 2, form = "ulysses" }, tp(2) }', 4, "llama"),
    ('{ pp { 2, schedule = "zb-h1" }, ep(2), dp(2) }', 4, "moe"), ('{ pp { 2, chunks = 2, schedule = "interleaved" }, tp(2), sp() }', 4, "llama"),
    ("{ zero { 4, stage = 3, replicas = 2 } }", 4, "llama"),
    ("{ ep(2), tp(2), dp(2) }", 4, "moe"), ("{ sp(2), ep(2), zero { 2, stage = 2 } }", 4, "moe"),
    ('{ pp { 2, schedule = "zbv" }, sp(2), zero { 2, stage = 3 } }', 4, "llama"),
]


class SimulatedNccl(ProgramCase):
    def start(self, plan, processes, model="llama", timeout=120, steps=3, **environment):
        self.write(SCRIPT % (model, plan, ADAMW, steps, '"sim"', timeout))
        return self.started(processes, ["run", "script.lua", "--json"], [environment] * processes)

    def started(self, processes, words, environments):
        port, = free_ports(1)
        clean = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
        started = []
        for process in range(processes):
            own = {"WORLD_SIZE": str(processes), "RANK": str(process), "LOCAL_RANK": str(process), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            started.append(subprocess.Popen(
                [BIN, *words, "--communicator", "sim_nccl", "--plugin-path", TEST_PLUGINS], cwd=self.folder, text=True,
                env={**clean, **own, **environments[process]}, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            self.addCleanup(started[-1].communicate)
            self.addCleanup(started[-1].kill)
        return started

    def ends(self, started):
        """By process: its exit code, what it printed, and what it said."""
        return [(process.returncode, *said) for said, process in [(process.communicate(timeout=300), process) for process in started]]

    def equals_one_rank(self, plan, processes, model):
        one = self.only("run", self.write(SCRIPT % (model, "{}", ADAMW, 3, "nil", 120)), "--plugin-path", TEST_PLUGINS)
        ended = self.ends(self.start(plan, processes, model))
        self.assertEqual([code for code, *_ in ended], [0] * processes, ended)
        run = json.loads(ended[0][1].splitlines()[-1])
        if model == "llama":  # how many rows go to experts depends on the data
            self.sent_as_predicted(run)
        for here, there in zip(run["losses"], one["losses"], strict=True):
            self.assertAlmostEqual(here, there, delta=1e-10)
        for _, _, said in ended:
            told = re.findall(r"(?m)^sim: (.*)$", said)  # one line of counts: a second one would tell of a race
            self.assertEqual(len(told), 1, said)
            self.assertTrue(told[0].endswith(" ops;" + 8 * " 0" + " bytes left"), told)

    def test_mixes_equal_one_rank(self):
        for mix in MIXES:
            with self.subTest(mix):
                self.equals_one_rank(*mix)

    @matrix
    def test_more_mixes_equal_one_rank(self):
        for mix in MORE:
            with self.subTest(mix):
                self.equals_one_rank(*mix)

    def fails(self, plan, processes, expected, **environment):
        ended = self.ends(self.start(plan, processes, timeout=5, **environment))
        self.assertEqual([code for code, *_ in ended], [1] * processes, ended)
        self.assertRegex(ended[0][1] + ended[0][2], expected)

    def test_pairs_that_connect_in_their_first_transfer_deadlock_in_a_ring(self):
        """Each rank would wait in its send for the next one's receive, which comes after that one's own send."""
        self.fails("{ sp(2) }", 2, r"On rank \d: .*timed out: member \d has not come to message 0 for layers\.0\.attention\.\S+ \(forward\)",
                   SIM_NCCL_UNCONNECTED="1")

    def test_pairs_that_share_a_stream_deadlock(self):
        """As they would if a device had no stream for each of them; the plugin counts them."""
        self.fails('{ pp { 2, schedule = "zbv" }, sp(2) }', 2, r"On rank \d: .*(timed out: member \d has not come to message|NCCL has failed or timed out in (pp|cp)/)",
                   SIM_NCCL_STREAMS="1")

    def test_more_streams_than_a_device_has_are_refused(self):
        """Each of 26 sums of gradients goes on a stream of its own."""
        named = "".join(f'{{ "stream", {{ bucket = "bucket {k}" }}, "own{k}" }}, ' for k in range(26))
        plan = '{ dp { 2, bucket = "1B" }, mw.directives { %s } }' % named
        self.fails(plan, 2, "in more than 24 groups and streams, and libtorch has no more streams of a GPU for them")

    def test_processes_of_two_versions_are_refused(self):
        self.write(SCRIPT % ("llama", "{ dp(2) }", ADAMW, 3, '"sim"', 120))
        ended = self.ends(self.started(2, ["run", "script.lua", "--json"], [{"SIM_NCCL_VERSION": v} for v in ("2.28.9", "2.30.7")]))
        self.assertEqual([code for code, *_ in ended], [5, 5], ended)
        found = [line for line in map(json.loads, ended[0][1].splitlines()) if line["kind"] == "error"]
        self.assertEqual([error["code"] for error in found], ["process.version"], ended)
        self.assertRegex(found[0]["message"], r"process 1 .*, NCCL 2\.30\.7, process 0 .*, NCCL 2\.28\.9")

    def test_a_process_that_is_killed_ends_the_others(self):
        first, second = self.start("{ dp(2), tp(2) }", 2, timeout=600, steps=1 << 30)
        for line in first.stderr:
            if line.startswith("step "):
                break
        second.send_signal(signal.SIGKILL)
        stdout, stderr = first.communicate(timeout=300)
        self.assertEqual(first.returncode, 1, stdout + stderr)
        self.assertRegex(stdout + stderr, "process 1 .*(gone|ended|lost)")

    def findings(self, code, *environments, device="sim"):
        """What `doctor --cluster` of so many processes says: by name, the verdict, what was found and what to do."""
        ended = self.ends(self.started(len(environments), ["doctor", "--cluster", "--device", device, "--json"], environments))
        self.assertEqual([process[0] for process in ended], [code] * len(environments), ended)
        self.assertEqual([process[1] for process in ended[1:]], [""] * (len(environments) - 1))
        return {line["name"]: (line["status"], line["found"] + " -> " + line["hint"]) for line in map(json.loads, ended[0][1].splitlines())}

    def test_doctor_compares_processes(self):
        found = self.findings(0, {}, {})
        self.assertEqual({status for status, _ in found.values()}, {"ok"} if len(os.sched_getaffinity(0)) > 1 else {"ok", "warning"})
        self.assertIn("2 tasks on 1 machine met", found["processes"][1])
        few = self.findings(5, *[{"SIM_DEVICES": "2"}] * 3)["devices"]
        self.assertEqual(few[0], "failed")
        self.assertRegex(few[1], r"process 0 on \S+ and process 2 on \S+ would share sim 0 of \S+: \S+ has 2 devices for 3 tasks -> one process for each")
        used = self.findings(0, {}, {"SIM_USED_BYTES": str(1 << 35)})["device memory"]
        self.assertEqual(used[0], "warning")
        self.assertRegex(used[1], r"process 1 on \S+: 32 GiB of 64 GiB are free on sim 1")
        faulty = self.findings(5, {}, {"SIM_FAULTY": "1"})["devices"]
        self.assertRegex(faulty[1], r"process 1 on \S+ can use no device of sim: the device is faulty")
        none = self.findings(5, {"SIM_DEVICES": "0"}, {})["devices"]
        self.assertRegex(none[1], r"process 0 on \S+ can use no device of sim")
        self.assertIn('did you mean "sim"?', self.findings(5, {}, {}, device="simm")["devices"][1])

    def test_doctor_compares_nothing_alone(self):
        self.refused(5, "launch.alone", "doctor", "--cluster")


if __name__ == "__main__":
    unittest.main(verbosity=2)
