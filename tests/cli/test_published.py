"""Published configurations: parameters, ranks and axes as their reports say, and steps within 10 %
of what was published."""

import re
import unittest

import pages
from cases import SOURCE, ProgramCase

# Parameters as published, in billions; ranks; the mix.
CONFIGURATIONS = {
    "mixtral-8x22b": (140.6, 128, '{ pp { 8, chunks = 7, schedule = "interleaved" }, zero(8), tp(2), sp(), ep(4) }'),
    "deepseek-v3": (682.6, 2048, "{ pp { 16, layout = { " + ", ".join(["1"] + ["2"] * 30 + ["1"]) +
                    ' }, schedule = "dualpipev", weave = "hide" }, zero(128), ep { 64, imbalance = 1.04 } }'),
}

# The fullest rank of each plan, in GiB as docs/models.md has them, and whether it fits.
PEAKS = {
    "gpt3-175b": [(37.6, True)], "megatron-1t": [(56.5, True)], "llama3-405b": [(77.1, True), (68.9, True)],
    "gemma-2-27b": [(86.4, True), (9.8, True)], "mixtral-8x22b": [(69.3, True)], "deepseek-v3": [(83.7, False)],
}
TOLD = {"llama3-405b", "deepseek-v3", "gemma-2-27b", "mixtral-8x22b"}  # there, of the first plan at least


class Published(ProgramCase):
    known = {}  # name -> what planned() found: each is planned once for all tests

    def planned(self, name):
        """The plans of a script, and the text that it prints."""
        if name not in self.known:
            done = self.call("plan", SOURCE / "scripts/published" / f"{name}.lua", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.known[name] = self.lines(done), done.stderr
        return self.known[name]

    def check(self, name, parameters, matrices, scores, tokens):
        """`matrices`: elements that a token is multiplied by; `scores`: flops of its attention, forward."""
        (plan,), _ = self.planned(name)
        billions, ranks, mix = CONFIGURATIONS[name]
        self.assertLess(abs(plan["parameters"] / 1e9 / billions - 1), 1e-3)
        self.assertEqual((plan["ranks"], plan["plan"]), (ranks, mix))
        self.assertEqual(plan["parameters"], parameters)
        self.assertLess(abs(plan["flops_per_step"] / tokens / (6 * matrices + 3 * scores) - 1), 1e-6)

    def test_mixtral_exactly(self):
        h, layers, ffn, vocab, s = 6144, 56, 16384, 32768, 4096
        attention, expert, router = 2 * h * h + 2 * h * 1024, 3 * h * ffn, 8 * h
        self.check("mixtral-8x22b", 2 * vocab * h + h + layers * (attention + 8 * expert + router + 2 * h),
                   vocab * h + layers * (attention + 2 * expert + router), layers * 4 * s * h, 256 * s)

    def test_deepseek_exactly(self):
        """By the checkpoint's own tensors, the bias of each router among them. The last layer is the module that predicts a
        second token, which shares the embedding and the output projection."""
        h, main, dense, vocab, heads, s = 7168, 61, 3, 129280, 128, 4096
        attention = h * 1536 + 1536 * heads * 192 + h * (512 + 64) + 512 * heads * 256 + heads * 128 * h
        mlp, expert, router = 3 * h * 18432, 3 * h * 2048, 256 * h
        sparse = 257 * expert + router + 256
        norms = 1536 + 512 + 2 * h
        model = 2 * vocab * h + h + main * (attention + norms) + dense * mlp + (main - dense) * sparse
        module = attention + norms + sparse + 2 * h * h + 3 * h
        self.assertLess(abs(model / 671.0e9 - 1), 1e-3)  # section 1
        self.assertLess(abs((module + 2 * vocab * h) / 14e9 - 1), 0.05)  # of the page of the weights, with what is shared
        layers = main + 1
        self.check("deepseek-v3", model + module,
                   2 * vocab * h + layers * attention + dense * mlp + (layers - dense) * (9 * expert + router) + 2 * h * h,
                   layers * 2 * s * heads * (192 + 128), 15360 * s)

    def errors(self, name):
        """Per cent, of each step that the script prints beside what was published."""
        _, text = self.planned(name)
        return [float(error) for error in re.findall(r"published \(([+-][\d.]+) %\)", text)]

    def test_steps_are_within_ten_per_cent_of_published_ones(self):
        for name, steps in {"gpt3-175b": 1, "megatron-1t": 1, "llama3-405b": 2, "gemma-2-27b": 1, "mixtral-8x22b": 1,
                            "deepseek-v3": 1}.items():
            errors = self.errors(name)
            self.assertEqual(len(errors), steps, name)
            for error in errors:
                self.assertLessEqual(abs(error), 10, name)

    def test_what_pairs_hide(self):
        """As docs/prediction.md has it."""
        text = self.call("plan", "--quiet", SOURCE / "scripts/pairs.lua").stdout
        page = (SOURCE / "docs/prediction.md").read_text().split("#### What pairs hide")[1].split("\n### ")[0]
        models = [{row[0].strip(): tuple(map(float, row[1:])) for row in
                   re.findall(r"(?m)^  (\w.*?) +([\d.]+) +([\d.]+) \( ?[\d.]+ %\)", part)} for part in text.split("\n\n")]
        deepseek, small, large = models[:3]
        self.assertEqual(len(deepseek), 6, text)
        # Numbers end where the names of their columns do.
        for table in re.findall(r"(?m)^  schedule .*(?:\n  \S.*)+", text):
            head, *lines = table.split("\n")
            for line in lines:
                self.assertRegex(line[:len(head)], r" [\d.]+$")
                self.assertEqual(line.index(")") + 1, head.index("exchange, s") + len("exchange, s"), line)
        rows = re.findall(r"(?m)^\| `(?:1f1b|interleaved|dualpipev)`.*? \| ([\d.]+)(?: s)? \| ([\d.]+)(?: s)? \|", page)
        self.assertEqual([(float(step), float(exposed)) for step, exposed in rows],
                         [(round(step, 1), round(exposed, 2)) for step, exposed in deepseek.values()])
        apart, paired = deepseek["dualpipev, no pairs"], deepseek["dualpipev, pairs by hide"]
        self.assertLess(paired[1], apart[1] / 3)
        self.assertAlmostEqual(apart[0] - paired[0], apart[1] - paired[1], delta=0.25 * (apart[1] - paired[1]))
        gains = [float(gain) for gain in re.findall(r"\| \+([\d.]+) % \| \+", page)]
        cases = ((small, "1f1b"), (large, "interleaved, 2 chunks"), (large, "interleaved, a chunk for each layer"))
        for gain, (model, over) in zip(gains, cases, strict=True):  # steps are printed to the millisecond
            self.assertAlmostEqual(100 * (model[over][0] / model["dualpipev, pairs by switch"][0] - 1), gain, delta=0.4)

    def test_variants_are_beside_no_published_figure(self):
        text = (SOURCE / "scripts/published/gpt3-175b.lua").read_text()
        script = self.write(text.replace("2048, 1536, 384", "2048, 48, 384"))  # with few microbatches, which take little time
        self.assertNotEqual(script.read_text(), text)
        told = lambda *words: self.call("plan", "--quiet", script, *words).stdout
        for words, changed in ((("--set", "microbatch=2"), "microbatch"), (("--cluster", "b200", "--nodes", 48), "cluster"),
                               (("--stack", "megatron-core", "--set", "recompute=selective"), r"recompute, stack|stack, recompute")):
            with self.subTest(words):
                self.assertRegex(told(*words), r"^gpt3-175b: [\d.]+ s a step predicted; no published figure is for this variant "
                                 rf"\(other than the script: ({changed})\)\n$")
        for words in ((), ("--cluster", "selene", "--nodes", 48), ("--set", "steps=5", "--set", "seed=3")):
            with self.subTest(words):
                self.assertRegex(told(*words), r"^gpt3-175b: [\d.]+ s a step predicted, [\d.]+ s published \([+-][\d.]+ %\)\n$")
        # Without its own cluster nothing is known of the time.
        self.assertIn("no time predicted, for want of a cluster; no published figure", told("--set", "cluster=nil", "--set", "stack=nil"))

    def test_what_a_rank_holds(self):
        page = pages.part("models", "Latent attention, and published configurations")
        for name, peaks in PEAKS.items():
            plans, _ = self.planned(name)
            held = [(round(plan["peak_bytes"] / 2**30, 1), plan["fits"]) for plan in plans]
            self.assertEqual(held, peaks, name)
            if name in TOLD:
                self.assertIn(str(held[0][0]), page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
