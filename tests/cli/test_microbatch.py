"""Microbatch policies from outside: uneven microbatches equal one rank, a batch that grows
trains and verifies, the largest that fit fit, refusals name the numbers; the ablation script
runs as it stands."""

import json
import re
import unittest

import h5py

import loaded
from cases import BIN, MODELS, SOURCE, ProgramCase, matrix

HEAD = MODELS + """models.moe.capacity = 1.0
local function e(model, plan, microbatch, verb, more)
  local t = { model = models[model], data = mw.synthetic {}, sequence = 12, plan = plan, batch = 14,
    microbatch = microbatch, threads = 1, optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 4 }
  for key, value in pairs(more or {}) do t[key] = value end
  return verb(t)
end
"""

MIXES = HEAD + """
local mixes = {
  {}, { dp(2) }, { tp(2), sp() }, { zero { 2, stage = 3 }, tp(2) }, { sp(2), dp(2) }, { sp { 2, form = "ulysses" } },
  { pp { 2, schedule = "1f1b" }, dp(2) }, { pp { 2, schedule = "zb-h1" }, tp(2) }, { pp { 2, schedule = "zbv" } },
  { pp { 2, schedule = "interleaved", chunks = 2 }, zero { 2, stage = 2 } }, { pp { 2, schedule = "gpipe" } },
}
local experts = { { dp(2), ep(2) }, { dp(2), tp(2), ep { 2, dispatch = "allgather" } }, { pp(2), zero { 2, stage = 3 }, ep(2) } }
local function policies(plan)
  local own = 14
  for _, s in ipairs(plan) do if s.plugin == "dp" or s.plugin == "zero" then own = 7 end end
  local last = own == 14 and { 5, 6, 1, 2 } or { 3, 1, 1, 2 }
  return { own == 14 and 4 or 3, last }
end
for _, model in ipairs { "llama", "gpt", "moe" } do
  for _, plan in ipairs(mixes) do
    for _, policy in ipairs(policies(plan)) do
      if model ~= "moe" or #plan < 2 then e(model, plan, policy, mw.verify) end
    end
  end
  if model == "moe" then
    for _, plan in ipairs(experts) do
      for _, policy in ipairs(policies(plan)) do e(model, plan, policy, mw.verify) end
    end
  end
end
e("llama", { dp(2), tp(2) }, mw.microbatch.ramp { from = 2, by = 6, steps = 3, size = 2 }, mw.verify)
e("gpt", { pp { 2, schedule = "zb-h1" } }, function(step) return step < 2 and 5 or { batch = 6, microbatch = { 4, 2 } } end, mw.verify)
"""


# What lasts is the same in all steps, whatever their schedules are: with fewer microbatches these
# part fewer backwards, and end their W's in another order.
SCHEDULES = HEAD + """
models.tied = mw.llama { layers = 4, hidden = 24, heads = 4, ffn = 40, vocab = 50, tied = true }
local function mine(s)  -- parts backwards only where there are several microbatches
  local up, down, last = {}, {}, {}
  for m = 0, s.microbatches - 1 do
    table.insert(up, "0F" .. m) table.insert(down, "1F" .. m)
    local parts = s.microbatches > 1
    table.insert(down, (parts and "1I" or "1B") .. m)
    table.insert(up, (parts and "0I" or "0B") .. m)
    if parts then table.insert(last, m) end
  end
  for _, m in ipairs(last) do table.insert(up, "0W" .. m) table.insert(down, "1W" .. m) end
  return { table.concat(up, " "), table.concat(down, " ") }
end
local policies = {
  mw.microbatch.ramp { from = 2, by = 4, steps = 3, size = 1 },
  function(step) return step == 1 and { batch = 6, microbatch = { 2, 1 } } or { batch = 4 + 2 * step, microbatch = 1 } end,
  { 3, 1, 1, 2 },
}
local all = { dp { 2, bucket = "2KiB" }, dp { 2, reduce = "each" }, zero { 2, stage = 1 }, zero { 2, stage = 2 },
              zero { 2, stage = 3 }, zero { 2, stage = 3, keep = true } }
local few = { all[1], all[5] }
local turn = 0
for _, case in ipairs { { "gpipe", few }, { "1f1b", few }, { "interleaved", few }, { "looped-bfs", few }, { "zb-h1", few },
                        { "zb-h2", few }, { "zbv", all }, { "dualpipev", all }, { mine, all } } do
  local chunks = (case[1] == "interleaved" or case[1] == "looped-bfs") and 2 or nil
  for _, data in ipairs(case[2]) do
    turn = turn + 1
    local model = ({ "llama", "tied", "moe", "gpt" })[turn % 4 + 1]
    e(model, { pp { 2, schedule = case[1], chunks = chunks }, data }, policies[turn % 3 + 1], mw.verify, { steps = 3 })
  end
end
"""


class Microbatches(ProgramCase):
    def test_steps_of_other_schedules_keep_the_same_buckets(self):
        self.assertEqual(len(self.verify_all(SCHEDULES)), 6 * 2 + 3 * 6)

    def test_a_ramp_in_v_shaped_schedules_sends_and_holds_what_is_predicted(self):
        runs = self.all("run", self.write(HEAD + """
for _, schedule in ipairs { "zbv", "dualpipev", "zb-h1" } do
  for _, data in ipairs { dp(2), zero { 2, stage = 3 } } do
    e("llama", { pp { 2, schedule = schedule }, data }, mw.microbatch.ramp { from = 2, by = 4, steps = 3, size = 1 },
      mw.train, { sequence = 64, precision = "fp64" })
  end
end"""))
        self.assertEqual(len(runs), 6)
        for run in runs:
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)
                held = max(stage["peak"] for stage in run["predicted"]["memory"])
                self.assertAlmostEqual(run["peak_bytes"] / held, 1, delta=0.02)

    @matrix
    def test_uneven_ones_equal_one_rank(self):
        self.assertGreater(len(self.verify_all(MIXES)), 55)

    def test_a_batch_that_grows(self):
        log = self.folder / "ramp.h5"
        ramp = "mw.microbatch.ramp { from = 2, by = 4, sequences = 12, size = 2 }"
        more = f'{{ steps = 6, precision = "fp64", log = "{log}", overwrite = true }}'
        plans = ("{}", "{ dp(2), tp(2) }", "{ pp { 2, schedule = 'zb-h1' } }", "{ zero { 2, stage = 3 } }")
        one, *mixes = self.all("run", self.write(
            HEAD + "".join(f'e("llama", {plan}, {ramp}, mw.train, {more})\n' for plan in plans)))
        self.assertEqual(one["batches"], [2, 2, 6, 10, 14, 14])
        for mix in mixes:
            with self.subTest(mix["plan"]):
                for a, b in zip(one["losses"] + one["grad_norms"], mix["losses"] + mix["grad_norms"]):
                    self.assertAlmostEqual(a / b, 1, delta=1e-10)
        with h5py.File(log) as file:
            self.assertEqual(list(file["steps"]["tokens"]), [12 * b for b in one["batches"]])
            rows = file["communication"][:]
            self.assertTrue((rows["bytes"] == rows["predicted_bytes"]).all())
            self.assertEqual(set(rows["step"]), set(range(6)))

    def test_memory_is_that_of_the_step_that_holds_most(self):
        log = self.folder / "steps.h5"
        shapes = "function(step) return step % 2 == 0 and { batch = 8, microbatch = 1 } or { batch = 6, microbatch = 3 } end"
        run = self.only("run", self.write(
            HEAD + f'e("llama", {{ tp(2) }}, {shapes}, mw.train, {{ sequence = 64, log = "{log}" }})'))
        self.sent_as_predicted(run)  # of the last step
        predicted = run["predicted"]["memory"][0]
        self.assertAlmostEqual(run["memory"]["activations"] / predicted["activations"], 1, delta=0.02)
        self.assertAlmostEqual(run["peak_bytes"] / predicted["peak"], 1, delta=0.02)
        with h5py.File(log) as file:
            memory = file["memory"][:]
            for row in memory[memory["category"] != b"scratch"]:
                self.assertEqual(row["peak_bytes"], row["predicted_bytes"], row)

    def test_a_limit_that_one_step_goes_over(self):
        shapes = "function(step) return step == 2 and { batch = 6, microbatch = 6 } or { batch = 8, microbatch = 1 } end"
        script = HEAD + f'e("llama", {{}}, {shapes}, mw.train, {{ sequence = 64, memory = "900KiB" }})'
        self.refused(3, "memory.limit memory", "run", self.write(script))

    def test_numbers_as_lua_divides_them(self):
        plans = self.all("run", self.write(HEAD + "".join(f'e("llama", {{}}, {given}, mw.plan)\n' for given in (
            "14 / 2", "{ 7 / 1, 14 / 2 }", "function(step) return 14 / 2 end",
            "function(step) return { batch = 28 / 2, microbatch = 7.0 } end"))))
        self.assertEqual(len(plans), 4)
        self.all_refused(HEAD, ('e("llama", {}, 3.5, mw.plan)', 2, "option.value microbatch"))

    def test_losses_do_not_depend_on_how_a_batch_is_parted(self):
        whole, *others = self.all("run", self.write(HEAD + "".join(
            f'e("gpt", {{ dp(2) }}, {microbatch}, mw.train, {{ precision = "fp64" }})\n'
            for microbatch in ("nil", "3", "{ 1, 5, 1 }", "function(step) return step + 1 end"))))
        for run in others:
            for a, b in zip(whole["losses"], run["losses"], strict=True):
                self.assertAlmostEqual(a / b, 1, delta=1e-10)

    def test_the_largest_that_fits(self):
        big = lambda *calls: self.all("run", self.write(HEAD + "".join(
            f'e("llama", {{ dp(2) }}, {microbatch}, mw.{verb}, {{ sequence = 128, memory = {memory} }})\n'
            for microbatch, verb, memory in calls)))
        peak = lambda result: result["memory"][0]["peak"]
        whole, ones = map(peak, big(("nil", "plan", "nil"), ("1", "plan", "nil")))
        limits = [int(ones + share * (whole - ones)) for share in (0.75, 0.5, 0.25)]
        results = iter(big(*(call for limit in limits for call in (
            (f"mw.microbatch.fit {{ memory = {limit} }}", "plan", "nil"), ("mw.microbatch.fit {}", "train", limit)))))
        for limit, fitted, run in zip(limits, results, results):
            with self.subTest(limit=limit):
                self.assertLessEqual(peak(fitted), limit)
                self.assertGreater(peak(fitted), ones)
                self.assertLessEqual(run["peak_bytes"], limit)
        self.all_refused(HEAD, ('e("llama", { dp(2) }, mw.microbatch.fit "1KiB", mw.plan, { sequence = 128 })', 3,
                                "microbatch.fit microbatch"))

    def test_the_largest_that_fits_in_a_pipeline(self):
        # More, smaller microbatches may hold more: there is more under way.
        peaks = lambda *given: [max(m["peak"] for m in plan["memory"]) for plan in self.all("run", self.write(HEAD + "".join(
            f'e("llama", {{ pp {{ 2, schedule = "gpipe" }} }}, {microbatch}, mw.plan, {{ batch = 12, sequence = 64 }})\n'
            for microbatch in given)))]
        held = dict(zip((4, 3, 2, 1), peaks(4, 3, 2, 1)))
        least = min(held, key=held.get)
        self.assertGreater(least, 1, held)
        self.assertEqual(peaks(f"mw.microbatch.fit {{ memory = {held[least]} }}"), [held[least]])

    def test_what_fits_a_cluster_is_what_its_device_takes(self):
        # Not what this machine's kernels take: a byte less than the device needs does not fit.
        peaks = lambda *given: [plan["peak_bytes"] for plan in self.all("run", self.write(HEAD + "".join(
            f'e("llama", {{ dp(2) }}, {microbatch}, mw.plan, {{ batch = 16, sequence = 512, recompute = {recompute}, '
            f'precision = "bf16", cluster = mw.cluster("dgx-h100", {{ nodes = 1 }}) }})\n' for microbatch, recompute in given)))]
        of_four, = peaks((4, "nil"))
        same, less = peaks(*((f"mw.microbatch.fit {{ memory = {of_four - byte} }}", "nil") for byte in (0, 1)))
        self.assertEqual(same, of_four)
        self.assertLess(less, of_four)
        same, less = peaks(*((4, f"{{ fit = {of_four - byte} }}") for byte in (0, 1)))
        self.assertEqual(same, of_four)
        self.assertLess(less, of_four)

    def test_what_cannot_be(self):
        self.all_refused(HEAD, *((f'e("llama", {{ dp(2) }}, {microbatch}, mw.plan)', code, problem) for code, microbatch, problem in (
            (2, '"two"', "option.value microbatch"),
            (2, "0", "option.value microbatch"),
            (2, "{ 3, 3.5, 1 }", "option.value microbatch[2]"),
            (3, "8", "microbatch.too-large microbatch"),
            (3, "{ 3, 3 }", "microbatch.sum microbatch"),
            (2, "mw.microbatch.fit {}", "option.missing microbatch.memory"),
            (2, "mw.microbatch.ramp { from = 2 }", "option.conflict microbatch"),
            (2, "mw.microbatch.ramp { from = 2, steps = 3, too = 1 }", "option.unknown microbatch.too"),
            (2, "mw.microbatch.ramp { from = 20, steps = 3 }", "option.range microbatch.from"),
            (3, "mw.microbatch.ramp { from = 4, by = 5, steps = 2 }", "batch.uneven batch"),
            (2, "function(step) return 'x' end", "function.result microbatch"),
            (2, "function(step) return { bach = 2 } end", "function.result microbatch"),
        )))

    def test_the_script(self):
        done = loaded.run([BIN, "run", "scripts/ablations/microbatch.lua", "--json", "--set", "data.sequence=32"], cwd=SOURCE,
                          text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.assertEqual(len(results), 10)
        said = done.stderr + done.stdout
        self.assertRegex(said, r"Answer: one microbatch of 14 sequences holds [\d.]+ MiB a rank and idles [\d.]+ % of a step")
        for row in re.findall(r"(?m)^\S.*? +[\d.]+ +([\d.]+) +([\d.]+) +[\d.]+ +\d+ +[\d.]+ +[\d.]+$", said):
            self.assertAlmostEqual(float(row[0]) / float(row[1]), 1, delta=0.02)  # of the same stage
        whole = results[0]
        for result in results[1:8]:
            self.assertAlmostEqual(result["losses"][-1], whole["losses"][-1], delta=1e-3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
