# label: cli
"""mw.what_if and `plan --what-if`: numbers turned one by one change what they should, or say why
they change nothing; and every time says how it is known."""
import json
import math
import unittest

from browser import Browser, require_chromium
from cases import SOURCE, ProgramCase
from problems import problems

SCRIPT = """\
local mw = require "meshwright"
local pp, dp, tp, zero = mw.plugins("pp", "dp", "tp", "zero")
local e = {
  model = mw.gpt { layers = 4, hidden = 1024, heads = 16, vocab = 51200 }, data = mw.synthetic {}, sequence = 1024,
  plan = { %s }, batch = 64, microbatch = 2, precision = "bf16", recompute = "%s",
  optimizer = mw.adamw { lr = 1e-4 }, steps = 1, cluster = mw.cluster("selene", { nodes = %d }), stack = mw.stack "megatron-2021",
}
"""
KNOBS = ["network.nic", "node.bandwidth", "device.memory", "device.peak16", "host.link", "nodes", "batch", "sequence"]
# The parts of a step that a knob changes, whose number makes it shorter (-1) or longer (1).
WORK = {"device.peak16": -1, "nodes": -1, "batch": 1, "sequence": 1}


class WhatIf(ProgramCase):
    def small(self, plan="dp(4), tp(2)", nodes=1, recompute="none", end="mw.plan(e)"):
        return self.write(SCRIPT % (plan, recompute, nodes) + end + "\n")

    def asked(self, script, *what_ifs, options=()):
        words = [word for one in what_ifs for word in ("--what-if", one)]
        done = self.call("plan", script, *options, *words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan, found = (json.loads(line) for line in done.stdout.splitlines()[:2])
        self.assertEqual((plan["kind"], found["kind"]), ("plan", "what_if"))
        self.assertEqual(plan["step_seconds"], found["step_seconds"])
        return found

    def refused(self, script, *what_ifs):
        words = [word for one in what_ifs for word in ("--what-if", one)]
        done = self.call("plan", script, *words, "--json")
        self.assertEqual(done.returncode, 2)
        lines = self.lines(done)
        self.assertEqual({line["kind"] for line in lines}, {"error"})
        return problems(lines), [line["hint"] for line in lines]

    def all_knobs(self, script, options, sends):
        """sends: of the two links, the axes whose transfers they carry."""
        found = self.asked(script, *(f"{knob} x=0.5,2" for knob in KNOBS), options=options)
        self.assertEqual([row["knob"] for row in found["rows"]], [knob for knob in KNOBS for _ in range(2)])
        step = found["step_seconds"]
        for row in found["rows"]:
            knob, factor = row["knob"], float(row["given"].removeprefix("x "))
            with self.subTest(knob, factor=factor):
                self.assertTrue(row["changed"])
                changes = row["step_seconds"] / step
                self.assertAlmostEqual(row["change"], changes - 1, places=9)
                if knob == "device.peak16":
                    self.assertEqual(row["basis"], "beyond")
                if knob in ("device.memory", "host.link"):
                    self.assertEqual(row["basis"], found["basis"])
                self.assertAlmostEqual(sum(row.get("parts", {}).values()), row["step_seconds"] - step, delta=1e-3 * step)
                way = math.log(factor) * math.log(changes)  # above 0: a larger number, a longer step
                if knob in WORK:
                    self.assertGreater(WORK[knob] * way, 0.1 * math.log(2) ** 2)
                    self.assertGreater(abs(row["parts"]["compute"]), 0.5 * abs(row["step_seconds"] - step))
                elif knob in sends:
                    self.assertLess(way, 0)
                    self.assertLessEqual(sends[knob], set(row["parts"]))
                else:
                    self.assertEqual(row["change"], 0)
                    self.assertIn({"device.memory": "no time hangs on it", "host.link": "host memory"}[knob], row["changed"])
        memory = {row["given"]: row for row in found["rows"] if row["knob"] == "device.memory"}
        self.assertEqual(memory["x 2"]["peak_bytes"], memory["x 0.5"]["peak_bytes"])
        worth = {one["knob"]: one["worth"] for one in found["sensitivities"]}
        self.assertEqual(set(worth), set(KNOBS))
        self.assertLess(worth["device.peak16"], -0.02)
        self.assertGreater(worth["batch"], 0.05)
        self.assertEqual(worth["host.link"], 0)

    def test_gpt3(self):
        sends = {"node.bandwidth": {"tp's transfers"}, "network.nic": {"dp's transfers", "pp's transfers"}}
        self.all_knobs(SOURCE / "scripts/published/gpt3-175b.lua", ("--set", "batch=96"), sends)

    def test_mixtral(self):
        sends = {"node.bandwidth": {"ep's transfers"}, "network.nic": {"pp's transfers"}}
        self.all_knobs(SOURCE / "scripts/published/mixtral-8x22b.lua", ("--set", "batch=128"), sends)

    def test_measured_all_reduces_follow_the_link(self):
        def seconds(*options):
            done = self.call("plan", SOURCE / "scripts/published/gpt3-175b.lua", "--set", "batch=96", *options, "--json")
            rows = json.loads(done.stdout.splitlines()[0])["communication"]
            return {row["phase"]: (row["seconds"], row["basis"]) for row in rows if row["axis"] == "tp"}
        before, after = seconds(), seconds("--set", "cluster.node.bandwidth=150e9")
        self.assertEqual(set(before), {"forward", "backward", "recompute"})
        for phase, (time, basis) in before.items():
            self.assertEqual((basis, after[phase][1]), ("measured", "beyond"))
            self.assertTrue(1.7 < after[phase][0] / time < 2.1, (phase, time, after[phase]))

    def test_nodes_are_filled_by_data_parallelism(self):
        rows = self.asked(self.small(), "nodes=2,3")["rows"]
        self.assertTrue(rows[0]["changed"].startswith("dp 4 -> 8; "), rows[0])
        self.assertEqual(rows[0]["ranks"], 16)
        # 64 sequences do not go over twelve ranks: the plan stays, and devices are idle.
        self.assertEqual((rows[1]["ranks"], rows[1]["change"]), (8, 0))
        self.assertIn("16 of 24 devices are idle", rows[1]["changed"])
        self.assertIn("devices in 1 node", self.asked(self.small("pp(2), tp(8)", 2), "nodes x=0.5")["rows"][0]["refused"])

    def test_what_changes_nothing_says_why(self):
        rows = self.asked(self.small(), "network.nic x=2", "node.latency x=2", "device.peak64 x=2", "batch=64", "device.memory=1GiB,40GiB",
                          "stack.exchanged x=0.5", "plan[2].ways=3")["rows"]
        for row, why in zip(rows, ("are in one node of 8 devices, so nothing leaves it", "what was measured", "computes in bf16", "it is so already",
                                   "does not fit", "which fits", "nothing of this plan is priced by stack.exchanged (")):
            self.assertEqual(row["change"], 0)
            self.assertIn(why, row["changed"])
        self.assertEqual([row["fits"] for row in rows[4:6]], [False, True])
        self.assertIn("tp(3) cannot split 16 heads", rows[-1]["refused"])
        self.assertNotIn("step_seconds", rows[-1])

    def test_a_key_that_the_script_leaves_out_is_its_default(self):
        script = self.small(plan="dp(4), tp(2)")
        text = script.read_text().replace(', recompute = "none"', "").replace("microbatch = 2, ", "")
        self.assertNotIn("recompute", text)
        bare = self.write(text)
        rows = self.asked(bare, "recompute=none,full", "microbatch=1,16", "offload=full", "precision=fp32", "model.tied=false", "model.ffn=4096,8192",
                          "main_gradients=fp32", "optimizer.weight_decay=0.2", "memory=40GiB", "seed=0,1", "threads=0")["rows"]
        self.assertEqual([row.get("refused") for row in rows], [None] * len(rows))
        by = {f"{row['knob']} {row['given']}": row for row in rows}
        # As the same is planned when the script says it.
        for knob, setting in (("recompute = full", "recompute=full"), ("microbatch = 1", "microbatch=1"), ("model.ffn = 8192", "model.ffn=8192"),
                              ("precision = fp32", "precision=fp32"), ("model.tied = false", "model.tied=false")):
            plan = json.loads(self.call("plan", bare, "--set", setting, "--json").stdout.splitlines()[0])
            self.assertEqual((by[knob]["step_seconds"], by[knob]["peak_bytes"]), (plan["step_seconds"], plan["peak_bytes"]), knob)
        for knob in ("recompute = none", "seed = 0", "threads = 0"):
            self.assertEqual((by[knob]["change"], by[knob]["changed"]), (0, "it is so already"), knob)
        self.assertIn("nothing of this plan is priced by seed (of the initial weights", by["seed = 1"]["changed"])
        found, hints = self.refused(bare, "recompute x=2", "microbatch x=2", "schedule.warmup=5", "model=3", "model.layrs=2", "recomputed=full")
        self.assertEqual(found, ["what-if.value recompute", "what-if.value microbatch", "what-if.knob schedule.warmup", "what-if.knob model",
                                 "what-if.knob model.layrs", "what-if.knob recomputed"])
        self.assertIn('"model.layers"', hints[4])
        self.assertIn('"recompute"', hints[5])

    def test_texts_and_what_has_no_time(self):
        # A text has no sensitivity, and a plan without a predicted time is a row with the reason.
        bare = self.write(SCRIPT % ("dp(2)", "none", 1) + "e.cluster, e.stack = nil, nil\nmw.plan(e)\n")
        found = self.asked(bare, "recompute=full", "name=mine", "device=cuda")
        self.assertEqual(found["sensitivities"], [])
        self.assertEqual(["refused" in row for row in found["rows"]], [False, False, True])
        self.assertRegex(found["rows"][2]["refused"], "^no time is predicted of it: .")
        self.assertIn("no time is predicted of it", self.call("plan", bare, "--what-if", "device=cuda").stdout)

    def test_a_tenth_more(self):
        script = self.small()
        found = self.asked(script, "device.peak16 x=2", "batch x=2", "model.layers x=2", "host.link x=2")
        worth = {one["knob"]: one for one in found["sensitivities"]}
        more = self.asked(script, "device.peak16 x=1.1")["rows"][0]["change"]
        self.assertAlmostEqual(worth["device.peak16"]["worth"], more, places=12)
        twice = 1 + found["rows"][1]["change"]
        self.assertAlmostEqual(worth["batch"]["worth"], 1.1 ** math.log2(twice) - 1, places=9)
        self.assertEqual(worth["batch"]["by"], "slope to x 2")
        self.assertEqual(worth["host.link"]["worth"], 0)

    def test_lua(self):
        end = """local r = mw.what_if(e, { ["node.bandwidth x"] = { 0.5, 2 }, batch = 128, ["device.memory ="] = "40GiB" })
print(r)
for _, row in ipairs(r.rows) do print(row.knob, row.given, row.change > 0, row.change == 0) end
mw.what_if(e, { batch = 32 })
print(pcall(mw.what_if, e, {}))
print(pcall(mw.what_if, e, { [1] = 2 }))
"""
        done = self.call("run", self.small(end=end))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("what if, of { dp(4), tp(2) }", done.stdout)
        self.assertIn("batch\t= 128\ttrue\tfalse\ndevice.memory\t= 40GiB\tfalse\ttrue\nnode.bandwidth\tx 0.5\ttrue\tfalse\n"
                      "node.bandwidth\tx 2\tfalse\tfalse\n", done.stdout)
        self.assertIn("nothing is asked", done.stdout)
        self.assertIn("has a name; got 1", done.stdout)

    def test_refused(self):
        script = self.small()
        found, hints = self.refused(script, "nic x=2", "modle.layers=2", "node.bandwith=1e9", "batch x=0.3", "batch x=-1",
                                    "device.power_limit x=0.5", "model.kind x=2", "plan[1].ways x=2")
        self.assertEqual(found, ["what-if.knob nic", "what-if.knob modle.layers", "what-if.knob node.bandwith", "what-if.value batch",
                                 "what-if.value batch", "what-if.knob device.power_limit", "what-if.value model.kind",
                                 "what-if.knob plan[1].ways"])
        for hint, near in zip(hints, ('"network.nic"', '"model.layers"', '"node.bandwidth"', '["batch"] = 19', "0.5 or 2")):
            self.assertIn(near, hint)
        self.assertEqual(self.refused(script, "batch")[0], ["what-if.form --what-if"])
        bare = self.write(SCRIPT % ("dp(4), tp(2)", "none", 1) + "e.cluster, e.stack = nil, nil\nmw.plan(e)\n")
        self.assertEqual(self.refused(bare, "network.nic x=2", "stack.host x=2")[0], ["what-if.knob network.nic", "what-if.knob stack.host"])

    def test_page(self):
        done = self.call("plan", self.small(), "--what-if", "node.bandwidth x=0.5,2", "--what-if", "plan[2].ways=3", "--html",
                         "plan.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.folder / "plan.html"
        self.assertIn('"name":"node.bandwidth x 0.5"', page.read_text())
        require_chromium()
        with Browser() as browser:
            for width in (1280, 390):
                browser.open(page, width)
                self.assertEqual(browser.complaints(), [])
                self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), width)
                self.assertEqual(browser.value("document.body.dataset.drawn"), "4")
                words = browser.value("document.body.textContent")
                for word in ("What if", "node.bandwidth x 0.5", "tp's transfers", "tp(3) cannot split", "a tenth more of"):
                    self.assertIn(word, words)

    def test_how_numbers_are_known(self):
        def bases(*options, cluster="selene", plan="dp(4), tp(2)"):
            done = self.call("plan", self.small(plan), "--cluster", cluster, "--set", "model.hidden=4096", *options, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout.splitlines()[0])
            rows = {f"{row['axis']} {row['op']} {row['phase']}": row["basis"] for row in found["communication"]}
            return found["compute_basis"], rows["tp all-reduce forward"], found["step_basis"]
        self.assertEqual(bases(), ("fitted", "measured", "fitted"))
        self.assertEqual(bases(cluster="h200"), ("beyond", "beyond", "beyond"))
        self.assertEqual(bases("--set", "cluster.device.memory=40GiB"), ("fitted", "measured", "fitted"))
        self.assertEqual(bases("--set", "cluster.device.gemm=0.7"), ("beyond", "measured", "beyond"))
        self.assertEqual(bases("--set", "stack.host=2"), ("beyond", "measured", "beyond"))
        # A mebibyte is the smallest that was measured.
        self.assertEqual(bases("--set", "sequence=16", "--set", "microbatch=1")[1], "beyond")
        self.assertIn("basis   step fitted, compute fitted", self.call("plan", self.small()).stdout)

    def test_slow_nodes(self):
        def planned(slow, layout="auto"):
            text = SCRIPT % (f'pp {{ 4, schedule = "1f1b", layout = "{layout}" }}, tp(8)', "full", 4)
            change = f"e.model.layers, e.model.hidden, e.microbatch = 32, 8192, 1\ne.cluster = mw.cluster(\"selene\", {{ nodes = 4, slow = {slow} }})\nmw.plan(e)\n"
            return self.only("plan", self.write(text + change))
        even, slow = planned("{}", "even"), planned("{ { node = 1, compute = 1.5 } }", "even")
        self.assertGreater(slow["step_seconds"], 1.2 * even["step_seconds"])
        self.assertEqual((even["step_basis"] != "beyond", slow["compute_basis"]), (True, "beyond"))
        self.assertIn("selene (changed: slow)", slow["priced_for"])
        found = planned("{ { node = 1, compute = 1.5 } }")
        self.assertLess(found["step_seconds"], 0.9 * slow["step_seconds"])
        self.assertLess(found["memory"][1]["parameters"], found["memory"][2]["parameters"])
        done = self.call("plan", self.small(), "--set", "cluster.slow={{ node = 1 }}", "--json")
        self.assertEqual(problems(self.lines(done)), ["cluster.value cluster.slow[1]"])

    def test_kinds_of_devices(self):
        def planned(kinds, layout="auto", change=""):
            text = SCRIPT % (f'pp {{ 4, schedule = "1f1b", layout = "{layout}" }}, tp(8)', "full", 4)
            text += f'e.model.layers, e.model.hidden, e.microbatch = 32, 8192, 1\ne.cluster = mw.cluster("selene", {{ {kinds} }})\n'
            path = self.write(text + change + "mw.plan(e)\n")
            return self.only("plan", path), self.call("plan", path).stdout
        plain, _ = planned("nodes = 4", "even")
        alike, _ = planned('kinds = { { nodes = 1 }, mw.cluster("selene", { nodes = 3 }) }', "even")
        for key in ("step_seconds", "mfu", "memory", "peak_bytes", "step_basis", "communication", "plan_hash"):
            self.assertEqual(plain[key], alike[key], key)
        kinds = 'kinds = { { nodes = 2 }, mw.cluster("dgx-h100", { nodes = 2 }) }'
        even, _ = planned(kinds, "even")
        found, text = planned(kinds)
        self.assertLess(found["step_seconds"], 0.85 * even["step_seconds"])
        self.assertLess(found["memory"][0]["parameters"], found["memory"][2]["parameters"])
        self.assertIn("2 nodes of 8 A100-80GB and 2 nodes of 8 H100-80GB", found["priced_for"])
        self.assertIn("80 GiB, H100-80GB", text)
        self.assertEqual((found["step_basis"], found["memory_basis"]), ("beyond", "counted"))
        small = 'nodes = 4, kinds = { { nodes = 1, device = { name = "A100-4GB", memory = "4GiB" } } }'
        over, text = planned(small, "even")
        self.assertFalse(over["fits"])
        self.assertRegex(text, r"does not fit: [\d.]+ GiB a rank of stage 0 against 4 GiB of memory on A100-4GB")
        self.assertEqual(over["memory"][0]["device_memory"], 4 << 30)
        done = self.call("plan", self.small(), "--set", "cluster.kinds={{ nodes = 2 }}", "--json")
        self.assertEqual(problems(self.lines(done)), ["cluster.value cluster.kinds"])

    def test_page_of_keys_is_up_to_date(self):
        kept = (SOURCE / "docs/description_keys.md").read_text()
        self.assertEqual(kept, self.call("description-keys").stdout, "stale: ./meshwright description-keys > docs/description_keys.md")
        for key in ("`network.nic`", "`node.curve_bandwidth`", "`stack.host`", "`nodes`"):
            self.assertIn(f"| {key} |", kept)


if __name__ == "__main__":
    unittest.main(verbosity=2)
