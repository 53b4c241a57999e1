-- An encoder, and a decoder that attends to what the encoder made, as T5's [Raffel et al. 2019,
-- arXiv:1910.10683] without its biases of relative positions. The source text is an input of the
-- model, with a length of its own.
--
--   ./meshwright verify scripts/models/encoder_decoder.lua
local mw = require "meshwright"
local pp, tp = mw.plugins("pp", "tp")

-- x plus its attention to y, or to itself.
local function attention(x, y, name, causal)
  local h = x:rms_norm { name = name .. "_norm" }
  local function heads(of, part) return of:linear { { "heads", "head_dim" }, from = "hidden", name = name .. "." .. part } end
  local made = heads(h, "q"):attend(heads(y or h, "k"), heads(y or h, "v"), { causal = causal, name = name })
  return x + made:linear { "hidden", from = { "heads", "head_dim" }, name = name .. ".o" }
end

local function mlp(x)
  local h = x:rms_norm { name = "mlp_norm" }:linear { "ffn", from = "hidden", name = "up" }:relu()
  return x + h:linear { "hidden", from = "ffn", name = "down" }
end

local model = mw.model {
  name = "encoder_decoder",
  dims = { hidden = 64, heads = 4, ffn = 128, vocab = 256, source = 24 },
  inputs = { text = { "batch", "source", below = "vocab" } },
  graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden" }
    local source = m.text:lookup(w) + m:weight { "source_places", "source", "hidden" }
    for _ in m:layers(2) do source = mlp(attention(source, nil, "attention", false)) end
    source = source:rms_norm()
    local x = m.tokens:lookup(w)
    for _ in m:layers(2) do x = mlp(attention(attention(x, nil, "attention", true), source, "cross", false)) end
    return x:rms_norm():linear { w }:cross_entropy(m.labels)
  end,
}

mw.train {
  model = model, data = mw.synthetic { sequence = 16 }, plan = { pp(2), tp(2) },
  batch = 4, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
