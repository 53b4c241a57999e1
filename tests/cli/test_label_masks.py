"""Labels that count nothing: each mix equals one rank, and transformers' loss and gradient norm;
steps, ranks and microbatches without any label that counts; masks that cannot be right."""

import json
import unittest

import numpy as np
import safetensors.numpy
from cases import ProgramCase

import hf

SCRIPT = """local mw = require "meshwright"
local dp, tp, pp, zero, sp, ep = mw.plugins("dp", "tp", "pp", "zero", "sp", "ep")
local function ahead(over)
  return mw.model { name = "ahead", dims = { hidden = 32, heads = 4, ffn = 48, vocab = 64, experts = 2, expert_ffn = 16 }, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local x = m.tokens:lookup(w)
    for layer in m:layers(4) do
      x = x + x:rms_norm():attention()
      x = x + (layer == 1 and x:rms_norm():experts(1) or x:rms_norm():mlp())
    end
    local y = x
    for _ in m:layers(1) do y = y + m.labels:lookup(w); y = y + y:rms_norm():mlp() end
    return { x:rms_norm():linear { w }:cross_entropy(m.labels, { mean_over = over }),
      y:rms_norm():linear { w }:cross_entropy(m.labels:shift(1), { weight = 0.3, mean_over = over }) }
  end }
end
local function experiment(model, plan, more)
  local all = { model = model, data = mw.synthetic { sequence = 16, masked = 0.8 }, plan = plan, batch = 16, microbatch = 2,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end
local llama = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 48, vocab = 64 }
"""
MIXES = ["{ dp(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" }, dp(2) }',
         '{ pp { 2, schedule = "zbv" }, tp(2) }', '{ pp { 2, schedule = "dualpipev" }, zero { 2, stage = 2 } }', "{ zero(2), ep(2) }",
         '{ sp { 2, form = "ring" } }', '{ sp { 2, form = "allgather" }, tp(2) }', '{ sp { 2, form = "ulysses" } }']
TORCH = """local mw = require "meshwright"
local dp, tp, pp, zero, sp = mw.plugins("dp", "tp", "pp", "zero", "sp")
mw.train {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64, norm_eps = 1e-6 }, weights = "theirs",
  data = mw.tensors { "rows.safetensors", order = "sequential" }, sequence = 16, precision = "fp64",
  plan = %s, batch = 8, microbatch = 2, optimizer = mw.sgd { lr = 1e-30 }, steps = 9 }
"""


def masks(rows, columns, random):
    """Which labels count, of eight ways to leave some out, and a step in which none counts."""
    all_of = lambda: np.ones((rows, columns), bool)
    prompts = np.arange(columns) >= random.integers(0, columns + 1, (rows, 1))
    one = np.zeros((rows, columns), bool)
    one[3, 5] = True
    microbatch, rank, sequences = all_of(), all_of(), all_of()
    microbatch[:4] = False  # the first microbatch of both ranks of dp
    rank[::2] = False
    sequences[[1, 6]] = False
    padded = np.arange(columns) < random.integers(1, columns, (rows, 1))
    return [all_of(), prompts, one, microbatch, rank, sequences, padded, random.random((rows, columns)) < 0.3,
            np.zeros((rows, columns), bool)]


class LabelMasks(ProgramCase):
    def test_each_mix_equals_one_rank(self):
        """A loss of the labels of all of a step, of each sequence, of each four; and of tokens further on."""
        calls = "".join(f"mw.verify(experiment(ahead({over}), {mix}))\n" for mix in MIXES for over in ("nil", "1", "4"))
        self.verify_all(SCRIPT + calls)

    def test_they_are_proved_and_hold_and_send_what_is_predicted(self):
        proofs = self.all("prove", self.write(SCRIPT + "".join(f"mw.prove(experiment(ahead(4), {mix}))\n" for mix in MIXES)))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * len(MIXES))
        for run in self.all("run", self.write(SCRIPT + "".join(f"mw.train(experiment(llama, {mix}))\n" for mix in ("{}", *MIXES[:6])))):
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)
                self.held_as_predicted(run)

    def test_losses_and_norms_are_those_of_transformers(self):
        torch, transformers = hf.load()
        config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                          num_key_value_heads=2, tie_word_embeddings=False, initializer_range=0.2, rope_theta=1e4)
        model = transformers.LlamaForCausalLM(config).double()
        model.save_pretrained(self.folder / "theirs")
        random = np.random.default_rng(0)
        tokens = random.integers(0, 64, (72, 17))
        labels, losses, norms = [], [], []
        for step, mask in enumerate(masks(8, 16, random)):
            rows = tokens[8 * step:8 * step + 8]
            ids = np.where(mask, rows[:, 1:], -1 if step % 2 else -100)
            labels.append(ids)
            if not mask.any():
                losses.append(None)
                norms.append(0)
                continue
            model.zero_grad()
            logits = model(torch.from_numpy(rows[:, :-1])).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 64), torch.from_numpy(ids).reshape(-1).clamp_min(-1), ignore_index=-1)
            loss.backward()
            losses.append(loss.item())
            norms.append(sum(p.grad.square().sum().item() for p in model.parameters()) ** 0.5)
        safetensors.numpy.save_file({"tokens": tokens[:, :-1].copy(), "labels": np.concatenate(labels)}, self.folder / "rows.safetensors")
        worst = 0
        for mix in ("{}", "{ dp(2) }", '{ pp { 2, schedule = "zb-h1" }, dp(2) }', "{ zero { 2, stage = 3 }, tp(2) }", '{ sp { 2, form = "ring" } }'):
            run = self.only("run", self.write(TORCH % mix))
            with self.subTest(mix):
                self.assertEqual(run["steps_without_labels"], [8])
                for theirs, ours in ((losses, run["losses"]), (norms, run["grad_norms"])):
                    self.assertEqual([x is None for x in theirs], [x is None for x in ours])
                    worst = max(worst, *(abs(a - b) / max(abs(a), 1e-300) for a, b in zip(theirs, ours) if a))
        print(f"largest relative difference from transformers {worst:.1e}")
        self.assertLess(worst, 1e-6)  # transformers computes norms and rotary angles in fp32

    def test_a_step_in_which_no_label_counts_updates_nothing(self):
        """The run goes on as if the step had not been: weights, and the optimizer's count of steps; resumed, too."""
        random = np.random.default_rng(1)
        tokens, labels = random.integers(0, 64, (16, 8)), random.integers(0, 64, (16, 8))
        without = labels.copy()
        without[4:8] = -1
        save = lambda name, rows, ids: safetensors.numpy.save_file({"tokens": rows, "labels": ids}, self.folder / name)
        save("all.safetensors", np.delete(tokens, range(4, 8), 0), np.delete(labels, range(4, 8), 0))
        save("some.safetensors", tokens, without)
        script = SCRIPT + """mw.train(experiment(llama, { pp(2), dp(2) }, { data = mw.tensors { "%s.safetensors", order = "sequential" }, sequence = 8,
          batch = 4, microbatch = 1, steps = %d, export = "%s", %s }))"""
        weights = lambda name: safetensors.numpy.load_file(next((self.folder / name).glob("*.safetensors")))
        plain = self.only("run", self.write(script % ("all", 3, "plain", "")))
        masked = self.only("run", self.write(script % ("some", 4, "masked", "")))
        self.assertEqual([loss for loss in masked["losses"] if loss is not None][0], plain["losses"][0])
        self.assertEqual(masked["losses"][1], None)
        self.assertEqual(masked["steps_without_labels"], [1])
        self.assertEqual(len(masked["losses"]), 4)
        np.testing.assert_allclose([x for x in masked["losses"] if x is not None], plain["losses"], rtol=1e-6)
        for name, tensor in weights("plain").items():
            np.testing.assert_allclose(weights("masked")[name], tensor, rtol=1e-5, atol=1e-7)
        saved = 'checkpoint = { path = "saved" }, resume = %s'
        self.only("run", self.write(script % ("some", 2, "half", saved % "nil")))
        again = self.only("run", self.write(script % ("some", 4, "again", saved % "true")))
        self.assertEqual((again["losses"], again["steps_without_labels"]), (masked["losses"], [1]))
        text = self.call("run", self.write(script % ("some", 4, "text", "")))
        self.assertIn("1 step left out, as no label of it counts", text.stdout)
        self.assertIn("step 1: no label counts, so that there is no loss and no update", text.stderr)

    def test_a_held_out_loss_is_the_mean_of_its_labels(self):
        random = np.random.default_rng(2)
        labels = random.integers(0, 64, (8, 8))
        labels[:4, 1:] = -1
        safetensors.numpy.save_file({"tokens": random.integers(0, 64, (8, 8)), "labels": labels}, self.folder / "held.safetensors")
        script = SCRIPT + """mw.train(experiment(llama, { dp(2) }, { batch = %d, microbatch = 1, steps = 1, sequence = 8, data = mw.synthetic { masked = %s },
          evaluate = { every = 1, batches = %d, data = mw.tensors { "held.safetensors", order = "sequential" } } }))"""
        for share in ("0", "0.5"):
            few, many = (self.only("run", self.write(script % (batch, share, 8 // batch)), "--set", "optimizer.lr=0") for batch in (2, 8))
            self.assertAlmostEqual(few["held_out_loss"], many["held_out_loss"], places=5)

    def test_masks_beside_files_of_tokens(self):
        """Bytes and a table of ranges say the same; what they cannot be is refused, with the place."""
        tokens = np.random.default_rng(3).integers(0, 64, 400).astype(np.uint16)
        tokens.tofile(self.folder / "tokens.bin")
        mask = np.ones(400, np.uint8)
        ranges = [(0, 30), (100, 101), (120, 180), (180, 190)]
        for begin, end in ranges:
            mask[begin:end] = 0
        mask[:150].tofile(self.folder / "mask_1.bin")
        mask[150:].tofile(self.folder / "mask_2.bin")
        (self.folder / "mask.csv").write_text("begin,end\n" + "".join(f"{begin},{end}\n" for begin, end in ranges))
        script = SCRIPT + """mw.train(experiment(llama, { dp(2) }, { sequence = 16, batch = 4, microbatch = 1, steps = 4, data = mw.shards { "tokens.bin", dtype = "u16",
          order = "sequential", mask = %s } }))"""
        runs = [self.only("run", self.write(script % given)) for given in ('"mask_*.bin"', '"mask.csv"', "nil")]
        self.assertEqual(runs[0]["losses"], runs[1]["losses"])
        self.assertNotEqual(runs[0]["losses"], runs[2]["losses"])
        wrong = {"short.bin": mask[:399].tobytes(), "two.bin": b"\x02" + mask[1:].tobytes(), "text.csv": b"begin,end\n0,a\n", "far.csv": b"begin,end\n390,401\n",
                 "none.csv": b"begin,end\n5,5\n", "back.csv": b"begin,end\n5,9\n8,10\n", "bare.csv": b"5,9\n", "no.csv": b"begin,end\n"}
        for name, content in wrong.items():
            (self.folder / name).write_bytes(content)
        words = {"short.bin": "has 399 bytes, and the data have 400 tokens", "two.bin": "byte 0 is 2", "text.csv": 'text.csv:2: "0,a" is no begin,end',
                 "far.csv": "tokens 390 to 401 of 400", "none.csv": "tokens 5 to 5 of 400", "back.csv": "begins at 8, and the range before ends at 9",
                 "bare.csv": 'the first line is "5,9"', "no.csv": "there is no line of numbers"}
        calls = [(script.split("\n")[-2] + script.split("\n")[-1]) % f'"{name}"' for name in wrong]
        errors = self.all_refused(SCRIPT, *((call, 2, "data.mask data.mask") for call in calls))
        for name, error in zip(wrong, errors):
            self.assertIn(words[name], error["message"])
        call = script.split("\n")[-2] + script.split("\n")[-1]
        self.all_refused(SCRIPT, (call % '"nothing.bin"', 2, "file.missing data.mask"),
                         (call % '{ "mask_1.bin", "mask_1.bin", "mask_2.bin" }', 2, "data.twice data.mask"))

    def test_a_mask_that_changes_in_a_run_ends_it(self):
        np.random.default_rng(3).integers(0, 64, 4000).astype(np.uint16).tofile(self.folder / "tokens.bin")
        np.ones(4000, np.uint8).tofile(self.folder / "mask.bin")
        done = self.call("run", self.write(SCRIPT + """mw.train(experiment(llama, {}, { sequence = 16, batch = 2, microbatch = 1, steps = 20,
          data = mw.shards { "tokens.bin", dtype = "u16", mask = "mask.bin" },
          observe = function(step) if step == 4 then io.open("mask.bin", "w"):close() end end }))"""))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("mask.bin", done.stderr)

    def test_masked_labels_are_tokens_for_a_model_that_reads_them(self):
        np.random.default_rng(4).integers(0, 64, 400).astype(np.uint16).tofile(self.folder / "tokens.bin")
        (np.arange(400) % 3 > 0).astype(np.uint8).tofile(self.folder / "mask.bin")
        script = SCRIPT + """
local reads = mw.model { name = "reads", dims = { hidden = 32, heads = 4, vocab = 64 }, graph = function(m)
  local w = m:weight { "embedding", "vocab", "hidden" }
  local x = m.tokens:lookup(w) + m.labels:lookup(w)
  for _ in m:layers(1) do x = x + x:rms_norm():attention() end
  return x:rms_norm():linear { w }:cross_entropy(m.labels)
end }
mw.train(experiment(reads, {}, { sequence = 16, batch = 2, data = mw.shards { "tokens.bin", dtype = "u16", order = "sequential" %s } }))"""
        found = []
        for name, mask in (("plain", ""), ("masked", ', mask = "mask.bin"')):
            self.only("logits", self.write(script % mask), "-o", name)
            found.append(safetensors.numpy.load_file(self.folder / name))
        plain, masked = found
        np.testing.assert_array_equal(plain["logits"], masked["logits"])
        counted = masked["labels"] >= 0
        self.assertTrue(counted.any() and not counted.all())
        np.testing.assert_array_equal(plain["labels"][counted], masked["labels"][counted])

    def test_a_sweep_over_masks_and_steps_without_labels(self):
        """Each cell has a plan of its own; steps without labels are alike in all mixes."""
        sweep = SCRIPT + """mw.sweep { name = "masks", base = experiment(llama, { dp(2) }, { batch = 2, microbatch = 1, steps = 5 }),
          over = { %s }, same_loss_as = "dp(2)" }:go()"""
        for over in ('["data.masked"] = { 0, 0.5, 1 }', 'plan = { { dp(2) }, { pp(2) }, { tp(2) } }'):
            text = sweep.replace(', same_loss_as = "dp(2)"', "") if "data" in over else sweep.replace("steps = 5", "steps = 5, data = mw.synthetic { sequence = 16, masked = 1 }")
            done = self.call("run", self.write(text % over), "--json")
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])

    def test_what_cannot_be_is_refused(self):
        save = lambda name, label: safetensors.numpy.save_file({"tokens": np.zeros((4, 8), int), "labels": np.full((4, 8), label)}, self.folder / name)
        save("rows.safetensors", -2)
        save("none.safetensors", -100)
        classes = """mw.model { name = "classes", dims = { hidden = 32, heads = 4, vocab = 64, kinds = 4 }, inputs = { kind = { "batch", below = "kinds" } },
          graph = function(m)
            local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden" })
            for _ in m:layers(1) do x = x + x:rms_norm():attention() end
            return x:sum "seq":linear "kinds":cross_entropy(m.kind%s)
          end }"""
        self.all_refused(
            SCRIPT,
            ("mw.plan(experiment(ahead(3), { dp(2) }))", 3, "batch.groups batch"),
            ('mw.plan(experiment(llama, {}, { sequence = 8, data = mw.tensors "rows.safetensors" }))', 2, "data.shape data.path"),
            ("mw.plan(experiment(llama, {}, { data = mw.synthetic { sequence = 16, masked = 1.5 } }))", 2, "option.range data.masked"),
            ('mw.verify(experiment(llama, { dp(2) }, { sequence = 8, batch = 4, data = mw.tensors "none.safetensors" }))', 1, "verify.no-labels data"),
            (f"mw.plan(experiment({classes % ''}, {{}}))", 3, "model.labels model"),
            (f"mw.plan(experiment({classes % ', { mean_over = 1 }'}, {{}}))", 2, "model.dims model.graph"))

    def test_logits_say_which_labels_count(self):
        self.only("logits", self.write(SCRIPT + "mw.train(experiment(llama, {}))"), "-o", "logits.safetensors")
        found = safetensors.numpy.load_file(self.folder / "logits.safetensors")
        logits, labels = found["logits"].astype(float), found["labels"]
        counted = labels >= 0
        self.assertTrue(0 < counted.sum() < labels.size)
        losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0]
        run = self.only("run", "script.lua")
        self.assertAlmostEqual(run["losses"][0], losses[counted].mean(), places=5)
        self.assertEqual(json.dumps(run["losses"]).count("null"), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
