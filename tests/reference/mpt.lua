-- MosaicML's LLM Foundry, scripts/train/benchmarking/README.md (2023): MPT under FSDP, as rows of
-- prediction.lua and, of tables that no share was fitted by, of aside.lua.
local mw = require "meshwright"

local shapes = {  -- hidden, heads, layers
  ["125m"] = { 768, 12, 12 }, ["350m"] = { 1024, 16, 24 }, ["760m"] = { 1536, 12, 24 }, ["1b"] = { 2048, 16, 24 },
  ["3b"] = { 2560, 20, 32 }, ["7b"] = { 4096, 32, 32 }, ["13b"] = { 5120, 40, 40 }, ["30b"] = { 7168, 56, 48 },
  ["70b"] = { 8192, 64, 80 },
}

-- Those of a table that were measured on H100, or those that were not, on `cluster`.
return function(csv, h100, cluster)
  local rows = {}
  for _, r in ipairs(csv) do
    if (r.GPU:find "h100" ~= nil) == h100 then
      local shape, gpus = shapes[r.Model], r["# GPUs"]
      rows[#rows + 1] = {
        name = ("%s, sequence %d on %d, microbatch %d"):format(r.Model, r["SeqLen (T)"], gpus, r.MicroBatchSize),
        published = r.GlobalBatchSize * r["SeqLen (T)"] / r["Throughput (T/s/GPU)"] / gpus, cluster = cluster,
        stack = "fsdp-mpt",
        model = mw.gpt { hidden = shape[1], heads = shape[2], layers = shape[3], vocab = 50368 },
        sequence = r["SeqLen (T)"], batch = r.GlobalBatchSize, microbatch = r.MicroBatchSize, tp = 1, pp = 1, dp = gpus,
        zero = r["Sharding Strategy"] == "SHARD_GRAD_OP" and 2 or 3,
        recompute = r["Activation Checkpointing"] == "True" and "full" or "none",
        fp32_gradients = r["MP Mode"] ~= "PURE",
      }
    end
  end
  return rows
end
