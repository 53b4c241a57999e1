-- What resolving and pricing a plan takes, as ranks, layers, microbatches and stages grow, one at a
-- time: `build/bin/bench_predict bench/predict_growth.lua`.
local mw = require "meshwright"
local pp, zero, tp, sp = mw.plugins("pp", "zero", "tp", "sp")

local function plan(what)
  local size = { ranks = 1024, stages = 8, layers = 64, microbatches = 32 }
  for key, value in pairs(what) do size[key] = value end
  local data = size.ranks // size.stages // 8
  mw.plan {
    model = mw.llama { layers = size.layers, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 128256 },
    data = mw.synthetic {}, sequence = 4096,
    plan = { pp { size.stages, schedule = "1f1b" }, zero { data, stage = 1, bucket = "256MiB" }, tp(8), sp() },
    batch = data * size.microbatches, microbatch = 1, precision = "bf16", main_gradients = "fp32",
    optimizer = mw.adamw { lr = 8e-5 }, steps = 1,
    cluster = mw.cluster("dgx-h100", { nodes = size.ranks // 8 }), stack = mw.stack "megatron-core",
  }
end

for k = 6, 16, 2 do plan { ranks = 1 << k, stages = 4 } end
for _, layers in ipairs { 32, 64, 128 } do plan { layers = layers } end
for _, microbatches in ipairs { 16, 64, 256 } do plan { microbatches = microbatches } end
for _, stages in ipairs { 2, 4, 8, 16, 32, 64 } do plan { stages = stages, microbatches = 64 } end
