-- Steps that NVIDIA published of its own software of 2025 on DGX H100, in bf16 and fp8: recipes of
-- DGX Cloud Benchmarking (github.com/NVIDIA/dgxc-benchmarking) and the archive of
-- Megatron-Bridge's performance summary (github.com/NVIDIA-NeMo/Megatron-Bridge); page and version
-- stand in each row of nvidia_2025.csv. Rows that differ in nothing but the number of devices are
-- one family, of which the table has the smallest and the largest. Families are numbered as the
-- pages have them, bf16 first: the odd ones fitted clusters/stacks/nvidia-2025.lua and
-- nvidia-2025-fp8.lua, the even ones are kept aside. What the software does stands in its recipes
-- (llama3.1/pretrain_llama31.py and the recipes of NeMo that it names, the YAML of nemo_megatron
-- and of v25.02.02):
-- - the distributed optimizer over all ranks of data and of the sequence, with bf16 gradients,
--   both of its collectives overlapped; where fsdp is 1 parameters are sharded too;
-- - collectives of TP overlapped by Transformer Engine; what TP gathered is gathered again in
--   backward;
-- - sequences sent round a ring, of which each rank has a part from the front and one from the
--   back;
-- - where 126 layers, 62 or 30 stand on 64 or 32 virtual stages, the embedding and the loss count
--   as a layer each (account_for_embedding_in_pipeline_split);
-- - the 405B of v25.02.02 has 16 groups of keys and GPT-2's vocabulary, filled up to 51,200;
-- - current scaling reads what it narrows once more, for its largest number (fp8-current).
local mw = require "meshwright"

local function llama(hidden, heads, kv_heads, ffn, vocab)
  return function(layers)
    return mw.llama { layers = layers, hidden = hidden, heads = heads, kv_heads = kv_heads, ffn = ffn, vocab = vocab }
  end
end

-- Nemotron-4: LayerNorm, rotary positions, grouped queries, a squared ReLU (which streams as GELU
-- does), no biases, an output of its own.
local function nemotron(hidden, heads, ffn)
  return function(layers)
    return mw.model {
      name = "nemotron", layers = layers,
      dims = { hidden = hidden, heads = heads, kv_heads = 8, ffn = ffn, vocab = 256000 },
      block = function(x)
        local h = x + x:layer_norm():attention()
        return h + h:layer_norm():mlp { act = "gelu" }
      end,
      head = function(x) return x:layer_norm() end,
    }
  end
end

local models = {
  ["llama3-8b"] = llama(4096, 32, 8, 14336, 128256),
  ["llama3-70b"] = llama(8192, 64, 8, 28672, 128256),
  ["llama3-405b"] = llama(16384, 128, 8, 53248, 128256),
  ["llama3-405b-16"] = llama(16384, 128, 16, 53248, 51200),
  ["nemotron4-15b"] = nemotron(6144, 48, 24576),
  ["nemotron4-340b"] = nemotron(18432, 96, 73728),
  ["gpt3-175b"] = function(layers) return mw.gpt { layers = layers, hidden = 12288, heads = 96, vocab = 51200 } end,
}

local function layout_of(r)
  local stages = r.pp * r.vp
  if stages == 1 or r.layers % stages == 0 then return nil end
  local layout = {}
  for k = 1, stages do layout[k] = (r.layers + 2) // stages - ((k == 1 or k == stages) and 1 or 0) end
  return layout
end

-- The rows of odd families, or of even ones.
return function(list, odd)
  local rows = {}
  for _, r in ipairs(list) do
    if (r.family % 2 == 1) == odd then
      local fp8 = r.precision ~= "bf16"
      rows[#rows + 1] = {
        name = ("%s %s on %d, %d layers: tp %d, pp %d, cp %d, %s"):format(r.model, r.precision, r.gpus, r.layers, r.tp,
          r.pp, r.cp, r.software),
        published = r.seconds, cluster = "dgx-h100", stack = fp8 and "nvidia-2025-fp8" or "nvidia-2025",
        software = r.precision == "fp8-current" and { product_casts = 6 } or nil,
        model = models[r.model](r.layers), sequence = r.sequence, batch = r.gbs, microbatch = r.mbs, tp = r.tp,
        pp = r.pp, cp = r.cp, cp_form = "ring", dp = r.gpus // r.tp // r.pp // r.cp, zero = r.fsdp == 1 and 3 or 1,
        over_sequence = r.cp > 1, chunks = r.vp, layout = layout_of(r), sp = r.tp > 1, async = r.tp > 1,
        recompute = r.tp > 1 and { gathers = true } or nil,
      }
    end
  end
  return rows
end
