-- Published steps that no share was fitted by, for a verdict on those shares: other GPTs
-- on A100, FSDP on A100-40 and on large H100 clusters, PyTorch's fully_shard, schedules beside one
-- another, ZeRO-1 by scope, experts, context parallelism, measured memory. What is not published is
-- filled by one rule a table, which stands above it.
local mw  = require "meshwright"
local folder      = arg[0]:match "^(.*)/" or "."
local mpt, nvidia = dofile(folder .. "/mpt.lua"), dofile(folder .. "/nvidia.lua")

local GiB = 2 ^ 30

local function gpt(hidden, heads, layers, vocab)
  return mw.gpt { hidden = hidden, heads = heads, layers = layers, vocab = vocab }
end

-- BigScience's search for the shape of BLOOM (train/tr11-176B-ml/chronicles-prequel.md, 28 February
-- 2022): Megatron-DeepSpeed in bf16 with gradients in fp32 and ZeRO 1, full recompute, 48 nodes of
-- 8 A100-80 with 4 Omni-Path NICs of 100 Gb/s; two layers less than stages hold, one each for the
-- embedding and the output. Microbatches and all sizes are published; software as megatron-2021,
-- but that gradients in bf16 stay beside those in fp32, and are added up and zeroed for each
-- microbatch (DeepSpeed's bf16_optimizer.py, update_hp_grads and clear_lp_grads), then all-reduced
-- (pipe/engine.py, _bf16_reduce_grads). Memory is what the driver says.
local function bloom(csv, of)
  local rows = {}
  for _, r in ipairs(csv "megatron_deepspeed") do
    local layout = {}
    for k = 1, r.pp do layout[k] = (r.layers + 2) // r.pp - ((k == 1 or k == r.pp) and 1 or 0) end
    rows[#rows + 1] = {
      name = ("hidden %d, heads %d: tp %d, dp %d, pp %d, microbatch %d"):format(r.hidden, r.heads, r.tp, r.dp, r.pp,
        r.microbatch),
      published = of == "memory" and r.memory_GB * 1e9 / GiB or r.seconds, cluster = "dgx-a100-80",
      network = { nic = 6.25e9, partial = 0.5 }, stack = "megatron-2021",
      software = { second_gradients = 2, gradient_sum = 10 + 6 + 2, reduced_whole = true },
      model = gpt(r.hidden, r.heads, r.layers, 250880), sequence = 2048, batch = r.batch, microbatch = r.microbatch,
      tp = r.tp, pp = r.pp, dp = r.dp, zero = 1, layout = layout, recompute = "full", fp32_gradients = true,
    }
  end
  return rows
end

-- Smith et al. 2022 (arXiv:2201.11990), section 2.4: 530 B parameters, batch 1920, tp 8, pp 35.
-- Microbatch and chunks are not told: 1 and none.
local function mt_nlg(csv)
  local rows = {}
  for _, r in ipairs(csv "mt_nlg") do
    rows[#rows + 1] = {
      name = ("530B on %d"):format(8 * r.nodes), published = r.seconds, cluster = "selene", stack = "megatron-2021",
      model = gpt(20480, 128, 105, 51200), sequence = 2048, batch = 1920, microbatch = 1, tp = 8, pp = 35,
      dp = r.nodes // 35, recompute = "full", fp32_gradients = true,
    }
  end
  return rows
end

-- InternLM 7B (doc/en/train_performance.md, 2023): ZeRO 1 over all ranks, or inside groups of 8 or
-- 4; nodes of 8 A100-80 with 4 RoCE NICs of 100 Gb/s; 4 microbatches, no recompute. Flash attention
-- 1.0.5 and PyTorch 1.13 (doc/en/install.md), so that its ops are those of fsdp-mpt, with a fused
-- Adam; gradients are all-reduced (hybrid_zero_optim.py, _reduce_and_copy). That each rank then
-- sends its parameters to all by a broadcast of its own, 1,024 of them, is not priced.
local function internlm(csv)
  local rows = {}
  for _, r in ipairs(csv "internlm_zero1") do
    for _, gpus in ipairs { 8, 16, 32, 64, 128, 256, 512, 1024 } do
      local dp = gpus // r.tp
      rows[#rows + 1] = {
        name = ("tp %d, scope %d on %d"):format(r.tp, r.zero1, gpus),
        published = 4 * r.microbatch * 2048 / r.tp / r["g" .. gpus], cluster = "dgx-a100-80",
        network = { nic = 6.25e9, partial = 0.5 }, stack = "fsdp-mpt",
        software = { optimizer_bytes = 54, reduced_whole = true },
        model = mw.llama { layers = 32, hidden = 4096, heads = 32, ffn = 11008, vocab = 103168 }, sequence = 2048,
        batch = 4 * r.microbatch * dp, microbatch = r.microbatch, tp = r.tp, pp = 1, dp = dp, zero = 1,
        replicas = r.zero1 > 0 and dp // r.zero1 or nil,
      }
    end
  end
  return rows
end

-- torchtitan (benchmarks/llama3_h100_202412_torchtitan.md, 2024; docs/performance.md): H100 of 96
-- GB at 2.4 TB/s, held to 500 W. Facts of its software, at the commit that it names (9dec370):
-- - a pipeline has as many microbatches as ranks (pipelining_utils.py, build_pipeline_schedule);
-- - `ops` keeps attention and every second product of a layer, counted q, k, v, o, gate, up, down
--   (torchtitan's parallelize_llama.py, _apply_ac_to_transformer_block); the rest is made again;
-- - under a pipeline, parameters are gathered once a step, ahead of use (the same file: no
--   reshard_after_forward), and gradients reduced after the last microbatch (PyTorch's
--   PipelineStage, set_requires_gradient_sync): what ZeRO's first stage sends;
-- - beside context parallelism parameters are sharded over its ranks too (parallel_dims.py,
--   dp_shard_cp);
-- - keys and values are repeated to one for each of the queries' heads before attention sends them
--   (models/llama/model.py, repeat_kv), and their gradients go round in fp32 (PyTorch's
--   _templated_ring_attention_backward): backward has both, so 1.5 times as much in the mean;
--   blocks run beside what is sent, as in a ring here;
-- - with async_tp collectives run in pieces beside their products, as Megatron-Core's do;
-- - fp8 by one scale a tensor (torchao's float8): numbers are read for the largest, then read and
--   written, and beside tp before they are gathered (float8_tensor_parallel.py);
-- - gradients are reduced in fp32, and added up so between microbatches (mixed_precision_reduce).
local llamas = {
  ["8B"] = { layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 128256 },
  ["70B"] = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 128256 },
  ["405B"] = { layers = 126, hidden = 16384, heads = 128, kv_heads = 8, ffn = 53248, vocab = 128256 },
}
local kept = {
  ["attention.q"] = true, ["attention.v"] = true, attention = true, ["mlp.gate"] = true, ["mlp.down"] = true,
}
local function every_second_product(op)
  return not kept[op.name:match "^layers%.%d+%.(.*)$"]
end

local function torchtitan(csv, tables, of)
  local rows = {}
  for _, r in ipairs(csv "torchtitan_llama3") do
    if tables[r.table] then
      local batch = r.batch_per_gpu * r.dp
      local copies = r.cp > 1 and llamas[r.model].heads / llamas[r.model].kv_heads or 1
      rows[#rows + 1] = {
        name = ("%s on %d, cp %d, pp %d%s%s, sequence %d"):format(r.model, r.gpus, r.cp, r.pp,
          r.pp > 1 and " " .. r.schedule or "", r.compiled == 0 and ", eager" or r.fp8 == 1 and ", fp8" or "", r.sequence),
        published = of == "memory" and r.memory_GiB or batch * r.sequence / r.tokens_per_second_gpu / r.gpus,
        cluster = "dgx-h100", device = { memory = "96GiB", bandwidth = 2.4e12, power_limit = 500 },
        stack = r.compiled == 0 and "fsdp2-eager" or "fsdp2",
        software = {
          product_bits = r.fp8 == 1 and 8 or 0, product_casts = r.fp8 == 1 and 5 or 0, narrow_gathers = r.fp8 == 1,
          gradient_sum = 10, hidden_model = r.async_tp == 1 and 0.7 or 0,
          sequence_forward = copies, sequence_backward = r.cp > 1 and 1.5 * copies or 1,
        },
        model = mw.llama(llamas[r.model]), sequence = r.sequence, batch = batch,
        microbatch = r.pp > 1 and r.batch_per_gpu // r.pp or r.batch_per_gpu, tp = r.tp, pp = r.pp, dp = r.dp, cp = r.cp,
        cp_form = "ring", zero = r.pp > 1 and 1 or 3, over_sequence = r.cp > 1, sp = r.tp > 1,
        chunks = r.schedule == "interleaved" and 2 or nil,
        layout = r.pp > 1 and (r.schedule == "interleaved" and { 7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7 }
          or { 15, 16, 16, 16, 16, 16, 16, 15 }) or nil,
        uncounted = { "context", "communicators" },  -- memory is what PyTorch's allocator has reserved
        recompute = r.recompute == "full" and "full" or every_second_product, fp32_gradients = true,
      }
    end
  end
  return rows
end

-- Qi et al. 2023 (arXiv:2401.10241), tables 3 and 4: GPTs on 8 to 32 A100-80, pipelines alone; how
-- many times as fast as 1F1B another schedule is. ZB-1p and ZB-2p are searched there by time and
-- memory: here zb-h1 and zb-h2, which hold as much. 1F1B-I has a chunk for each layer.
local function schedules(csv, of)
  local rows = {}
  for _, r in ipairs(csv "zero_bubble") do
    local function row(name, schedule, rate, chunks)
      local layout, all = {}, r.pp * chunks
      for k = 1, all do layout[k] = (r.layers + 2) // all - ((k == 1 or k == all) and 1 or 0) end
      return {
        name = ("hidden %d, %d stages, %d microbatches: %s"):format(r.hidden, r.pp, r.microbatches, name),
        seconds = r.microbatches * r.microbatch / r.pp / rate, cluster = "dgx-a100-80", stack = "megatron-2022",
        network = { nic = 12.5e9, partial = 0.5 }, model = gpt(r.hidden, r.heads, r.layers, 51200),
        sequence = r.sequence, batch = r.microbatches * r.microbatch, microbatch = r.microbatch, tp = 1, pp = r.pp,
        dp = 1, schedule = schedule, chunks = chunks, layout = layout, fp32_gradients = true,
      }
    end
    local first = row("1f1b", "1f1b", r.f1b1, 1)
    if of == "seconds" then
      first.published = first.seconds
      rows[#rows + 1] = first
    else
      for _, other in ipairs {
        row("ZB-1p", "zb-h1", r.zb_1p, 1), row("ZB-2p", "zb-h2", r.zb_2p, 1),
        row("1F1B-I", "interleaved", r.f1b1_interleaved, (r.layers + 2) // r.pp),
      } do
        other.published, other.than = first.seconds / other.seconds, first
        rows[#rows + 1] = other
      end
    end
  end
  return rows
end

-- Liu et al. 2025 (arXiv:2504.14960), table 3: Megatron-Core without folding, batch 256 of 4096
-- tokens, H100, MFU. Microbatch 1 and as many chunks as layers allow, as in scripts/published;
-- Llama3-8x70B chooses 2 of 8, experts of Qwen2 and G8T8 are whole where their plan borrows tp.
local moes = {
  ["Mixtral-8x22B"] = { layers = 56, hidden = 6144, heads = 48, kv_heads = 8, ffn = 16384, vocab = 32768, experts = 8,
    top_k = 2 },
  ["Qwen2-57B-A14B"] = { layers = 28, hidden = 3584, heads = 28, kv_heads = 4, ffn = 18944, vocab = 151936, experts = 64,
    top_k = 8, expert_ffn = 2560, shared_experts = 8 },
  ["Mixtral-8x22B-G8T8"] = { layers = 56, hidden = 6144, heads = 48, kv_heads = 8, ffn = 16384, vocab = 32768,
    experts = 64, top_k = 8, expert_ffn = 2048 },
  ["Llama3-8x70B"] = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 128256, experts = 8,
    top_k = 2 },
}
local function experts(csv)
  local rows = {}
  for _, r in ipairs(csv "moe_folding") do
    local model = moes[r.model]
    local chunks = r.pp > 1 and model.layers // r.pp or nil
    rows[#rows + 1] = {
      name = ("%s on %d: tp %d, ep %d, pp %d"):format(r.model, r.gpus, r.tp, r.ep, r.pp), mfu = r.mfu / 100,
      cluster = "dgx-h100", stack = "megatron-core", model = mw.moe(model), sequence = 4096, batch = 256,
      microbatch = 1, tp = r.tp, pp = r.pp, dp = r.gpus // r.tp // r.pp, ep = r.ep, zero = 1, sp = true, chunks = chunks,
      fp32_gradients = true, gpus = r.gpus,
    }
  end
  return rows
end

return function(csv)
  return {
    -- The tables "A100 40GB" and "H100 80GB BF16 (Large Scale, >= 128 GPUs)".
    { name = "mpt-a100-40", rows = function() return mpt(csv "mpt_fsdp_aside", false, "dgx-a100-40") end },
    { name = "mpt-h100-large", rows = function() return mpt(csv "mpt_fsdp_aside", true, "dgx-h100") end },
    { name = "bloom", rows = function() return bloom(csv) end },
    { name = "mt-nlg", rows = function() return mt_nlg(csv) end },
    { name = "internlm-zero1", rows = function() return internlm(csv) end },
    { name = "torchtitan-fsdp2", rows = function() return torchtitan(csv, { [1] = true, [3] = true, [4] = true }) end },
    { name = "torchtitan-cp", rows = function() return torchtitan(csv, { [2] = true, [6] = true }) end },
    { name = "torchtitan-pp", rows = function() return torchtitan(csv, { [5] = true }) end },
    { name = "zero-bubble-1f1b", rows = function() return schedules(csv, "seconds") end },
    { name = "zero-bubble-ratios", unit = "x", rows = function() return schedules(csv, "ratios") end },
    { name = "nvidia-2025-aside", rows = function() return nvidia(csv "nvidia_2025", false) end },
    { name = "moe-folding", rows = function() return experts(csv) end },
    { name = "bloom-memory", unit = "GiB", rows = function() return bloom(csv, "memory") end },
    { name = "torchtitan-memory", unit = "GiB",
      rows = function() return torchtitan(csv, { [1] = true, [2] = true, [3] = true, [4] = true }, "memory") end },
  }
end
