-- Gemma 3's text model [Gemma Team 2025, arXiv:2503.19786]: queries and keys are normed, and five
-- layers that see a window stand before each layer that sees all tokens.
local mw = require "meshwright"
local decoder = require "meshwright.decoder"
local sizes = require "meshwright.models.sizes"

--- gemma3 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, window, every, scale, eps,
--- theta, local_theta }. The model with 1 billion parameters gives the defaults:
--- https://huggingface.co/google/gemma-3-1b-pt/blob/main/config.json.
return function(given)
  local d = sizes("gemma3", { layers = 26, hidden = 1152, heads = 4, kv_heads = 1, head_dim = 256, ffn = 6912, vocab = 262144,
    window = 512, every = 6, scale = 256 ^ -0.5, eps = 1e-6, theta = 1e6, local_theta = 1e4 }, given)
  local hf = decoder.hf
  return mw.model {
    name = "gemma3",
    dims = decoder.dims(d),
    graph = function(m)
      local function norm(x, name, theirs)
        return x:rms_norm { eps = d.eps, plus = 1, name = name, hf = theirs }
      end
      local w = decoder.embedding(m)
      local x = m.tokens:lookup(w) * d.hidden ^ 0.5
      for layer in m:layers(d.layers) do
        local all = (layer + 1) % d.every == 0
        local h = norm(x, "attention_norm", hf "input_layernorm")
        local function turned(name, heads)
          return norm(decoder.project(h, name, heads), name .. "_norm", hf("self_attn." .. name .. "_norm"))
            :rope { theta = all and d.theta or d.local_theta }
        end
        h = turned("q", "heads"):attend(turned("k", "kv_heads"), decoder.project(h, "v", "kv_heads"),
          { scale = d.scale, window = not all and d.window or nil })
        x = x + norm(decoder.output(h), "attention_out_norm", hf "post_attention_layernorm")
        h = norm(x, "mlp_norm", hf "pre_feedforward_layernorm")
        x = x + norm(decoder.mlp(h, decoder.geglu), "mlp_out_norm", hf "post_feedforward_layernorm")
      end
      x = norm(x, "norm", "model.norm.weight")
      return x:linear { w }:cross_entropy(m.labels)
    end,
  }
end
