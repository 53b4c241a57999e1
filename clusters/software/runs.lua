-- What the software of each stack can run, as its documentation and its checks of arguments say.
-- Software lacks the strategies that its table does not name; `true` allows all options of one,
-- and a table limits the values of some. `apart` lists combinations that the software refuses,
-- where false stands for a strategy that the plan lacks. sp with ways of its own is context
-- parallelism; without any it is Megatron's sequence parallelism on TP's ranks. A stack that is
-- not here (deepseek-v3, whose software is not public, and meshwright, which is this project)
-- runs everything.

-- Megatron-LM v2.x (Narayanan et al. 2021, sections 2 and 3): 1F1B and its interleaved form,
-- whole layers are computed again (--checkpoint-activations), nothing is sharded over data ranks.
local megatron_2021 = {
  dp = { reduce = { "last" } }, tp = { overlap = { false } }, pp = true,
  schedules = { "1f1b", "interleaved" }, recompute = { "none", "full" }, offload = { "none" },
}

-- Megatron-LM v3.0 (Korthikanti et al. 2022; --sequence-parallel, --recompute-granularity,
-- --use-distributed-optimizer of its megatron/arguments.py): the optimizer's state is sharded.
local megatron_2022 = {
  dp = { reduce = { "last" } }, zero = { stage = { 1 }, offload = { "none" }, replicas = { 1 } },
  tp = true, sp = { ways = { 1 } }, pp = true,
  schedules = { "1f1b", "interleaved" }, recompute = { "none", "selective", "full" }, offload = { "none" },
}

-- Megatron-Core of 2024 (megatron/training/arguments.py of core_r0.9): --cp-comm-type p2p,
-- all_gather, a2a or a2a+p2p; --moe-token-dispatcher-type alltoall or allgather; with experts and
-- TP, sequence parallelism must be used (megatron/core/model_parallel_config.py).
local megatron_core = {
  dp = { reduce = { "last" } }, zero = { stage = { 1 }, offload = { "none" } },
  tp = true, sp = { balance = { "zigzag" } }, pp = true, ep = true,
  schedules = { "1f1b", "interleaved" }, recompute = { "none", "selective", "full", "ops" }, offload = { "none" },
  apart = { { ep = true, tp = true, sp = false } },
}

-- Megatron-Core of 2025 also has Megatron-FSDP (--data-parallel-sharding-strategy optim_grads,
-- optim_grads_params) and offloads the optimizer (--optimizer-cpu-offload).
local nvidia_2025 = {
  dp = { reduce = { "last" } }, zero = { offload = { "none", "optimizer" } },
  tp = true, sp = { balance = { "zigzag" } }, pp = true, ep = true,
  schedules = { "1f1b", "interleaved" }, recompute = { "none", "selective", "full", "ops" }, offload = { "none" },
  apart = { { ep = true, tp = true, sp = false } },
}

-- torchtitan of December 2024 (torchtitan/parallelisms/parallelize_llama.py): fully_shard shards
-- parameters, over groups too; DDP goes with nothing else; TP always splits the sequence between
-- its products; context parallelism is a ring or gathers keys; the schedules are those of
-- torch.distributed.pipelining.
local torchtitan = {
  dp = true, zero = { stage = { 3 }, reduce = { "each" }, offload = { "none", "parameters" } },
  tp = true, sp = { form = { "ring", "allgather" }, ulysses = { 1 } }, pp = true,
  schedules = { "1f1b", "gpipe", "interleaved", "looped-bfs", "zbv" },
  recompute = { "none", "selective", "full", "ops" }, offload = { "none" },
  apart = { { dp = true, tp = true }, { dp = true, pp = true }, { dp = true, sp = true }, { tp = true, sp = false } },
}

return {
  ["megatron-2021"] = megatron_2021,
  vtrain = megatron_2021,
  ["megatron-2022"] = megatron_2022,
  ["megatron-core"] = megatron_core,
  ["nvidia-2025"] = nvidia_2025,
  fsdp2 = torchtitan,
  ["fsdp2-eager"] = torchtitan,
  -- MosaicML's LLM Foundry on PyTorch's FSDP 1 (its README's keys fsdp_config.sharding_strategy,
  -- activation_checkpointing, activation_cpu_offload): no axis but that of the data.
  ["fsdp-mpt"] = {
    dp = true, zero = { stage = { 2, 3 }, reduce = { "each" }, offload = { "none", "parameters" } },
    recompute = { "none", "full" }, offload = { "none", "full" },
  },
  -- DeepSpeed of 2021 (deepspeed/runtime/pipe/engine.py refuses stages 2 and 3; ZeRO-Offload and
  -- ZeRO-Infinity): no groups of ranks, no form that splits the sequence.
  ["zero3-2021"] = {
    dp = true, zero = { replicas = { 1 }, keep = { false }, reduce = { "each" } }, tp = { overlap = { false } }, pp = true,
    schedules = { "1f1b" }, recompute = { "none", "full" }, offload = { "none", "full" },
    apart = { { pp = true, zero = { stage = { 2, 3 } } } },
  },
  -- Meta's trainer (Grattafiori et al. 2024, section 3.3): sharded states whose parameters are not
  -- sharded again after forward, context parallelism by gathered keys, one interleaved schedule
  -- that goes from 1F1B to all forwards first.
  llama3 = {
    zero = { stage = { 1, 2 }, offload = { "none" } }, tp = true, sp = { form = { "allgather" } }, pp = true,
    schedules = { "1f1b", "gpipe", "interleaved", "looped-bfs" }, offload = { "none" },
  },
  -- MaxText (its configs/base.yml: ici_ and dcn_ axes data, fsdp, context, tensor, expert and
  -- pipeline; remat_policy; optimizer_memory_host_offload, parameter_memory_host_offload): stages
  -- go forward with all microbatches first, in a circle where a stage has several chunks.
  maxtext = {
    dp = true, zero = { stage = { 3 } }, tp = true, sp = { form = { "allgather" } }, pp = true, ep = true,
    schedules = { "gpipe", "looped-bfs" },
  },
}
