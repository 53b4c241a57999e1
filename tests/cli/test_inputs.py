"""Inputs that a model declares (mw.model { inputs = … }): an image's patches, a second text, places
of patches. The scripts of scripts/models equal one rank in each mix, hold and send what is
predicted, and are proved; what a data source lacks, and inputs that cannot be, are refused."""

import unittest

import numpy as np
from safetensors.numpy import load_file, save_file

from cases import SOURCE, ProgramCase

MIXES = ["{}", "{ dp(2) }", "{ tp(2) }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" }, tp(2) }',
         '{ pp { 2, schedule = "zbv" }, dp(2) }']
ALONG_SEQ = ['{ sp { 2, form = "ulysses" } }', "{ tp(2), sp() }", '{ sp { 2, form = "allgather" }, tp(2) }']
SCRIPTS = {"vit": MIXES, "t5": MIXES + ALONG_SEQ, "llava": MIXES + ALONG_SEQ, "bert": MIXES + ALONG_SEQ,
           "albert": MIXES[:-2] + ["{ pp(2), tp(2) }"] + ALONG_SEQ}
REFUSED = """local mw = require "meshwright"
local function model(inputs, body)
  return mw.model { dims = { hidden = 16, vocab = 256, patches = 4 }, inputs = inputs, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local x = m.tokens:lookup(w) + m:weight { "p", "patches", "hidden" }:sum "patches"
    for _ in m:layers(1) do x = (body and body(m, x, w) or x):rms_norm() end
    return x:linear { w }:cross_entropy(m.labels)
  end }
end
local function plan(inputs, body, data)
  mw.plan { model = model(inputs, body), data = data or mw.synthetic { sequence = 8 }, batch = 2, steps = 1,
            optimizer = mw.sgd { lr = 1 } }
end
"""


class Inputs(ProgramCase):
    def test_each_mix_equals_one_rank(self):
        for name, mixes in SCRIPTS.items():
            text = (SOURCE / f"scripts/models/{name}.lua").read_text()
            head, train = text[:text.index("mw.train {")], text[text.index("mw.train {"):]
            experiment = train.replace("mw.train", "local e =", 1)
            calls = "".join(f"e.plan = {mix} mw.verify(e)\n" for mix in mixes)
            plugins = 'local dp, tp, zero, pp, sp = mw.plugins("dp", "tp", "zero", "pp", "sp")\n'
            with self.subTest(name):
                self.assertEqual(len(self.verify_all(head + plugins + experiment + "e.microbatch = 1\n" + calls)), len(mixes))

    def test_they_hold_and_send_what_is_predicted(self):
        for name in SCRIPTS:
            for precision in ("fp32", "fp64", "bf16"):
                with self.subTest(name, precision=precision):
                    run = self.only("run", SOURCE / f"scripts/models/{name}.lua", "--set", f"precision={precision}",
                                    "--set", f"log={name}-{precision}.h5")
                    self.sent_as_predicted(run)
                    self.held_as_predicted(run)

    def test_they_are_proved(self):
        for name in SCRIPTS:
            self.assertIn("proved:", self.call("prove", SOURCE / f"scripts/models/{name}.lua").stdout)

    def test_inputs_of_a_file(self):
        """A model of images trains on a file: the tensors' rows are its samples, in any mix."""
        script = (SOURCE / "scripts/models/vit.lua").read_text().replace("mw.synthetic { sequence = 1 }", 'mw.tensors { "images.safetensors", sequence = 1, order = "sequential" }')
        rng = np.random.default_rng(1)
        image, label = rng.normal(size=(12, 16, 3, 8, 8)).astype("f4"), rng.integers(0, 10, 12)
        save_file({"image": image, "class": label}, self.folder / "images.safetensors")
        path = self.write(script)
        self.only("logits", path, "-o", "logits.safetensors")
        found = load_file(self.folder / "logits.safetensors")
        np.testing.assert_array_equal(found["image"], image[:8])
        np.testing.assert_array_equal(found["class"], label[:8])
        run = lambda *settings: self.only("run", path, "--set", "precision=fp64", *settings)["losses"]
        np.testing.assert_allclose(run("--set", "plan={}"), run(), rtol=1e-12)
        for tensors, said in (({"image": image}, "images.safetensors has image alone"),
                              ({"image": np.ascontiguousarray(image[:, :9]), "class": label}, "a sample's is [9, 3, 8, 8], and the model's is [16, 3, 8, 8]"),
                              ({"image": image, "class": label + 5}, "and the model takes indices from 0 to 9"),
                              ({"image": image, "class": label.astype("f4")}, "it is F32, and the model takes indices"),
                              ({"image": image, "class": label[:4]}, "image has 12 rows, and class has 4"),
                              ({}, "has no samples")):
            save_file(tensors, self.folder / "images.safetensors")
            with self.subTest(said):
                done = self.call("plan", path)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(said, done.stderr)

    def test_tokens_of_a_file(self):
        """Labels are the next tokens, or a tensor of their own; each row comes once in an epoch."""
        script = """local mw = require "meshwright"
mw.train { model = mw.llama { layers = 1, hidden = 8, heads = 2, ffn = 8, vocab = %d }, data = mw.tensors "rows.safetensors", sequence = 6,
           batch = 5, optimizer = mw.sgd { lr = 0.1 }, steps = 2 }
"""
        tokens = np.arange(35).reshape(5, 7)
        save_file({"tokens": tokens.astype("i4")}, self.folder / "rows.safetensors")
        self.only("logits", self.write(script % 35), "-o", "logits.safetensors")
        found = load_file(self.folder / "logits.safetensors")
        self.assertEqual(sorted(found["tokens"][:, 0]), [0, 7, 14, 21, 28])
        np.testing.assert_array_equal(found["labels"], found["tokens"] + 1)
        short = np.ascontiguousarray(tokens[:, :6])
        save_file({"tokens": short, "labels": 34 - short}, self.folder / "rows.safetensors")
        self.only("logits", self.write(script % 35), "-o", "again.safetensors")
        found = load_file(self.folder / "again.safetensors")
        np.testing.assert_array_equal(found["labels"], 34 - found["tokens"])
        for tensors, vocab, said in (({"tokens": short}, 35, "without labels, a row has one token more"),
                                     ({"tokens": tokens}, 20, "20 ids are too few"), ({"tokens": tokens - 1}, 35, "tokens are -1 at row"),
                                     ({"tokens": tokens.astype("f4")}, 35, "tokens are F32")):
            save_file(tensors, self.folder / "rows.safetensors")
            with self.subTest(said):
                done = self.call("plan", self.write(script % vocab))
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(said, done.stderr)

    def test_noise_is_the_same_in_every_mix_and_differs_by_sample(self):
        """A loss that is the mean of an input: that of all samples, whoever loads them, and another in each step."""
        script = """local mw = require "meshwright"
local dp, pp = mw.plugins("dp", "pp")
local model = mw.model { dims = { hidden = 8, ffn = 8, classes = 5 }, inputs = { x = { "batch", "hidden" }, class = { "batch", below = "classes" } },
  graph = function(m)
    local x = m.x
    for _ in m:layers(2) do x = x + x:rms_norm():linear { "ffn", std = 0 }:linear "hidden" end
    return x:linear "classes":cross_entropy(m.class)
  end }
for _, plan in ipairs { {}, { dp(2) }, { dp(4) }, { pp(2) } } do
  mw.train { model = model, data = mw.synthetic { sequence = 1 }, plan = plan, batch = 8, microbatch = 1, steps = 3,
             precision = "fp64", optimizer = mw.sgd { lr = 1e-9 } }
end
"""
        runs = [run["losses"] for run in self.all("run", self.write(script))]
        self.assertEqual(len(set(runs[0])), 3)
        for losses in runs[1:]:
            for ours, theirs in zip(losses, runs[0]):
                self.assertAlmostEqual(ours, theirs, delta=1e-12)

    def test_what_cannot_be_is_refused(self):
        cases = [
            ('plan { image = { "batch", "patchs" } }', 2, "model.dims model.inputs.image"),
            ('plan { image = { "patches", "batch" } }', 2, "option.value model.inputs.image"),
            ('plan { image = { "batch", "batch" } }', 2, "option.value model.inputs.image"),
            ('mw.plan { model = mw.model { dims = { hidden = 16, classes = 4 }, inputs = { i = { "batch", "hidden" }, c = { "batch", below = 5 } }, '
             'graph = function(m) local x = m.i for _ in m:layers(1) do x = x:rms_norm() end return x:linear "classes":cross_entropy(m.c) end }, '
             'data = mw.synthetic { sequence = 8 }, batch = 2, steps = 1, optimizer = mw.sgd { lr = 1 } }', 2, "model.dims model.graph"),
            ('plan({ i = { "batch", "patches", "hidden" } }, function(m, x) return x + m.i:rope():mean "patches" end)', 2, "model.dims model.graph"),
            ('plan { image = 3 }', 2, "option.value model.inputs.image"),
            ('plan(5)', 2, "option.type model.inputs"),
            ('plan { tokens = { "batch", "seq" } }', 2, "model.twice model.inputs.tokens"),
            ('plan { image = { "batch", "patches", belo = 2 } }', 2, "option.unknown model.inputs.image.belo"),
            ('plan { image = { "batch", "patches", below = "none" } }', 2, "option.value model.inputs.image.below"),
            ('plan { image = { "batch", "patches" } }', 2, "model.unused model.inputs.image"),
            ('plan({ a = { "batch", "seq", below = 300 } }, function(m, x, w) return x + m.a:lookup(w) end)', 2,
             "model.dims model.graph"),
            ('plan({ a = { "batch", "seq" } }, function(m, x) return x + x:gather(m.a) end)', 2, "model.dims model.graph"),
            ('plan({ a = { "batch", "seq", below = 9 } }, function(m, x) return x + x:gather(m.a) end)', 2,
             "model.dims model.graph"),
            ('plan({ a = { "batch", "seq", below = 2 } }, function(m, x) return x + m.a end)', 2, "model.dims model.graph"),
            ("plan({}, function(m) return m.imag:linear 'hidden' end)", 2, "script.argument"),
            ('plan({ a = { "batch", "seq", below = 2 } }, function(m, x, w) return x + m.a:lookup(w) end, '
             f'mw.text {{ "{SOURCE / "README.md"}", sequence = 8 }})', 2, "data.input data"),
            ('mw.plan { model = mw.model { layers = 1, dims = { hidden = 16, vocab = 19 }, inputs = { a = { "batch", "hidden" } }, '
             'block = function(x) return x + x:mlp() end }, batch = 2, steps = 1, optimizer = mw.sgd { lr = 1 }, '
             'data = mw.synthetic { sequence = 8 } }', 2, "option.needs model.inputs"),
            ('plan({ k = { "batch", "patches", "hidden" } }, function(m, x) return x + x:linear { { "heads", "head_dim" }, '
             'name = "q" }:attend(m.k:linear { { "heads", "head_dim" }, from = "hidden", name = "k" }, '
             'm.k:linear { { "heads", "head_dim" }, from = "hidden", name = "v" }):linear "hidden" end)', 2, "model.dims model.graph"),
        ]
        self.all_refused(REFUSED, *cases)


if __name__ == "__main__":
    unittest.main(verbosity=2)
