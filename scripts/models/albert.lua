-- ALBERT [Lan et al. 2019, arXiv:1909.11942] with its head for masked tokens: all layers share
-- their weights, and the embedding is narrower than the layers. Weights are read and written as
-- AlbertForMaskedLM has them.
--
--   ./meshwright verify scripts/models/albert.lua
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local layers = 4
local dims = { hidden = 64, heads = 4, ffn = 128, vocab = 256, narrow = 32, places = 32, kinds = 2 }

local albert = mw.model {
  name = "albert", dims = dims, inputs = { kind = { "batch", "seq", below = "kinds" } },
  hf = { type = "albert", architecture = "AlbertForMaskedLM", config = { num_hidden_layers = layers, num_hidden_groups = 1,
    inner_group_num = 1, hidden_size = dims.hidden, embedding_size = dims.narrow, num_attention_heads = dims.heads,
    intermediate_size = dims.ffn, vocab_size = dims.vocab, type_vocab_size = dims.kinds, max_position_embeddings = dims.places,
    layer_norm_eps = 1e-12, hidden_act = "gelu_new", tie_word_embeddings = true } },
  graph = function(m)
    -- A weight and a bias: m:weight makes them once, and layers use them again.
    local function linear(name, to, from, theirs)
      local w = m:weight { name, to, from, hf = theirs .. ".weight" }
      local b = m:weight { name .. "_bias", to, init = "zeros", hf = theirs .. ".bias" }
      return function(x) return x:linear { w } + b end
    end
    local function norm(name, width, theirs)
      local w = m:weight { name, width, init = "ones", hf = theirs .. ".weight" }
      local b = m:weight { name .. "_bias", width, init = "zeros", hf = theirs .. ".bias" }
      return function(x)
        x = x - x:mean(width)
        return x * (x:square():mean(width) + 1e-12):rsqrt() * w + b
      end
    end
    local function table_of(name, rows)
      return m:weight { name, rows, "narrow", hf = "albert.embeddings." .. name .. "_embeddings.weight" }
    end
    local words = table_of("word", "vocab")
    local x = m.tokens:lookup(words) + m.positions:lookup(table_of("position", "places"))
    x = norm("norm", "narrow", "albert.embeddings.LayerNorm")(x + m.kind:lookup(table_of("token_type", "kinds")))
    x = linear("wider", "hidden", "narrow", "albert.encoder.embedding_hidden_mapping_in")(x)
    local layer = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    -- A weight of heads lies beside its bias, so that both are cut alike.
    local function heads(name, theirs)
      local w = m:weight { name, "heads", "head_dim", "hidden", hf = layer .. "attention." .. theirs .. ".weight" }
      local b = m:weight { name .. "_bias", "heads", "head_dim", init = "zeros", hf = layer .. "attention." .. theirs .. ".bias" }
      return function(h) return h:linear { w } + b end
    end
    local q, k, v = heads("q", "query"), heads("k", "key"), heads("v", "value")
    local o = m:weight { "o", "hidden", "heads", "head_dim", hf = layer .. "attention.dense.weight" }
    local o_bias = m:weight { "o_bias", "hidden", init = "zeros", hf = layer .. "attention.dense.bias" }
    local attention_norm = norm("attention_norm", "hidden", layer .. "attention.LayerNorm")
    local up, down = linear("up", "ffn", "hidden", layer .. "ffn"), linear("down", "hidden", "ffn", layer .. "ffn_output")
    local last_norm = norm("mlp_norm", "hidden", layer .. "full_layer_layer_norm")
    for _ in m:layers(layers) do
      local h = q(x):attend(k(x), v(x), { causal = false })
      x = attention_norm(x + h:linear { o } + o_bias)
      x = last_norm(x + down(up(x):gelu()))
    end
    x = linear("dense", "narrow", "hidden", "predictions.dense")(x):gelu()
    x = norm("head_norm", "narrow", "predictions.LayerNorm")(x)
    local logits = x:linear { words } + m:weight { "head_bias", "vocab", init = "zeros", hf = "predictions.bias" }
    return logits:cross_entropy(m.labels)
  end,
}

mw.train {
  model = albert, data = mw.synthetic { sequence = 16 }, plan = { dp(2), tp(2) },
  batch = 4, microbatch = 1, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
