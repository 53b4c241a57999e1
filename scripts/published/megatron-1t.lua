-- Megatron's model of a trillion parameters on 3,072 A100-80GB of Selene: TP 8, PP 64, a batch of
-- 3,072, full recompute, 163 TFLOP/s a GPU (Narayanan et al. 2021, table 1; microbatch 1 without
-- interleaving: Megatron-LM's examples/sc21/run_table_1.sh).
-- `./meshwright plan scripts/published/megatron-1t.lua`
local mw         = require "meshwright"
local pp, dp, tp = mw.plugins("pp", "dp", "tp")

local layers, hidden, vocab, sequence, batch, gpus = 128, 25600, 51200, 2048, 3072, 3072

local plan = mw.plan {
  model = mw.gpt { layers = layers, hidden = hidden, heads = 160, vocab = vocab },
  data = mw.synthetic {}, sequence = sequence,
  plan = { pp { 64, schedule = "1f1b" }, dp { 6, overlap = false, bucket = "256MiB" }, tp(8) },
  batch = batch, microbatch = 1, recompute = "full",
  precision = "bf16", main_gradients = "fp32",
  optimizer = mw.adamw { lr = 6e-5 }, steps = 1,
  cluster = mw.cluster("selene", { nodes = gpus // 8 }), stack = mw.stack "megatron-2021",
}

-- Its equation 3 counts the operations, recompute among them.
local flops = 96.0 * batch * sequence * layers * hidden ^ 2
  * (1 + sequence / (6 * hidden) + vocab / (16 * layers * hidden))
local published = flops / (gpus * 163e12)
print("megatron-1t: " .. mw.published(plan, published))
