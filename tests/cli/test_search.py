# label: cli
"""The search for a mix: the textbook's answers, plans that can be planned again, the closed form
beside the events, and what is refused."""
import json
import re
import shutil
import signal
import subprocess
import unittest

import loaded
from cases import BIN, SOURCE, TEST_PLUGINS, ProgramCase
from problems import problems

SEARCH = """\
local mw = require "meshwright"
mw.search {
  precision = "bf16", optimizer = mw.adamw { lr = 1e-4 }, best = 3, checked = 8,
  %s
}
"""
B1 = "model = mw.llama { layers = 16, hidden = 2048, heads = 32, ffn = 5632, vocab = 32000 }, sequence = 2048, batch = 64"
B7 = "model = mw.llama { layers = 32, hidden = 4096, heads = 32, ffn = 11008, vocab = 32000 }, sequence = 2048, batch = 64"
B13 = "model = mw.llama { layers = 40, hidden = 5120, heads = 40, ffn = 13824, vocab = 32000 }, sequence = 2048, batch = 64"
B30 = "model = mw.llama { layers = 60, hidden = 6656, heads = 52, ffn = 17920, vocab = 32000 }, sequence = 2048, batch = 64"
B200 = "model = mw.gpt { layers = 96, hidden = 13312, heads = 104, vocab = 51200 }, sequence = 2048, batch = 256"
H100 = 'cluster = mw.cluster("dgx-h100", { nodes = %d })'
FEW = 'schedules = { "1f1b", "interleaved" }'


def ranks(values):
    """Places in the order of their values."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    places = [0] * len(values)
    for place, i in enumerate(order):
        places[i] = place
    return places


class Search(ProgramCase):
    def found(self, *keys):
        text = SEARCH % ", ".join(keys)
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return json.loads(done.stdout.splitlines()[-1])

    def forms(self, one):
        return {entry["plugin"]: entry for entry in one["entries"]}

    def test_one_billion_on_a_node_is_data_parallel(self):
        found = self.found(B1, H100 % 1, FEW)
        self.assertEqual(found["kind"], "search")
        # ZeRO 1 is as fast and smaller: plain dp is beaten in both.
        self.assertEqual(set(self.forms(found["best"][0])), {"zero"}, found["best"][0]["plan"])
        self.assertEqual(found["best"][0]["entries"][0].get("stage", 1), 1)
        self.assertIs(found["interrupted"], False)
        self.assertGreater(found["candidates_per_second"], 0)
        for one in found["best"]:
            self.assertLessEqual(one["predicted"]["peak_bytes"], found["rank_memory_limit"])
        times = [one["predicted"]["step_seconds"] for one in found["best"]]
        self.assertEqual(times[1:], sorted(times[1:]))
        fastest = min(one["predicted"]["step_seconds"] for one in found["checked"])
        self.assertLessEqual(times[0], 1.04 * fastest)
        if times[0] > fastest:
            self.assertIn("tied: predictions err by 4 %", found["why"])
            # It names the fastest: none of the plans beside it wins more.
            gains = [float(gain) for gain in re.findall(r": (-?\+?[\d.]+) %", found["why"])]
            tied = re.search(r"the fastest: .*?: (-[\d.]+) %", found["why"])
            self.assertEqual(float(tied[1]), min(gains), found["why"])
        self.assertIn("compute", found["why"])
        shares = [int(share) for share in re.findall(r"(\d+) %", found["why"].splitlines()[0])]
        self.assertAlmostEqual(sum(shares), 100, delta=len(shares))
        self.assertIn("microbatch = ", found["why"])

    def test_thirteen_billion_without_tp_and_pp_is_sharded_whole(self):
        found = self.found(B13, 'cluster = mw.cluster("dgx-a100-40", { nodes = 2 })', 'strategies = { "dp", "zero" }')
        self.assertEqual(self.forms(found["best"][0])["zero"].get("stage"), 3)

    def test_thirty_billion_on_a_node_is_cut_or_sharded(self):
        found = self.found(B30, H100 % 1, 'strategies = { "dp", "zero", "tp", "pp" }, schedules = { "1f1b" }')
        forms = self.forms(found["best"][0])
        self.assertTrue("tp" in forms or forms.get("zero", {}).get("stage") == 3, found["best"][0]["plan"])

    def test_two_hundred_billion_take_tp_in_the_node_stages_and_data(self):
        found = self.found(B200, H100 % 8, 'schedules = { "1f1b" }, microbatch = { 1, 2 }, strategies = { "dp", "zero", "tp", "sp", "pp" }')
        forms = self.forms(found["best"][0])
        self.assertLessEqual(forms.get("tp", {"ways": 1})["ways"], 8)
        self.assertIn("tp", forms)
        self.assertIn("pp", forms)

    def test_copies_of_two_hundred_billion_are_fastest_where_they_fit(self):
        # Two copies with the optimizer's state in parts take 2 + 2 + 12 / 2 bytes for each of the
        # parameters of a rank: 59 GiB of 80 on 64 devices, which leaves little for microbatches.
        found = self.found(B200, 'cluster = mw.cluster("h200", { nodes = 8 })', 'schedules = { "1f1b" }, microbatch = 1',
                           'strategies = { "dp", "zero", "tp", "sp", "pp" }, stack = mw.stack "megatron-core"')
        fastest = min((one for one in found["checked"] if one["fits"]), key=lambda one: one["predicted"]["step_seconds"])
        forms = self.forms(fastest)
        self.assertLessEqual(forms["tp"]["ways"], 8)
        self.assertGreater(forms["pp"]["ways"], 1)
        self.assertTrue("dp" in forms or "zero" in forms, fastest["plan"])

    def test_seven_billion_need_sixteen_bytes_a_parameter_under_plain_dp(self):
        # Mixed-precision Adam: 2 + 2 of bf16 parameters and gradients, 4 + 4 + 4 of master and
        # states.
        text = ('local mw = require "meshwright"\nlocal dp = mw.plugins("dp")\nmw.plan { precision = "bf16", data = mw.synthetic {}, '
                'plan = { dp(8) }, microbatch = 1, steps = 1, optimizer = mw.adamw { lr = 1e-4 }, %s, %s }' % (B7, H100 % 1))
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        plan = json.loads(done.stdout.splitlines()[-1])
        stage = plan["memory"][0]
        state = stage["parameters"] + stage["gradients"] + stage["optimizer"]
        self.assertAlmostEqual(state / plan["parameters"], 16, delta=0.05)
        self.assertGreater(state, 0.95 * 112e9 * plan["parameters"] / 7e9)
        self.assertFalse(plan["fits"])

    def test_a_recommended_plan_is_planned_again_as_it_was(self):
        found = self.found(B1, H100 % 1, FEW)
        best = found["best"][0]
        text = ('local mw = require "meshwright"\nlocal dp, zero, tp, sp, pp = mw.plugins("dp", "zero", "tp", "sp", "pp")\n'
                'mw.plan { precision = "bf16", data = mw.synthetic {}, steps = 1, optimizer = mw.adamw { lr = 1e-4 }, '
                'plan = %s, microbatch = %d, recompute = "%s", %s, %s }'
                % (best["plan"], best["microbatch"], best["recompute"], B1, H100 % 1))
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        again = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(again["step_seconds"], best["predicted"]["step_seconds"])
        self.assertEqual(again["peak_bytes"], best["predicted"]["peak_bytes"])

    def test_a_neighbour_is_the_fastest_of_its_kind_that_was_planned(self):
        found = self.found("model = mw.llama { layers = 16, hidden = 1024, heads = 16, ffn = 4096, vocab = 256000 }, sequence = 4096, batch = 128",
                           H100 % 1, 'strategies = { "pp", "dp", "tp" }, microbatch = 1, recompute = "none", memory = "24GiB"')
        best = found["best"][0]
        told = re.findall(r"^plan = (\{ pp \{ .*?\}, (.*) \}): ([+-][\d.]+) %$", found["why"], re.M)
        self.assertTrue(told, found["why"])
        for plan, data, percent in told:
            same = [one for one in found["checked"] if one["fits"] and one["plan"].startswith(plan[:8]) and one["plan"].endswith(f", {data} }}")]
            least = min(one["predicted"]["step_seconds"] for one in same)
            self.assertAlmostEqual(float(percent), 100 * (least / best["predicted"]["step_seconds"] - 1), delta=0.06)

    def test_the_closed_form_orders_as_the_events_do(self):
        found = self.found(B7, H100 % 2, FEW, "checked = 24", 'strategies = { "dp", "zero", "tp", "pp" }')
        form = [one["closed_form_seconds"] for one in found["checked"]]
        events = [one["predicted"]["step_seconds"] for one in found["checked"]]
        self.assertGreaterEqual(len(form), 24)
        errors = [abs(a / b - 1) for a, b in zip(form, events)]
        self.assertLess(sum(errors) / len(errors), 0.05)
        n, a, b = len(form), ranks(form), ranks(events)
        spearman = 1 - 6 * sum((x - y) ** 2 for x, y in zip(a, b)) / (n * (n * n - 1))
        self.assertGreater(spearman, 0.8)

    def test_what_is_wrong_is_said_at_once_by_key(self):
        text = SEARCH % (B1 + ', strategies = { "dq" }, bset = 3')
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        problems = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(done.returncode, 2)
        self.assertEqual({(p["code"], p["key"]) for p in problems},
                         {("search.cluster", "cluster"), ("option.value", "strategies[1]"), ("option.unknown", "bset")})
        text = SEARCH % (B1 + ', strategies = {}, cluster = "dgx-h100"')
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        problems = {p["key"]: p for p in map(json.loads, done.stdout.splitlines())}
        self.assertEqual({key: p["code"] for key, p in problems.items()}, {"strategies": "option.value", "cluster": "option.type"})
        self.assertIn("mw.cluster(", problems["cluster"]["hint"])

    def test_where_nothing_fits_the_nearest_is_told(self):
        text = SEARCH % ", ".join([B30, 'cluster = mw.cluster("dgx-a100-40", { nodes = 1 }), strategies = { "dp", "tp" }', 'memory = "4GiB"'])
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        self.assertEqual(done.returncode, 3)
        problem = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((problem["code"], problem["key"]), ("search.memory", "memory"))
        self.assertIn("GiB too much", problem["message"])

    def test_a_batch_that_no_plan_divides(self):
        text = SEARCH % ", ".join([B1.replace("batch = 64", "batch = 7"), H100 % 1, 'strategies = { "dp", "zero" }'])
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        problem = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((problem["code"], problem["key"], problem["hint"]), ("search.batch", "batch", "nearest: batch = 8"))

    def refusal(self, *keys, code=3):
        done = loaded.run([BIN, "run", "-", "--json"], input=SEARCH % ", ".join(keys), text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(problems(lines)), 1)
        return lines[-1]

    def test_hosts_hold_what_is_offloaded(self):
        """30 B parameters take 12 bytes each of optimizer state: 336 GiB in the host memory of a node of 8."""
        keys = [B30, 'strategies = { "zero" }, microbatch = 1, recompute = "full", best = 8']
        cluster = 'cluster = mw.cluster("dgx-a100-40", { nodes = 1, host = { capacity = "%s" } })'
        offloads = lambda one: one["entries"][0].get("offload", "none") != "none"
        large = self.found(*keys, cluster % "1TiB")
        self.assertTrue(any(offloads(one) for one in large["best"]), [one["plan"] for one in large["best"]])
        for one in large["checked"]:
            if offloads(one):
                self.assertGreater(one["predicted"]["host_needed"], 0.9 * 12 * 29e9)
        self.assertEqual(large["host_memory_limit"], 2 ** 40)
        problem = self.refusal(*keys, cluster % "300GiB")
        self.assertEqual((problem["code"], problem["key"]), ("search.memory", "cluster.host.capacity"))
        self.assertIn("too much", problem["message"])
        # Where other plans fit, none of these takes more than its host has.
        two = self.found(B30, 'strategies = { "zero", "tp" }, microbatch = 1, best = 8',
                         'cluster = mw.cluster("dgx-h100", { nodes = 2, host = { capacity = "100GiB" } })')
        for one in two["best"]:
            self.assertLessEqual(one["predicted"].get("host_needed", 0), 100 * 2 ** 30)

    def test_no_number_of_microbatches(self):
        problem = self.refusal(B1, H100 % 1, "microbatch = 3")
        self.assertEqual((problem["code"], problem["key"]), ("search.microbatch", "microbatch"))
        self.assertEqual(problem["hint"], "nearest: microbatch = 2 or 4")
        self.assertIn("3 divides", problem["message"])
        problem = self.refusal(B1, H100 % 1, 'strategies = { "dp" }, microbatch = { 5, 3 }')
        self.assertEqual(problem["hint"], "nearest: microbatch = 4 or 8")

    def test_a_number_of_ranks_that_no_mix_has(self):
        problem = self.refusal(B1, H100 % 1, 'ranks = 7, strategies = { "dp", "tp" }')
        self.assertEqual((problem["code"], problem["key"]), ("search.none", "ranks"))
        self.assertIn("cannot split 32 heads", problem["message"])
        # What the first that was refused was told is told too.
        self.assertEqual(problem["hint"], "nearest: ranks = 4 or 8; of the first that was refused: nearest: tp(4), tp(8)")
        problem = self.refusal(B1, H100 % 1, 'strategies = { "pp" }, schedules = {}')
        self.assertEqual(problem["code"], "search.none")
        self.assertIn("have no axes that make so many", problem["message"])

    def test_what_keeps_each_mix_out_has_its_key(self):
        text = (SOURCE / "clusters/dgx-a100-40.lua").read_text()
        hall = self.folder / "hall.lua"
        hall.write_text(re.sub(r"(?m)^  host = .*\n", "", text))
        problem = self.refusal(B1, f'cluster = mw.cluster("{hall}", {{ nodes = 1 }}), strategies = {{ "dp" }}, offload = "full"')
        self.assertEqual((problem["code"], problem["key"]), ("search.none", "cluster.host"))
        self.assertIn("of the first that was refused: host = ", problem["hint"])
        problem = self.refusal(B1, 'cluster = mw.cluster("dgx-v100", { nodes = 1 }), strategies = { "dp" }')
        self.assertEqual((problem["code"], problem["key"], problem["hint"]), ("cluster.rate", "precision", 'nearest: precision = "fp16"'))

    def test_what_is_passed_over_is_told(self):
        """Of 16 layers 8 stages have 2 each: 3 chunks are too many; and 32 stages."""
        problem = self.refusal(B1.replace("layers = 16", "layers = 12"), H100 % 1, 'strategies = { "pp" }, schedules = { "interleaved" }'
                               )
        self.assertEqual((problem["code"], problem["key"]), ("search.none", "schedules"))
        self.assertRegex(problem["message"], r"\d+ have more chunks, on all stages together, than the model's 12 layers")
        self.assertIn("a model of 16 layers or more", problem["hint"])
        for keys, words in (((H100 % 4, 'strategies = { "tp" }'), "tp over more than 16 ranks, two nodes, is not tried"),
                            ((H100 % 4, 'strategies = { "pp" }, schedules = { "1f1b" }'), "16 layers make 16 stages at most"),
                            ((H100 % 1, 'strategies = { "sp" }'), "fewer than 4096 are not tried")):
            problem = self.refusal(B1, *keys)
            self.assertEqual((problem["code"], problem["key"]), ("search.none", "ranks"))
            self.assertIn(words, problem["message"])
        # Where other mixes are possible these count as refused.
        few, more = (self.found(B1, H100 % 1, 'strategies = { "dp", "pp" }, microbatch = 1, recompute = { "none" }, schedules = { %s }' % names)
                     for names in ('"1f1b"', '"1f1b", "interleaved"'))
        self.assertGreater(more["refused"], few["refused"])

    def test_memory_is_told_as_plan_tells_it(self):
        one = 'strategies = { "dp" }, schedules = {}, microbatch = 8, recompute = { "none" }'
        cluster = 'cluster = mw.cluster("dgx-h100", { nodes = 1, device = { memory = "%dB" } })'
        found = self.found(B1, one, H100 % 1)
        memory = int(found["best"][0]["predicted"]["peak_bytes"] / 0.9515)  # what is beside the program fits too
        text = SEARCH.replace("mw.search {", "print(mw.search {").replace("\n}\n", "\n})\n") % ", ".join([B1, one, cluster % memory])
        done = loaded.run([BIN, "run", "-", "--quiet"], input=text, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^  \d: nearly full: .* and is not predicted$")
        # What a user lets a rank hold is what is near, as it is what must fit.
        limited = self.found(B1, one, H100 % 1, "memory = %d" % memory)
        for first in (limited["best"][0]["predicted"], found["best"][0]["predicted"]):
            self.assertEqual(first["nearly_full"], first is limited["best"][0]["predicted"])
        self.assertEqual(limited["best"][0]["predicted"]["memory_limit"], found["best"][0]["predicted"]["memory_limit"])
        text = SEARCH.replace("mw.search {", "print(mw.search {").replace("\n}\n", "\n})\n") % ", ".join([B1, one, H100 % 1, "memory = %d" % memory])
        done = loaded.run([BIN, "run", "-", "--quiet"], input=text, text=True, timeout=300)
        self.assertRegex(done.stdout, r"(?m)^  \d: nearly full: .* and is not predicted$")
        self.assertNotIn("that is above", done.stdout)  # what a driver counts is the device's affair
        # Of plans that are tied one with some memory left is recommended.
        tied = self.found(B1, 'strategies = { "dp", "zero" }, schedules = {}', cluster % memory)
        first, fastest = (one["predicted"] for one in tied["best"][:2])
        self.assertFalse(first["nearly_full"])
        self.assertLessEqual(first["reported_bytes"], memory)
        self.assertLessEqual(first["step_seconds"], 1.04 * fastest["step_seconds"])

    def shown(self, *keys):
        text = SEARCH.replace("mw.search {", "print(mw.search {").replace("\n}\n", "\n})\n") % ", ".join(keys)
        done = loaded.run([BIN, "run", "-", "--quiet"], input=text, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_limit_that_no_device_has_is_told(self):
        keys = [B1, H100 % 1, 'strategies = { "dp", "zero" }, schedules = {}']
        above = self.found(*keys, 'memory = "100GiB"')
        self.assertIn("memory: 100 GiB is more than a device's 80 GiB, by which plans are judged", above["why"])
        self.assertEqual(above["rank_memory_limit"], 80 * 2 ** 30)
        self.assertNotIn("more than a device's", self.found(*keys, 'memory = "60GiB"')["why"])

    def test_a_recompute_that_fits_more_than_a_rank_may_hold_is_refused(self):
        for said, key in (('{ fit = "500GiB" }', ""), ('{ "none", { fit = "70GiB" } }', ', memory = "60GiB"')):
            text = SEARCH % (B1 + ", " + H100 % 1 + ", recompute = " + said + key)
            done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
            self.assertEqual(done.returncode, 2, done.stdout)
            [line] = map(json.loads, done.stdout.splitlines())
            self.assertEqual((line["code"], line["key"]), ("option.range", "recompute.fit"))
            self.assertIn("GiB are more than the", line["message"])

    def test_the_closed_form_balances_stages_where_the_vocabulary_is_large(self):
        """A head of 256,000 words costs as much as eight layers here: even stages would take up to half as long again."""
        found = self.found("model = mw.llama { layers = 26, hidden = 2304, heads = 8, ffn = 9216, vocab = 256000 }, sequence = 2048, "
                           "batch = 64, checked = 60", H100 % 1, 'strategies = { "pp", "dp" }', 'schedules = { "1f1b", "zb-h1", "zb-h2" }')
        staged = [one for one in found["best"] + found["edge"] if "pp" in one["plan"]]
        self.assertGreater(len(staged), 4)
        for one in staged:
            with self.subTest(one["plan"]):
                self.assertLess(abs(one["closed_form_seconds"] / one["predicted"]["step_seconds"] - 1), 0.1)

    def undominated(self, found):
        """No plan of those planned whole takes less time and memory than the first."""
        own = found["best"][0]["predicted"]
        for one in found["checked"]:
            other = one["predicted"]
            beats = other["step_seconds"] <= own["step_seconds"] and other["peak_bytes"] < own["peak_bytes"]
            self.assertFalse(one["fits"] and one["room"] not in ("over", "runs out") and beats,
                             f"{one['plan']} beats {found['best'][0]['plan']}")

    def test_the_same_search_under_three_stacks(self):
        model = "model = mw.gpt { layers = 40, hidden = 6144, heads = 48, vocab = 51200 }, sequence = 2048, batch = 128"
        more = 'cluster = mw.cluster("selene", { nodes = 8 }), best = 4, checked = 12, microbatch = { 1, 2, 4 }'
        shapes = {"megatron-2021": {"dp", "tp", "pp"}, "megatron-core": {"dp", "zero", "tp", "sp", "pp", "ep"}, "meshwright": None}
        for stack, strategies in shapes.items():
            with self.subTest(stack):
                found = self.found(model, more, f'stack = mw.stack "{stack}"')
                self.undominated(found)
                self.assertNotIn(found["best"][0]["room"], ("over", "runs out"))
                for one in found["checked"]:
                    self.assertNotIn("cannot_run", one["predicted"], one["plan"])
                    for entry in one["entries"] if strategies else []:
                        self.assertIn(entry["plugin"], strategies)
                        self.assertIn(entry.get("schedule", "1f1b"), ("1f1b", "interleaved"))
                        self.assertEqual(entry.get("stage", 1), 1)
                if stack == "meshwright":
                    self.assertEqual(found["left_out"], [])
                    self.assertTrue(all(one["beyond_measured"] for one in found["best"]))
                else:
                    self.assertTrue(any("zbv" in one for one in found["left_out"]), found["left_out"])
                    for one in found["best"]:
                        self.assertIn("parameters", one["nearest_measured"])

    def test_what_is_left_out_and_what_lies_beyond_stand_in_the_output(self):
        keys = [B7, 'cluster = mw.cluster("selene", { nodes = 1 }), microbatch = 1']
        shown = self.shown(*keys, 'stack = mw.stack "megatron-2021", strategies = { "dp", "tp", "zero" }')
        self.assertIn("left out, as the software of megatron-2021 lacks it: zero (it has dp, pp, tp)", shown)
        self.assertRegex(shown, r"(?m)^  1[\d, ]*: beyond what was measured under its stack; the nearest was [\d.]+ B parameters on \d+ devices")
        self.assertIn("no step was published under the stack meshwright", self.shown(*keys, 'stack = mw.stack "meshwright", strategies = { "zero" }'))
        shown = self.shown(*keys, 'stack = mw.stack "megatron-2021", unsupported = true, strategies = { "zero" }')
        self.assertRegex(shown, r"(?m)^  1[\d, ]*: its stack's software cannot run this: zero")

    def test_a_plan_that_the_software_lacks_says_so_in_a_line(self):
        text = ('local mw = require "meshwright"\nlocal pp, tp, zero = mw.plugins("pp", "tp", "zero")\nmw.plan { precision = "bf16", '
                'data = mw.synthetic {}, plan = { pp { 2, schedule = "%s" }, %s(2), tp(2) }, microbatch = 1, steps = 1, '
                'optimizer = mw.adamw { lr = 1e-4 }, stack = mw.stack "megatron-2021", %s, %s }')
        for schedule, data, expected in (("zb-h1", "zero", ["zero (it has dp, pp, tp)", "the schedule zb-h1 (it has 1f1b, interleaved)"]),
                                         ("1f1b", '(mw.plugins "dp")', [])):
            script = text % (schedule, data, B7, 'cluster = mw.cluster("selene", { nodes = 1 })')
            done = loaded.run([BIN, "run", "-", "--json"], input=script, text=True, timeout=300)
            plan = json.loads(done.stdout.splitlines()[-1])
            self.assertEqual(sorted(plan.get("cannot_run", [])), sorted(expected))
            shown = loaded.run([BIN, "plan", "-"], input=script, text=True, timeout=300).stdout
            self.assertEqual(shown.count("its software cannot run this"), 1 if expected else 0, shown)

    def test_what_a_driver_reports_above_the_device_is_never_first(self):
        keys = [B1, 'strategies = { "dp" }, schedules = {}, microbatch = 4, recompute = "none"']
        peak = self.found(*keys, H100 % 1)["best"][0]["predicted"]["peak_bytes"]
        own = 'cluster = mw.cluster("dgx-h100", { nodes = 1, device = { memory = "%dB" } })'
        text = SEARCH % ", ".join([*keys, own % int(1.001 * peak)])
        done = loaded.run([BIN, "run", "-", "--json"], input=text, text=True, timeout=300)
        self.assertEqual(problems([json.loads(line) for line in done.stdout.splitlines()]), ["search.memory memory"])
        shown = self.shown(keys[0], 'strategies = { "dp" }, schedules = {}, microbatch = 4, recompute = { "none", "full" }', own % int(1.001 * peak))
        self.assertRegex(shown, r'(?m)^  1 .* "full" ')
        self.assertRegex(shown, r'(?m)^  2 .* "none" .* \* [\d.]+ GiB +runs out')
        self.assertRegex(shown, r"(?m)^  \*: more than the device's [\d.]+ GiB$")
        shown = self.shown(*keys, own % (2 * peak))
        self.assertNotIn("*", shown)
        self.assertNotRegex(shown, r"\de[+-]\d")  # seconds as people write them

    def test_the_column_of_what_a_driver_reports(self):
        keys = [B1, H100 % 1, 'strategies = { "dp", "zero" }', 'schedules = {}', 'recompute = "none"', 'stack = mw.stack "megatron-core"']
        best = self.found(*keys)["best"]
        lines = self.shown(*keys).splitlines()
        head = next(i for i, line in enumerate(lines) if " reported" in line)
        names = re.split(r"\s{2,}", lines[head].strip())
        units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        for one, line in zip(best, lines[head + 2:]):
            cells = dict(zip(names, re.split(r"\s{2,}", line.strip())[1:]))
            with self.subTest(one["plan"], line=line):
                self.assertEqual(cells["plan"], one["plan"])
                for name, bytes_ in (("memory", one["predicted"]["peak_bytes"]), ("reported", one["predicted"]["reported_bytes"])):
                    number, unit = cells[name].split()
                    self.assertAlmostEqual(float(number) * units[unit] / bytes_, 1, places=2)
                beside = one["predicted"]["beside_program"]
                self.assertEqual(one["predicted"]["reported_bytes"], one["predicted"]["peak_bytes"] + sum(beside.values()))
                self.assertGreater(beside["reserve"], 0)

    def test_a_key_that_is_taken_back_is_missing(self):
        done = loaded.run([BIN, "search", "-", "--json", "--set", "sequence=nil"], text=True, timeout=300,
                          input=SEARCH % ", ".join([B30, H100 % 1]))
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(problems([json.loads(line) for line in done.stdout.splitlines()]), ["option.missing sequence"])

    def test_what_keeps_all_out_is_told(self):
        problem = self.refusal(B30, 'strategies = { "dp" }', H100 % 1)
        self.assertEqual((problem["code"], problem["key"]), ("search.memory", "memory"))
        self.assertRegex(problem["hint"], r"^devices with .* each, or more ranks under strategies that share out what fills them \(optimizer .*\)$")

    def test_a_stopped_search_says_what_follows(self):
        text = SEARCH.replace("mw.search {", "print(mw.search {").replace("\n}\n", "\n})\n") % ", ".join([B200, H100 % 32])
        process = subprocess.Popen([BIN, "run", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        process.stdin.write(text)
        process.stdin.close()
        for line in process.stderr:
            if line.startswith("search: "):
                break
        process.send_signal(signal.SIGINT)
        said, shown = process.stderr.read(), process.stdout.read()
        process.stdout.close(), process.stderr.close()
        self.assertEqual(process.wait(timeout=300), 130)
        self.assertIn("stopping: the best of those so far follow", said)
        self.assertNotIn("step;", said)
        self.assertIn("interrupted", shown)

    def test_a_strategy_that_is_only_tried_and_breaks_is_named(self):
        folder = self.folder / "path"
        folder.mkdir()
        for name in ("throws_in_place", "throws_in_options"):
            shutil.copy(f"{TEST_PLUGINS}/{name}.so", folder)
        keys = ('model = mw.llama { layers = 4, hidden = 256, heads = 4, ffn = 512, vocab = 512 }, data = mw.synthetic {}, sequence = 128, '
                'batch = 8, steps = 1, optimizer = mw.adamw { lr = 1e-4 }, %s')
        search = 'local mw = require "meshwright"\nmw.search { checked = 4, schedules = {}, %s }' % keys % (H100 % 1)
        made = 'the plugin "throws_in_place" threw while it was made: cannot be made'
        done = self.call("run", self.write(search), "--plugin-path", folder, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        said = " ".join(done.stderr.split())
        found = self.lines(done)[-1]
        self.assertEqual(len(found["faults"]), 2)
        for fault, what in zip(sorted(found["faults"]), ("no options today", made)):
            self.assertIn(what, fault)
            self.assertEqual(said.count(f"left out: {fault}; "), 1, said)
        # The nearest plans of one that does not fit are tried as well.
        train = ('local mw = require "meshwright"\nlocal dp = mw.plugins("dp")\nmw.train { plan = { dp(2) }, %s }'
                 % keys % 'memory = "1MiB"')
        done = self.call("run", self.write(train), "--plugin-path", folder, "--json")
        self.assertEqual((done.returncode, problems(self.lines(done))), (3, ["memory.limit memory"]), done.stderr)
        self.assertIn("no options today", done.stderr)
        quiet = self.call("run", self.write(search.replace("checked = 4", 'checked = 4, strategies = { "dp" }')), "--plugin-path", folder, "--json")
        self.assertEqual(quiet.returncode, 0, quiet.stderr)
        self.assertNotIn("throws_in_place", quiet.stderr)

    def test_the_command_takes_a_training(self):
        text = ('local mw = require "meshwright"\nlocal dp = mw.plugins("dp")\nmw.train { plan = { dp(2) }, steps = 10, '
                'data = mw.synthetic {}, optimizer = mw.adamw { lr = 1e-4 }, precision = "bf16", checked = 4, %s }'
                % B1.replace("layers = 16", "layers = 4"))
        done = loaded.run([BIN, "search", "-", "--cluster", "dgx-h100", "--nodes", "1", "--json"], input=text,
                          text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout.splitlines()[-1])["candidates"], 100)


if __name__ == "__main__":
    unittest.main()
