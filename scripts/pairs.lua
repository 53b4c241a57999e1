-- What pairs hide: a pair is a forward of one microbatch interleaved with a backward of another, so
-- that one computes while the rows of the other are on their way to their experts. This plans
-- trainings that were published with pairs, under schedules without and with them, and prints the
-- exposed exchange and the step that are predicted on their clusters.
-- `./meshwright plan scripts/pairs.lua`
local mw           = require "meshwright"
local pp, zero, ep = mw.plugins("pp", "zero", "ep")

-- Megatron-Core's order (combined_1f1b, `overlap_moe_expert_parallel_comm`), layer by layer: see
-- scripts/my_weave.lua.
local layerwise = mw.weave {
  name  = "layer by layer",
  order = function(...)
    local f, b
    for _, lane in ipairs { ... } do
      if lane.kind == "forward" then f = lane else b = b or lane end
    end
    if not (f and b) then return end
    local combine, dispatch = { through = "start", kind = "combine" }, { through = "start", kind = "dispatch" }
    for fl, bl in mw.zip(f:layers(), b:layers()) do
      if bl:has(combine) then bl:take(combine) end
      if fl:has(dispatch) then fl:take(dispatch) end
      if bl:has(dispatch) then bl:take(dispatch) end
      if fl:has(combine) then fl:take(combine) end
      bl:rest()
      fl:rest()
    end
  end,
}

-- The seconds that the stage which waits longest spends waiting for exchanges.
local function exposed(plan)
  local seconds = 0
  for _, use in ipairs(plan.communication) do
    if use.axis == "ep" then seconds = seconds + use.exposed_seconds end
  end
  return seconds
end

local function planned(experiment)
  local plan = mw.plan(experiment)
  return tostring(plan) and plan                 -- shown: not printed again at the end
end

local function compare(title, experiment, stages, rows)
  print(title)
  print(("  %-38s %8s %20s %8s"):format("schedule", "step, s", "exposed exchange, s", "GiB"))
  local first
  for _, row in ipairs(rows) do
    local options = { stages, schedule = row.schedule, weave = row.weave, chunks = row.chunks, layout = row.layout }
    local e = {}
    for key, value in pairs(experiment) do e[key] = value end
    e.plan = { pp(options), table.unpack(experiment.plan) }
    local plan = planned(e)
    first = first or plan.step_seconds
    print(("  %-38s %8.3f %11.3f (%4.1f %%) %8.1f   %+5.1f %% tokens/s"):format(row.name, plan.step_seconds, exposed(plan),
      100 * exposed(plan) / plan.step_seconds, plan.peak_bytes / 2 ^ 30, 100 * (first / plan.step_seconds - 1)))
  end
  print()
end

-- The schedules that are compared. `plain`, `chunked` and `folded` are the layers of each stage
-- where it has one chunk, of each virtual stage where it has two, and of each where these make a V;
-- `more` are rows of one plan alone.
local function rows(plain, chunked, folded, more)
  local v, apart, pairs = { kind = "dualpipev" }, { kind = "dualpipev", pair = false }, { kind = "interleaved", pair = true }
  local all = {
    { name = "1f1b", schedule = "1f1b", layout = plain },
    { name = "interleaved, pairs, Megatron's order", schedule = pairs, chunks = 2, layout = chunked, weave = layerwise },
    { name = "dualpipev, no pairs", schedule = apart, layout = folded },
    { name = "dualpipev, pairs by switch", schedule = v, layout = folded },
    { name = "dualpipev, pairs in Megatron's order", schedule = v, layout = folded, weave = layerwise },
    { name = "dualpipev, pairs by hide", schedule = v, layout = folded, weave = "hide" },
  }
  for k, row in ipairs(more or {}) do table.insert(all, 1 + k, row) end
  return all
end

-- DeepSeek-V3: the plan of scripts/published/deepseek-v3.lua, which says what is left out.
-- The last stage's last layer is the module that predicts a second token. It has a projection to
-- the vocabulary of its own.
local plain, chunked, folded = {}, {}, {}
for k = 1, 16 do plain[k] = k == 16 and 2 or 4 end
for k = 1, 32 do
  chunked[k] = k % 16 == 0 and 1 or 2
  folded[k] = (k == 1 or k == 32) and 1 or 2
end
compare("DeepSeek-V3 on 2048 H800, pp 16 x zero 128, ep 64", {
  model = mw.moe {
    layers = 61, dense_layers = 3, hidden = 7168, heads = 128, ffn = 18432, vocab = 129280,
    q_lora_rank = 1536, kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128,
    experts = 256, top_k = 8, expert_ffn = 2048, shared_experts = 1, groups = 8, group_top = 4, predict_ahead = 1,
    score = "sigmoid", normalise = true, scale = 2.5, balance = "bias", bias_rate = 0.001,
    rope_theta = 10000, norm_eps = 1e-6,
  },
  data = mw.synthetic {}, sequence = 4096,
  plan = { zero { 128, stage = 1 }, ep { 64, imbalance = 1.04 } },
  batch = 15360, microbatch = 1,
  recompute = {
    ops = { "rms_norm", "swiglu", "attention.q", "attention.q_rope", "attention.kv", "attention.keys" },
    collectives = "keep",
  },
  precision = "bf16", main_gradients = "fp32",
  optimizer = mw.adamw { lr = 2.2e-4, betas = { 0.9, 0.95 }, weight_decay = 0.1, clip = 1.0 },
  steps = 1, cluster = mw.cluster("h800", { nodes = 256 }), stack = mw.stack "deepseek-v3",
}, 16, rows(plain, chunked, folded))

-- The Qwen3-like models of Piper (Frisella et al. 2026, arXiv:2606.11169), sizes from its artifact
-- (github.com/uw-syfi/piper, artifact/run_megatron.py and e2e_eval.py): pp 2, dp 2, ep 2, ZeRO-1,
-- microbatches of 4 sequences of 512 tokens, twice as many as stages, as many layers on each. It
-- reports 13 % more tokens/s under DualPipeV than under its own 1F1B for 1B, 10 % more than under
-- its own interleaved 1F1B and 6 % more than under Megatron-Core's, of a layer a chunk, for 9B.
-- It could not be found out on which GPUs Piper measured this; the plans here are for A100.
for _, size in ipairs {
  { name = "1B", layers = 16, hidden = 1024, heads = 16, ffn = 3584, experts = 4 },
  { name = "9B", layers = 24, hidden = 2048, heads = 32, ffn = 7168, experts = 8 },
} do
  compare(("Qwen3 MoE %s on 4 A100, pp 2 x zero 2, ep 2"):format(size.name), {
    model = mw.moe {
      layers = size.layers, hidden = size.hidden, heads = size.heads, kv_heads = 8, head_dim = 64, ffn = size.ffn,
      vocab = 151936, experts = size.experts, top_k = 2, expert_ffn = size.ffn,
    },
    data = mw.synthetic {}, sequence = 512,
    plan = { zero { 2, stage = 1 }, ep(2) },
    batch = 32, microbatch = 4,
    precision = "bf16", main_gradients = "fp32", optimizer = mw.adamw { lr = 3e-4, clip = 1.0 },
    steps = 1, cluster = mw.cluster("dgx-a100-80", { nodes = 1 }), stack = mw.stack "megatron-core",
  }, 2, rows("even", "even", "even", {
    { name = "interleaved, 2 chunks", schedule = "interleaved", chunks = 2, layout = "even" },
    { name = "interleaved, a chunk for each layer", schedule = "interleaved", chunks = size.layers // 2, layout = "even" },
  }))
end
