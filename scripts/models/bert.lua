-- BERT [Devlin et al. 2018, arXiv:1810.04805] with its head for masked tokens: an encoder whose
-- norms follow each part of a layer. The input `kind` says which of two texts a token is of.
-- Weights are read and written as BertForMaskedLM has them.
--
--   ./meshwright verify scripts/models/bert.lua
local mw = require "meshwright"
local pp, tp = mw.plugins("pp", "tp")

local layers = 4
local dims = { hidden = 64, heads = 4, ffn = 128, vocab = 256, dense = 64, places = 32, kinds = 2 }

local bert = mw.model {
  name = "bert", dims = dims, inputs = { kind = { "batch", "seq", below = "kinds" } },
  hf = { type = "bert", architecture = "BertForMaskedLM", config = { num_hidden_layers = layers, hidden_size = dims.hidden,
    num_attention_heads = dims.heads, intermediate_size = dims.ffn, vocab_size = dims.vocab, type_vocab_size = dims.kinds,
    max_position_embeddings = dims.places, layer_norm_eps = 1e-12, hidden_act = "gelu", tie_word_embeddings = true } },
  graph = function(m)
    local function table_of(name, rows)
      return m:weight { name, rows, "hidden", hf = "bert.embeddings." .. name .. "_embeddings.weight" }
    end
    local function norm(x, name, theirs) return x:layer_norm { eps = 1e-12, name = name, hf = theirs .. "LayerNorm" } end
    local words = table_of("word", "vocab")
    local x = m.tokens:lookup(words) + m.positions:lookup(table_of("position", "places"))
    x = x + m.kind:lookup(table_of("token_type", "kinds"))
    x = norm(x, "norm", "bert.embeddings.")
    for _ in m:layers(layers) do
      local block = "bert.encoder.layer.{}."
      local function linear(of, to, name, theirs)
        return of:linear { to, bias = true, name = name, hf = block .. theirs .. ".weight" }
      end
      local function heads(name, theirs) return linear(x, { "heads", "head_dim" }, name, "attention.self." .. theirs) end
      local h = heads("q", "query"):attend(heads("k", "key"), heads("v", "value"), { causal = false })
      x = norm(x + linear(h, "hidden", "o", "attention.output.dense"), "attention_norm", block .. "attention.output.")
      h = linear(linear(x, "ffn", "up", "intermediate.dense"):gelu_erf(), "hidden", "down", "output.dense")
      x = norm(x + h, "mlp_norm", block .. "output.")
    end
    local head = "cls.predictions."
    x = x:linear { "dense", bias = true, name = "dense", hf = head .. "transform.dense.weight" }:gelu_erf()
    x = norm(x:as { "batch", "seq", "hidden" }, "head_norm", head .. "transform.")
    local logits = x:linear { words } + m:weight { "head_bias", "vocab", init = "zeros", hf = head .. "bias" }
    return logits:cross_entropy(m.labels)
  end,
}

mw.train {
  model = bert, data = mw.synthetic { sequence = 16 }, plan = { pp(2), tp(2) },
  batch = 4, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
