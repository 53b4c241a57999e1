-- OLMo 2 [Team OLMo 2024, arXiv:2501.00656]: norms after each part and none before it, and norms of
-- all queries and of all keys together. Names as in Hugging Face's checkpoints.
local mw = require "meshwright"
local sizes = require "meshwright.models.sizes"

--- olmo2 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, eps, theta }: the defaults are
--- those of the model with 7 billion parameters, at
--- https://huggingface.co/allenai/OLMo-2-1124-7B/blob/main/config.json.
return function(given)
  local d = sizes("olmo2", { layers = 32, hidden = 4096, heads = 32, kv_heads = 32, head_dim = 128, ffn = 11008, vocab = 100352,
    eps = 1e-6, theta = 5e5 }, given)
  local function hf(name) return "model.layers.{}." .. name .. ".weight" end
  return mw.model {
    name = "olmo2",
    dims = { hidden = d.hidden, heads = d.heads, kv_heads = d.kv_heads, head_dim = d.head_dim, ffn = d.ffn, vocab = d.vocab },
    graph = function(m)
      local w = m:weight { "embedding", "vocab", "hidden", hf = "model.embed_tokens.weight" }
      local x = m.tokens:lookup(w)
      for _ in m:layers(d.layers) do
        local function project(name, heads)
          return x:linear { { heads, "head_dim" }, name = name, hf = hf("self_attn." .. name .. "_proj") }
        end
        -- An RMSNorm over heads and head_dim: where heads are cut, the ranks add up their squares.
        local function turned(name, heads)
          local part = project(name, heads)
          local scale = m:weight { name .. "_norm", heads, "head_dim", init = "ones", hf = hf("self_attn." .. name .. "_norm") }
          local squares = part:square():mean { { heads, "head_dim" }, name = name .. "_squares" }
          return (part * (squares + d.eps):rsqrt() * scale):rope { theta = d.theta }
        end
        local h = turned("q", "heads"):attend(turned("k", "kv_heads"), project("v", "kv_heads"))
        h = h:linear { "hidden", name = "o", hf = hf "self_attn.o_proj" }
        x = x + h:rms_norm { eps = d.eps, name = "attention_norm", hf = hf "post_attention_layernorm" }
        h = x:linear { "ffn", name = "gate", hf = hf "mlp.gate_proj" }
          :swiglu(x:linear { "ffn", name = "up", hf = hf "mlp.up_proj" })
        h = h:linear { "hidden", name = "down", hf = hf "mlp.down_proj" }
        x = x + h:rms_norm { eps = d.eps, name = "mlp_norm", hf = hf "post_feedforward_layernorm" }
      end
      x = x:rms_norm { eps = d.eps, name = "norm", hf = "model.norm.weight" }
      local head = m:weight { "head", "vocab", "hidden", hf = "lm_head.weight" }
      return x:linear { head }:cross_entropy(m.labels)
    end,
  }
end
