-- Gemma 2 27B on TPU v5p. Its report has the model and the layout, 6,144 chips, data 768 ways and
-- model 8 ways (Gemma Team 2024, "Gemma 2", sections 2 and 3.3), and neither a batch nor a step's
-- time: no figure to hold a prediction against. What is published of that chip and of that size is
-- MaxText's model of 32 B parameters on 64 chips: 328 TFLOP/s a chip, 71.5 % MFU
-- (github.com/AI-Hypercomputer/maxtext, configs/tpu/v5p/README.md and 32b.sh: 6 sequences of 2,048
-- a chip, parameters sharded 16 ways, tensors 4 ways, remat_policy=minimal: the results of products
-- are kept, all else is computed and gathered again). Both stand here.
-- Gemma's heads are 128 wide, 4,096 together, where this model's are as wide as the stream's 4,608;
-- left out are its windows, soft caps and second norms. Its batch here is ours: a sequence of 8,192
-- for each data-parallel group.
-- `./meshwright plan scripts/published/gemma-2-27b.lua`
local mw           = require "meshwright"
local zero, tp, sp = mw.plugins("zero", "tp", "sp")

-- MaxText keeps what attention's and the MLP's last products make, and makes the sums after them
-- again; here these sums are kept, as many bytes.
local made_again = { rms_norm = true, swiglu = true, attention = true }
local function minimal(op) return made_again[op.kind] or false end

local function plan(model, sequence, batch, ways, tensors, shape)
  local chips = ways * tensors
  return mw.plan {
    model = model, data = mw.synthetic {}, sequence = sequence,
    plan = { zero { ways, stage = 3 }, tp(tensors), sp() },
    batch = batch, microbatch = batch // ways, recompute = { what = minimal, gathers = true },
    precision = "bf16", main_gradients = "fp32",
    optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
    cluster = mw.cluster("tpu-v5p", { nodes = chips // 4, torus = { shape = shape } }), stack = mw.stack "maxtext",
  }
end

local maxtext = plan(mw.llama { layers = 32, hidden = 8192, heads = 64, ffn = 28672, vocab = 32000 }, 2048, 6 * 64, 16, 4,
  { 4, 4, 4 })
local published = maxtext.flops_per_step / (64 * 328e12)
print("maxtext 32B on 64 v5p: " .. mw.published(maxtext, published))

local gemma = plan(mw.llama { layers = 46, hidden = 4608, heads = 32, kv_heads = 16, ffn = 36864, vocab = 256128,
  tied = true }, 8192, 768, 768, 8, { 8, 24, 32 })
print("gemma-2-27b on 6144 v5p: " .. mw.published(gemma))
