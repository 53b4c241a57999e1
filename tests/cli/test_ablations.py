"""The ablations and pitfalls of scripts/: each answers its question in a sentence, whose numbers
are the closed forms' where there are such. Predicted here, and two of them trained in few steps;
the matrix trains all."""
import pathlib
import re
import unittest

import pages
from cases import SOURCE, ProgramCase, matrix

SWEEPS = ["ablations/" + name for name in ("zero", "schedules", "tp_degree", "memory_limit", "sequence_parallel", "experts",
                                           "context", "overlap", "packing")] + ["pitfalls/tp_too_wide", "pitfalls/few_microbatches"]
PLANS = ["pitfalls/plain_dp_10b", "pitfalls/experts_over_slow_links"]
N = r"(-?[\d.]+(?:e[-+]\d+)?)"  # a number of a sentence, behind which no point ends it


def numbers(text):
    return [float(n) for n in re.findall(r"(?<![\w.(-])-?\d+(?:\.\d+)?(?:e[-+]\d+)?", text)]


class Ablations(ProgramCase):
    def said(self, script, *arguments, command="run"):
        """Its rows, each a list of words, and its sentences by their first word."""
        done = self.call(command, SOURCE / f"scripts/{script}.lua", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        sentences = dict(re.findall(r"^(Answer|Mistake|Cure|No answer): (.*)$", done.stdout, re.MULTILINE))
        expected = {"Answer"} if script.startswith("ablations/") else {"Mistake", "Cure"}
        self.assertEqual(set(sentences), expected, done.stdout[-3000:])
        for sentence in sentences.values():
            self.assertRegex(sentence, r"\d.*\.$")
            self.assertNotRegex(sentence, r"\b(nan|inf|nil)\b")
        return done.stdout, sentences

    def predicted(self, script):
        return self.said(script, "--predict", command="sweep")

    def rows(self, text, pattern):
        found = re.findall(pattern, text, re.MULTILINE)
        self.assertTrue(found, text)
        return found

    def test_every_script_is_here_and_on_the_page(self):
        here = {path.relative_to(SOURCE / "scripts").with_suffix("").as_posix()
                for folder in ("ablations", "pitfalls") for path in (SOURCE / "scripts" / folder).glob("*.lua")}
        others = {"ablations/microbatch", "ablations/mixes"}  # tests of their own
        self.assertEqual(here - others, {*SWEEPS, *PLANS, "ablations/recompute", "ablations/torus", "ablations/attention", "ablations/lora", "ablations/mup", "ablations/muon_owner", "ablations/diloco"})
        page = pages.part("sweeps", "Ablations and pitfalls")
        for script in here:
            self.assertIn(f"scripts/{script}.lua", page)
        for script in (*SWEEPS, *PLANS, "ablations/recompute", "ablations/microbatch", "ablations/torus",
                       "ablations/attention", "ablations/lora", "ablations/mup", "ablations/muon_owner", "ablations/diloco"):
            comment = (SOURCE / f"scripts/{script}.lua").read_text().split("\nlocal")[0]
            self.assertIn("?", comment, "opens with its question")
            self.assertIn("arXiv:", comment)

    def test_zero_stages(self):
        _, said = self.predicted("ablations/zero")
        shares = numbers(said["Answer"].split("by the paper")[0].replace("ZeRO ", "ZeRO-"))
        self.assertEqual(shares, [0.562, 0.344, 0.125])
        sent = re.search(rf"send {N}, {N} and {N} times", said["Answer"]).groups()
        self.assertEqual(sent[:2], ("1.00", "1.00"))
        self.assertTrue(1.4 < float(sent[2]) <= 1.5, sent)

    def test_zero_stages_trained(self):
        text, said = self.said("ablations/zero", "--set", "steps=2")
        self.assertIn("4 of 4 were run, and measured is at most 0 bytes off predicted", said["Answer"])
        # States, and bytes, measured: those predicted, and the formula's but for ZeRO 3's bytes.
        for name, *row in self.rows(text, r"^(dp|ZeRO \d)" + 6 * r" +([\d.]+)" + r" +\d+$"):
            held, predicted, formula, sent, sent_predicted, sent_formula = map(float, row)
            self.assertEqual((held, sent), (predicted, sent_predicted), name)
            self.assertAlmostEqual(held / formula, 1, delta=2e-3)
            self.assertTrue(0.95 * sent_formula < sent <= 1.002 * sent_formula, row)
        page = (self.folder / "runs/zero.html").read_text()
        self.assertIn("ZeRO 3", page)

    def test_low_rank_sums_beside_frozen_weights(self):
        text, said = self.said("ablations/lora")
        self.assertIn("0 bytes off the prediction", said["Answer"])
        weights = 2 * 256 * 128 + 4 * (4 * 128 * 128 + 3 * 352 * 128) + 9 * 128
        sums = 4 * 4 * 4 * 2 * 128
        for plan, ways in (("dp(2)", 1), ("ZeRO 3", 2)):
            for name, parameters, trained in (("whole", weights, weights), ("LoRA", weights + sums, sums)):
                held, gradients, states = map(float, re.search(rf"^{name} +{re.escape(plan)} +{N} +{N} +{N}", text, re.MULTILINE).groups())
                self.assertAlmostEqual(held, 4 * parameters / 1024 / ways, delta=0.06)
                self.assertAlmostEqual(gradients, 4 * trained / 1024 / ways, delta=0.06)
                self.assertAlmostEqual(states, 8 * trained / 1024 / ways, delta=0.06)

    def test_replicas_that_differ(self):
        text, said = self.said("ablations/diloco")
        rows = dict(zip(("dp", "Local SGD", "DiLoCo", "streaming"), self.rows(text, rf"^(dp|Local SGD|DiLoCo|streaming) +{N} +{N} +{N}$")))
        loss, sent, speed = ({name: float(row[at]) for name, row in rows.items()} for at in (-3, -2, -1))
        self.assertEqual(len(rows), 4)
        for name in ("Local SGD", "DiLoCo", "streaming"):
            self.assertGreater(loss[name], loss["dp"])
            self.assertLess(loss[name], loss["dp"] + 0.4)
            self.assertGreater(speed[name], 1.1 * speed["dp"])
            self.assertAlmostEqual(sent[name] / sent["dp"], 0.05 if name == "streaming" else 0.1, delta=0.001)
        self.assertLess(loss["DiLoCo"], loss["Local SGD"])

    def test_owners_of_matrices(self):
        text, said = self.said("ablations/muon_owner")
        rows = self.rows(text, rf"^(dp|tp|ZeRO).*(every|owner|shards) +{N} +{N} +{N}$")
        self.assertEqual(len(rows), 9)
        for every, owner in zip(rows[::3], rows[1::3]):
            self.assertLess(float(owner[2]), float(every[2]))             # the step is predicted to be shorter
            self.assertGreater(float(owner[3]), float(every[3]))
        self.assertLess(float(re.search(r"one rank to (\S+)\.$", said["Answer"])[1]), 1e-10)

    def test_rates_of_wider_models(self):
        """In two steps, which say nothing of rates."""
        text, _ = self.said("ablations/mup", "--set", "steps=2")
        self.assertEqual(len(self.rows(text, r"^(as usual|muP) +(32|256)" + 5 * r" +([\d.]+)" + "$")), 4)

    def test_schedules(self):
        text, said = self.predicted("ablations/schedules")
        rows = self.rows(text, r"^ +(4|16) +([\w-]+) +([\d.]+) % +([\d.]+) %")
        k = {"gpipe": 1, "1f1b": 1, "interleaved": 1 / 2, "zb-h1": 1 / 3, "zb-h2": 1 / 3, "zbv": 1 / 6}
        bubble = {}
        for m, name, formula, predicted in rows:
            over = k[name] * 3 / int(m)
            self.assertAlmostEqual(float(formula), 100 * over / (1 + over), delta=0.06)
            bubble[name, int(m)] = float(predicted)
        self.assertEqual(len(bubble), 12)
        for name in k:
            self.assertLess(bubble[name, 16], bubble[name, 4])
        for m in (4, 16):
            for end, word in ((max, "largest"), (min, "smallest")):
                percent = end(b for (_, n), b in bubble.items() if n == m)
                who = sorted(name for name in k if bubble[name, m] == percent)  # all that the table shows alike
                self.assertIn(f"""{word} {"is " * (word == "largest")}{" and ".join(name + "'s" for name in who)}, {percent} %""", said["Answer"])

    def test_tp_degree(self):
        text, said = self.predicted("ablations/tp_degree")
        sent = [float(row) for row in self.rows(text, r"^ *[1248] +\d+ +([\d.]+) +[\d.]+ +\d+ +[\d.]+$")]
        self.assertEqual((len(sent), sent[0]), (4, 0))
        # 2 (t - 1)/t of the same sums.
        self.assertAlmostEqual(sent[2] / sent[1], 1.5, delta=2e-3)
        self.assertAlmostEqual(sent[3] / sent[1], 1.75, delta=2e-3)
        self.assertRegex(said["Answer"], rf"by prediction (fall at tp\(\d\), {N} after {N}|do not fall up to tp\(8\))")

    def test_memory_limit(self):
        text, said = self.predicted("ablations/memory_limit")
        rows = self.rows(text, r"^(?:dp|ZeRO \d) +(\d+) +(\d+) k +([\d.]+) +(\d+)$")
        layers, batches = ([int(row[i]) for row in rows] for i in (0, 3))
        self.assertEqual(len(layers), 4)
        self.assertEqual((layers, batches), (sorted(layers), sorted(batches)))
        self.assertGreater(layers[3], 2 * layers[0])
        for row in rows:
            self.assertLessEqual(float(row[2]), 16)
        times = float(re.search(rf"{N} times as many", said["Answer"])[1])
        self.assertAlmostEqual(times, int(rows[3][1]) / int(rows[0][1]), delta=0.02)

    def test_sequence_parallel(self):
        _, said = self.predicted("ablations/sequence_parallel")
        kept, sent, again, sent_again = numbers(said["Answer"].replace("tp(4)", "tp"))[:4]
        self.assertTrue(again < kept < 0.9, said)
        self.assertTrue(1 <= sent < 1.03, said)
        self.assertTrue(1.2 < sent_again < 1.3, said)  # one gather more, beside two sums of two each

    def check_experts(self, text):
        """KiB of exchanges of 2 layers, forward and backward: 128 tokens, 2 of 8 experts, 64 wide and a weight, and back, fp32."""
        rows = self.rows(text, r"^none +([1248]) +(\d+) +(?:\d+ +)?(\d+) +(\d+)(?: +[\d.]+)* *$")
        self.assertEqual([row[0] for row in rows], ["1", "2", "4", "8"])
        for ways, _, exchanged, _ in rows:
            n = int(ways)
            counts = 2 * 8 * 8
            self.assertEqual(int(exchanged), round((2 * 2 * 128 * 2 * (64 + 1 + 64) * 4 + counts) * (n - 1) / n / 1024))

    def test_experts(self):
        self.check_experts(self.predicted("ablations/experts")[0])

    def test_experts_trained(self):
        text, said = self.said("ablations/experts", "--set", "steps=2")
        self.check_experts(text)
        fullest = self.rows(text, r"^none +[1248] .* ([\d.]+) +([\d.]+)$")
        self.assertEqual(len({expert for expert, _ in fullest}), 1, "what is chosen does not depend on the width")
        self.assertEqual(float(fullest[0][1]), 1)
        self.assertEqual(*fullest[3], "a rank of ep(8) is one expert")
        self.assertIn(f"its fullest rank has {fullest[3][1]} times the mean", said["Answer"])

    def test_context_forms(self):
        text, said = self.predicted("ablations/context")
        rows = self.rows(text, r"^ +\d+ +(ring|allgather|ulysses) +(\d+) +(\d+) +(\d+)$")
        self.assertEqual(len(rows), 9)
        for _, sent, formula, _ in rows:
            self.assertEqual(sent, formula)
        self.assertEqual(said["Answer"].count("ulysses sends least"), 2)

    def test_overlap(self):
        _, said = self.predicted("ablations/overlap")
        self.assertIn("4 of 4 forms send as many bytes", said["Answer"])
        found = re.findall(rf"{N} of (dp|tp|zero|ep)'s {N} ms and takes its step from {N} to {N} ms", said["Answer"])
        self.assertEqual([form for _, form, *_ in found], ["dp", "tp", "zero", "ep"])
        for hidden, form, exposed, off, on in found:  # on a cluster: links work by themselves
            self.assertTrue(0 < float(hidden) <= float(exposed) < float(off), form)
            self.assertTrue(0 < float(off) - float(on) <= float(hidden) + 1, form)
        here, sending = map(float, re.search(rf"on these cores it hides {N} of {N} ms", said["Answer"]).groups())
        self.assertTrue(0 <= here < sending, said)

    def test_tp_too_wide(self):
        _, said = self.predicted("pitfalls/tp_too_wide")
        sent, times = re.search(rf"sends {N} MiB a rank and step, {N} times", said["Mistake"]).groups()
        cured = re.search(rf"dp\(8\) sends {N} MiB", said["Cure"])[1]
        # 9 sums of 16 x 128 x 128 in fp32 each way; and 8/7 of the parameters.
        self.assertAlmostEqual(float(sent), 2 * 9 * 2 * 7 / 8, delta=0.1)
        self.assertAlmostEqual(float(times), float(sent) / float(cured), delta=0.02)

    def test_few_microbatches(self):
        _, said = self.predicted("pitfalls/few_microbatches")
        self.assertIn("(60.0 % by the formula)", said["Mistake"])
        few = float(re.search(rf"idle {N} %", said["Mistake"])[1])
        many, formula, filled = map(float, re.search(rf"idle {N} % \({N} %\).*idles {N} %", said["Cure"]).groups())
        self.assertAlmostEqual(formula, 100 * 3 / 19, delta=0.06)
        self.assertTrue(many < filled < few, said)

    def test_experts_on_a_torus(self):
        _, said = self.said("ablations/torus")
        ratios = [float(n) for n in re.findall(rf"{N} times", said["Answer"])]
        self.assertEqual(len(ratios), 4)
        # A link of the ring of four carries half of what a chip has, and one in the torus' middle
        # all of it; six switched links carry what leaves the chip. The shares of their rates
        # differ.
        self.assertAlmostEqual(ratios[0], 4 * 0.78 / 0.9, delta=0.3)
        self.assertAlmostEqual(ratios[3], 6 * 0.88 / 0.9, delta=0.3)

    def test_scores_of_attention(self):
        text, said = self.said("ablations/attention")
        rows = [[float(n) for n in row] for row in self.rows(text, r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$")]
        short, long = rows[0], rows[-1]
        # Four layers keep the softmax of 8 heads and 2 sequences in fp32, and no log-sum-exp.
        self.assertAlmostEqual(short[2] - short[1], 4 * 8 * 2 * 4 * (128 ** 2 - 128) / 2 ** 20, delta=0.02)
        self.assertGreater(long[2] - long[1], 200 * (short[2] - short[1]))  # 256 times the pairs of tokens
        self.assertLess(long[3] - long[1], 0.5 * (long[2] - long[1]))
        self.assertEqual(numbers(said["Answer"])[-1], 0)

    def test_plain_dp_of_ten_billion(self):
        _, said = self.said("pitfalls/plain_dp_10b")
        self.assertRegex(said["Mistake"], r"9\.78 billion parameters needs 15[89]\.\d GB, (1\.99|2\.00) times .* 16\.0 bytes a parameter")
        self.assertIn("the first that fits is ZeRO 1", said["Cure"])
        self.assertTrue(1.4 < float(re.findall(rf"{N} times dp's", said["Cure"])[1]) <= 1.5, said)

    def test_experts_over_slow_links(self):
        _, said = self.said("pitfalls/experts_over_slow_links")
        # 4 x 4096 tokens to 6 experts and back, 2048 wide in bf16, 27 layers, forward and backward,
        # and there once more; each time beside a weight in fp32 on one of the ways.
        exchanged = 16384 * 6 * 27 * (5 * 2048 * 2 + 3 * 4) * 63 / 64 / 1e9
        leaves, all_of_it, waits, step = numbers(said["Mistake"].replace("ep(64)", "ep").replace("64 H800", ""))
        self.assertAlmostEqual(all_of_it, exchanged, delta=0.06)
        self.assertAlmostEqual(leaves, exchanged * 56 / 63, delta=0.06)
        self.assertGreater(waits, leaves / 50)  # what 50 GB/s take for it
        leaves, near, near_step, held, wide_held, *_, routed = numbers(re.sub(r"ep\(\d+\)", "ep", said["Cure"]))
        self.assertEqual(leaves, 0)
        self.assertLess(near, waits / 2)
        self.assertAlmostEqual(step - near_step, waits - near, delta=0.3 * waits)
        self.assertGreater(held, wide_held)
        self.assertLess(routed, 0.7 * waits)  # once to each machine

    def test_packing(self):
        text, said = self.predicted("ablations/packing")
        rows = self.rows(text, r"^ +(\d+) k +(\S+) +(\d+) % +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$")
        self.assertEqual([(tokens, policy) for tokens, policy, *_ in rows],
                         [(tokens, policy) for tokens in ("8", "32", "128") for policy in ("sequential", "dealt", "greedy", "balanced", "parted")])
        self.assertTrue(all(float(row[5]) <= 1.02 for row in rows[4::5]), rows)  # ranks of a row
        work = [int(row[2]) for row in rows[::5]]
        self.assertEqual(work, sorted(work, reverse=True))
        for first in (0, 5, 10):
            ranks, seconds = ([float(row[i]) for row in rows[first:first + 4]] for i in (3, 6))
            self.assertTrue(all(other <= ranks[0] for other in ranks[1:]), ranks)
            self.assertLess(seconds[1], seconds[0])
        gains = [float(gain) for gain in re.findall(rf"{N} times", said["Answer"])]
        self.assertTrue(1 < gains[0] < gains[1] < gains[2] < 1.5, said)

    def test_recompute(self):
        text, said = self.said("ablations/recompute", "--set", "steps=2", "--set", "data.sequence=128")
        rows = {name: list(map(float, row)) for name, *row in
                self.rows(text, r"^(\S.*?) +" + r" +".join(6 * [r"([\d.]+)"]) + "$")}
        self.assertEqual(len(rows), 10)
        none, full = rows["none"], rows["full"]
        for name, (held, predicted, *_) in rows.items():
            self.assertAlmostEqual(held / predicted, 1, delta=0.02, msg=name)
        kept, times = re.search(rf"full keeps {N} of the activations for {N} times the flops", said["Answer"]).groups()
        self.assertAlmostEqual(float(kept), full[0] / none[0], delta=0.006)
        self.assertAlmostEqual(float(times), full[5], delta=0.006)
        self.assertTrue(float(kept) < 0.5 and 1.2 < float(times) < 1.34, said)

    @matrix
    def test_all_trained(self):
        for script in SWEEPS:
            with self.subTest(script):
                self.said(script, "--set", "steps=2")
                name = pathlib.Path(script).name
                self.assertTrue((self.folder / f"runs/{name}.html").is_file())


if __name__ == "__main__":
    unittest.main(verbosity=2)
