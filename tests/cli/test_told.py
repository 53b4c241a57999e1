"""What a plan or a run prints is not misread: parts add up to their step, rules that are shown
hold, figures suppose what is said, and long tables are abridged."""

import re
import unittest

from cases import SOURCE, ProgramCase

HEAD = """\
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep")
local function e(t, verb)
  local all = { model = mw.llama { layers = 8, hidden = 256, heads = 8, kv_heads = 4, ffn = 704, vocab = 512 },
    data = mw.synthetic {}, sequence = 256, batch = 32, microbatch = 1, optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
  for key, value in pairs(t) do all[key] = value end
  return (verb or mw.plan)(all)
end
local h100 = mw.cluster("dgx-h100", { nodes = 4 })
"""
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}


class Told(ProgramCase):
    def plan(self, *calls):
        """The results of calls of e { … }."""
        return self.all("plan", self.write(HEAD + "".join(f"e {call}\n" for call in calls)))

    def text(self, *calls):
        done = self.call("plan", self.write(HEAD + "".join(f"e {call}\n" for call in calls)))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_parts_of_a_step_are_the_step(self):
        plans = ('{ pp { 4, schedule = "1f1b" }, dp(2), tp(2) }', '{ pp { 2, schedule = "interleaved", chunks = 2 }, zero { 4, stage = 2 } }',
                 '{ pp { 4, schedule = "zbv" }, dp(2) }', "{ zero { 8, stage = 3 }, tp(2), sp() }", "{ sp(4), dp(2) }", "{}")
        for cluster in ("nil", "h100"):
            results = self.plan(*(f"{{ plan = {plan}, cluster = {cluster} {more} }}" for plan in plans
                                  for more in ("", ', offload = { prefetch = 1 }')))
            for result in results:
                with self.subTest(result["plan"], cluster=cluster):
                    step, copies = result["step_seconds"], result.get("exposed_host_copy_seconds", 0)
                    self.assertAlmostEqual((result["compute_seconds"] + result["exposed_seconds"] + copies) / step +
                                           result["bubble_fraction"], 1, places=6)
                    # Rows of transfers add up to what is exposed, and none waits longer than it
                    # takes.
                    exposed = sum(row.get("mean_exposed_seconds", row["exposed_seconds"]) for row in result["communication"])
                    self.assertAlmostEqual(exposed, result["exposed_seconds"], delta=1e-6 * step)
                    for row in result["communication"]:
                        self.assertLessEqual(row["exposed_seconds"], row["seconds"] * (1 + 1e-9), row)
                    stages = result.get("stages", [])
                    self.assertEqual(len(stages), len(result["memory"]) if len(result["memory"]) > 1 else 0)
                    for stage in stages:
                        self.assertAlmostEqual(sum(stage[key] for key in stage if key != "stage") / step, 1, places=6)
                    mean = lambda key: sum(stage[key] for stage in stages) / len(stages)
                    if stages:
                        self.assertAlmostEqual(mean("compute_seconds"), result["compute_seconds"], delta=1e-9 * step)
                        self.assertAlmostEqual(mean("bubble_seconds") / step, result["bubble_fraction"], places=6)

    def test_a_transfer_of_two_stages_of_eight_is_not_shown_as_hidden(self):
        result, = self.plan('{ plan = { pp { 8, schedule = "1f1b" }, dp(4) }, cluster = h100, batch = 64, sequence = 64, '
                            "model = mw.llama { layers = 8, hidden = 64, heads = 4, ffn = 128, vocab = 4096, tied = true } }")
        ends, = (row for row in result["communication"] if row["axis"] == "pp[0,7]*dp")
        self.assertGreater(ends["exposed_seconds"], 0.8 * ends["seconds"])
        self.assertLessEqual(ends["mean_exposed_seconds"], 2 / 8 * ends["exposed_seconds"] * (1 + 1e-9))
        self.assertGreater(ends["mean_exposed_seconds"], 1 / 8 * ends["exposed_seconds"] * (1 - 1e-9))

    def test_software_that_would_run_out_of_a_device_is_told(self):
        size = """model = mw.llama { layers = 4, hidden = 1024, heads = 8, ffn = 2816, vocab = 32000 }, sequence = 1024, batch = 64,
            microbatch = 8, precision = "bf16", plan = { zero(8) }, stack = mw.stack "megatron-core" """
        call = lambda bytes_: f'{{ {size}, cluster = mw.cluster("dgx-h100", {{ device = {{ memory = {bytes_} }} }}) }}'
        known, = self.plan(call(80 << 30))
        whole, reserve = known["reported_bytes"], known["beside_program"]["reserve"]
        idle, out = "the allocator gives back memory that it does not use", "that software would run out of"
        for bytes_, above, beyond in ((whole, False, False), (whole - reserve // 2, True, False), (whole - reserve - 1, False, True)):
            found = self.text(call(bytes_))
            self.assertEqual((idle in found, out in found), (above, beyond), bytes_)

    def test_keys_of_a_cluster_are_set_after_it_is_named(self):
        named = lambda *more: self.only("plan", self.write(HEAD + "e { plan = { dp(2) } }"), "--cluster", "dgx-h100", *more)
        self.assertIn("stack plain", named()["priced_for"])
        self.assertEqual(named("--set", "cluster.device.memory=20GiB")["memory_limit"], 20 << 30)
        self.assertGreater(named("--stack", "megatron-core", "--set", "stack.host=40")["step_seconds"],
                           2 * named("--stack", "megatron-core")["step_seconds"])

    def test_a_changed_cluster_does_not_pass_for_its_name(self):
        named = lambda *more: self.only("plan", self.write(HEAD + "e { plan = { dp(2) } }"), *more)["priced_for"]
        cluster = ("--cluster", "dgx-h100", "--nodes", "2", "--stack", "megatron-core")
        self.assertNotIn("changed", named(*cluster, "--set", "cluster.nodes=3"))
        self.assertNotIn("changed", named(*cluster, "--set", "cluster.device.memory=80GiB"))  # as it was
        found = named(*cluster, "--set", "cluster.device.memory=20GiB", "--set", "stack.host=40", "--set", "cluster.network.nic=1e9")
        self.assertRegex(found, r"^dgx-h100 \(changed: device\.memory, network\.nic\): .*, stack megatron-core \(changed: host\)$")
        inside = lambda keys: self.plan('{ plan = { dp(2) }, cluster = mw.cluster("dgx-h100", { nodes = 2, %s }) }' % keys)[0]["priced_for"]
        self.assertIn("dgx-h100 (changed: device.memory, network.nic): 2 nodes", inside("device = { memory = '20GiB' }, network = { nic = 1e9 }"))
        self.assertNotIn("changed", inside(""))
        self.assertTrue(inside("name = 'mine', device = { memory = '20GiB' }").startswith("mine: "))

    def test_of_many_plans_each_but_the_first_has_a_line(self):
        calls = ["{ plan = { dp(%d) }, batch = %d }" % (ways, batch) for ways in (2, 4) for batch in (32, 64)]
        script = self.write(HEAD + "".join(f"e {call}\n" for call in calls))
        text, whole = (self.call("plan", script, *more).stdout for more in ((), ("--full",)))
        self.assertEqual((text.count("  rules "), whole.count("  rules ")), (1, 4))
        self.assertEqual(whole.count("\nplan ") + whole.startswith("plan "), 4)
        hashes = [result["plan_hash"] for result in self.all("plan", script)]
        for hash_, mix, differs in zip(hashes[1:], ("dp(2)", "dp(4)", "dp(4)"), ("batch = 64", "", "batch = 64")):
            self.assertRegex(text, rf"(?m)^  {hash_}  {re.escape(mix)} +{differs} +[\d.]+ (ms|s) +\S+.* [KMG]iB$")
        self.assertIn("3 plans more, a line each", text)
        # What the script prints is whole, and two plans are.
        printed = self.write(HEAD + "".join(f"print(e {call})\n" for call in calls))
        self.assertEqual(self.call("plan", printed).stdout.count("  rules "), 4)
        two = self.write(HEAD + "".join(f"e {call}\n" for call in calls[:2]))
        self.assertEqual(self.call("plan", two).stdout.count("  rules "), 2)

    def test_idle_devices_are_told(self):
        two = '{ plan = { dp(2) }, cluster = mw.cluster("dgx-h100", { nodes = 2 }) }'
        self.assertEqual(self.plan(two)[0]["idle_devices"], 14)
        self.assertIn("; 14 of its 16 devices are idle", self.text(two))
        all_, = self.plan('{ plan = { dp(8) }, batch = 8, cluster = mw.cluster "dgx-h100" }')
        self.assertNotIn("idle_devices", all_)
        here = "{ plan = { dp(2) } }"
        self.assertNotIn("idle_devices", self.plan(here)[0])

    def test_keys_of_no_cluster_are_one_error(self):
        done = self.call("plan", self.write(HEAD + "e { plan = { dp(2) } }"), "--set", "cluster.nodes=8", "--json")
        error, = self.lines(done)
        self.assertEqual((done.returncode, error["code"], error["key"]), (2, "cluster.missing", "cluster"), done.stderr)
        self.assertIn("error: --set cluster.nodes=8: ", done.stderr)

    def test_printed_parts_add_up_too(self):
        text = self.text('{ plan = { pp { 4, schedule = "1f1b" }, dp(2) }, batch = 8, cluster = h100 }')
        number = r"([\d.]+) (us|ms|s)"
        seconds = lambda match, n: float(match[n]) * UNITS[match[n + 1]]
        all_ = re.search(rf"step    {number} predicted: {number} compute, {number} exposed communication, bubble ([\d.]+) % "
                         rf"\({number}\), on average of the 4 stages", text)
        self.assertIsNotNone(all_, text)
        step = seconds(all_, 1)
        self.assertAlmostEqual((seconds(all_, 3) + seconds(all_, 5) + seconds(all_, 8)) / step, 1, delta=0.02)
        one = re.search(rf"the busiest, stage (\d): {number} compute, {number} exposed communication, {number} bubble", text)
        self.assertAlmostEqual((seconds(one, 2) + seconds(one, 4) + seconds(one, 6)) / step, 1, delta=0.02)
        self.assertLess(seconds(one, 6), seconds(all_, 8))
        self.assertNotIn("on average", self.text("{ plan = { dp(2) }, cluster = h100 }"))

    def test_rules_that_others_outweigh_are_not_shown(self):
        moe = """model = mw.moe { layers = 2, hidden = 64, heads = 4, ffn = 128, vocab = 64, experts = 8, top_k = 2, expert_ffn = 32 }"""
        rules = lambda plan: re.search(r"rules   (.*)", self.text(f"{{ plan = {plan}, {moe} }}"))[1]
        own, borrowed = rules("{ dp(4), tp(2), ep(4) }"), rules("{ dp(2), tp(2), ep(4) }")
        self.assertIn("expert_ffn -> tp (tp)", own)
        self.assertNotIn("expert_ffn", borrowed)
        for rule in ("heads -> tp (tp)", "batch -> dp (dp)", "experts -> ep (ep, some ops)"):
            self.assertIn(rule, own)
            self.assertIn(rule, borrowed)

    def test_what_is_supposed_of_experts_is_told(self):
        moe = """model = mw.moe { layers = 2, hidden = 64, heads = 4, ffn = 128, vocab = 64, experts = 8, top_k = 2 }"""
        text = lambda plan: self.text(f"{{ plan = {plan}, {moe} }}")
        self.assertIn("supposes that experts are chosen evenly (ep: imbalance = N, the fullest", text("{ dp(4), ep(4) }"))
        self.assertIn("supposes an imbalance of 1.5 between experts' ranks (ep", text("{ dp(4), ep { 4, imbalance = 1.5 } }"))
        self.assertNotIn("supposes", text("{ dp(4) }"))

    def test_gathers_that_stand_under_another_axis_are_said(self):
        moe = """model = mw.moe { layers = 2, hidden = 64, heads = 4, ffn = 128, vocab = 64, experts = 8, top_k = 2 }"""
        both = self.text(f'{{ plan = {{ dp(4), tp(2), ep {{ 8, dispatch = "allgather" }} }}, {moe} }}')
        self.assertIn("it has all ranks of dp, under which", both)  # and all of tp's, where nothing is gathered
        for ways, said in ((4, True), (2, False)):
            plan, = self.plan(f'{{ plan = {{ dp(4), ep {{ {ways}, dispatch = "allgather" }} }}, {moe} }}')
            text = self.text(f'{{ plan = {{ dp(4), ep {{ {ways}, dispatch = "allgather" }} }}, {moe} }}')
            under = {row["axis"] for row in plan["communication"] if row["op"] == "all-gather"}
            self.assertEqual(under, {"dp"} if said else {"ep"})
            self.assertEqual("it has all ranks of dp, under which" in text, said)

    def test_offload_that_brings_all_back_at_once_is_told(self):
        told = lambda prefetch: "brings back all of a stage's 8 layers" in self.text(
            f"{{ plan = {{ dp(2) }}, offload = {{ prefetch = {prefetch} }}, cluster = h100 }}")
        self.assertFalse(told(1))
        self.assertTrue(told(8))
        self.assertTrue(told(20))
        self.assertIn("brings back all of a chunk's 2 layers", self.text(
            '{ plan = { pp { 2, schedule = "interleaved", chunks = 2 } }, offload = { prefetch = 2 }, cluster = h100 }'))
        kept, few, many = self.plan(*(f"{{ plan = {{ dp(2) }}, offload = {offload}, cluster = h100, batch = 2 }}"
                                      for offload in ('"none"', "{ prefetch = 1 }", "{ prefetch = 8 }")))
        self.assertLess(few["peak_bytes"], 0.9 * kept["peak_bytes"])
        self.assertGreater(many["peak_bytes"], 0.95 * kept["peak_bytes"])

    def test_copies_of_ranks_on_shared_cores_are_told(self):
        line = "copies to host memory and back are in line with computing here"
        self.assertIn(line, self.text('{ plan = { dp(2) }, offload = "full" }'))
        self.assertNotIn(line, self.text("{ plan = { dp(2) } }"))
        self.assertNotIn(line, self.text('{ plan = { dp(2) }, offload = "full", cluster = h100 }'))

    def test_long_tables_are_abridged(self):
        def rows(stages, layers):
            text = self.text(f"""{{ plan = {{ pp {{ {stages}, schedule = "1f1b" }} }}, cluster = mw.cluster("dgx-h100", {{ nodes = 16 }}), batch = 64,
              model = mw.llama {{ layers = {layers}, hidden = 64, heads = 4, ffn = 128, vocab = 64 }}, sequence = 64 }}""")
            return re.findall(r"(?m)^  stages? \d+( to \d+)? ", text), text
        few, text = rows(8, 8)
        self.assertEqual(len(few), 8, text)
        many, text = rows(64, 64)
        self.assertLessEqual(len(many), 18)
        self.assertRegex(text, r"… \d+ more stages, none with a higher peak \(--json has all\)")
        left_out = int(re.search(r"… (\d+) more stages", text)[1])
        shown = sum(int(b) - int(a) + 1 if b else 1 for a, b in re.findall(r"(?m)^  stages? (\d+)(?: to (\d+))? ", text))
        self.assertEqual(shown + left_out, 64)

    def test_stages_that_are_alike_share_a_row_and_layouts_are_abridged(self):
        layout = ", ".join(["1"] * 16)
        call = f"""{{ plan = {{ pp {{ 16, schedule = "gpipe", layout = {{ {layout} }} }} }}, cluster = h100, batch = 4,
          model = mw.llama {{ layers = 16, hidden = 64, heads = 4, ffn = 128, vocab = 64 }}, sequence = 64 }}"""
        text = self.text(call)
        self.assertIn("stages 1 to 14 ", text)
        self.assertIn("layout = { 1, 1, 1, 1, 1, 1, … 10 more }", text)
        plan, = self.plan(call)
        self.assertIn(f"layout = {{ {layout} }}", plan["plan"])
        self.assertEqual(len(plan["memory"]), 16)

    def test_a_setting_of_a_cluster_is_told_by_what_was_typed(self):
        given = 'mw.cluster("dgx-h100", { nodes = 1 })'
        done = self.call("plan", SOURCE / "scripts/quickstart.lua", "--set", f"cluster={given}", "--set", "log=nil")
        self.assertIn(f"--set cluster = {given} (it was not set)\n", done.stderr)
        script = self.write(HEAD + "e { cluster = h100 }")
        done = self.call("plan", script, "--set", f"cluster={given}")
        self.assertIn(f'--set cluster = {given} (was "cluster" "dgx-h100")\n', done.stderr)
        self.assertLess(len(done.stderr), 300)

    def test_what_settings_changed_is_a_field(self):
        script = self.write(HEAD + "local p = e { plan = { dp(2) } }\nprint(p.changed and table.concat(p.changed, ' ') or 'as it was')")
        told = lambda *settings: self.call("plan", "--quiet", script, *settings).stdout.strip()
        self.assertEqual(told(), "as it was")
        self.assertEqual(told("--set", "batch=32"), "as it was")
        self.assertEqual(told("--set", "batch=16", "--set", "microbatch=2"), "batch microbatch")
        self.assertEqual(told("--set", "batch=16", "--set", "batch=32"), "as it was")
        self.assertEqual(told("--set", "batch=64", "--set", "batch=16", "--set", "plan[1].ways=2"), "batch")
        self.assertEqual(told("--set", "plan[1].ways=4"), "plan.1.ways")
        self.assertEqual(self.only("plan", script, "--cluster", "selene", "--stack", "fsdp2")["changed"], ["cluster", "stack"])

    def test_rates_of_zero_get_an_example_that_somebody_means(self):
        self.all_refused(HEAD, *((f'e {{ cluster = mw.cluster("dgx-h100", {{ {table} = {{ {key} = 0 }} }}) }}', 2,
                                  f"option.range cluster.{table}.{key}")
                                 for table, key in (("host", "link"), ("node", "bandwidth"), ("network", "nic"), ("device", "peak16"))))
        line = self.refused(2, "option.range cluster.host.link",
                            "plan", self.write(HEAD + 'e { cluster = mw.cluster("dgx-h100", { host = { link = 0 } }) }'))
        self.assertIn("link = 25e9", line["hint"])

    def test_a_torus_hint_can_be_taken(self):
        script = self.write(HEAD + 'e { plan = { dp(2) }, precision = "bf16" }')
        line = self.refused(2, "cluster.value cluster.torus.shape", "plan", script, "--cluster", "tpu-v5p", "--nodes", 2)
        self.assertIn("8 in 2 nodes of 4", line["message"])
        nodes, shape = re.fullmatch(r"nodes = (\d+), or (torus = .*)", line["hint"]).groups()
        self.all("plan", script, "--cluster", "tpu-v5p", "--nodes", nodes)
        self.all("plan", script, "--set", f'cluster=mw.cluster("tpu-v5p", {{ nodes = 2, {shape} }})')
        line = self.refused(2, "cluster.value cluster.torus.shape", "plan", script, "--cluster", "tpu-v5p", "--nodes", 1)
        self.assertIn("4 in 1 node of 4", line["message"])

    def test_whether_a_plan_must_fit(self):
        """A plan that does not fit is an answer; with --must-fit it ends as one that is refused."""
        fits, large = (self.write_as(name, HEAD + f"e {{ plan = {{ dp(2) }}, cluster = h100, memory = {memory} }}")
                       for name, memory in (("fits.lua", "nil"), ("large.lua", '"1MiB"')))
        for script, words, code in ((fits, (), 0), (fits, ("--must-fit",), 0), (large, (), 0), (large, ("--must-fit",), 3)):
            with self.subTest(script=script.name, words=words):
                self.assertEqual(self.call("plan", script, *words).returncode, code)
        unknown = self.write_as("unknown.lua", HEAD + 'e { plan = { dp(2) }, device = "cuda" }')
        self.assertEqual(self.call("plan", unknown).returncode, 0)
        for script, words in ((unknown, "it is not known whether"), (large, "does not fit")):
            line = self.refused(3, "plan.fit", "plan", script, "--must-fit")
            self.assertIn(words, line["message"])
            self.assertIn(words, self.call("plan", "--quiet", script, "--must-fit").stderr)

    def write_as(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_chunks_of_schedules_that_are_made_of_them(self):
        plan = lambda schedule, more="": f'e {{ plan = {{ pp {{ 2, schedule = "{schedule}"{more} }} }} }}'
        errors = self.all_refused(HEAD, (plan("interleaved"), 3, "schedule.chunks plan[1].chunks"),
                                  (plan("looped-bfs"), 3, "schedule.chunks plan[1].chunks"))
        self.assertEqual([re.search(r'or schedule = "(\S+)"', error["hint"])[1] for error in errors], ["1f1b", "gpipe"])
        results = self.all("plan", self.write(HEAD + "\n".join(
            (plan("interleaved", ", chunks = 1"), plan("1f1b"), plan("interleaved", ", chunks = 2")))))
        one, plain, two = (result["bubble_fraction"] for result in results)
        self.assertEqual(one, plain)
        self.assertLess(two, plain)
        self.assertIn("schedule interleaved of one chunk is 1f1b", self.call("plan", self.write(HEAD + plan("interleaved", ", chunks = 1"))).stdout)
        self.assertIn("--chunks 2", self.call("schedule", "interleaved", "--stages", 2, "--microbatches", 4).stdout)
        self.assertNotIn("--chunks", self.call("schedule", "1f1b", "--stages", 2, "--microbatches", 4).stdout)

    def test_processes_that_nothing_connects_are_refused(self):
        line = self.refused(2, "usage.value", "run", SOURCE / "scripts/quickstart.lua", "--processes", 2, "--communicator", "threads")
        self.assertIn("leave --communicator out", line["hint"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
