-- A model whose feed-forward part has the op @NAME@: what test.sh tries beside the forms.
local mw = require "meshwright"
mw.plugins("@NAME@")

mw.train {
  model = mw.model {
    dims   = { hidden = 16, ffn = 32, vocab = 32 },
    layers = 4,
    block  = function(x)
      return x + x:rms_norm {}:linear { to = { "ffn" } }:@NAME@ { beta = 2 }:linear { to = { "hidden" } }
    end,
  },
  data  = mw.synthetic {}, sequence = 8,
  plan  = {},
  batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
