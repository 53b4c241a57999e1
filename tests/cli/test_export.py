"""What a run exports, by PyPI's safetensors: names, shapes and dtypes, files of a bounded size;
what an export may not
replace; and a config.json that says another model than the script's."""

import json
import os

import numpy as np
import safetensors
import safetensors.numpy

import cases

SCRIPT = """\
local mw = require "meshwright"
local tp, pp, dp, zero, ep = mw.plugins("tp", "pp", "dp", "zero", "ep")
mw.train {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 },
  data = mw.synthetic {}, sequence = 16,
  plan = {}, batch = 4,
  export = "out",
  optimizer = mw.adamw { lr = 1e-3 }, steps = 2, precision = "fp64",
}
"""
OWN = """\
local mw = require "meshwright"
mw.train {
  model = mw.model {
    name = "own", layers = 1, dims = { hidden = 16, ffn = 16, vocab = 32 },
    block = function(x) return x + x:rms_norm():mlp() end,
  },
  data = mw.synthetic {}, sequence = 8, batch = 2, export = "out", optimizer = mw.sgd { lr = 0.1 }, steps = 1,
}
"""
MIXTRAL = ("--set", "model=mw.moe { layers = 1, hidden = 32, heads = 4, ffn = 48, vocab = 64, experts = 4, top_k = 2, "
           "balance = \"bias\" }")


def tensors(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        found.update(safetensors.numpy.load_file(file))
    return found


class Export(cases.ProgramCase):
    def setUp(self):
        super().setUp()
        self.write(SCRIPT)
        self.out = self.folder / "out"

    def test_the_weight_of_a_balance_loss(self):
        """Of transformers' load_balancing_loss_func: a mean over layers, of a sum over top_k choices."""
        self.only("run", "script.lua", "--set", "model=mw.moe { layers = 3, hidden = 32, heads = 4, ffn = 48, vocab = 64, "
                  "experts = 4, top_k = 2, aux_weight = 0.01 }")
        config = json.loads((self.out / "config.json").read_text())
        self.assertAlmostEqual(config["router_aux_loss_coef"], 0.01 * 3 / 2, delta=1e-12)

    def test_every_mix_exports_the_same(self):
        self.only("run", "script.lua")
        one = tensors(self.out)
        self.assertEqual(one["model.layers.1.self_attn.k_proj.weight"].shape, (16, 32))
        with safetensors.safe_open(self.out / "model.safetensors", "numpy") as file:
            self.assertEqual(file.metadata()["format"], "pt")
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual((config["architectures"], config["dtype"]), (["LlamaForCausalLM"], "float64"))
        for plan in ("{pp(2), tp(2)}", "{zero{4, stage=3}}", '{zero{2, stage=1}, pp{2, schedule="zbv", chunks=2}}'):
            settings = ["--set", f"plan={plan}", "--set", "overwrite=true", "--set", 'export={path="out", shard="9KB"}']
            if "zbv" in plan:
                settings += ["--set", "model.layers=4"]
                self.only("run", "script.lua", "--set", "model.layers=4", "--set", "overwrite=true")
                one = tensors(self.out)
            self.only("run", "script.lua", *settings)
            index = json.loads((self.out / "model.safetensors.index.json").read_text())
            many = tensors(self.out)
            self.assertEqual(set(index["weight_map"]), set(many))
            self.assertEqual(index["metadata"]["total_size"], sum(a.nbytes for a in many.values()))
            for file in set(index["weight_map"].values()):
                held = safetensors.numpy.load_file(self.out / file)
                self.assertTrue(len(held) == 1 or sum(a.nbytes for a in held.values()) <= 9000, file)
            self.assertEqual(set(many), set(one))
            worst = max(np.abs(many[name] - one[name]).max() for name in one)
            self.assertLessEqual(worst, 1e-10, plan)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith(".")], [])

    def test_dtypes(self):
        self.only("run", "script.lua", "--set", "precision=bf16", "--set", 'export={path="out", dtype="fp32"}')
        masters = tensors(self.out)["model.norm.weight"]
        self.assertEqual(masters.dtype, np.float32)
        self.assertTrue((masters.view(np.uint32) & 0xFFFF).any())  # more than bf16 holds: the optimizer's own
        self.assertEqual(json.loads((self.out / "config.json").read_text())["dtype"], "float32")

    def test_numbers_that_a_dtype_cannot_hold(self):
        error = self.refused(1, "export.range export.dtype", "run", "script.lua", "--set", "optimizer=mw.sgd { lr = 1e9 }",
                             "--set", "steps=1", "--set", 'export={path="out", dtype="fp16"}')
        self.assertRegex(error["message"], r"\S+weight has numbers of up to \S+, which are infinite")
        self.assertFalse(self.out.exists())

    def test_what_is_there_is_not_replaced(self):
        self.only("run", "script.lua")
        self.only("run", "script.lua")  # its own
        self.out.joinpath("mine.txt").write_text("mine")
        done = self.call("run", "script.lua", "--json", "--set", "seed=1")
        self.assertEqual(done.returncode, 2, done.stderr)
        error, = [line for line in self.lines(done) if line["kind"] == "error"]
        self.assertEqual((error["code"], error["key"]), ("export.taken", "export"))
        self.assertTrue(self.out.joinpath("mine.txt").exists())
        done = self.call("run", "script.lua", "--json", "--set", "export.size=3")
        self.assertEqual(done.returncode, 2)

    def test_a_model_that_transformers_lack(self):
        for script, words, name in ((OWN, "no model of this kind", "layers.0.mlp.up.weight"),
                                    (SCRIPT, "chooses without a bias", "model.norm.weight")):
            self.write(script)
            more = MIXTRAL if script is SCRIPT else ()
            done = self.call("run", "script.lua", "--set", "overwrite=true", *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("no config.json", done.stderr)
            self.assertIn(words, done.stderr)
            self.assertFalse((self.out / "config.json").exists())
            self.assertIn(name, tensors(self.out))

    def test_a_key_that_lacks_is_the_default_of_its_model_type(self):
        model = ("--set", "model=mw.moe { layers = 1, hidden = 32, heads = 4, ffn = 48, vocab = 64, experts = 4, top_k = 2 }")
        self.only("run", "script.lua", *model)
        given = (*model, "--set", "weights=out", "--set", "export=nil")
        whole = json.loads((self.out / "config.json").read_text())
        for gone, said in (("num_key_value_heads", "which means 8, and the model has kv_heads = 4"),
                           ("rms_norm_eps", None), ("num_experts_per_tok", None)):
            config = {key: value for key, value in whole.items() if key != gone}
            (self.out / "config.json").write_text(json.dumps(config))
            done = self.call("plan", "script.lua", *given)
            self.assertEqual(done.returncode, 2 if said else 0, done.stderr)
            self.assertIn(said or "", done.stderr)
        for more, said in (({"layer_types": ["full_attention", "sliding_attention"]}, 'layer_types has "sliding_attention"'),
                           ({"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}, "a table for each kind of layer")):
            (self.out / "config.json").write_text(json.dumps({**whole, **more}))
            done = self.call("plan", "script.lua", *given)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)

    def test_config_of_another_model(self):
        self.only("run", "script.lua")
        given = ("--set", "weights=out", "--set", "export=nil")
        self.only("plan", "script.lua", *given)
        config = json.loads((self.out / "config.json").read_text())
        config["num_hidden_layers"] = 3
        config["rope_parameters"]["rope_theta"] = 5e5
        config["rms_norm_eps"] = 1e-6
        config["tie_word_embeddings"] = True
        (self.out / "config.json").write_text(json.dumps(config))
        done = self.call("plan", "script.lua", "--json", *given)
        errors = [line for line in self.lines(done) if line["kind"] == "error"]
        self.assertEqual({(e["code"], e["key"]) for e in errors}, {("weights.config", "weights")})
        said = "\n".join(e["message"] for e in errors)
        for both in ("num_hidden_layers is 3, and the model has layers = 2", "rope_theta is 500000.0", "10000.0",
                     "rms_norm_eps is 1e-06", "1e-05", "tie_word_embeddings is true, and the model has tied = false"):
            self.assertIn(both, said)
        self.assertIn("layers = 3", [e["hint"] for e in errors])

    def test_a_script_says_what_its_model_is_called(self):
        """The keys of hf.config are written, and compared; other tensors may be there if the script says so."""
        own = OWN.replace("block =", """hf = { type = "owl", architecture = "OwlForCausalLM", without = { "pooler." },
           config = { hidden_size = 16, text_config = { beaks = { 1, 2 }, eps = 1e-12 } } },
    block =""")
        self.write(own)
        self.only("run", "script.lua")
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual((config["model_type"], config["architectures"], config["hidden_size"], config["text_config"]),
                         ("owl", ["OwlForCausalLM"], 16, {"beaks": [1, 2], "eps": 1e-12}))
        found = tensors(self.out)
        given = ("--set", "weights=out", "--set", "export=nil")
        safetensors.numpy.save_file({**found, "pooler.weight": found["norm.weight"]}, self.out / "model.safetensors")
        self.only("plan", "script.lua", *given)
        safetensors.numpy.save_file({**found, "other.weight": found["norm.weight"]}, self.out / "model.safetensors")
        self.assertIn("no place for 1 tensors", self.call("plan", "script.lua", *given).stderr)
        config["text_config"]["eps"] = 1e-6
        (self.out / "config.json").write_text(json.dumps(config))
        done = self.call("plan", "script.lua", *given)
        self.assertEqual(done.returncode, 2)
        self.assertIn("text_config.eps is 1e-06, and the model own has 1e-12", done.stderr)
        (self.out / "config.json").write_text(json.dumps({**config, "model_type": "crow"}))
        self.assertIn('model_type is "crow", and the model own is owl', self.call("plan", "script.lua", *given).stderr)
        for was, wrong, code in (('"owl"', "3", "option.type"), ("without", "besides", "option.unknown"),
                                 ('{ "pooler." }', "{ 3 }", "option.type"), ('type = "owl",', "", "option.missing")):
            with self.subTest(wrong):
                self.write(own.replace(was, wrong, 1))
                lines = self.lines(self.call("plan", "script.lua", "--json"))
                self.assertEqual([line["code"] for line in lines if line["kind"] == "error"], [code])

    NAMED = """\
local mw = require "meshwright"
local model = mw.model { name = "named", dims = { hidden = 16, heads = 4, ffn = 16, vocab = 32, experts = 2, expert_ffn = 16 },
  hf = { type = "named", architecture = "Named", config = { eps = 1.0, many = 2 } },
  graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local x = m.tokens:lookup(w)
    for _ in m:layers(2) do
      x = x * x:linear { "heads", name = "gate", hf = "l.{}.gate.weight" }:sum "heads"
      local a, b = x:linear { "ffn", name = "a", %s }, x:linear { "ffn", name = "b", %s }
      x = x + (a * b):linear { "hidden", name = "c" }
      local rows, places, weights = x:route { 1 }
      rows = (rows:expert_linear { "expert_ffn", name = "up", hf = "l.{}.e.{}.up", hf_transposed = true } * weights)
      x = x + rows:expert_linear { "hidden", name = "down" }:combine(places)
    end
    return x:linear { w }:cross_entropy(m.labels)
  end }
mw.train { model = model, data = mw.synthetic {}, sequence = 8, batch = 2, export = "out", optimizer = mw.sgd { lr = 1e-30 }, steps = 1 }
"""

    def test_names_of_tensors(self):
        """What is exported is read again, as it was; names that cannot be are refused before the run."""
        half = ('hf = "l.{}.ab", hf_part = { 1, 2 }, hf_interleaved = true', 'hf = "l.{}.ab", hf_part = { 2, 2 }, hf_interleaved = true')
        self.write(self.NAMED % half)
        self.only("run", "script.lua")
        before = tensors(self.out)
        self.assertEqual({name: list(tensor.shape) for name, tensor in before.items() if name.startswith("l.0")},
                         {"l.0.gate.weight": [4, 16], "l.0.ab": [32, 16], "l.0.e.0.up": [16, 16], "l.0.e.1.up": [16, 16]})
        self.assertIn('"eps": 1.0,', (self.out / "config.json").read_text())
        self.only("run", "script.lua", "--set", "weights=out", "--set", "export=again")
        after = tensors(self.folder / "again")
        for name, tensor in before.items():
            self.assertEqual(np.abs(tensor - after[name]).max(), 0, name)
        for a, b, words in (('hf = "l.x"', 'hf = "l.y"', "and of layers.1.a.weight too"), ('hf = "l.{}.x"', 'hf = "l.{}.x"', "and of layers.0.b.weight too"),
                            (half[0], 'hf = "l.{}.b"', "1 of its 2 parts are there"), (half[0], half[0], "1 of its 2 parts are there"),
                            (half[0], half[1].replace(", hf_interleaved = true", ""), "its parts differ")):
            with self.subTest(a=a, b=b):
                self.write(self.NAMED % (a, b))
                done = self.call("plan", "script.lua", "--json")
                errors = [line for line in self.lines(done) if line["kind"] == "error"]
                self.assertEqual({error["code"] for error in errors}, {"weights.names"}, done.stderr)
                self.assertIn(words, errors[0]["message"])

    def test_options_that_need_another_one(self):
        for text, key in (('x:linear { "hidden", hf_part = { 1, 2 } }', "hf_part"), ('x:linear { "hidden", hf_interleaved = true }', "hf_interleaved"),
                          ('x:linear { "hidden", hf_transposed = true }', "hf_transposed"),
                          ('x:linear { { "heads", "head_dim" } }:rope { theta = 10, angles = { 1, 1 } }', "theta")):
            with self.subTest(text):
                self.write('local mw = require "meshwright"\nlocal model = mw.model { dims = { hidden = 16, heads = 4, vocab = 32 }, layers = 1,\n'
                           f"  block = function(x) local y = {text} return x end }}\nmw.plan {{ model = model, data = mw.synthetic {{}}, "
                           "sequence = 8, batch = 2, optimizer = mw.sgd { lr = 1 }, steps = 1 }")
                error = self.lines(self.call("plan", "script.lua", "--json"))[0]
                self.assertEqual((error["code"], error["line"]), ("option.value", 3), error)
                self.assertIn(key, error["message"])

    def test_angles_of_longer_sequences(self):
        """Types and keys of rope_scaling are checked, written, and compared with those of a config.json."""
        scaling = '{ type = "yarn", factor = 4, original_max_position_embeddings = 8 }'
        self.only("run", "script.lua", "--set", f"model.rope_scaling={scaling}")
        config = json.loads((self.out / "config.json").read_text())["rope_parameters"]
        self.assertEqual((config["rope_type"], config["factor"], config["beta_fast"], config["truncate"]), ("yarn", 4, 32, True))
        given = ("--set", "weights=out", "--set", "export=nil")
        self.only("plan", "script.lua", *given, "--set", f"model.rope_scaling={scaling}")
        said = self.call("plan", "script.lua", *given, "--set", f"model.rope_scaling={scaling.replace('4', '8', 1)}").stderr
        self.assertIn("rope_parameters.factor is 4, and the model has rope_scaling.factor = 8", said)
        whole = json.loads((self.out / "config.json").read_text())
        for more, words in (({"attention_factor": 0.5}, "attention_factor is 0.5, and the model has rope_scaling.attention_factor"),
                            ({"beta_fast": None}, ""), ({"mscale": None}, ""), ({"mscale_all_dim": 1.0}, "mscale_all_dim is 1.0")):
            (self.out / "config.json").write_text(json.dumps({**whole, "rope_parameters": {**config, **more}}))
            done = self.call("plan", "script.lua", *given, "--set", f"model.rope_scaling={scaling}")
            self.assertEqual(done.returncode, 2 if words else 0, done.stderr)
            self.assertIn(words, done.stderr)
        del whole["rope_parameters"]["original_max_position_embeddings"]
        (self.out / "config.json").write_text(json.dumps(whole))
        said = self.call("plan", "script.lua", *given, "--set", f"model.rope_scaling={scaling}").stderr
        self.assertIn("original_max_position_embeddings is not there", said)
        said = self.call("plan", "script.lua", *given).stderr
        self.assertIn('rope_type is "yarn", and the model has rope_scaling.type = "default"', said)
        for wrong, words in (('{ type = "linear" }', "linear needs factor"), ('{ factor = 2 }', "its type is nil"),
                             ('{ type = "ntk", factor = 2 }', "types: default, linear, llama3, yarn"),
                             ('{ type = "linear", factor = 0 }', "factor is 0"),
                             ('{ type = "linear", factor = "8" }', 'factor is "8"'),
                             ('{ type = "yarn", factor = 4, original_max_position_embeddings = 8, beta_fast = 1, beta_slow = 2 }',
                              "beta_slow = 2 is not below beta_fast = 1"),
                             ('{ type = "linear", factor = 2, beta_fast = 2 }', "linear has no beta_fast")):
            with self.subTest(wrong):
                done = self.call("plan", "script.lua", "--set", "export=nil", "--set", f"model.rope_scaling={wrong}")
                self.assertEqual(done.returncode, 2)
                self.assertIn(words, done.stderr)

    def taken(self, code, *settings):
        done = self.call("run", "script.lua", "--json", *settings)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual([(line["code"], line["key"]) for line in self.lines(done) if line["kind"] == "error"], [(code, "export")])

    def test_an_export_goes_behind_a_link_and_replaces_no_working_directory(self):
        (self.folder / "disk").mkdir()
        self.out.symlink_to("disk/weights")
        for _ in range(2):
            self.only("run", "script.lua")
            self.assertTrue(self.out.is_symlink())
            self.assertTrue((self.folder / "disk/weights/model.safetensors").exists())
        (self.folder / "here").symlink_to(".")
        for path in (".", "..", "./", "here", str(self.folder), "/"):
            self.taken("export.folder", "--set", f'export="{path}"')

    def test_one_run_at_a_time_exports_to_a_folder(self):
        script = SCRIPT + "-- the same folder, while the first run has it\n"
        inner = "script2.lua"
        (self.folder / inner).write_text(SCRIPT)
        self.write(script.replace('export = "out",', 'export = "out", observe = function(step) if step == 1 then '
                   f'os.execute("{cases.BIN} run {inner} --json > inner.txt 2>&1") end end,'))
        self.only("run", "script.lua")
        said = (self.folder / "inner.txt").read_text()
        self.assertIn("export.in-use", said)
        self.assertIn("model.norm.weight", tensors(self.out))
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith(".")], [])

    def test_every_file_of_weights_has_to_be_its_own(self):
        shards = ("--set", 'export={path="out", shard="9KB"}')
        self.only("run", "script.lua", *shards)
        own = sorted(self.out.glob("*.safetensors"))
        safetensors.numpy.save_file({"x": np.zeros(3)}, own[-1])
        other = own[-1].read_bytes()
        self.taken("export.taken", *shards)
        self.assertEqual(own[-1].read_bytes(), other)
        self.only("run", "script.lua", *shards, "--set", "overwrite=true")
        self.only("run", "script.lua", *shards)

    def test_a_config_that_no_export_wrote_stays(self):
        self.write(OWN)
        self.only("run", "script.lua")
        (self.out / "config.json").write_text("mine")
        self.only("run", "script.lua")
        self.assertEqual((self.out / "config.json").read_text(), "mine")

    def test_only_what_an_export_writes_takes_its_folder(self):
        """Checkpoints and an export may have one folder; a tokenizer may be somebody's."""
        self.only("run", "script.lua", "--set", 'checkpoint={path="out/kept", every=1}')
        self.assertTrue((self.out / "model.safetensors").exists())
        self.assertEqual(len(list((self.out / "kept").glob("step-*"))), 2)
        for name in ("tokenizer.json", "config.json"):
            (self.folder / "mine").mkdir(exist_ok=True)
            (self.folder / "mine" / name).write_text("{}")
            self.taken("export.taken", "--set", 'export="mine"')
            (self.folder / "mine" / name).unlink()

    def test_nobody_writes_in_the_folder_when_it_is_replaced(self):
        """The checkpoint of the last step, which is written beside the steps, and the run file are whole."""
        for _ in range(4):
            result = self.only("run", "script.lua", "--set", 'checkpoint={path="out/kept", every=1}', "--set", 'log="out/run.h5"')
            self.assertEqual(result["status"], "done")
            last = max(self.folder.glob("out/kept/step-*"))
            self.assertEqual(int(last.name.rpartition("-")[2]), result["steps"])
            self.assertTrue((last / "index.json").exists())
            self.assertFalse(list(self.folder.glob("out/kept/.*.writing")))
            self.assertEqual(self.only("runs", "list", "out/run.h5")["status"], "done")

    def test_a_config_that_cannot_be_read_is_refused(self):
        self.only("run", "script.lua")
        config = self.out / "config.json"
        text = json.loads(config.read_text())
        given = ("--set", "weights=out", "--set", "export=nil")
        config.write_text(json.dumps({**text, "is_causal": False}))
        self.assertIn("is_causal is false", self.call("plan", "script.lua", *given).stderr)
        config.write_text(json.dumps({**text, "is_causal": True}))
        self.only("plan", "script.lua", *given)
        for make, word in ((lambda: config.symlink_to("gone"), "a link that leads nowhere"), (config.mkdir, "a folder"),
                           (lambda: os.mkfifo(config), "a named pipe")):
            config.rmdir() if config.is_dir() else config.unlink()
            make()
            with self.subTest(word):
                done = self.call("plan", "script.lua", *given)
                self.assertEqual(done.returncode, 2)
                self.assertIn("config.json: it is " + word, done.stderr)

    def test_what_is_wrong_with_a_config_and_an_index_is_told_at_once(self):
        self.only("run", "script.lua", "--set", 'export={path="out", shard="9KB"}')
        config, index = self.out / "config.json", self.out / "model.safetensors.index.json"
        config.write_text(json.dumps({key: value for key, value in json.loads(config.read_text()).items() if key != "model_type"}))
        whole = json.loads(index.read_text())
        index.write_text(json.dumps({"weight_map": {**whole["weight_map"], "model.none.weight": "model-00001-of-00002.safetensors"}}))
        done = self.call("plan", "script.lua", "--set", "weights=out", "--set", "export=nil")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("does not say the model_type", done.stderr)
        self.assertIn('"model.none.weight"', done.stderr)

    def test_weights_that_are_not_finite_are_refused_with_their_name(self):
        self.only("run", "script.lua")
        given = ("--set", "weights=out", "--set", "export=nil")
        name = "model.layers.1.self_attn.k_proj.weight"
        whole = tensors(self.out)
        for number, words in ((np.nan, "NaN"), (np.inf, "infinite")):
            wrong = {key: value.copy() for key, value in whole.items()}
            wrong[name][3, 5] = number
            safetensors.numpy.save_file(wrong, self.out / "model.safetensors")
            for verb, more in (("logits", ("-o", "logits.safetensors")), ("run", ("--set", "on_nan=continue")), ("verify", ()),
                               ("run", ("--set", "plan={zero{2, stage=3}, tp(2)}"))):
                with self.subTest(verb=verb, words=words):
                    error = self.refused(2, "weights.not-finite weights", verb, "script.lua", *given, *more)
                    self.assertIn(name, error["message"])
                    self.assertIn(words, error["message"])
            self.assertFalse((self.folder / "logits.safetensors").exists())

    def test_logits_that_are_not_finite_are_no_file(self):
        self.only("run", "script.lua")
        large = tensors(self.out)
        large["model.norm.weight"][:] = 6e4
        safetensors.numpy.save_file(large, self.out / "model.safetensors")
        given = ("--set", "weights=out", "--set", "export=nil", "-o", "logits.safetensors")
        self.only("logits", "script.lua", *given)
        (self.folder / "logits.safetensors").unlink()
        large["lm_head.weight"][:] = 6e4
        safetensors.numpy.save_file(large, self.out / "model.safetensors")
        self.refused(1, "logits.not-finite", "logits", "script.lua", *given, "--set", "precision=fp16")
        self.assertFalse((self.folder / "logits.safetensors").exists())

    def test_logits_do_not_depend_on_the_mix(self):
        def logits(*settings):
            self.only("logits", "script.lua", "-o", "logits.safetensors", *settings)
            return safetensors.numpy.load_file(self.folder / "logits.safetensors")
        one = logits()
        self.assertEqual(one["logits"].shape, (4, 16, 64))
        for plan in ("{dp(2), tp(2)}", "{pp(2), zero{2, stage=3}}"):
            other = logits("--set", f"plan={plan}", "--set", "microbatch=1")
            np.testing.assert_array_equal(other["tokens"], one["tokens"])
            self.assertLessEqual(np.abs(other["logits"] - one["logits"]).max(), 1e-10)
        self.assertFalse(self.out.exists())  # nothing is trained, and nothing exported

    def test_a_checkpoint_exports_what_its_run_does(self):
        """Of slices that other mixes cut: dense weights and experts, whole files and small ones."""
        for plan, model in (("{pp(2), zero{2, stage=2}}", ()), ("{zero{2, stage=3}, ep(2)}", MIXTRAL)):
            with self.subTest(plan):
                self.only("run", "script.lua", "--set", f"plan={plan}", *model, "--set", 'checkpoint={path="kept"}',
                          "--set", "overwrite=true")
                own = tensors(self.out)
                result = self.only("export", "kept", "-o", "again", "--overwrite", "--shard", "9KB")
                self.assertEqual((result["kind"], result["step"]), ("export", 2))
                again = tensors(self.folder / "again")
                self.assertEqual(set(again), set(own))
                for tensor, values in own.items():
                    np.testing.assert_array_equal(again[tensor], values, tensor)
                # Of the experts with their biases there is none, of both.
                written = {folder: json.loads((self.folder / folder / "config.json").read_text()) for folder in ("out", "again")
                           if (self.folder / folder / "config.json").exists()}
                self.assertIn(len(written), (0, 2))
                self.assertEqual(written.get("again"), written.get("out"))
                self.assertEqual(bool(written), not model)
                self.assertGreater(len(list((self.folder / "again").glob("*.safetensors"))), 1)
        self.only("export", "kept/step-00000002", "-o", "half", "--dtype", "fp16")
        name = "model.embed_tokens.weight"
        np.testing.assert_array_equal(tensors(self.folder / "half")[name], own[name].astype(np.float16))
        self.refused(2, "checkpoint.missing", "export", "nowhere", "-o", "out")


if __name__ == "__main__":
    cases.unittest.main(verbosity=2)
