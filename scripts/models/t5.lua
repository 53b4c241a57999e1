-- T5 [Raffel et al. 2019, arXiv:1910.10683]: an encoder, and a decoder that attends to what the
-- encoder made. The source text is an input of the model, with a length of its own. Scores have a
-- bias by the distance of two tokens, which all layers share. Weights are read and written as
-- T5ForConditionalGeneration has them.
--
--   ./meshwright verify scripts/models/t5.lua
local mw = require "meshwright"
local pp, tp = mw.plugins("pp", "tp")

local layers = 2
local dims = { hidden = 64, heads = 4, ffn = 128, vocab = 256, source = 24, buckets = 32 }

-- x plus what attention to `to` (default: to itself) makes of it. `block`: what the names of its
-- weights in a checkpoint begin with; `bias`: of the scores.
local function attention(x, name, block, bias, causal, to)
  local h = x:rms_norm { eps = 1e-6, name = name .. "_norm", hf = block[1] .. "layer_norm.weight" }
  local function linear(of, dim, from, part)
    return of:linear { dim, from = from, name = name .. "." .. part, hf = block[1] .. block[2] .. "." .. part .. ".weight" }
  end
  local function heads(of, part) return linear(of, { "heads", "head_dim" }, "hidden", part) end
  local options = { causal = causal, scale = 1, biased = bias ~= nil, name = name }
  local q, k, v = heads(h, "q"), heads(to or h, "k"), heads(to or h, "v")
  h = bias and q:attend(k, v, bias, options) or q:attend(k, v, options)
  return x + linear(h, "hidden", { "heads", "head_dim" }, "o")
end

local function mlp(x, block)
  local h = x:rms_norm { eps = 1e-6, name = "mlp_norm", hf = block .. "layer_norm.weight" }
  h = h:linear { "ffn", from = "hidden", name = "up", hf = block .. "DenseReluDense.wi.weight" }:relu()
  return x + h:linear { "hidden", from = "ffn", name = "down", hf = block .. "DenseReluDense.wo.weight" }
end

local t5 = mw.model {
  name = "t5", dims = dims, inputs = { text = { "batch", "source", below = "vocab" } },
  hf = { type = "t5", architecture = "T5ForConditionalGeneration", config = { num_layers = layers, num_decoder_layers = layers,
    d_model = dims.hidden, num_heads = dims.heads, d_kv = dims.hidden // dims.heads, d_ff = dims.ffn, vocab_size = dims.vocab,
    relative_attention_num_buckets = dims.buckets, relative_attention_max_distance = 128, layer_norm_epsilon = 1e-6,
    feed_forward_proj = "relu", is_encoder_decoder = true, tie_word_embeddings = true, decoder_start_token_id = 0 } },
  graph = function(m)
    local w = m:weight { "embedding", "vocab", "hidden", hf = "shared.weight" }
    local function bias(positions, name, causal)
      local first = name .. ".block.0.layer.0.SelfAttention."
      local by_bucket = m:weight { name, "buckets", "heads", hf = first .. "relative_attention_bias.weight" }
      return positions:distance { dims.buckets, causal = causal }:lookup(by_bucket)
    end
    local function last_norm(x, part)
      return x:rms_norm { eps = 1e-6, name = part .. "_norm", hf = part .. ".final_layer_norm.weight" }
    end
    local y, y_bias = m.text:lookup(w), bias(m:positions_of "source", "encoder", false)
    for layer in m:layers(layers) do
      local block = ("encoder.block.%d.layer."):format(layer)
      y = mlp(attention(y, "attention", { block .. "0.", "SelfAttention" }, y_bias, false), block .. "1.")
    end
    y = last_norm(y, "encoder")
    local x, x_bias = m.tokens:lookup(w), bias(m.positions, "decoder", true)
    for layer in m:layers(layers) do
      local block = ("decoder.block.%d.layer."):format(layer)
      x = attention(x, "attention", { block .. "0.", "SelfAttention" }, x_bias, true)
      x = attention(x, "cross", { block .. "1.", "EncDecAttention" }, nil, false, y)
      x = mlp(x, block .. "2.")
    end
    local logits = (last_norm(x, "decoder") * dims.hidden ^ -0.5):linear { w }
    return logits:cross_entropy(m.labels)
  end,
}

mw.train {
  model = t5, data = mw.synthetic { sequence = 16 }, plan = { pp(2), tp(2) },
  batch = 4, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
