"""Options that change nothing beside another's value are refused, by their key, with what they mean
something for; and what is allowed beside each other does change the program."""
import unittest

from cases import MODELS, ProgramCase

HEAD = MODELS + """local function plan(entries, model)
  return mw.plan { model = models[model or "llama"], data = mw.synthetic {}, sequence = 16, plan = entries, batch = 8, microbatch = 2,
                   optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }
end
"""
# What is refused, and as what. Each with the same plan without it, which is none too many.
IDLE = [
    ("zero { 2, stage = 1, prefetch = 9 }", "option.needs plan[1].prefetch", "stage = 3"),
    ("zero { 2, stage = 2, prefetch = 0 }", "option.needs plan[1].prefetch", "stage = 3"),
    ("zero { 2, stage = 3, keep = true, prefetch = 2 }", "option.needs plan[1].prefetch", "keep"),
    ("zero { 2, stage = 3, bucket = '4KiB' }", "option.needs plan[1].bucket", "stage = 1 or 2"),
    ("zero { 2, stage = 2, keep = true }", "option.conflict plan[1].keep", "stage = 3"),
    ("sp { 2, form = 'ulysses', balance = 'zigzag' }", "option.needs plan[1].balance", "form = \"ring\""),
    ("dp(2), ep { 2, dispatch = 'allgather', overlap = true }", "option.needs plan[2].overlap", "alltoall"),
    ("pp { 2, schedule = 'own.csv', times = { 1, 1, 1 } }", "option.needs plan[1].times", "leave times out"),
]
# What is taken, beside the same without its last option.
WORK = [
    ("zero { 2, stage = 3 }", "zero { 2, stage = 3, prefetch = 0 }"),
    ("zero { 2, stage = 1 }", "zero { 2, stage = 1, bucket = '4KiB' }"),
    ("zero { 2, stage = 2 }", "zero { 2, stage = 2, bucket = '1KiB' }"),
    ("zero { 2, stage = 3 }", "zero { 2, stage = 3, keep = true }"),
    ("zero { 4, stage = 1 }", "zero { 4, stage = 1, replicas = 2 }"),
    ("dp { 2, bucket = '4KiB' }", "dp { 2, bucket = '4KiB', overlap = false }"),
    ("dp { 2, bucket = '4KiB' }", "dp { 2, bucket = '4KiB', reduce = 'each' }"),
    ("tp(2)", "tp { 2, overlap = true }"),
    ("sp { 4 }", "sp { 4, ulysses = 2 }"),
    ("sp { 2 }", "sp { 2, form = 'allgather' }"),
]


class IdleOptions(ProgramCase):
    def setUp(self):
        super().setUp()
        (self.folder / "own.csv").write_text("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")

    def test_what_changes_nothing_is_refused(self):
        model = lambda entries: '"moe"' if "ep {" in entries else "nil"
        errors = self.all_refused(HEAD, *((f"plan({{ {entries} }}, {model(entries)})", 2, code) for entries, code, _ in IDLE))
        for error, (entries, _, words) in zip(errors, IDLE):
            self.assertIn(words, error["hint"], entries)

    def test_a_schedule_that_does_not_go_by_times_says_so(self):
        """A note: of a stranger's scheduler not all orders are known."""
        for schedule, idle in (("1f1b", True), ("gpipe", True), ("zb-h2", False), ("zbv", False)):
            with self.subTest(schedule):
                text = self.call("plan", self.write(HEAD + f'plan {{ pp {{ 2, schedule = "{schedule}", times = {{ 1, 3, 0.5 }} }} }}')).stdout
                self.assertIn("stages  2", text)
                self.assertEqual("does not use times with that many stages" in text, idle, text)

    def test_what_a_precision_leaves_without_effect_says_so(self):
        """A note: a sweep over precisions may have such a key in its base."""
        for key, value, idle in (("loss_scale", "1024", ("fp64", "fp32", "bf16")), ("loss_scale", '"dynamic"', ("fp64", "fp32", "bf16")),
                                 ("reductions", '"fp32"', ("fp64", "fp32")), ("main_gradients", '"fp32"', ("fp64", "fp32")),
                                 ("reductions", '"compute"', ()), ("main_gradients", '"compute"', ())):
            head = HEAD.replace("steps = 1 }", f"steps = 1, {key} = {value}, precision = PRECISION }}")
            kinds = ("fp64", "fp32", "bf16", "fp16")
            text = "".join(f'PRECISION = "{one}" plan {{}}\n' for one in kinds)
            plans = self.all("plan", self.write(head + text))
            for one, plan in zip(kinds, plans, strict=True):
                with self.subTest(key=key, value=value, precision=one):
                    self.assertEqual(any(note.startswith(f"{key}: ") for note in plan.get("notes", [])), one in idle, plan.get("notes"))

    def test_of_several_strategies_all_are_told_alike(self):
        done = self.call("plan", self.write(HEAD + """plan({ pp { 2, schedule = "own.csv", times = { 1, 1, 1 } },
          zero { 2, stage = 1, prefetch = 9 }, sp { 2, form = "ulysses", balance = "zigzag" } })"""), "--json")
        self.assertEqual(done.returncode, 2, done.stderr)
        said = [(error["stage"], error["code"], error["key"]) for error in self.lines(done)]
        self.assertEqual(said, [("options", "option.needs", f"plan[{place}].{key}")
                                for place, key in ((1, "times"), (2, "prefetch"), (3, "balance"))])

    def test_what_shards_nothing_says_so(self):
        for entries, idle in (("zero(1)", True), ("zero { 2, replicas = 2 }", True), ("zero { 4, stage = 3, replicas = 4 }", True),
                              ("zero(2)", False), ("zero { 4, replicas = 2 }", False), ("zero { 1, sequence = true }, sp(2)", False)):
            with self.subTest(entries):
                text = self.call("plan", self.write(HEAD + f"plan {{ {entries} }}")).stdout
                self.assertIn("memory a rank", text)
                self.assertEqual("nothing is sharded" in text, idle, text)

    def test_what_is_taken_changes_the_program(self):
        text = HEAD + "".join(f"plan({{ {a} }}) plan({{ {b} }})\n" for a, b in WORK)
        plans = self.all("plan", "--program", self.write(text))
        for (a, b), first, second in zip(WORK, plans[::2], plans[1::2], strict=True):
            with self.subTest(b):
                self.assertNotEqual(first["program"], second["program"])


if __name__ == "__main__":
    unittest.main()
