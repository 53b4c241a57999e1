"""`memory`: a plan predicted above it is refused with a plan that fits; the one named trains
within it; an allocation over it ends the run with category, rank and numbers."""
import re
import unittest

from cases import TEST_PLUGINS, ProgramCase

HEAD = """\
local mw = require "meshwright"
local dp, tp, zero, pp, sp = mw.plugins("dp", "tp", "zero", "pp", "sp")
local function small(verb, plan, memory, microbatch, more)
  local e = {
    model = mw.llama { layers = 4, hidden = 64, heads = 4, ffn = 160, vocab = 128 },
    data = mw.synthetic {}, sequence = 8, plan = plan, batch = 8, microbatch = microbatch,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 3, timeout = 300, memory = memory,
  }
  for key, value in pairs(more or {}) do e[key] = value end
  return verb(e)
end
"""
# Trained, then with a share of the peak as limit; what the hint names, which is trained within it.
TOO_LARGE = [  # plan, microbatch, share
    ("", "nil", 0.67, ["stage = 3"]),
    ("zero { 8, stage = 3 }", 1, 0.97, ["recompute = "]),  # nothing else is left
    ("zero { 2, stage = 3 }", 4, 0.9, ["microbatch = "]),
    ('zero { 4, stage = 1, offload = "optimizer" }', "nil", 0.97, ['offload = "optimizer"']),
    ("zero { 4, stage = 2, replicas = 2 }", "nil", 0.97, ["replicas = 2"]),
    ('pp { 2, schedule = "zb-h1", layout = { 1, 3 } }, dp { 2, bucket = "16KiB" }', "nil", 0.97,
     ['schedule = "zb-h1"', 'layout = "auto"']),
    ("zero { 2, stage = 3, prefetch = 0 }, tp(2)", "nil", 0.97, ["prefetch = 0"]),
    ('zero { 4, stage = 2, reduce = "chunk" }', "nil", 0.97, ["stage = 2"]),
    ('zero { 4, stage = 2, reduce = "chunk" }', "nil", 0.6, ["stage = 3"]),
]

# Over their limits in many ways: a model, a plan, what else the experiment says.
HINTED = ("model = %s, data = mw.synthetic {}, sequence = 32, batch = 16, steps = 1, "
          "optimizer = mw.adamw { lr = 1e-3 }, plan = { %s }, %s")
MODELS = ["mw.llama { layers = 4, hidden = 64, heads = 4, ffn = 160, vocab = 128 }"]
PLANS = ["", "dp(4)", 'dp { 2, bucket = "16KiB" }, tp(2)', "zero { 4, stage = 1 }", "zero { 4, stage = 2, replicas = 2 }",
         "tp(4), sp()", "sp(2), dp(2)", 'sp { 2, form = "ulysses" }, dp(2)', "dp(2), sp { 4, ulysses = 2 }",
         'pp { 2, schedule = "interleaved", chunks = 2 }, dp(2)', 'pp { 2, schedule = "zb-h1" }, dp(2)',
         "pp { 2, schedule = function(s) return { '0F0 0B0', '1F0 1B0' } end }"]
SETTINGS = ["threads = 1", 'precision = "bf16", recompute = "selective"']


def read_bytes(text):
    number, unit = text.split()
    return float(number) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)


def small(verb, plan, memory="nil", microbatch="nil", more="{}"):
    return f"small(mw.{verb}, {{ {plan} }}, {memory}, {microbatch}, {more})"


class MemoryLimit(ProgramCase):
    def results(self, *calls, options=()):
        return self.all("run", self.write(HEAD + "\n".join(calls)), *options)

    def hints(self, *calls):
        """Of runs that are all over their limits."""
        return [error["hint"] for error in self.all_refused(HEAD, *((call, 3, "memory.limit memory") for call in calls))]

    def obey(self, hints, limits):
        """The plans that the hints name, trained within the limits."""
        named = [re.search(r"plan = \{ (.*?) \}(?:, (?:microbatch = (\d+))?(?:, )?(?:recompute = (.*))?)? would fit", hint)
                 for hint in hints]
        results = self.results(*(small("train", plan[1], limit, plan[2] or "nil", f"{{ recompute = {plan[3] or 'nil'} }}")
                                 for plan, limit in zip(named, limits, strict=True)))
        for result, limit in zip(results, limits, strict=True):
            self.assertEqual(result["status"], "done")
            self.assertLessEqual(result["peak_bytes"], limit)
        return results

    def test_what_a_hint_names_trains_within_the_limit(self):
        wholes = self.results(*(small("train", plan, "nil", size) for plan, size, *_ in TOO_LARGE))
        limits = [int(whole["peak_bytes"] * share) for whole, (_, _, share, _) in zip(wholes, TOO_LARGE)]
        hints = self.hints(*(small("train", plan, limit, size) for (plan, size, *_), limit in zip(TOO_LARGE, limits)))
        for hint, (plan, _, _, words) in zip(hints, TOO_LARGE):
            with self.subTest(plan):
                for word in words:
                    self.assertIn(word, hint)
        self.obey(hints, limits)

    def test_states_that_exceed_the_limit_train_in_shards(self):
        whole, = self.results(small("train", "dp(4)"))
        states = sum(whole["memory"][c] for c in ("parameters", "gradients", "optimizer"))
        limit = states * 6 // 10  # less than the states, and than those of stages 1 and 2 with what they compute
        hint, = self.hints(small("train", "dp(4)", limit))
        self.assertIn("zero { 4, stage = 3 }", hint)
        result, = self.obey([hint], [limit])
        self.assertEqual(result["name"], "zero { 4, stage = 3 }")
        for one, shards in zip(whole["losses"], result["losses"], strict=True):
            self.assertAlmostEqual(one, shards, delta=1e-5)

    def test_the_first_stage_that_fits_is_named(self):
        # In one bucket, all gradients of stage 2 would be whole for a moment.
        buckets = ', bucket = "64KiB"'
        peaks = [run["peak_bytes"] for run in self.results(*(
            small("train", f"zero {{ 4, stage = {stage}{more} }}") for stage, more in ((1, buckets), (2, buckets), (3, ""))))]
        self.assertGreater(peaks[0], peaks[1])
        plans = ['dp { 4, bucket = "64KiB" }', 'dp { 4, bucket = "64KiB" }', "zero { 4, stage = 2 }"]
        hints = self.hints(*(small("train", plan, peak * 101 // 100) for plan, peak in zip(plans, peaks)))
        for hint, words in zip(hints, ('stage = 1, bucket = "64KiB"', 'stage = 2, bucket = "64KiB"', "stage = 3")):
            self.assertIn(words, hint)

    def test_plans_say_it_too(self):
        # No ranks run here, so more than this machine's threads may be named.
        over, within, many = self.results(small("plan", "dp(4)", '"1MiB"'), small("plan", "dp(4)", '"1GiB"'),
                                          small("plan", "dp(1024)", '"1MiB"', "nil", "{ batch = 1024 }"))
        self.assertEqual((over["fits"], within["fits"]), (False, True))
        self.assertIn("zero { 4, stage = ", over["hint"])
        self.assertIn("zero { 1024, stage = ", many["hint"])

    def test_what_a_hint_says_fits_when_it_is_written(self):
        """Of many plans over their limits, each change that is named is taken, and fits as it says."""
        self.heeded([HINTED % (model, plan, more)
                     for model in MODELS for plan in PLANS for more in SETTINGS[:1 + (plan in PLANS[1:3])]], (0.9, 0.5))

    def test_a_large_model_is_told_of_recompute(self):
        # 70 billion parameters on 64 devices of 80 GB, as Llama has them.
        large = ('model = mw.llama { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 32000 },'
                 ' data = mw.synthetic {}, sequence = 4096, batch = 64, precision = "bf16", microbatch = 1,'
                 ' optimizer = mw.adamw { lr = 1e-4 }, steps = 1, plan = { tp(8), zero { 8, stage = 3 } }')
        hint, = self.heeded([large], ["40GB"])
        self.assertIn('recompute = "full"', hint)

    def heeded(self, experiments, limits):
        """The hints for each of these limits: sizes, or fractions of what the experiment needs."""
        need = [r["memory"] for r in self.results(*(f"mw.plan {{ {e} }}" for e in experiments))]
        limited = []
        for experiment, memory in zip(experiments, need, strict=True):
            peak = max(stage["peak"] for stage in memory)
            limited += [(experiment, f'"{limit}"' if isinstance(limit, str) else int(peak * limit))
                        for limit in limits]
        told = self.results(*(f"mw.plan {{ {e}, memory = {limit} }}" for e, limit in limited))
        hints, changed = [], []
        for (experiment, limit), result in zip(limited, told, strict=True):
            self.assertIs(result["fits"], False)
            hints.append(result["hint"])
            change = re.match(r"(.*) would fit: (.*) a rank predicted$", result["hint"])
            if change is None:
                self.assertIn("the lowest is", result["hint"])
                continue
            settings = change[1]
            if "function(" in change[1]:  # the script's own, which a reader puts in
                continue
            changed.append((f"local e = {{ {experiment}, memory = {limit} }} "
                            f"for k, v in pairs {{ {settings} }} do e[k] = v end mw.plan(e)", change[2]))
        self.assertGreaterEqual(2 * len(changed), len(limited))
        results = self.results(*(f"do {call} end" for call, _ in changed))
        for (call, peak), result in zip(changed, results, strict=True):
            with self.subTest(call):
                self.assertNotIn("hint", result)
                highest = max(stage["peak"] for stage in result["memory"])
                self.assertAlmostEqual(read_bytes(peak) / highest, 1, delta=0.01)
        return hints

    def test_powersgd_is_told_what_suffices(self):
        more = [f'precision = "{precision}"' for precision in ("bf16", "fp16")]
        for error in self.all_refused(HEAD, *((small("train", 'dp { 2, hook = "powersgd" }', '"1GiB"', "nil", f"{{ {m} }}"), 3,
                                               "hook.dtype plan[1].hook") for m in more)):
            self.assertIn('main_gradients = "fp32"', error["hint"])
        runs = self.results(*(small("train", 'dp { 2, hook = "powersgd" }', '"1GiB"', "nil",
                                    f'{{ {m}, main_gradients = "fp32" }}') for m in more))
        self.assertEqual([run["status"] for run in runs], ["done"] * 2)

    def test_nothing_fits(self):
        hint, = self.hints(small("train", "dp(2)", '"1KiB"'))
        self.assertIn("no ZeRO stage, no recompute and no smaller microbatch would fit", hint)
        self.assertIn("the lowest is", hint)

    def test_strangers_are_asked_what_they_could_do(self):
        """By the role of their axes and what they say of themselves, on a path with plugins that are broken."""
        model = ("mw.moe { layers = 2, hidden = 64, heads = 4, ffn = 160, vocab = 128, experts = 4, top_k = 2 }, "
                 "data = mw.synthetic {}, sequence = 8, batch = 8, steps = 1, optimizer = mw.adamw { lr = 1e-3 }")
        cases = [("stored(4)", "stored { 4, sharded = true }"), ("stored(4), ep(2)", "stored { 4, sharded = true }, ep(2)"),
                 ("dp(4)", "stored { 4, sharded = true }")]  # of dp(4) zero says as much, after "stored"
        options = ("--plugin-path", TEST_PLUGINS)
        call = 'local stored, ep = mw.plugins("stored", "ep") mw.plan {{ model = {}, plan = {{ {} }}, memory = {} }}'
        peaks = [max(stage["peak"] for stage in result["memory"])
                 for result in self.results(*(f'do {call.format(model, plan, "nil")} end' for case in cases for plan in case),
                                            options=options)]
        told = self.results(*(f"do {call.format(model, plan, light)} end"
                              for (plan, _), light in zip(cases, peaks[1::2], strict=True)), options=options)
        for (plan, lighter), whole, light, result in zip(cases, peaks[::2], peaks[1::2], told, strict=True):
            with self.subTest(plan):
                self.assertLess(light, whole)
                self.assertTrue(result["hint"].startswith(f"plan = {{ {lighter} }} would fit: "), result["hint"])

    def test_host_memory_is_named_where_all_else_fails(self):
        plan, off = "zero { 2, stage = 3 }", 'zero { 2, stage = 3, offload = "parameters" }'
        limit = self.results(small("train", off, "nil", 1))[0]["peak_bytes"]
        nothing, offload = self.hints(small("train", plan, 1000, 1), small("train", plan, limit, 1))
        self.assertIn("no smaller microbatch would fit, nor offload; the lowest is", nothing)
        self.assertIn(f"plan = {{ {off} }} would fit", offload)
        self.assertLessEqual(self.results(small("train", off, limit, 1))[0]["peak_bytes"], limit)

    def test_enough_is_enough_and_verify_is_not_limited(self):
        run, verdict = self.results(small("train", "dp(2)", '"1GiB"'), small("verify", "dp(2)", '"1KiB"'))
        self.assertEqual((run["status"], verdict["verdict"]), ("done", "equal"))

    def test_no_size(self):
        self.all_refused(HEAD, (small("train", "dp(2)", '"much"'), 2, "option.type memory"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
