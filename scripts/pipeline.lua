-- Eight ranks: two stages, each of them two data-parallel copies of layers that are split over two.
-- ZB-H1 parts a backward into the input's gradient and the weights',
-- which fill the pipeline's bubble.
local mw         = require "meshwright"
local pp, dp, tp = mw.plugins("pp", "dp", "tp")

local run = mw.train {
  model      = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
  data       = mw.text { "gcide", sequence = 128 },
  plan       = { pp { ways = 2, schedule = "zb-h1" }, dp(2), tp(2) },
  batch      = 16,
  microbatch = 2,                            -- 4 microbatches of each of the two parts
  optimizer  = mw.adamw { lr = 3e-3, clip = 1.0 },
  schedule   = mw.cosine { warmup = 10 },    -- of the learning rate
  steps      = 40,
  log        = "runs/pipeline.h5",           -- meshwright trace draws a step of it
}
print(run)
