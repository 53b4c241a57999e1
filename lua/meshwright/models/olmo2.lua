-- OLMo 2 [Team OLMo 2024, arXiv:2501.00656]: norms after each part and none before it, and norms of
-- all queries and of all keys together.
local mw = require "meshwright"
local decoder = require "meshwright.decoder"
local sizes = require "meshwright.models.sizes"

--- olmo2 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, eps, theta }. The model with 7
--- billion parameters gives the defaults:
--- https://huggingface.co/allenai/OLMo-2-1124-7B/blob/main/config.json.
return function(given)
  local d = sizes("olmo2", { layers = 32, hidden = 4096, heads = 32, kv_heads = 32, head_dim = 128, ffn = 11008, vocab = 100352,
    eps = 1e-6, theta = 5e5 }, given)
  local hf = decoder.hf
  return mw.model {
    name = "olmo2",
    dims = decoder.dims(d),
    graph = function(m)
      local w = decoder.embedding(m)
      local x = m.tokens:lookup(w)
      for _ in m:layers(d.layers) do
        -- An RMSNorm over heads and head_dim: where heads are cut, the ranks add up their squares.
        local function turned(name, heads)
          local part = decoder.project(x, name, heads)
          local scale = m:weight { name .. "_norm", heads, "head_dim", init = "ones", hf = hf("self_attn." .. name .. "_norm") }
          local squares = part:square():mean { { heads, "head_dim" }, name = name .. "_squares" }
          return (part * (squares + d.eps):rsqrt() * scale):rope { theta = d.theta }
        end
        local h = turned("q", "heads"):attend(turned("k", "kv_heads"), decoder.project(x, "v", "kv_heads"))
        x = x + decoder.output(h):rms_norm { eps = d.eps, name = "attention_norm", hf = hf "post_attention_layernorm" }
        x = x + decoder.mlp(x, decoder.swiglu):rms_norm { eps = d.eps, name = "mlp_norm", hf = hf "post_feedforward_layernorm" }
      end
      x = x:rms_norm { eps = d.eps, name = "norm", hf = "model.norm.weight" }
      local head = m:weight { "head", "vocab", "hidden", hf = "lm_head.weight" }
      return x:linear { head }:cross_entropy(m.labels)
    end,
  }
end
