-- The GPT-2 decoder [Radford et al. 2019]: LayerNorm before each block, learned positions, GELU,
-- biases, tied embeddings.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"

local gpt = { options = decoder.options { kv_heads = decoder.without, rope_theta = decoder.without,
  rope_scaling = decoder.without, window = decoder.without, tied = true,
  heads = { "heads", "integer", "attention heads; must divide hidden, unless head_dim is given", range = { 1, 65536 } },
  ffn = { "ffn", "integer", "width of the feed-forward part; 4 hidden by default", at_least = 1, optional = true,
    usual = function(v) return v.hidden ~= nil and v.ffn == 4 * v.hidden end },
  norm_eps = { "norm_eps", "number", "added to the variance in LayerNorm", fallback = 1e-5, at_least = 0 },
} }
decoder.more(gpt.options, {
  { "positions", "integer", "learned positions; the sequence length by default", at_least = 1, optional = true, unit = "tokens" },
}, "vocab")

gpt.check = decoder.check_heads

function gpt.dims(o)
  local dims = decoder.dims(o)
  dims.ffn = o.ffn or 4 * o.hidden
  dims.positions = o.positions or "sequence"
  return dims
end

function gpt.graph(m, o)
  -- Projections into the residual stream start with smaller weights, by the square root of their
  -- number, two in a layer.
  local residual = 0.02 / math.sqrt(2 * o.layers)
  local function norm(x, name, theirs) return x:layer_norm { eps = o.norm_eps, name = name, hf = theirs } end
  -- A linear with bias; GPT-2 stores its weights transposed.
  local function linear(x, to, name, theirs, std, part)
    return x:linear { to, name = name, bias = true, std = std, hf = "h.{}." .. theirs .. ".weight", hf_transposed = true,
      hf_part = part }
  end
  local w = m:weight { "embedding", "vocab", "hidden", hf = "wte.weight" }
  local learned = m:weight { "positions", "positions", "hidden", hf = "wpe.weight" }
  local x = m.tokens:lookup(w, { name = "embedding" }):add_positions(learned, { name = "add_positions" })
  for _ in m:layers(o.layers) do
    local h = norm(x, "attention_norm", "h.{}.ln_1")
    local function heads(name, part)
      return linear(h, { "heads", "head_dim" }, "attention." .. name, "attn.c_attn", 0.02, { part, 3 })
    end
    local q, k, v = heads("q", 1), heads("k", 2), heads("v", 3)
    h = q:attend(k, v, { name = "attention", attention = o.attention })
    x = decoder.add(x, linear(h, "hidden", "attention.o", "attn.c_proj", residual), "attention")
    h = linear(norm(x, "mlp_norm", "h.{}.ln_2"), "ffn", "mlp.up", "mlp.c_fc", 0.02):gelu { name = "mlp.gelu" }
    x = decoder.add(x, linear(h, "hidden", "mlp.down", "mlp.c_proj", residual), "mlp")
  end
  x = norm(x, "norm", "ln_f")
  local head = o.tied and w or m:weight { "head", "vocab", "hidden", hf = "lm_head.weight" }
  return decoder.loss(m, x:linear { head, name = "head" })
end

function gpt.hf(o, sequence)
  local key, width = hf.key, o.head_dim and o.head_dim > 0 and o.head_dim or o.hidden // o.heads
  return {
    types = { "gpt2" }, architecture = "GPT2LMHeadModel", prefix = "transformer.",
    none = width * o.heads ~= o.hidden and ("head_dim = %d, and GPT-2's heads are hidden / heads wide"):format(width) or nil,
    keys = {
      key({ "n_layer", "num_hidden_layers" }, o.layers, "layers", 12),
      key({ "n_embd", "hidden_size" }, o.hidden, "hidden", 768),
      key({ "n_head", "num_attention_heads" }, o.heads, "heads", 12),
      key("n_inner", o.ffn ~= 4 * o.hidden and o.ffn or nil, "ffn", nil, { 4 * o.hidden }),
      key("vocab_size", o.vocab, "vocab", 50257),
      key({ "n_positions", "n_ctx" }, o.positions or sequence, "positions", 1024),
      key("layer_norm_epsilon", o.norm_eps, "norm_eps", 1e-5),
      key("tie_word_embeddings", o.tied, "tied", true),
      key("activation_function", "gelu_new", nil, "gelu_new", { "gelu_pytorch_tanh" }),
      key("scale_attn_weights", true, nil, true),
      key("scale_attn_by_inverse_layer_idx", false, nil, false),
    },
    more = { resid_pdrop = 0.0, embd_pdrop = 0.0, attn_pdrop = 0.0 },
  }
end

return gpt
