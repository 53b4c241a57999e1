"""Rows of several documents, none of which sees another: each mix equals one rank, each row equals
its documents one by one, and transformers with a dense mask; policies that pack them; what cannot
be right."""

import json
import unittest

import numpy as np
import safetensors.numpy
from cases import ProgramCase

import hf

SCRIPT = """local mw = require "meshwright"
local dp, tp, pp, zero, sp, ep = mw.plugins("dp", "tp", "pp", "zero", "sp", "ep")
-- The loss of the next token, and that of the one after it by a layer more.
local function losses(m, w, x)
  local y = x
  for _ in m:layers(1) do y = y + m.labels:lookup(w); y = y + y:rms_norm():mlp() end
  return { x:rms_norm():linear { w }:cross_entropy(m.labels),
    y:rms_norm():linear { w }:cross_entropy(m.labels:shift(1), { weight = 0.3 }) }
end
-- Every op along the sequence: attention with a window, unfused, of all tokens, with distances; a convolution, scans; labels further on.
local function all(layers)
  return mw.model { name = "all", dims = { hidden = 32, heads = 4, head_dim = 8, state = 8, ffn = 48, vocab = 64, experts = 2, expert_ffn = 16,
    buckets = 8, places = 64 }, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local x = m.tokens:lookup(w):add_positions(m:weight { "places", "places", "hidden" })
    for layer in m:layers(layers) do
      local h = x:rms_norm()
      local function heads(name) return h:linear { { "heads", "head_dim" }, name = name } end
      local q, k, v
      if layer % 4 ~= 0 then v = heads "v" end
      if layer % 4 == 1 or layer % 4 == 2 then q, k = heads "q", heads "k" end
      if layer % 4 == 1 then
        x = x + q:rope():attend(k:rope(), v, { window = 7 }):linear "hidden"
      elseif layer % 4 == 2 then
        local bias = m.positions:distance { buckets = 8, causal = false }:lookup(m:weight { "bias", "buckets", "heads" })
        x = x + q:attend(k, v, bias, { softcap = 20, biased = true, causal = false }):linear "hidden"
      elseif layer % 4 == 3 then
        local function part(name) return h:linear { { "heads", "state" }, name = name }:conv { 4, name = name .. "_conv" } end
        local decay = -h:linear { "heads", name = "decay" }:softplus()
        x = x + part "kq":scan(part "kk", v:conv { 3, name = "v_conv" }, decay, { chunk = 5 }):linear "hidden"
      else
        x = x + h:experts(1)
      end
      x = x + x:rms_norm():mlp()
    end
    return losses(m, w, x)
  end }
end
"""


EXPERIMENT = """
local function experiment(model, plan, more)
  local all = { model = model, sequence = 32, plan = plan, batch = 16, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 2,
    data = mw.pack { mw.synthetic { masked = 0.3 }, lengths = mw.lognormal { median = 6, sigma = 1 }, into = "balanced" } }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end
local llama = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 }
"""
MIXES = ["{ dp(2) }", "{ tp(2), sp() }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" }, dp(2) }',
         '{ pp { 2, schedule = "zbv" }, tp(2) }', '{ pp { 2, schedule = "dualpipev", weave = "switch" }, zero { 2, stage = 2 } }', "{ zero(2), ep(2) }",
         '{ sp { 2, form = "allgather" }, tp(2) }', '{ sp { 2, form = "ulysses" } }', '{ sp { 2, form = "allgather", balance = "none" }, dp(2) }']
RINGS = ['{ sp { 2, form = "ring" } }', '{ sp { 4, form = "ring", ulysses = 2 } }', '{ sp { 2, form = "ring", balance = "none" }, zero(2) }',
         '{ pp { 2, schedule = "zb-h1" }, sp { 2, form = "ring" } }']
# Ops that have a form where documents are parted over ranks: learned and rotary positions, windows,
# experts with a capacity and a balancing loss, labels further on; and, with all keys of a query,
# attention that is not fused.
PARTED = """
local function parted(unfused)
  return mw.model { name = "parted", dims = { hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, ffn = 48, vocab = 64, experts = 4, expert_ffn = 16,
    places = 64 }, graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local x = m.tokens:lookup(w):add_positions(m:weight { "places", "places", "hidden" })
    for layer in m:layers(3) do
      local h = x:rms_norm()
      local q, k, v = h:linear { { "heads", "head_dim" }, name = "q" }:rope(), h:linear { { "kv_heads", "head_dim" }, name = "k" }:rope(),
        h:linear { { "kv_heads", "head_dim" }, name = "v" }
      local options = layer == 1 and { window = 5 } or layer == 2 and unfused and { softcap = 20, window = 6 } or {}
      if layer == 0 and unfused then options = { softcap = 30, causal = false } end
      x = x + q:attend(k, v, options):linear "hidden"
      h = x:rms_norm()
      if layer == 2 then x = x + h:experts { top_k = 2, capacity = 1.2, aux_weight = 0.1 } else x = x + h:mlp() end
    end
    return losses(m, w, x)
  end }
end
"""
PARTED_RINGS = ['{ sp { 2, balance = "documents" } }', '{ sp { 3, balance = "documents" }, tp(2) }', '{ sp { 4, ulysses = 2, balance = "documents" } }',
                '{ pp { 2, schedule = "zbv" }, sp { 2, balance = "documents" } }', '{ zero { 2, stage = 3 }, sp { 2, balance = "documents" } }',
                '{ zero(2), ep(2), sp { 2, balance = "documents" } }']
PARTED_GATHERS = ['{ sp { 2, form = "allgather", balance = "documents" } }', '{ sp { 4, form = "allgather", ulysses = 2, balance = "documents" } }',
                  '{ sp { 3, form = "allgather", balance = "documents" }, tp(2), sp() }']
ONE_BY_ONE = SCRIPT + """
mw.train { model = all(4), precision = "fp64", optimizer = mw.sgd { lr = 0.1 }, steps = 2, plan = {}, DATA }
"""
TORCH = """local mw = require "meshwright"
local dp, tp, pp, zero, sp = mw.plugins("dp", "tp", "pp", "zero", "sp")
mw.train {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64, norm_eps = 1e-6 }, weights = "theirs",
  data = mw.shards { "tokens.bin", dtype = "u8", documents = "lengths.csv", mask = "mask.csv", order = "sequential" }, sequence = 16, precision = "fp64",
  plan = %s, batch = 8, microbatch = 2, optimizer = mw.sgd { lr = 1e-30 }, steps = 8 }
"""


class Documents(ProgramCase):
    def test_each_mix_equals_one_rank(self):
        calls = [f"mw.verify(experiment(all(4), {mix}))\n" for mix in MIXES] + [f"mw.verify(experiment(llama, {mix}))\n" for mix in RINGS]
        self.verify_all(SCRIPT + EXPERIMENT + "".join(calls))

    def test_documents_parted_over_ranks_equal_one_rank(self):
        mixes = [("parted()", mix) for mix in PARTED_RINGS] + [("parted(true)", mix) for mix in PARTED_GATHERS]
        self.verify_all(SCRIPT + EXPERIMENT + PARTED + "".join(f"mw.verify(experiment({model}, {mix}))\n" for model, mix in mixes))
        calls = "".join(f"mw.prove(experiment({model}, {mix}))\n" for model, mix in mixes)
        proofs = self.all("prove", self.write(SCRIPT + EXPERIMENT + PARTED + calls))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * len(mixes))
        calls = "".join(f"mw.train(experiment(llama, {mix}))\n" for mix in PARTED_RINGS[:5] + PARTED_GATHERS)  # no experts, whose rows are supposed
        for run in self.all("run", self.write(SCRIPT + EXPERIMENT + calls)):
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)

    def test_documents_parted_over_ranks_give_these_equal_work(self):
        """And the logits of rows are as they are on one rank."""
        script = SCRIPT + EXPERIMENT + """local function run(plan) return experiment(llama, plan, { sequence = 1024, batch = 4, microbatch = 1, steps = 1,
          data = mw.pack { mw.synthetic {}, lengths = mw.lognormal { median = 200, sigma = 1 } } }) end
          """
        plans = self.all("plan", self.write(script + "".join(f'mw.plan(run {{ sp {{ 4, balance = "{by}" }} }})\n' for by in ("zigzag", "documents"))))
        zigzag, parted = (plan["documents"]["imbalance"]["context"] for plan in plans)
        self.assertTrue(zigzag > 1.1 and parted < 1.05, (zigzag, parted))
        logits = []
        for plan in ("{}", '{ sp { 4, balance = "documents" } }'):
            self.only("logits", self.write(script + f"mw.train(run {plan})"), "-o", "logits.safetensors")
            logits.append(safetensors.numpy.load_file(self.folder / "logits.safetensors"))
        self.assertTrue((logits[0]["tokens"] == logits[1]["tokens"]).all())
        np.testing.assert_allclose(logits[1]["logits"], logits[0]["logits"], atol=1e-4)

    def test_they_are_proved_and_hold_and_send_what_is_predicted(self):
        proofs = self.all("prove", self.write(SCRIPT + EXPERIMENT + "".join(f"mw.prove(experiment(all(4), {mix}))\n" for mix in MIXES)))
        self.assertEqual([proof["verdict"] for proof in proofs], ["proved"] * len(MIXES))
        calls = "".join(f"mw.train(experiment(llama, {mix}))\n" for mix in ("{}", *MIXES[:3], *RINGS))
        for run in self.all("run", self.write(SCRIPT + EXPERIMENT + calls)):
            with self.subTest(run["plan"]):
                self.sent_as_predicted(run)

    def test_rows_equal_their_documents_one_by_one(self):
        """24 tokens of three documents are three rows of 8 tokens, for every op along the sequence and for the balancing loss."""
        random = np.random.default_rng(0)
        tokens, labels = random.integers(0, 64, (48, 8)), random.integers(0, 64, (48, 8))
        save = lambda name, rows, ids: safetensors.numpy.save_file({"tokens": rows.copy(), "labels": ids.copy()}, self.folder / name)
        save("rows.safetensors", tokens.reshape(16, 24), labels.reshape(16, 24))
        labels[:, -1] = -1
        save("alone.safetensors", tokens, labels)
        rows = ('data = mw.pack { mw.tensors { "rows.safetensors", order = "sequential" }, lengths = 8 }, sequence = 24, batch = 8, microbatch = 2',
                'data = mw.tensors { "alone.safetensors", order = "sequential" }, sequence = 8, batch = 24, microbatch = 6')
        packed, alone = (self.only("run", self.write(ONE_BY_ONE.replace("DATA", data))) for data in rows)
        for name in ("losses", "grad_norms"):
            for a, b in zip(packed[name], alone[name]):
                self.assertLess(abs(a - b) / abs(b), 1e-13)

    def test_losses_and_norms_are_those_of_transformers(self):
        """Eight packings, with prompts that count nothing, a microbatch and a rank in which no label counts."""
        torch, model = hf.small_llama(self.folder / "theirs")
        random = np.random.default_rng(1)
        tokens = random.integers(0, 64, 64 * 16 + 2)  # one more than the labels of 8 steps of 8 rows need
        lengths = []
        while sum(lengths) < len(tokens):
            lengths.append(min(int(random.lognormal(2, 1)) + 1, len(tokens) - sum(lengths)))
        ends = np.cumsum(lengths)
        counts = np.ones(len(tokens), bool)
        for begin, length in zip(ends - lengths, lengths):
            counts[begin:begin + random.integers(0, length + 1)] = False
        counts[128:193] = False                                   # the first microbatch of both ranks in the second step
        for row in range(16, 24):                                 # the first rank of dp in the third: rows 0, 1 of each four
            if row % 4 < 2: counts[16 * row + 1:16 * row + 17] = False
        tokens.astype(np.uint8).tofile(self.folder / "tokens.bin")
        (self.folder / "lengths.csv").write_text("length\n" + "".join(f"{n}\n" for n in lengths))
        off = np.flatnonzero(~counts)
        (self.folder / "mask.csv").write_text("begin,end\n" + "".join(f"{at},{at + 1}\n" for at in off))
        document = np.searchsorted(ends, np.arange(len(tokens)), side="right")
        losses, norms = [], []
        for step in range(8):
            at = 128 * step + np.arange(128).reshape(8, 16)
            own, ids = document[at], np.where(counts[at + 1] & (document[at + 1] == document[at]), tokens[at + 1], -100)
            seen = (own[:, :, None] == own[:, None, :]) & np.tri(16, dtype=bool)
            mask = torch.where(torch.from_numpy(seen), 0.0, -torch.inf).double()[:, None]
            first = np.array([[np.flatnonzero(row == d)[0] for d in row] for row in own])
            model.zero_grad()
            logits = model(torch.from_numpy(tokens[at]), attention_mask=mask, position_ids=torch.from_numpy(np.arange(16) - first)).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 64), torch.from_numpy(ids).reshape(-1))
            loss.backward()
            losses.append(loss.item())
            norms.append(sum(p.grad.square().sum().item() for p in model.parameters()) ** 0.5)
        worst = 0
        for mix in ("{}", "{ dp(2) }", '{ pp { 2, schedule = "zb-h1" }, dp(2) }', "{ zero { 2, stage = 3 }, tp(2) }", '{ sp { 2, form = "ring" } }'):
            run = self.only("run", self.write(TORCH % mix))
            with self.subTest(mix):
                for theirs, ours in ((losses, run["losses"]), (norms, run["grad_norms"])):
                    worst = max(worst, *(abs(a - b) / abs(a) for a, b in zip(theirs, ours)))
        print(f"largest relative difference from transformers {worst:.1e}")
        self.assertLess(worst, 1e-6)  # transformers computes norms and rotary angles in fp32

    def packed(self, keys, more=""):
        """Tokens, labels and documents of the first 8 rows of 16; each token of the data is another one."""
        tokens = np.arange(128).reshape(8, 16)
        safetensors.numpy.save_file({"tokens": tokens, "labels": tokens + 1}, self.folder / "unlike.safetensors")
        text = """local model = mw.llama { layers = 1, hidden = 8, heads = 2, ffn = 8, vocab = 160 }
          mw.train { model = model, plan = %s, sequence = 16, batch = 8, microbatch = 1, steps = 1, optimizer = mw.sgd { lr = 0.1 },
            data = mw.pack { mw.tensors { "unlike.safetensors", order = "sequential" }, %s } }"""
        self.only("logits", self.write(SCRIPT + text % (more or "{}", keys)), "-o", "rows.safetensors")
        found = safetensors.numpy.load_file(self.folder / "rows.safetensors")
        return found["tokens"], found["labels"]

    def test_policies_lose_no_token_and_repeat_none(self):
        begins = lambda row: [0] + [t for t in range(1, 16) if row[t] != row[t - 1] + 1 or row[t] % 16 % 5 == 0]
        for into in ('"sequential"', '"greedy"', '"balanced"', '{ kind = "greedy" }', "function(lengths, rows, work) local all = {} for d = #lengths, 1, -1 do "
                     "all[#all + 1] = d end return { all } end"):
            with self.subTest(into):
                tokens, labels = self.packed(f"lengths = 5, into = {into}")
                self.assertEqual(sorted(tokens.flatten()), list(range(128)))
                for row, ids in zip(tokens, labels):
                    ends = [begin - 1 for begin in begins(row)[1:]] + ([15] if (row[15] + 1) % 16 % 5 == 0 else [])
                    for t in range(16):
                        # The last document of a sample is cut at its end.
                        ended = row[t] % 16 % 5 == 4
                        self.assertEqual(ids[t], -1 if ended else row[t] + 1, (row, ids, ends))
        self.assertTrue((self.packed('lengths = 5, into = "sequential"')[0] == np.arange(128).reshape(8, 16)).all())

    def test_greedy_and_balanced_rows(self):
        """Of lengths 12 4, 6 6 4, 12 2 1 1 over three rows of 16: the longest first, whole where there is room."""
        (self.folder / "lengths.csv").write_text("length\n12\n4\n6\n6\n4\n12\n2\n1\n1\n52\n")
        np.arange(100, dtype=np.uint8).tofile(self.folder / "tokens.bin")
        text = """mw.train { model = mw.llama { layers = 1, hidden = 8, heads = 2, ffn = 8, vocab = 100 }, plan = {}, sequence = 16, batch = 3,
          steps = 1, optimizer = mw.sgd { lr = 0.1 },
          data = mw.pack { mw.shards { "tokens.bin", dtype = "u8", documents = "lengths.csv", order = "sequential" }, into = "%s" } }"""
        lay = {}
        for into in ("greedy", "balanced"):
            self.only("logits", self.write(SCRIPT + text % into), "-o", "rows.safetensors")
            tokens = safetensors.numpy.load_file(self.folder / "rows.safetensors")["tokens"]
            self.assertEqual(sorted(tokens.flatten()), list(range(48)))
            lay[into] = [[int(row[t]) for t in range(16) if t == 0 or row[t] != row[t - 1] + 1] for row in tokens]
        # Where a row goes on elsewhere: documents that follow one another do not show.
        self.assertEqual(lay, {"greedy": [[12, 0], [28], [47, 46, 44, 22, 16]], "balanced": [[28, 0], [47, 46, 44, 32], [12, 22, 16]]})

    def test_ranks_get_equal_work_and_a_run_that_resumes_goes_on(self):
        script = SCRIPT + EXPERIMENT + """
          local function run(into, balance, more)
            local all = experiment(llama, { dp(2) }, { batch = 32, microbatch = 1, steps = 4, sequence = 64,
              data = mw.pack { mw.synthetic {}, lengths = mw.lognormal { median = 8, sigma = 1.5 }, into = into, balance_ranks = balance } })
            for key, value in pairs(more or {}) do all[key] = value end
            return all
          end
          """
        plans = self.all("plan", self.write(script + """mw.plan(run("sequential")) mw.plan(run("sequential", true)) mw.plan(run("balanced"))"""))
        ranks = [plan["documents"]["imbalance"]["ranks"] for plan in plans]
        self.assertTrue(ranks[0] > 1.03 > ranks[1] and ranks[0] > ranks[2], ranks)
        self.assertTrue(all(0.05 < plan["documents"]["work"] < 0.95 for plan in plans), plans)
        self.assertLess(plans[1]["documents"]["mean_seconds"], plans[0]["documents"]["mean_seconds"])
        whole = self.only("run", self.write(script + 'mw.train(run("balanced"))'))
        one = self.only("run", self.write(script + 'mw.train(run("balanced", nil, { plan = {} }))'))
        np.testing.assert_allclose(one["losses"], whole["losses"], rtol=1e-5)
        saved = 'mw.train(run("balanced", nil, { steps = %d, checkpoint = { path = "saved" }, resume = %s }))'
        self.only("run", self.write(script + saved % (2, "nil")))
        self.assertEqual(self.only("run", self.write(script + saved % (4, "true")))["losses"], whole["losses"])

    def test_hooks_after_a_step_without_labels_are_those_of_a_run_that_went_on(self):
        tokens = np.random.default_rng(2).integers(0, 64, (16, 8))
        labels = np.where((np.arange(16) // 4 == 1)[:, None], -1, tokens)
        safetensors.numpy.save_file({"tokens": tokens, "labels": labels}, self.folder / "some.safetensors")
        script = """mw.train(experiment(llama, { dp { 2, hook = { kind = "powersgd", rank = 1 } } }, { batch = 4, steps = %d, sequence = 8,
          data = mw.tensors { "some.safetensors", order = "sequential" }, %s }))"""
        whole = self.only("run", self.write(SCRIPT + EXPERIMENT + script % (4, "")))
        self.assertEqual(whole["steps_without_labels"], [1])
        self.only("run", self.write(SCRIPT + EXPERIMENT + script % (2, 'checkpoint = { path = "saved" }')))
        again = self.only("run", self.write(SCRIPT + EXPERIMENT + script % (4, 'checkpoint = { path = "saved" }, resume = true')))
        self.assertEqual(again["losses"], whole["losses"])

    def test_documents_of_megatrons_indices(self):
        """Two files, documents of several sequences; and those that an id ends, or a table has, are the same."""
        lengths = [[[4, 3], [9], [2, 2, 7]], [[5], [16, 4], [3]]]  # each file's documents, as lengths of sequences
        tokens, firsts = [], []
        for name, documents in zip("ab", lengths):
            own, sequences, at = [], [n for document in documents for n in document], [0]
            for document in documents:
                at.append(at[-1] + len(document))
                size = sum(document)
                firsts.append(sum(map(len, tokens)) + len(own))
                own += [5] * (size - 1) + [63]
            pointers = np.concatenate([[0], np.cumsum(sequences)[:-1]]) * 2
            np.array(own, np.uint16).tofile(self.folder / f"{name}.bin")
            (self.folder / f"{name}.idx").write_bytes(
                b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + bytes([8]) + np.array([len(sequences), len(at)], "<u8").tobytes()
                + np.array(sequences, "<i4").tobytes() + np.array(pointers, "<i8").tobytes() + np.array(at, "<i8").tobytes())
            tokens.append(own)
        sizes = [sum(document) for file in lengths for document in file]
        (self.folder / "lengths.csv").write_text("length\r\n" + "\r\n".join(map(str, sizes)))
        text = """mw.train { model = mw.llama { layers = 1, hidden = 8, heads = 2, ffn = 8, vocab = 64 }, plan = {}, sequence = 27, batch = 2,
          steps = 2, optimizer = mw.sgd { lr = 0.1 }, data = mw.shards { "*.idx", documents = %s, order = "sequential" } }"""
        runs = [self.only("run", self.write(SCRIPT + text % of)) for of in ('"idx"', "63", '"lengths.csv"')]
        self.assertEqual(len({str(run["losses"]) for run in runs}), 1)
        self.assertEqual(len({run["hash"] for run in runs}), 3)
        self.only("logits", self.write(SCRIPT + text % '"idx"'), "-o", "rows.safetensors")
        labels = safetensors.numpy.load_file(self.folder / "rows.safetensors")["labels"]
        ends = [first - 1 for first in firsts if first > 0]  # the last token of each document
        self.assertEqual([t for t in range(27) if labels[0][t] < 0], [end for end in ends if end < 27])
        (self.folder / "lengths.csv").write_text("length\n" + "\n".join(map(str, sizes[::-1])))
        again = self.only("run", self.write(SCRIPT + text % '"lengths.csv"'))
        self.assertNotEqual((again["hash"], again["losses"]), (runs[2]["hash"], runs[2]["losses"]))
        broken = bytearray((self.folder / "a.idx").read_bytes())
        broken[-16:-8] = np.array([99], "<i8").tobytes()
        (self.folder / "a.idx").write_bytes(broken)
        self.all_refused(SCRIPT, (text % '"idx"', 2, "data.documents data.documents"))

    def test_logits_and_prices_are_of_the_rows_that_are_run(self):
        script = SCRIPT + EXPERIMENT + """mw.train(experiment(llama, { dp(2) }, { steps = 1, microbatch = 1, %s }))"""
        pack = "mw.pack { mw.synthetic {}, lengths = mw.lognormal { median = 6, sigma = 1 }, balance_ranks = true }"
        self.only("logits", self.write(SCRIPT + EXPERIMENT + f"mw.train(experiment(llama, {{ dp(2) }}, {{ steps = 1, microbatch = 1, data = {pack} }}))"),
                  "-o", "logits.safetensors")
        found = safetensors.numpy.load_file(self.folder / "logits.safetensors")
        logits, labels = found["logits"].astype(float), found["labels"]
        losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0]
        self.assertAlmostEqual(self.only("run", "script.lua")["losses"][0], losses[labels >= 0].mean(), places=5)
        plans = [f"mw.plan(experiment(llama, {{ dp(2) }}, {{ {keys} }}))\n" for keys in (
            f"data = mw.synthetic {{}}, evaluate = {{ every = 1, batches = 1, data = {pack} }}",
            f"data = {pack}, evaluate = {{ every = 1, batches = 1, data = mw.synthetic {{}} }}")]
        held_out, trained = self.all("plan", self.write(SCRIPT + EXPERIMENT + "".join(plans)))
        self.assertNotIn("documents", held_out)
        self.assertLess(trained["documents"]["work"], 0.6)

    def test_what_cannot_be_right_is_refused(self):
        np.arange(49, dtype=np.uint8).tofile(self.folder / "tokens.bin")
        for name, text in (("none", "length\n"), ("zero", "length\n40\n0\n9\n"), ("few", "length\n40\n8\n"), ("words", "length\nmany\n"),
                           ("head", "40\n9\n"), ("right", "length\n40\n9\n"), ("histogram", "length,count\n4,0\n")):
            (self.folder / f"{name}.csv").write_text(text)
        shards = 'mw.plan(experiment(llama, {}, { sequence = 8, data = mw.shards { "tokens.bin", dtype = "u8", %s } }))'
        pack = "mw.plan(experiment(llama, {}, { data = mw.pack { mw.synthetic {}, %s } }))"
        lay = "mw.train(experiment(llama, {}, { batch = 2, data = mw.pack { mw.synthetic {}, lengths = 20, into = function(lengths) return %s end } }))"
        pooled = """mw.plan(experiment(mw.model { name = "pooled", dims = { hidden = 32, heads = 4, ffn = 48, vocab = 64, groups = 8 }, graph = function(m)
          local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden" })
          for _ in m:layers(1) do x = x + x:rms_norm():mlp() end
          local pooled = x:pool { "groups", of = "seq" }
          return x:rms_norm():linear "vocab":cross_entropy(m.labels) + 0 * pooled:sum { "batch", "groups", "hidden" }
        end }, {}))"""
        self.all_refused(
            SCRIPT + EXPERIMENT,
            *((shards % f'documents = "{name}.csv"', 2, "data.documents data.documents") for name in ("none", "zero", "few", "words", "head")),
            (shards % 'documents = "missing.csv"', 2, "file.missing data.documents"),
            (shards % 'documents = "right.csv", longer = "refuse"', 2, "data.documents data.longer"),
            (shards % 'documents = 3, longer = "refuse"', 2, "option.needs data.longer"),
            (shards % "documents = 99", 2, "data.documents data.documents"),
            (shards % 'documents = "idx"', 2, "data.documents data.documents"),
            ("mw.plan(experiment(all(4), { sp { 2, form = 'allgather', balance = 'documents' } }))", 3, "model.documents model"),
            ("mw.plan(experiment(llama, { sp { 2, form = 'ulysses', balance = 'documents' } }))", 2, "option.needs plan[1].balance"),
            (pack % "lengths = 0", 2, "data.documents data.lengths"),
            (pack % "lengths = mw.uniform { least = 9, most = 3 }", 2, "data.documents data.lengths"),
            (pack % 'lengths = "histogram.csv"', 2, "data.documents data.lengths"),
            (pack % "lengths = 'own'", 2, "option.value data.lengths"),
            (pack % "lengths = 4, into = 'full'", 2, "option.value data.into"),
            ("mw.plan(experiment(llama, {}, { data = mw.pack { 'text', lengths = 4 } }))", 2, "option.missing data.data.path"),
            (lay % "{ { 1, 2 }, { 3 } }", 1, "data.pack data.into"),
            (lay % "{ { 1, 2, 3, 4 }, { 1 } }", 1, "data.pack data.into"),
            (lay % "{ { 1, 2, 3, 9 } }", 1, "data.pack data.into"),
            (lay % "7", 1, "data.pack data.into"),
            ("local n = 0 " + lay % "(function() n = n + 1 return n > 3 and { { 1, 2, 3, 4 } } or { { 4, 3, 2, 1 } } end)()", 1, "data.pack data.into"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
