"""Checkpoints: a run that goes on is the run that was never interrupted, in its own mix bit for
bit, in any
other to rounding."""
import json
import subprocess
import sys
import unittest

import h5py
import numpy as np
from safetensors.numpy import load_file

import pages
from cases import SOURCE, ProgramCase

HEAD = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local llama = mw.llama { layers = 2, hidden = 16, heads = 4, kv_heads = 2, ffn = 24, vocab = 30 }
local odd = mw.llama { layers = 2, hidden = 8, heads = 4, kv_heads = 2, ffn = 7, vocab = 30 }
local gpt = mw.gpt { layers = 2, hidden = 16, heads = 4, vocab = 30, tied = true }
local moe = mw.moe { layers = 2, hidden = 16, heads = 4, kv_heads = 2, ffn = 24, vocab = 30, experts = 4, top_k = 2,
                     shared_experts = 1, balance = "bias" }
local function with(e, more)
  local made = {}
  for _, from in ipairs { e, more } do for key, value in pairs(from) do made[key] = value end end
  return made
end
local function base(more)
  return with({ model = llama, data = mw.synthetic {}, sequence = 8, batch = 8, optimizer = mw.adamw { lr = 1e-2, clip = 1 },
                schedule = mw.cosine { warmup = 2 }, steps = STEPS, timeout = 120, threads = 1 }, more)
end
local function stop_after(steps) return function(step) return { stop = step + 1 == steps } end end
"""
STEPS, FIRST = 6, 3
HEAD = HEAD.replace("STEPS", str(STEPS))

# What has a state of its own: each run, and once more in two parts.
SAME = {
    "dp": "plan = { dp(2) }, model = gpt",
    "zero-1": "plan = { zero { 2, stage = 1 } }, precision = 'bf16'",
    "zero-3": "plan = { zero { 4, stage = 3 } }",
    "tp x pp": "plan = { pp(2), tp(2) }, microbatch = 2, model = gpt",
    "experts": "plan = { dp(4), ep(2) }, model = moe, precision = 'bf16'",
    "offload": "plan = { zero { 2, stage = 3, offload = 'parameters' } }",
    # Updates that a step leaves to the next one, of parameters that one of the two ranks writes.
    "offload, steps that differ": "plan = { zero { 2, stage = 1, offload = 'optimizer' } }, precision = 'bf16', "
                                  "microbatch = function(step) return { batch = step < 4 and 4 or 8, microbatch = 2 } end",
    "offload beside backward": "plan = { zero { 2, stage = 2, offload = 'optimizer' } }, on_nan = 'continue'",
    "loss scale": "plan = { zero { 2, stage = 2 } }, precision = 'fp16', "
                  "loss_scale = { init = 2 ^ 40, interval = 2, backoff = 2 ^ -10 }",
    "powersgd": "plan = { dp { 2, hook = dp.powersgd { rank = 1 } } }, "
                "model = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 64, vocab = 30 }",
    "muon": "plan = { zero { 2, stage = 2 }, tp(2) }, optimizer = mw.muon { lr = 1e-2 }",
    "shampoo": "plan = { zero { 2, stage = 2 }, tp(2) }, optimizer = mw.shampoo { lr = 1e-2 }",
    "sgd": "plan = { zero { 2, stage = 3 }, tp(2) }, optimizer = mw.sgd { lr = 1e-2, momentum = 0.9 }",
    # Matrices of odd sizes, which ranks keep at other places.
    "muon, odd sizes": "plan = { pp(2), zero { 2, stage = 2 } }, microbatch = 2, model = odd, optimizer = mw.muon { lr = 1e-2 }",
    "shampoo, odd sizes": "plan = { zero { 2, stage = 2 }, tp(2) }, model = odd, optimizer = mw.shampoo { lr = 1e-2 }",
    "shampoo in a pipeline": "plan = { pp(2), zero { 2, stage = 2 } }, microbatch = 2, model = odd, "
                             "optimizer = mw.shampoo { lr = 1e-2 }",
    "steps that differ": "plan = { zero { 2, stage = 1 } }, "
                         "microbatch = function(step) return { batch = step < 4 and 4 or 8, microbatch = 2 } end",
}

# Mixes between which a run is moved, all to all.
MOVED = {
    "dense": ("", {"one rank": "", "zero-3": "zero { 4, stage = 3 }", "tp x pp": "pp(2), tp(2)",
                   "zero-1 x tp": "zero { 2, stage = 1 }, tp(2)"}),
    "experts": ("model = moe, ", {"one rank": "", "ep": "dp(4), ep(2)", "zero-3 x ep": "zero { 4, stage = 3 }, ep(4)"}),
    "muon": ("optimizer = mw.muon { lr = 1e-2 }, ", {"one rank": "", "zero-3": "zero { 4, stage = 3 }",
                                                     "tp x pp": "pp(2), tp(2)"}),
    "shampoo": ("optimizer = mw.shampoo { lr = 1e-2 }, ", {"one rank": "", "zero-3": "zero { 4, stage = 3 }",
                                                           "tp x pp": "pp(2), tp(2)"}),
}


def state(folder):
    """Every tensor of a checkpoint, whole, but for what a run remembers of its times."""
    index = json.loads((folder / "index.json").read_text())["index"]
    files = {file["rank"]: load_file(folder / file["name"]) for file in index["files"]}
    tensors = {}
    for name, tensor in index["tensors"].items():
        whole = np.full(tensor["shape"], np.nan)
        for rank, offsets, sizes, begin, count in tensor["slices"]:
            part = whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes))].copy().reshape(-1)
            part[begin:begin + count] = files[rank][name].reshape(-1)
            whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes))] = part.reshape(sizes)
        tensors[name] = whole
    for rank, names in index["own"]:
        for name in names:
            if name.startswith("hooks/"):
                tensors[f"{rank}/{name}"] = files[rank][name]
    return tensors


class Checkpoints(ProgramCase):
    def step(self, path, step):
        return self.folder / path / f"step-{step:08}"

    def test_the_same_mix_goes_on_bit_for_bit(self):
        calls = ""
        for n, keys in enumerate(SAME.values()):
            calls += f"""do
  local e = base {{ {keys} }}
  mw.train(with(e, {{ checkpoint = {{ path = "whole{n}" }}, log = "whole{n}.h5" }}))
  mw.train(with(e, {{ checkpoint = {{ path = "part{n}" }}, log = "part{n}.h5", observe = stop_after({FIRST}) }}))
  mw.train(with(e, {{ checkpoint = {{ path = "part{n}" }}, log = "part{n}.h5", resume = true }}))
end
"""
        results = self.all("run", self.write(HEAD + calls))
        for n, name in enumerate(SAME):
            with self.subTest(name):
                whole, _, resumed = results[3 * n:3 * n + 3]
                self.assertEqual((resumed["status"], resumed["resumed"]["step"]), ("done", FIRST))
                self.assertEqual(resumed["losses"], whole["losses"])
                self.assertEqual(resumed["grad_norms"], whole["grad_norms"])
                self.assertEqual(resumed.get("skipped_steps"), whole.get("skipped_steps"))
                expected, found = state(self.step(f"whole{n}", STEPS)), state(self.step(f"part{n}", STEPS))
                self.assertEqual(set(found), set(expected))
                for tensor in expected:
                    self.assertTrue(np.array_equal(found[tensor], expected[tensor]), tensor)
                logs = [h5py.File(self.folder / f"{log}{n}.h5")["steps"][:] for log in ("whole", "part")]
                for column in ("step", "loss", "grad_norm", "lr", "tokens"):
                    np.testing.assert_array_equal(logs[0][column], logs[1][column], column)
        skipped = results[3 * list(SAME).index("loss scale")]["skipped_steps"]
        self.assertTrue(0 < len(skipped) < STEPS, skipped)
        hooks = [name for name in state(self.step(f"part{list(SAME).index('powersgd')}", STEPS)) if "hooks/" in name]
        self.assertEqual({name.split("/")[0] for name in hooks}, {"0", "1"})

    def test_any_mix_goes_on_from_any_other(self):
        pairs, calls = [], ""
        for family, (keys, mixes) in MOVED.items():
            name = lambda mix: f"{family}/{mix}".replace(" ", "_")

            def train(plan, path, more=""):
                return (f'mw.train(base {{ precision = "fp64", {keys}plan = {{ {plan} }}, '
                        f'checkpoint = {{ path = "{path}" }}, {more} }})\n')

            calls += train("", name("whole"))
            for mix, plan in mixes.items():
                calls += train(plan, name(mix), f"observe = stop_after({FIRST})")
            for mix in mixes:
                for other, plan in mixes.items():
                    if other == mix:
                        continue
                    path = f"{name(mix)}-{name(other)}".replace("/", "-")
                    calls += train(plan, path, f'resume = {{ from = "{name(mix)}" }}')
                    pairs.append((family, mix, other, name("whole"), path))
        results = {result["checkpoints"]["path"]: result for result in self.all("run", self.write(HEAD + calls))}
        self.assertGreaterEqual(len(pairs), 24)
        worst = 0
        for family, mix, other, whole, path in pairs:
            with self.subTest(f"{family}: {mix} to {other}"):
                expected, found = results[whole], results[path]
                self.assertEqual(found["resumed"]["step"], FIRST)
                np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-12)
                before, after = state(self.step(whole, STEPS)), state(self.step(path, STEPS))
                self.assertEqual(set(before), set(after))
                for tensor in before:
                    scale = np.linalg.norm(before[tensor])
                    error = np.linalg.norm(after[tensor] - before[tensor]) / scale if scale else 0
                    self.assertLessEqual(error, 1e-12, tensor)
                    worst = max(worst, error)
        print(f"{len(pairs)} moves, largest relative error of a tensor {worst:.1e}")

    def test_a_batch_that_grows_later_goes_on(self):
        """Up to the checkpoint all steps were alike: only a longer run's differ."""
        policies = {"ramp": "mw.microbatch.ramp { from = 4, by = 4, steps = 4, size = 1 }",
                    "function": "function(step) return { batch = step < 4 and 4 or 8, microbatch = 1 } end"}
        calls = ""
        for name, policy in policies.items():
            def train(steps, path, more="", plan="dp(2)"):
                return (f'mw.train(base {{ precision = "fp64", plan = {{ {plan} }}, schedule = mw.constant {{}}, steps = {steps}, '
                        f'microbatch = {policy}, checkpoint = {{ path = "{name}-{path}" }}, {more} }})\n')

            calls += train(6, "whole") + train(2, "part")
            for steps, plan in ((4, "dp(2)"), (6, "tp(2)")):
                calls += train(steps, "part", "resume = true", plan)
            calls += train(7, "part", "resume = true") + train(7, "longer")
        results = self.all("run", self.write(HEAD + calls))
        for n, name in enumerate(policies):
            with self.subTest(name):
                whole, first, second, third, last, longer = results[6 * n:6 * n + 6]
                self.assertEqual(whole["batches"], [4, 4, 4, 4, 8, 8])
                self.assertEqual([part["resumed"]["step"] for part in (second, third, last)], [2, 4, 6])
                self.assertEqual(first["losses"] + second["losses"][2:], whole["losses"][:4])
                np.testing.assert_allclose(third["losses"], whole["losses"], rtol=1e-12)
                np.testing.assert_allclose(last["losses"], longer["losses"], rtol=1e-12)
                before, after = (state(self.step(f"{name}-{path}", 7)) for path in ("longer", "part"))
                self.assertEqual(set(before), set(after))
                for tensor in before:
                    np.testing.assert_allclose(after[tensor], before[tensor], rtol=1e-10, atol=1e-15, err_msg=tensor)

    def test_another_growth_of_the_batch_is_another_experiment(self):
        for name, (one, other) in {"ramps": ("mw.microbatch.ramp { from = 4, by = 4, steps = 4 }",
                                             "mw.microbatch.ramp { from = 4, by = 4, steps = 5 }"),
                                   "none-before": ("2", "mw.microbatch.ramp { from = 8, steps = 4 }")}.items():
            with self.subTest(name):
                def train(policy, steps, more=""):
                    return self.write(HEAD + f'mw.train(base {{ plan = {{}}, schedule = mw.constant {{}}, steps = {steps}, '
                                             f'microbatch = {policy}, checkpoint = {{ path = "{name}" }}, {more} }})\n')

                self.all("run", train(one, 2))
                self.refused(2, "checkpoint.differs checkpoint.path", "run", train(other, 6, "resume = true"))
                # How a batch of one size is cut is the mix's.
                if name == "none-before":
                    self.all("run", train("4", 3, "resume = true"))

    def test_the_page(self):
        blocks = dict(pages.blocks(pages.part("checkpoints", "Checkpoints")))
        script = self.write(blocks["lua"])
        first, = self.all("run", script)
        again, = self.all("run", script)
        self.assertEqual((first["checkpoints"]["written"], again["resumed"]["step"]), (2, 20))
        self.assertEqual(again["losses"], first["losses"])
        done = subprocess.run([sys.executable, "-c", blocks["python"]], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.stdout, "0 (32,)\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
