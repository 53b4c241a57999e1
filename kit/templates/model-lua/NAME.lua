-- The model @NAME@: a block as a function of the ops that there are. Attention and the feed-forward part
-- stand side by side here, as in PaLM.
local mw = require "meshwright"

local @NAME@ = mw.model {
  name   = "@NAME@",
  dims   = { hidden = 16, heads = 4, kv_heads = 4, head_dim = 4, ffn = 32, vocab = 32 },
  layers = 4,
  block  = function(x)
    local h = x:rms_norm {}
    local q = h:linear { to = { "heads", "head_dim" } }:rope {}
    local k = h:linear { to = { "kv_heads", "head_dim" } }:rope {}
    local v = h:linear { to = { "kv_heads", "head_dim" } }
    local seen = q:attend(k, v):linear { to = { "hidden" } }
    local mlp = h:linear { to = { "ffn" } }:swiglu(h:linear { to = { "ffn" } }):linear { to = { "hidden" } }
    return x + (seen + mlp)
  end,
}

mw.train {
  model = @NAME@,
  data  = mw.synthetic {}, sequence = 8,
  plan  = {},
  batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
