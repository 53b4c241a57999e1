-- Llama 3 405B on 8,192 and on 16,384 H100: TP 8, PP 16, 16 M tokens a step; 430 and 400 TFLOP/s a
-- GPU (Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 4 and section 3.3.2: one layer
-- less on the first and on the last virtual stage, which leaves these the embedding and the output
-- alone, so that each has one layer; gradients and optimizer state in shards, parameters not; no
-- activations checkpointed, but what is not needed again let go of, the inputs of stages too).
-- How often gradients are reduced is not published: here when a rank turns to another of its
-- virtual stages. Nor is what of sequence parallelism is kept: 80 GB hold none of what is gathered
-- for products, so it is gathered again. A stage's input is what its first norm reads; backward
-- needs that or what the norm makes of it, and here the latter is made again.
-- `./meshwright plan scripts/published/llama3-405b.lua`
local mw               = require "meshwright"
local pp, zero, tp, sp = mw.plugins("pp", "zero", "tp", "sp")

local sequence, layout = 8192, {}
for k = 1, 128 do layout[k] = (k == 1 or k == 128) and 0 or 1 end

for _, row in ipairs { { gpus = 8192, dp = 64, tflops = 430 }, { gpus = 16384, dp = 128, tflops = 400 } } do
  local batch = 2048
  local plan = mw.plan {
    model = mw.llama { layers = 126, hidden = 16384, heads = 128, kv_heads = 8, ffn = 53248, vocab = 128256 },
    data = mw.synthetic {}, sequence = sequence,
    plan = {
      pp { 16, schedule = "interleaved", chunks = 8, layout = layout },
      zero { row.dp, stage = 2, reduce = "chunk", bucket = "256MiB" }, tp(8), sp(),
    },
    batch = batch, microbatch = 1, precision = "bf16", main_gradients = "fp32",
    recompute = { ops = { "attention_norm" }, gathers = true },
    optimizer = mw.adamw { lr = 8e-5 }, steps = 1,
    cluster = mw.cluster("dgx-h100-llama3", { nodes = row.gpus // 8 }), stack = mw.stack "llama3",
  }
  local flops = 1.0 * batch * sequence * (6 * 405e9 + 6 * 126 * 16384 * sequence)
  local published = flops / (row.gpus * row.tflops * 1e12)
  print(("llama3-405b on %d: %s"):format(row.gpus, mw.published(plan, published)))
end
