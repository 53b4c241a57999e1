-- The same question of docs/tutorial.md for a model of 3 billion parameters on 8 H100s: predicted,
-- since nothing of that size runs on a laptop.
local mw           = require "meshwright"
local dp, tp, zero = mw.plugins("dp", "tp", "zero")

for _, plan in ipairs { { dp(8) }, { dp(2), tp(4) }, { zero { 8, stage = 1 } } } do
  print(mw.plan {
    model      = mw.llama { layers = 28, hidden = 3072, heads = 24, kv_heads = 8, ffn = 8192, vocab = 128256, tied = true },
    data       = mw.synthetic {}, sequence = 4096,
    plan       = plan,
    batch      = 64, microbatch = 1,         -- microbatches of one sequence on each rank
    precision  = "bf16",
    recompute  = "selective",
    optimizer  = mw.adamw { lr = 3e-4, clip = 1.0 },
    steps      = 1,
    cluster    = mw.cluster("dgx-h100", { nodes = 1 }),
    stack      = mw.stack "megatron-core",
  })
end
