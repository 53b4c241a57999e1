"""Goodput: closed forms beside simulation, Llama 3's interruptions, and what is refused."""
import re
import unittest

from cases import SOURCE, ProgramCase


class Goodput(ProgramCase):
    def numbers(self, text):
        done = self.call("run", "--quiet", self.write('local mw = require "meshwright"\n' + text))
        self.assertEqual(done.returncode, 0, done.stderr)
        return [float(n) for n in done.stdout.split()]

    def test_simulation_agrees_with_the_closed_form(self):
        """Checkpoints of 30 s and failures every 10,000 s: Young's interval is sqrt(2 x 30 x 10000)."""
        effective, closed, young, interval, lost = self.numbers("""
            local g = mw.goodput { step_seconds = 5, devices = 100, mtbf = 1e6, checkpoint_seconds = 30, restart_seconds = 300 }
            local l = g.lost
            print(g.effective, g.closed_form, g.young_seconds, g.interval_seconds,
              g.effective + l.repeated + l.checkpoints + l.restarts + l.stragglers)""")
        self.assertAlmostEqual(young, 600000 ** 0.5, delta=0.01)
        self.assertLess(abs(effective / closed - 1), 0.01)
        self.assertLess(abs(interval / young - 1), 0.5)
        self.assertAlmostEqual(lost, 1, delta=1e-6)

    def test_other_intervals_and_slow_devices_lose(self):
        best, often, seldom, slow = self.numbers("""
            local function at(changes)
              local r = { step_seconds = 5, devices = 100, mtbf = 1e6, checkpoint_seconds = 30, restart_seconds = 300 }
              for key, value in pairs(changes) do r[key] = value end
              return mw.goodput(r).effective
            end
            print(at {}, at { interval_seconds = 60 }, at { interval_seconds = 6000 },
              at { stragglers = { mtbf = 1e7, seconds = 20000, slowdown = 2 } })""")
        self.assertGreater(best, often)
        self.assertGreater(best, seldom)
        self.assertGreater(0.97 * best, slow)

    def test_causes_cost_what_they_bring_about(self):
        """Failures of two causes, one three times as often, the other with a restart ten times as long."""
        often, seldom, lost_often, lost_seldom, lost, same = self.numbers("""
            local r = { step_seconds = 5, devices = 100, checkpoint_seconds = 30,
              causes = { gpu = { mtbf = 4e6 / 3, restart_seconds = 100 }, network = { mtbf = 4e6, restart_seconds = 1000 } } }
            local g = mw.goodput(r)
            r.causes, r.mtbf, r.restart_seconds = nil, 1e6, 0.75 * 100 + 0.25 * 1000
            local together = mw.goodput(r)
            print(g.causes.gpu.failures, g.causes.network.failures, g.causes.gpu.lost, g.causes.network.lost,
              g.lost.repeated + g.lost.restarts, g.effective / together.effective)""")
        self.assertLess(abs(often / seldom - 3), 0.3)
        self.assertLess(lost_often / often, lost_seldom / seldom)
        self.assertAlmostEqual(lost_often + lost_seldom, lost, delta=1e-6)
        self.assertAlmostEqual(same, 1, delta=0.01)

    def test_a_rare_cause_with_a_long_restart_is_not_cut_short(self):
        """One failure in 100 keeps the run away for five times the time between two: 5 % of it."""
        lost, effective, closed = self.numbers("""
            local g = mw.goodput { step_seconds = 5, devices = 100, checkpoint_seconds = 10,
              causes = { gpu = { mtbf = 1e6 / 0.99, restart_seconds = 10 }, rack = { mtbf = 1e8, restart_seconds = 50000 } } }
            print(g.causes.rack.lost, g.effective, g.closed_form)""")
        self.assertTrue(0.04 < lost < 0.08, lost)  # 50,000 of every 1,000,000 s
        self.assertAlmostEqual(effective, closed, delta=0.02)

    def test_causes_stand_instead_of_mtbf(self):
        for keys, key in (("mtbf = 1e6, causes = { gpu = { mtbf = 1e6, restart_seconds = 1 } }", "goodput.mtbf"),
                          ("restart_seconds = 1", "goodput.mtbf")):
            done = self.call("run", self.write('local mw = require "meshwright"\nmw.goodput { step_seconds = 5, devices = 10, '
                                               'checkpoint_seconds = 1, %s }' % keys))
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(key, done.stderr)

    def test_a_plan_says_how_long_its_steps_take(self):
        devices, same = self.numbers("""
            local dp = mw.plugins("dp")
            local plan = mw.plan {
              model = mw.llama { layers = 2, hidden = 64, heads = 4, ffn = 128, vocab = 64 }, data = mw.synthetic {}, sequence = 64,
              batch = 8, optimizer = mw.adamw { lr = 3e-4 }, steps = 5, plan = { dp(8) },
              cluster = mw.cluster("dgx-h100", { nodes = 1 }) }
            local rest = { mtbf = 1e8, checkpoint_seconds = 30, restart_seconds = 600, plan = plan }
            local told = mw.goodput(rest)
            rest.plan, rest.step_seconds, rest.devices = nil, plan.step_seconds, 8
            print(plan.ranks, told.effective == mw.goodput(rest).effective and 1 or 0)""")
        self.assertEqual((devices, same), (8, 1))

    def test_llama3_stays_above_ninety_per_cent(self):
        done = self.call("run", "--quiet", SOURCE / "scripts/published/llama3-goodput.lua")
        self.assertEqual(done.returncode, 0, done.stderr)
        simulated, closed = re.search(r"effective: ([\d.]+) % predicted \(([\d.]+) % in closed", done.stdout).groups()
        self.assertTrue(90 < float(simulated) < 96 and abs(float(simulated) - float(closed)) < 1, done.stdout)

    def test_a_script_may_print_it_and_do_nothing_else(self):
        done = self.call("run", self.write(
            'local mw = require "meshwright"\nprint(mw.goodput { step_seconds = 5, devices = 100, mtbf = 1e6, '
            'checkpoint_seconds = 30, restart_seconds = 300 })'))
        self.assertEqual((done.returncode, done.stderr), (0, ""))  # no word that nothing was trained
        self.assertRegex(done.stdout, r"^goodput of 100 devices: [\d.]+ % of the time in steps that are kept \([\d.]+ % in")
        self.assertNotIn("slow devices", done.stdout)
        self.assertIn("775 by Young", done.stdout)
        self.assertEqual(self.call("run", SOURCE / "scripts/published/llama3-goodput.lua").stderr, "")
        planned = self.call("plan", SOURCE / "scripts/published/llama3-goodput.lua")  # it is a prediction
        self.assertEqual((planned.returncode, planned.stderr), (0, ""))
        self.assertIn("effective: ", planned.stdout)
        self.assertIn("nothing was trained", self.call("run", self.write("print(1)")).stderr)

    def test_what_cannot_go_on_is_refused(self):
        done = self.call("run", "--json", self.write(
            'require "meshwright".goodput { step_seconds = 5, devices = 1e6, mtbf = 1e6, checkpoint_seconds = 30, '
            'restart_seconds = 300 }'))
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("goodput.never", done.stdout)
        done = self.call("run", "--json", self.write(
            'require "meshwright".goodput { step_seconds = 5, devices = 1e6, checkpoint_seconds = 30, '
            'causes = { gpu = { mtbf = 1e6, restart_seconds = 300 }, network = { mtbf = 1e7, restart_seconds = 30 } } }'))
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("goodput.causes: a failure comes every", done.stdout)
        self.assertNotIn("goodput.mtbf", done.stdout)
        # The number that is named gets on, and a little less does not.
        head = 'local g = require "meshwright".goodput { step_seconds = 5, devices = 1e4, checkpoint_seconds = 30, '
        least = float(re.search(r"mtbf = ([\d.e+]+)", self.call("run", "--json", self.write(
            head + 'mtbf = 1e4, restart_seconds = 300 }')).stdout)[1])
        self.assertAlmostEqual(least, 3e5, delta=3e2 + 1)
        for mtbf, code in ((least, 0), (0.99 * least, 2)):
            self.assertEqual(self.call("run", self.write(head + f"mtbf = {mtbf}, restart_seconds = 300 }}")).returncode, code)

    def test_a_rare_cause_with_a_long_restart_is_no_end(self):
        """Failures that are over before a long restart is do not make it longer."""
        effective, closed = self.numbers(
            'local g = mw.goodput { step_seconds = 5, devices = 1000, checkpoint_seconds = 30, causes = { '
            'gpu = { mtbf = 4e6, restart_seconds = 60 }, hall = { mtbf = 1e10, restart_seconds = 86400 } } }\n'
            'print(g.effective, g.closed_form)')
        self.assertGreater(effective, 0.8)
        self.assertAlmostEqual(effective, closed, delta=0.02)


if __name__ == "__main__":
    unittest.main()
