-- A vision transformer that names the class of an image [Dosovitskiy et al. 2020,
-- arXiv:2010.11929], with the mean over patches in place of a class token. The images are noise:
-- mw.synthetic makes every input that a model declares.
--
--   ./meshwright verify scripts/models/vit.lua
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local vit = mw.model {
  name = "vit",
  dims = { hidden = 64, heads = 4, ffn = 256, patches = 16, pixels = 48, classes = 10 },
  inputs = { image = { "batch", "patches", "pixels" }, class = { "batch", below = "classes" } },
  graph = function(m)
    local x = m.image:linear { "hidden", from = "pixels", bias = true, name = "patch" }
    x = x + m:weight { "places", "patches", "hidden" }
    for _ in m:layers(4) do
      local h = x:layer_norm()
      local function heads(name) return h:linear { { "heads", "head_dim" }, from = "hidden", bias = true, name = name } end
      h = heads "q":attend(heads "k", heads "v", { causal = false })
      x = x + h:linear { "hidden", from = { "heads", "head_dim" }, bias = true, name = "o" }
      h = x:layer_norm():linear { "ffn", from = "hidden", bias = true, name = "up" }:gelu_erf()
      x = x + h:linear { "hidden", from = "ffn", bias = true, name = "down" }
    end
    return x:layer_norm():mean "patches":linear { "classes", bias = true }:cross_entropy(m.class)
  end,
}

mw.train {
  model = vit, data = mw.synthetic { sequence = 1 }, plan = { dp(2), tp(2) },
  batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
