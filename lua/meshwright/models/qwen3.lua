-- Qwen3's dense models [Qwen Team 2025, arXiv:2505.09388]: a llama with norms on queries and keys.
local mw = require "meshwright"
local decoder = require "meshwright.decoder"
local sizes = require "meshwright.models.sizes"

--- qwen3 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied, eps, theta }. The model
--- with 0.6 billion parameters gives the defaults:
--- https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json.
return function(given)
  local d = sizes("qwen3", { layers = 28, hidden = 1024, heads = 16, kv_heads = 8, head_dim = 128, ffn = 3072, vocab = 151936,
    tied = true, eps = 1e-6, theta = 1e6 }, given)
  local hf = decoder.hf
  return mw.model {
    name = "qwen3",
    dims = decoder.dims(d),
    graph = function(m)
      local w = decoder.embedding(m)
      local x = m.tokens:lookup(w)
      for _ in m:layers(d.layers) do
        local h = x:rms_norm { eps = d.eps, name = "attention_norm", hf = hf "input_layernorm" }
        local function turned(name, heads)
          return decoder.project(h, name, heads)
            :rms_norm { eps = d.eps, name = name .. "_norm", hf = hf("self_attn." .. name .. "_norm") }
            :rope { theta = d.theta }
        end
        h = turned("q", "heads"):attend(turned("k", "kv_heads"), decoder.project(h, "v", "kv_heads"))
        x = x + decoder.output(h)
        h = x:rms_norm { eps = d.eps, name = "mlp_norm", hf = hf "post_attention_layernorm" }
        x = x + decoder.mlp(h, decoder.swiglu)
      end
      x = x:rms_norm { eps = d.eps, name = "norm", hf = "model.norm.weight" }
      local head = d.tied and w or m:weight { "head", "vocab", "hidden", hf = "lm_head.weight" }
      return x:linear { head }:cross_entropy(m.labels)
    end,
  }
end
