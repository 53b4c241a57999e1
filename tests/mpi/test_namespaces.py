"""Processes on two machines, as far as the network goes: two network namespaces that a pair of
veth devices connects, and MPI over TCP between them. What they compute is one rank's, and the
devices have counted what went across."""
import json
import os
import shutil
import subprocess
import unittest

from cases import BIN, MODELS, ProgramCase

BOUND = 1e-10
ADDRESS = "10.77.0.%d"

VERIFY = MODELS + """
local function check(model, plan, batch, microbatch)
  mw.verify {
    model = models[model], data = mw.synthetic {}, sequence = 16, plan = plan, batch = batch, microbatch = microbatch,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 2, timeout = 120,
  }
end
check("gpt", { tp(4) }, 4)
check("llama", { zero { 4, stage = 3 } }, 8)
check("llama", { pp { 2, schedule = "zb-h1" }, tp(2), sp() }, 4, 2)
"""

TRAIN = MODELS + """
mw.train {
  model = models.llama, data = mw.synthetic {}, sequence = 64, plan = { pp(2) }, batch = 8, microbatch = 2,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 5, timeout = 120, precision = "fp32",
}
"""

# As ssh would: the host's name, then the command. Hosts have names of their own.
AGENT = """\
#!/bin/sh
shift
exec ip netns exec %s unshare --uts sh -c 'hostname meshwright-b; exec sh -c "$*"' sh "$*"
"""


def why_not():
    """Why there can be no namespaces here; None if there can."""
    for program in ("mpirun", "ip", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    name = f"mw-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    veth = subprocess.run(["ip", "-n", name, "link", "add", "mwtry0", "type", "veth", "peer", "name", "mwtry1"],
                          capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None if veth.returncode == 0 else f"no veth device can be made here: {veth.stderr.strip()}"


class Namespaces(ProgramCase):
    @classmethod
    def setUpClass(cls):
        reason = why_not()
        if reason is not None:
            raise unittest.SkipTest(reason)

    def ip(self, *words):
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

    def setUp(self):
        super().setUp()
        # A device's name may have 15 characters.
        self.names = [f"mw-{os.getpid()}-{side}" for side in "ab"]
        self.devices = [f"mw{os.getpid()}{side}" for side in "ab"]
        for name in self.names:
            self.ip("netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], check=False)
        self.ip("link", "add", self.devices[0], "netns", self.names[0], "type", "veth",
                "peer", "name", self.devices[1], "netns", self.names[1])
        for i, (name, device) in enumerate(zip(self.names, self.devices)):
            self.ip("-n", name, "addr", "add", ADDRESS % (i + 1) + "/24", "dev", device)
            for each in (device, "lo"):
                self.ip("-n", name, "link", "set", each, "up")
        self.agent = self.folder / "agent"
        self.agent.write_text(AGENT % self.names[1])
        self.agent.chmod(0o755)

    def sent(self, side):
        """Bytes that a namespace has sent so far."""
        link, = json.loads(self.ip("-n", self.names[side], "-s", "-j", "link", "show", self.devices[side]))
        return link["stats64"]["tx"]["bytes"]

    def across(self, each, verb, script):
        """Runs it in so many processes in each namespace; its lines."""
        path = self.write(script)
        mca = {"btl": "tcp,self", "btl_tcp_if_include": ADDRESS % 0 + "/24", "oob_tcp_if_include": ADDRESS % 0 + "/24",
               "plm_rsh_agent": str(self.agent)}
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(2 * each),
                   "--host", f"meshwright-a:{each},{ADDRESS % 2}:{each}",
                   *[word for key, value in mca.items() for word in ("--mca", key, value)],
                   BIN, verb, str(path), "--json", "--quiet"]
        start = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", 'hostname meshwright-a; exec "$@"', "sh"]
        done = subprocess.run([*start, *command], cwd=self.folder, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_mixes_across_two_namespaces_equal_one_rank(self):
        results = self.across(2, "verify", VERIFY)
        self.assertEqual(len(results), 3)
        for result in results:
            with self.subTest(result["plan"]):
                self.assertEqual(result["verdict"], "equal", result)
                for what, error in result["max_relative_error"].items():
                    self.assertLessEqual(error, BOUND, (what, result["worst"]))

    def test_what_stages_send_goes_over_the_wire(self):
        before = [self.sent(side) for side in (0, 1)]
        result, = self.across(1, "run", TRAIN)
        moved = [self.sent(side) - before[side] for side in (0, 1)]
        # The first stage sends activations and the second one their gradients, as many bytes each.
        bytes_each_way = result["steps"] * max(one["bytes"] for one in result["communication"] if one["axis"] == "pp")
        self.assertGreater(bytes_each_way, 100_000)
        for side in (0, 1):
            self.assertGreaterEqual(moved[side], bytes_each_way)
            self.assertLess(moved[side], 3 * bytes_each_way + 500_000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
