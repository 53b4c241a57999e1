-- Qwen3's dense models [Qwen Team 2025, arXiv:2505.09388]: a llama with norms on queries and keys.
-- Names as in Hugging Face's checkpoints.
local mw = require "meshwright"
local sizes = require "meshwright.models.sizes"

--- qwen3 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied, eps, theta }: the defaults
--- are those of the model with 0.6 billion parameters, at
--- https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json.
return function(given)
  local d = sizes("qwen3", { layers = 28, hidden = 1024, heads = 16, kv_heads = 8, head_dim = 128, ffn = 3072, vocab = 151936,
    tied = true, eps = 1e-6, theta = 1e6 }, given)
  local function hf(name) return "model.layers.{}." .. name .. ".weight" end
  return mw.model {
    name = "qwen3",
    dims = { hidden = d.hidden, heads = d.heads, kv_heads = d.kv_heads, head_dim = d.head_dim, ffn = d.ffn, vocab = d.vocab },
    graph = function(m)
      local w = m:weight { "embedding", "vocab", "hidden", hf = "model.embed_tokens.weight" }
      local x = m.tokens:lookup(w)
      for _ in m:layers(d.layers) do
        local h = x:rms_norm { eps = d.eps, name = "attention_norm", hf = hf "input_layernorm" }
        local function project(name, heads)
          return h:linear { { heads, "head_dim" }, name = name, hf = hf("self_attn." .. name .. "_proj") }
        end
        local function turned(name, heads)
          return project(name, heads)
            :rms_norm { eps = d.eps, name = name .. "_norm", hf = hf("self_attn." .. name .. "_norm") }
            :rope { theta = d.theta }
        end
        h = turned("q", "heads"):attend(turned("k", "kv_heads"), project("v", "kv_heads"))
        x = x + h:linear { "hidden", name = "o", hf = hf "self_attn.o_proj" }
        h = x:rms_norm { eps = d.eps, name = "mlp_norm", hf = hf "post_attention_layernorm" }
        h = h:linear { "ffn", name = "gate", hf = hf "mlp.gate_proj" }
          :swiglu(h:linear { "ffn", name = "up", hf = hf "mlp.up_proj" })
        x = x + h:linear { "hidden", name = "down", hf = hf "mlp.down_proj" }
      end
      x = x:rms_norm { eps = d.eps, name = "norm", hf = "model.norm.weight" }
      local head = d.tied and w or m:weight { "head", "vocab", "hidden", hf = "lm_head.weight" }
      return x:linear { head }:cross_entropy(m.labels)
    end,
  }
end
