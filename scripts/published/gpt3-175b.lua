-- GPT-3's shape, 175 B parameters, as Megatron-LM trained it on Selene: 384 A100-80GB, TP 8, PP 12,
-- full recompute, 153 TFLOP/s a GPU at a batch of 1,536 (Narayanan et al. 2021, "Efficient
-- Large-Scale Language Model Training on GPU Clusters", table 2, PTD-P).
-- `./meshwright plan scripts/published/gpt3-175b.lua`
local mw         = require "meshwright"
local pp, dp, tp = mw.plugins("pp", "dp", "tp")

local layers, hidden, vocab, sequence, batch, gpus = 96, 12288, 51200, 2048, 1536, 384

local plan = mw.plan {
  model = mw.gpt { layers = layers, hidden = hidden, heads = 96, vocab = vocab },
  data = mw.synthetic {}, sequence = sequence,
  plan = { pp { 12, schedule = "1f1b" }, dp { 4, overlap = false, bucket = "256MiB" }, tp(8) },
  batch = batch, microbatch = 1, recompute = "full",
  precision = "bf16", main_gradients = "fp32",
  optimizer = mw.adamw { lr = 6e-5 }, steps = 1,
  cluster = mw.cluster("selene", { nodes = gpus // 8 }), stack = mw.stack "megatron-2021",
}

-- Its equation 3 counts the operations, recompute among them.
local flops = 96.0 * batch * sequence * layers * hidden ^ 2
  * (1 + sequence / (6 * hidden) + vocab / (16 * layers * hidden))
local published = flops / (gpus * 153e12)
print("gpt3-175b: " .. mw.published(plan, published))
