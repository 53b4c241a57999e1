-- Gemma 3's text model [Gemma Team 2025, arXiv:2503.19786]: norms on queries and keys, five layers
-- with a window to one that sees all. Names as in Hugging Face's checkpoints.
local mw = require "meshwright"
local sizes = require "meshwright.models.sizes"

--- gemma3 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, window, every, scale, eps,
--- theta, local_theta }: the defaults are those of the model with 1 billion parameters, at
--- https://huggingface.co/google/gemma-3-1b-pt/blob/main/config.json.
return function(given)
  local d = sizes("gemma3", { layers = 26, hidden = 1152, heads = 4, kv_heads = 1, head_dim = 256, ffn = 6912, vocab = 262144,
    window = 512, every = 6, scale = 256 ^ -0.5, eps = 1e-6, theta = 1e6, local_theta = 1e4 }, given)
  local function hf(name) return "model.layers.{}." .. name .. ".weight" end
  return mw.model {
    name = "gemma3",
    dims = { hidden = d.hidden, heads = d.heads, kv_heads = d.kv_heads, head_dim = d.head_dim, ffn = d.ffn, vocab = d.vocab },
    graph = function(m)
      local function norm(x, name, theirs)
        return x:rms_norm { eps = d.eps, plus = 1, name = name, hf = theirs }
      end
      local w = m:weight { "embedding", "vocab", "hidden", hf = "model.embed_tokens.weight" }
      local x = m.tokens:lookup(w) * d.hidden ^ 0.5
      for layer in m:layers(d.layers) do
        local all = (layer + 1) % d.every == 0
        local h = norm(x, "attention_norm", hf "input_layernorm")
        local function project(name, heads)
          return h:linear { { heads, "head_dim" }, name = name, hf = hf("self_attn." .. name .. "_proj") }
        end
        local function turned(name, heads)
          return norm(project(name, heads), name .. "_norm", hf("self_attn." .. name .. "_norm"))
            :rope { theta = all and d.theta or d.local_theta }
        end
        h = turned("q", "heads"):attend(turned("k", "kv_heads"), project("v", "kv_heads"),
          { scale = d.scale, window = not all and d.window or nil })
        h = h:linear { "hidden", name = "o", hf = hf "self_attn.o_proj" }
        x = x + norm(h, "attention_out_norm", hf "post_attention_layernorm")
        h = norm(x, "mlp_norm", hf "pre_feedforward_layernorm")
        h = h:linear { "ffn", name = "gate", hf = hf "mlp.gate_proj" }:map(
          h:linear { "ffn", name = "up", hf = hf "mlp.up_proj" }, "gelu(a) * b")
        h = h:linear { "hidden", name = "down", hf = hf "mlp.down_proj" }
        x = x + norm(h, "mlp_out_norm", hf "post_feedforward_layernorm")
      end
      x = norm(x, "norm", "model.norm.weight")
      return x:linear { w }:cross_entropy(m.labels)
    end,
  }
end
