"""Models of a script's own (mw.model): they equal one rank in every form, hold and send what is
predicted, and what cannot be is refused at its line. A llama written so is mw.llama."""

import json
import pathlib
import re
import unittest

import pages
from cases import SOURCE, TEST_PLUGINS, ProgramCase

SCRIPT = SOURCE / "scripts/own_model.lua"
MIXES = ["{ dp(2) }", "{ tp(2) }", "{ tp(4) }", "{ zero { 2, stage = 3 } }", '{ pp { 2, schedule = "1f1b" } }',
         "{ tp(2), sp() }", "{ sp(2) }", '{ sp { 2, form = "ulysses" } }', "{ dp(2), tp(2), sp() }"]
LLAMA = """
local dims = { hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 }
local own = mw.model {
  name = "llama", layers = 2, dims = dims,
  block = function(x)
    local h = x:rms_norm { name = "attention_norm" }
    local q = h:linear { to = { "heads", "head_dim" }, name = "attention.q" }
    local k = h:linear { to = { "kv_heads", "head_dim" }, name = "attention.k" }
    local v = h:linear { to = { "kv_heads", "head_dim" }, name = "attention.v" }
    q, k = q:rope { name = "attention.q_rope" }, k:rope { name = "attention.k_rope" }
    local seen = q:attend(k, v, { name = "attention" })
    x = x:add(seen:linear { to = "hidden", name = "attention.o" }, { name = "attention_add" })
    return x:add(x:rms_norm { name = "mlp_norm" }:mlp { name = "mlp" }, { name = "mlp_add" })
  end,
}
local theirs = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 }
local function e(model)
  return { model = model, data = mw.synthetic { sequence = 16 }, plan = PLAN, batch = 8, microbatch = 2, steps = 3,
           optimizer = mw.adamw { lr = 1e-3 } }
end
"""
HEAD = 'local mw = require "meshwright"\nlocal dp, tp, zero, pp, sp = mw.plugins("dp", "tp", "zero", "pp", "sp")\n'
REFUSED = HEAD + """
local function plan(block, dims, more)
  local model = { layers = 2, dims = { hidden = 16, heads = 2, vocab = 19 }, block = block }
  for key, value in pairs(dims or {}) do model.dims[key] = value end
  for key, value in pairs(more or {}) do model[key] = value end
  mw.plan { model = mw.model(model), data = mw.synthetic { sequence = 8 }, batch = 2, steps = 1,
            optimizer = mw.sgd { lr = 1 } }
end
local function whole(x) return x + x:attention() end
"""


class OwnModel(ProgramCase):
    def test_the_script_trains_as_predicted(self):
        for run in self.all("run", SCRIPT, "--set", "steps=2"):
            with self.subTest(run["plan"][:60]):
                self.sent_as_predicted(run)
                self.held_as_predicted(run, 0.02)

    def test_each_form_equals_one_rank(self):
        text = SCRIPT.read_text()
        models = text[: text.index("for _, model")].replace(
            'local dp, tp = mw.plugins("dp", "tp")', 'local dp, tp, zero, pp, sp = mw.plugins("dp", "tp", "zero", "pp", "sp")')
        mixes = ", ".join(MIXES)
        calls = f"""
for _, model in ipairs {{ parallel, differing }} do
  for n, plan in ipairs {{ {mixes} }} do
    mw.train {{ model = model, data = mw.synthetic {{ sequence = 48 }}, plan = plan, batch = 4, microbatch = 1,
                recompute = n % 2 == 0 and "full" or "none", optimizer = mw.adamw {{ lr = 1e-3 }}, steps = 2 }}
  end
end
"""
        self.assertEqual(len(self.verify_all(models + calls)), 2 * len(MIXES))

    def test_a_value_without_a_name_stands_alone_or_in_a_table(self):
        """Of each word of ops that takes one: x:experts(2), x:experts { 2 } and by its name are one model."""
        words = {("experts(2)", "experts { 2 }", "experts { top_k = 2 }"): "experts = 4, expert_ffn = 24",
                 ('mlp("ffn")', 'mlp { "ffn" }', 'mlp { width = "ffn" }'): "ffn = 24",
                 ('linear("ffn"):linear("hidden")', 'linear { "ffn" }:linear { "hidden" }',
                  'linear { to = "ffn" }:linear { to = "hidden" }'): "ffn = 24"}
        for same, dims in words.items():
            script = REFUSED + "".join(f"plan(function(x) x = whole(x) return x + x:rms_norm():{word} end, {{ {dims} }})\n"
                                       for word in same)
            with self.subTest(same[0]):
                plans = self.all("plan", "--program", self.write(script))
                self.assertEqual(len({json.dumps(plan["program"]) for plan in plans}), 1)
                self.assertEqual(len(plans), len(same))

    def test_a_llama_written_here_is_mw_llama(self):
        for plan in ["{}", "{ dp(2), tp(2), sp() }", "{ zero { 2, stage = 3 } }", "{ pp(2) }"]:
            script = HEAD + LLAMA.replace("PLAN", plan)
            with self.subTest(plan):
                self.write(script + "mw.plan(e(own)) mw.plan(e(theirs))")
                own, theirs = self.all("plan", "--program", self.folder / "script.lua")
                self.assertEqual(own["program"], theirs["program"])
                self.assertNotEqual(own["plan_hash"], "")
        own, theirs = self.all("run", self.write(HEAD + LLAMA.replace("PLAN", "{ dp(2), tp(2) }") +
                                                 "mw.train(e(own)) mw.train(e(theirs))"))
        self.assertEqual(own["losses"], theirs["losses"])

    def test_settings_reach_the_block(self):
        def planned(*settings):
            return self.all("plan", SCRIPT, *(word for s in settings for word in ("--set", s)))[1]

        four, eight, wide = planned(), planned("model.layers=8"), planned("model.dims.ffn=240")
        self.assertGreater(eight["parameters"], four["parameters"])
        self.assertGreater(wide["parameters"], four["parameters"])
        self.assertEqual(len({four["plan_hash"], eight["plan_hash"], wide["plan_hash"], planned()["plan_hash"]}), 3)

    def test_an_option_of_an_op_is_part_of_the_plan(self):
        script = REFUSED + 'plan(function(x) return x + x:rms_norm { eps = %s }:attention() end)'
        hashes = [self.only("plan", self.write(script % eps))["plan_hash"] for eps in ("1e-5", "1e-6", "1e-5")]
        self.assertEqual(hashes[0], hashes[2])
        self.assertNotEqual(hashes[0], hashes[1])

    def test_what_cannot_be_is_refused_at_its_line(self):
        cases = [
            ("plan(function(x) return x + x:rmsnorm() end)", 2, "option.choice model.block"),
            ("plan(function(x) return x + x:linear { too = 'ffn', to = 'a' } end)", 2, "option.unknown model.block"),
            ("plan(function(x) return x + x:linear 'ffn' end, { ffn = 8 })", 2, "model.dims model.block"),
            ("plan(function(x) return x:linear 'ffn' end, { ffn = 8 })", 2, "model.dims model.block"),
            ("plan(function(x) return x + x:linear 'hidden' end)", 2, "model.dims model.block"),
            ("plan(function(x) return x + x:linear 'wide' end)", 2, "model.dims model.block"),
            ("plan(function(x) local y = x:attention() end)", 2, "function.result model.block"),
            ("plan(function(x) return 1 end)", 2, "function.result model.block"),
            ("plan(function(x) x:rms_norm() return whole(x) end)", 2, "model.unused model.block"),
            ("plan(whole, { ffn = 8 })", 2, "model.unused model.dims.ffn"),
            ("plan(whole, { seq = 8 })", 2, "model.twice model.dims.seq"),
            ("plan(whole, { hidden = 'many' })", 2, "option.type model.dims.hidden"),
            ("plan(whole, { narrow = { 4, like = 'fnn' } })", 2, "model.dims model.dims.narrow"),
            ("plan(whole, { narrow = { 4, like = 'narrow' } })", 2, "model.dims model.dims.narrow"),
            ("plan(whole, { narrow = { 4, lik = 'hidden' } })", 2, "option.type model.dims.narrow"),
            ("plan(whole, { narrow = { 4, like = 3 } })", 2, "option.type model.dims.narrow"),
            ("plan(function(x) local a, b = x:split { 'a', 'b' } return x + a + b end)", 2, "model.dims model.block"),
            ("plan(function(x, layer) return whole(x) + x:experts { top_k = 1, capacity = (layer + 1) / 2 } end, "
             "{ experts = 2, expert_ffn = 8 })", 2, "option.conflict model.block"),
            ("plan(whole, {}, { block = 3 })", 2, "option.type model.block"),
            ("plan(whole, {}, { layers = 0 })", 2, "option.range model.layers"),
            ("plan(function(x) return x + x:attention { name = 'a' } + x:rms_norm { name = 'a' } end)", 2,
             "model.twice model.block"),
            ("plan(function(x) return x + x:attention { name = 'shared.a' } end)", 2, "script.argument"),
            ("plan(function(x) return x + x:attention { name = 'layers.0.a' } end)", 2, "script.argument"),
            ("plan(function(x) return x + x:swiglu() end)", 2, "script.argument"),
            ("plan(function(x) return x + 'a' end)", 2, "script.argument"),
            ("local kept; plan(function(x) kept = kept or x:rms_norm() return x + kept end)", 2, "script.argument"),
        ]
        errors = self.all_refused(REFUSED, *cases)
        first = REFUSED.count("\n") + 1
        for n, ((call, *_), error) in enumerate(zip(cases, errors)):
            if error["key"] in ("model.block", ""):  # where the block is, or the op in it
                with self.subTest(call):
                    self.assertEqual(pathlib.Path(error["file"]).name, "script.lua")
                    if "whole" not in call and "block = 3" not in call:
                        self.assertEqual(error["line"], first + n)

    def test_show_model_and_placements(self):
        shown = self.only("plugins", "show", "--model", "llama", "--set", "hidden=32")
        dims = {dim["name"]: dim for dim in shown["dims"]}
        self.assertEqual(dims["head_dim"]["size"], 8)
        self.assertEqual(dims["head_dim"]["from"], "hidden / heads")
        self.assertIn("linear", dims["ffn"]["cut_in"])
        self.assertIn("rms_norm", dims["hidden"]["whole_in"])
        q, = [p for p in shown["parameters"] if p["name"] == "layers.*.attention.q.weight"]
        self.assertEqual((q["dims"], q["shape"], q["layers"]), (["heads", "head_dim", "hidden"], [4, 8, 32], [0, 1]))
        parallel, differing = self.all("plugins", "show", "--model", SCRIPT)
        self.assertEqual((parallel["name"], differing["name"]), ("parallel", "differing"))
        narrow, = [dim for dim in differing["dims"] if dim["name"] == "narrow"]
        self.assertEqual((narrow["size"], narrow["like"]), (88, "ffn"))
        ups = [p for p in differing["parameters"] if p["name"] == "layers.*.mlp.up.weight"]
        self.assertEqual([(p["dims"], p["layers"]) for p in ups], [(["ffn", "hidden"], [0, 2]), (["narrow", "hidden"], [1, 3])])
        text = self.call("plugins", "show", "--model", "llama").stdout
        self.assertRegex(text, r"(?m)^ *layers\.\*\.mlp\.up +linear +all +\(batch, seq, hidden\), weight \(ffn, hidden\)")

        planned = self.all("plan", "--placements", SCRIPT)[1]
        stage, = planned["placements"]
        held = {p["name"]: p for p in stage["parameters"]}
        self.assertEqual(held["layers.1.mlp.up.weight"]["local"][0], [44, 64])
        self.assertIn("narrow", held["layers.1.mlp.up.weight"]["placement"])
        self.assertEqual(sum(c["ranks"] for c in stage["classes"]), 4)
        self.assertIn("who holds what", self.call("plan", "--placements", SCRIPT).stdout)
        self.refused(2, "usage.missing", "plugins", "show")

    def test_the_page_shows_what_runs(self):
        page = pages.part("models", "A model of one's own")
        scripts = [text for language, text in pages.blocks(page) if language == "lua"]
        self.assertIn(dict(pages.blocks(page))["cpp"], (SOURCE / "tests/plugins/own_model/own_model.cpp").read_text())
        whole = [script for script in scripts if "mw.verify" in script]
        self.assertGreaterEqual(len(whole), 3)
        for script in whole:
            self.assertEqual(self.only("run", self.write(script))["verdict"], "equal")
        # The others are parts of what test_models.py, test_inputs.py and test_ablations.py run.
        parts = "".join(path.read_text() for path in [*SOURCE.glob("scripts/models/*.lua"), *SOURCE.glob("scripts/ablations/*.lua"),
                                                      *SOURCE.glob("tests/cli/test_*.py")])
        for line in "".join(script for script in scripts if script not in whole).splitlines():
            self.assertIn(line.strip(), parts)
        ops = {one["name"] for line in self.all("plugins", "list") for one in line.get("brings", []) if one["kind"] == "op"}
        for op in ops - {"add", "weight"}:
            self.assertIn(f":{op}", page)

    def test_a_plugin_brings_a_model_and_an_op(self):
        script = self.write(HEAD + """local own = mw.plugins("own_model")
local e = { model = own.parallel { layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 32 }, batch = 4, steps = 2,
            data = mw.synthetic { sequence = 8 }, plan = { dp(2), tp(2) }, optimizer = mw.adamw { lr = 1e-3 } }
mw.verify(e)
e.model = mw.model { layers = 2, dims = { hidden = 16, heads = 4, ffn = 24, vocab = 32 }, block = function(x)
  local h = x:rms_norm()
  return x + h:attention() + h:linear("ffn"):squared_relu():linear "hidden"
end }
mw.verify(e)
mw.train(e)""")
        *verdicts, run = self.all("run", script, "--plugin-path", TEST_PLUGINS)
        self.assertEqual([result["verdict"] for result in verdicts], ["equal", "equal"])
        self.sent_as_predicted(run)
        script = self.write("""local mw = require "meshwright"
mw.plan { model = mw.model { layers = 1, dims = { hidden = 16, vocab = 32 },
  block = function(x) return x + x:squared_relu() end }, batch = 1, steps = 1,
  data = mw.synthetic { sequence = 8 }, optimizer = mw.sgd { lr = 1 } }""")
        self.refused(2, "option.choice model.block", "plan", script, "--plugin-path", TEST_PLUGINS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
