-- Two models that are not built in, each a block over named dims: attention and MLP side by side
-- from one norm (Chowdhery et al. 2022, "PaLM", section 2), and layers that differ: every second
-- one has a narrower MLP, one key head, and a window.
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local parallel = mw.model {
  name   = "parallel",
  layers = 4,
  dims   = { hidden = 64, heads = 4, ffn = 176, vocab = 256 },
  block  = function(x)
    local h = x:rms_norm()
    return x + h:mlp() + h:attention()
  end,
}

local differing = mw.model {
  name   = "differing",
  layers = 4,
  dims   = { hidden = 64, heads = 4, kv_heads = 2, ffn = 176, vocab = 256,
             narrow = { 88, like = "ffn" }, one = { 1, like = "kv_heads" } },  -- cut as those are
  block  = function(x, layer)
    local wide = layer % 2 == 0
    local seen = x:rms_norm():attention(wide and {} or { kv_heads = "one", window = 32 })
    x = x + seen
    return x + x:rms_norm():mlp { width = wide and "ffn" or "narrow" }
  end,
}

for _, model in ipairs { parallel, differing } do
  print(mw.train {
    model      = model,
    data       = mw.text { "gcide", sequence = 64 },
    plan       = { dp(2), tp(2) },
    batch      = 8,
    microbatch = 2,
    optimizer  = mw.adamw { lr = 1e-3 },
    steps      = 20,
  })
end
