# label: cli
"""Plans as flags of Megatron-LM and TOML of torchtitan: each flag, key and value is one that these
programs know (search_as.json says of which release), and what one asks for beside it is there."""
import json
import math
import pathlib
import shlex
import tomllib
import unittest

import loaded
from cases import BIN, ProgramCase

KNOWN = json.loads((pathlib.Path(__file__).parent / "search_as.json").read_text())
SEARCHES = """\
local mw = require "meshwright"
local llama = mw.llama { layers = 30, hidden = 1024, heads = 16, kv_heads = 8, ffn = 2816, vocab = 32000, norm_eps = 1e-6, rope_theta = 500000 }
local gpt = mw.gpt { layers = 24, hidden = 1024, heads = 16, vocab = 51200 }
local sizes = { layers = 8, hidden = 512, heads = 8, ffn = 1408, vocab = 32000, experts = 16, top_k = 2, expert_ffn = 512 }
local function moe(more) for k, v in pairs(sizes) do more[k] = more[k] or v end return mw.moe(more) end
local function go(t)
  for k, v in pairs { sequence = 16384, batch = 16, precision = "bf16", cluster = mw.cluster("dgx-h100", { nodes = 1 }),
    best = 24, checked = 12, unsupported = true, stack = mw.stack "nvidia-2025" } do t[k] = t[k] or v end
  mw.search(t)
end
go { model = llama, strategies = { "pp" }, schedules = { "1f1b", "interleaved", "zbv", "gpipe" } }
go { model = gpt, strategies = { "pp", "tp", "sp" }, schedules = { "1f1b", "interleaved" }, recompute = { "none", "selective", "full" } }
go { model = llama, strategies = { "sp", "zero" }, batch = 2 }
go { model = llama, strategies = { "zero" }, microbatch = { 1, 2 } }
go { model = llama, strategies = { "dp" }, microbatch = { 1, 2 } }
go { model = llama, strategies = { "zero" }, memory = "2400MiB", recompute = "full", microbatch = 1 }
go { model = moe { shared_experts = 1, dense_layers = 1, score = "sigmoid", experts = 64, expert_ffn = 2048 }, strategies = { "zero", "tp", "sp", "ep" }, batch = 2,
  sequence = 4096, precision = "fp32" }
go { model = moe { score = "sigmoid", groups = 4, group_top = 2, predict_ahead = 1 }, strategies = { "zero" }, batch = 8 }
go { model = moe { kv_lora_rank = 128, q_lora_rank = 256, qk_nope_head_dim = 64, qk_rope_head_dim = 32, v_head_dim = 64 },
  strategies = { "zero", "ep" }, batch = 8 }
"""


class SearchAs(ProgramCase):
    @classmethod
    def setUpClass(cls):
        done = loaded.run([BIN, "run", "-", "--json"], input=SEARCHES, text=True, timeout=300)
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        cls.found = [json.loads(line) for line in done.stdout.splitlines()]
        cls.plans = [(search["ranks"], one) for search in cls.found for one in search["best"]]

    def takes(self, what, name, value):
        known = KNOWN[what]
        self.assertIn(name, known, f"{what}: {name} is not known: look for it in the release, then add it to search_as.json")
        kind = known[name]
        right = (value in kind if isinstance(kind, list) else value in (None, True) if kind == "flag" else bool(value) if kind == "text"
                 else float(value) == int(float(value)) if kind == "int" else math.isfinite(float(value)))
        self.assertTrue(right, f"{what}: {name} = {value!r}, of {kind}")

    def test_megatron(self):
        seen = set()
        for ranks, one in self.plans:
            said = one["megatron"]
            words = shlex.split(said["text"].replace("\\\n", " "))
            flags = {}
            for word in words:
                if word.startswith("--"):
                    self.assertNotIn(word[2:], flags, said["text"])
                    flags[word[2:]] = last = []
                else:
                    last.append(word)
            flags = {name: " ".join(values) or None for name, values in flags.items()}
            with self.subTest(one["plan"], flags=flags):
                for name, value in flags.items():
                    self.takes("megatron", name, value)
                self.megatron_goes_together(flags, ranks, said)
            seen |= set(flags)
        # The searches have plans of all forms.
        for flag in ("sequence-parallel", "context-parallel-size", "pipeline-model-parallel-layout", "use-megatron-fsdp",
                     "num-layers-per-virtual-pipeline-stage", "expert-model-parallel-size",
                     "num-distributed-optimizer-instances", "optimizer-cpu-offload", "moe-layer-freq", "kv-lora-rank",
                     "expert-tensor-parallel-size", "num-query-groups", "mtp-num-layers", "moe-router-num-groups"):
            self.assertIn(flag, seen)

    def megatron_goes_together(self, flags, ranks, said):
        def size(name):
            return int(flags.get(name, 1))
        tp, pp, cp = size("tensor-model-parallel-size"), size("pipeline-model-parallel-size"), size("context-parallel-size")
        data = ranks // (tp * pp * cp)
        self.assertEqual(tp * pp * cp * data, ranks)
        self.assertEqual(size("global-batch-size") % (size("micro-batch-size") * data), 0)
        needs = {"sequence-parallel": tp > 1, "num-distributed-optimizer-instances": "use-distributed-optimizer" in flags,
                 "overlap-param-gather": {"use-distributed-optimizer", "overlap-grad-reduce"} <= set(flags),
                 "optimizer-cpu-offload": "use-precision-aware-optimizer" in flags,
                 "use-megatron-fsdp": {"ckpt-format", "data-parallel-sharding-strategy"} <= set(flags),
                 "expert-model-parallel-size": size("num-experts") % size("expert-model-parallel-size") == 0,
                 "expert-tensor-parallel-size": tp % size("expert-tensor-parallel-size") == 0,
                 "context-parallel-size": size("seq-length") % (2 * cp) == 0, "num-query-groups": "group-query-attention" in flags,
                 "kv-lora-rank": {"multi-latent-attention", "rope-type", "no-rope-fusion"} <= set(flags)}
        for flag, there in needs.items():
            self.assertTrue(there or flag not in flags, flag)
        self.assertEqual(flags.get("recompute-granularity") == "full", "recompute-method" in flags)
        self.assertEqual(said["before"], "unset CUDA_DEVICE_MAX_CONNECTIONS" if "use-megatron-fsdp" in flags
                         else "export CUDA_DEVICE_MAX_CONNECTIONS=1" if tp * cp > 1 else "")
        layers, layout = size("num-layers"), flags.get("pipeline-model-parallel-layout")
        if layout:
            stages = layout.split("|")
            self.assertEqual(len(stages) % pp, 0)
            self.assertNotIn("num-layers-per-virtual-pipeline-stage", flags)
            self.assertTrue(stages[0].startswith("E") and stages[-1].endswith("L"), layout)
            self.assertEqual(sum(int(stage.strip("EL")[2:] or 0) for stage in stages), layers)
        else:
            self.assertEqual(layers % (pp * size("num-layers-per-virtual-pipeline-stage")), 0)

    def test_torchtitan(self):
        seen = set()
        for ranks, one in self.plans:
            said = one["torchtitan"]
            tables = tomllib.loads(said["text"])
            with self.subTest(one["plan"], text=said["text"]):
                for table, values in tables.items():
                    for key, value in values.items():
                        self.takes("torchtitan", f"{table}.{key}", value)
                        seen.add(key)
                self.torchtitan_goes_together(tables, ranks, one)
        for key in ("module_fqns_per_model_part", "pipeline_parallel_layers_per_stage", "expert_tensor_parallel_degree",
                    "context_parallel_rotate_method", "enable_cpu_offload", "selective_ac_option"):
            self.assertIn(key, seen)

    def torchtitan_goes_together(self, tables, ranks, one):
        training, parallel = tables["training"], tables["parallelism"]
        pp = parallel["pipeline_parallel_degree"]
        data = parallel["data_parallel_replicate_degree"] * parallel["data_parallel_shard_degree"]
        self.assertEqual(data * parallel["context_parallel_degree"] * parallel["tensor_parallel_degree"] * pp, ranks)
        self.assertEqual(training["global_batch_size"] % (training["local_batch_size"] * data), 0)
        if pp == 1 or "pipeline_parallel_schedule" not in parallel:
            return
        self.assertEqual(training["local_batch_size"] % parallel["pipeline_parallel_microbatch_size"], 0)
        # As its pipeline_llm() and generate_llm_fqn_per_model_part() count virtual stages.
        layers, parts = sum(one["layers"]), parallel.get("module_fqns_per_model_part")
        if parts:
            self.assertEqual(sum(parts, []), ["tok_embeddings", *(f"layers.{i}" for i in range(layers)), "norm", "output"])
            self.assertEqual([sum(name.startswith("layers.") for name in part) for part in parts], one["layers"])
        else:
            spare = parallel["pipeline_parallel_first_stage_less_layers"] + parallel["pipeline_parallel_last_stage_less_layers"]
            of_stage = parallel.get("pipeline_parallel_layers_per_stage")
            single = parallel["pipeline_parallel_schedule"] in ("1F1B", "GPipe")
            stages = math.ceil((layers + spare) / of_stage) if of_stage else pp * (1 if single else 2)
            self.assertEqual(stages, len(one["layers"]))

    def test_what_they_cannot_say_is_named(self):
        for _, one in self.plans:
            cannot = "; ".join(one["megatron"]["cannot"])
            for entry in one["entries"]:
                if entry.get("schedule") in ("zbv", "gpipe", "looped-bfs"):
                    self.assertIn(f"the schedule {entry['schedule']}", cannot)
                if entry.get("reduce") == "chunk":
                    self.assertIn("reduce = \"chunk\"", cannot)
                if entry.get("offload") == "parameters":
                    self.assertIn("offload = \"parameters\"", cannot)
            self.assertIn("model.vocab = ", cannot)


if __name__ == "__main__":
    unittest.main()
