-- A language model that sees an image, as LLaVA does [Liu et al. 2023, arXiv:2304.08485]. The
-- encoder computes a vector for each patch of the image, and these vectors replace the embeddings
-- of some tokens. The input `place` names a patch for each token; a token whose `shown` is above
-- zero gets the vector of that patch.
--
--   ./meshwright verify scripts/models/llava.lua
local mw = require "meshwright"
local zero, tp = mw.plugins("zero", "tp")

local llava = mw.model {
  name = "llava",
  dims = { hidden = 64, heads = 4, ffn = 128, vocab = 256, patches = 9, pixels = 48, vision = 32, vision_ffn = 64 },
  inputs = { image = { "batch", "patches", "pixels" }, place = { "batch", "seq", below = "patches" },
    shown = { "batch", "seq" } },
  graph = function(m)
    local v = m.image:linear { "vision", from = "pixels", name = "patch" }
    for _ in m:layers(2) do
      local h = v:rms_norm()
      local function heads(name) return h:linear { { "heads", "head_dim" }, from = "vision", name = name } end
      h = heads "q":attend(heads "k", heads "v", { causal = false })
      v = v + h:linear { "vision", from = { "heads", "head_dim" }, name = "o" }
      h = v:rms_norm():linear { "vision_ffn", from = "vision", name = "up" }:gelu()
      v = v + h:linear { "vision", from = "vision_ffn", name = "down" }
    end
    v = v:linear { "hidden", from = "vision", name = "projector" }
    local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden" })
    local shown = m.shown:map "step(a)"
    x = x * (1 - shown) + v:gather(m.place) * shown
    for _ in m:layers(2) do
      x = x + x:rms_norm():attention()
      x = x + x:rms_norm():mlp()
    end
    return x:rms_norm():linear { m:weight { "head", "vocab", "hidden" } }:cross_entropy(m.labels)
  end,
}

mw.train {
  model = llava, data = mw.synthetic { sequence = 16 }, plan = { zero { 2, stage = 3 }, tp(2) },
  batch = 4, microbatch = 1, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
