"""A device that a plugin brings: scripts train on the simulated accelerator, where ranks have a
device each or share one; what is wrong is said before a rank starts."""
import re
import unittest

from cases import SCRIPT, TEST_PLUGINS, ProgramCase

PLAN = "zero { 2, stage = 2 }"
DOUBLE = 'e.precision = "fp64" '  # the CPU lacks GPUs' fused attention, which narrower numbers take
SIM = ("--plugin-path", TEST_PLUGINS)


class Sim(ProgramCase):
    def trained(self, device, *arguments):
        """What a run came to, the ops that ran on each device, and what is left there."""
        script = self.write(SCRIPT % (PLAN, f'{DOUBLE} mw.plugins("sim") e.device = "{device}"'))
        done = self.call("run", script, "--json", "--quiet", *SIM, *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # One line alone: a second one would tell of an access that nothing orders.
        told = re.findall(r"(?m)^sim: (.*)$", done.stderr)
        self.assertEqual(len(told), 1, done.stderr)
        ops, left = re.fullmatch(r"([\d ]+) ops; ([\d ]+) bytes left", told[0]).groups()
        return self.lines(done)[-1], [int(n) for n in ops.split()], left

    def test_ranks_take_its_devices_in_turn(self):
        on_cpu = self.only("run", self.script(PLAN, DOUBLE))
        for device, used in (("sim", 2), ("sim_one", 1)):
            with self.subTest(device):
                run, ops, left = self.trained(device)
                self.assertEqual((run["status"], len(run["losses"])), ("done", 4))
                for here, there in zip(run["losses"], on_cpu["losses"]):
                    self.assertAlmostEqual(here, there, delta=1e-9)
                self.assertEqual([n > 0 for n in ops], [True] * used + [False] * (8 - used))
                self.assertEqual(left, "0 " * 7 + "0")
                self.sent_as_predicted(run)

    def test_one_key_of_the_command_line_names_it(self):
        done = self.call("run", self.script(PLAN, DOUBLE), "--set", "device=sim", "--json", "--quiet", *SIM)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"(?m)^sim: [1-9]\d* [1-9]\d* 0 0 0 0 0 0 ops")

    def test_a_sandbox_lets_a_script_drive_what_it_names(self):
        self.needs_namespaces()
        _, ops, _ = self.trained("sim", "--sandbox", "--sandbox-device", "sim")
        self.assertGreater(ops[0], 0)
        script = self.script(PLAN, 'e.device = "sim"')
        self.refused(5, "sandbox.device device", "run", script, *SIM, "--sandbox")
        self.refused(2, "usage.value", "run", script, *SIM, "--sandbox", "--sandbox-device", "simm")

    def test_a_sandbox_asks_for_each_device_by_name(self):
        self.needs_namespaces()
        script = self.script(PLAN, 'mw.plugins("unsound") e.device = "twins"')
        self.assertEqual(self.only("run", script, *SIM)["status"], "done")
        self.refused(5, "sandbox.device device", "run", script, *SIM, "--sandbox")

    def test_a_device_that_throws_is_named(self):
        done = self.call("run", self.script(PLAN, 'mw.plugins("unsound") e.device = "unloadable"'), "--json", *SIM)
        error = self.lines(done)[-1]
        self.assertEqual((done.returncode, error["key"]), (5, "device"), done.stdout)
        self.assertIn('the plugin "unloadable" threw while it loaded what its devices need: no such library', error["message"])

    def test_what_is_wrong_is_said_before_a_rank_starts(self):
        self.refused(5, "device.none device", "run", self.script(PLAN, 'mw.plugins("sim") e.device = "sim_none"'), *SIM)
        for name, near in (("simm", "sim"), ("cdua", "cuda"), ("cp", "cpu")):
            done = self.call("plan", self.script(PLAN, f'e.device = "{name}"'), "--json", *SIM)
            error = self.lines(done)[-1]
            self.assertEqual((done.returncode, error["code"], error["key"]), (2, "option.choice", "device"), done.stdout)
            self.assertIn(f'did you mean "{near}"?', error["hint"])
        self.refused(2, "option.choice device", "plan", self.script(PLAN, 'e.device = "sim_one"'), *SIM)

    def test_doctor_counts_it(self):
        devices, = [line for line in self.lines(self.call("doctor", "--json", *SIM)) if line["name"] == "devices"]
        self.assertEqual(devices["status"], "warning")  # as there is one kind without devices
        self.assertRegex(devices["found"], r"^cpu, .*8 of sim, 1 of sim_one; .*0 of sim_none that can be used: Found no")
        self.assertIn("simulated devices need no driver", devices["hint"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
