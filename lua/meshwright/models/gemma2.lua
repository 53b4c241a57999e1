-- Gemma 2 [Gemma Team 2024, arXiv:2408.00118]: norms before and after each part, soft caps on
-- scores and logits, and a window in every second layer. Names as in Hugging Face's checkpoints.
local mw = require "meshwright"
local sizes = require "meshwright.models.sizes"

--- gemma2 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, window, scale, score_cap,
--- logit_cap, eps, theta }: the defaults are those of the model with 2 billion parameters, at
--- https://huggingface.co/google/gemma-2-2b/blob/main/config.json.
return function(given)
  local d = sizes("gemma2", { layers = 26, hidden = 2304, heads = 8, kv_heads = 4, head_dim = 256, ffn = 9216, vocab = 256000,
    window = 4096, scale = 256 ^ -0.5, score_cap = 50, logit_cap = 30, eps = 1e-6, theta = 10000 }, given)
  local function hf(name) return "model.layers.{}." .. name .. ".weight" end
  return mw.model {
    name = "gemma2",
    dims = { hidden = d.hidden, heads = d.heads, kv_heads = d.kv_heads, head_dim = d.head_dim, ffn = d.ffn, vocab = d.vocab },
    graph = function(m)
      local function norm(x, name, theirs)
        return x:rms_norm { eps = d.eps, plus = 1, name = name, hf = theirs }
      end
      local w = m:weight { "embedding", "vocab", "hidden", hf = "model.embed_tokens.weight" }
      local x = m.tokens:lookup(w) * d.hidden ^ 0.5
      for layer in m:layers(d.layers) do
        local h = norm(x, "attention_norm", hf "input_layernorm")
        local function project(name, heads)
          return h:linear { { heads, "head_dim" }, name = name, hf = hf("self_attn." .. name .. "_proj") }
        end
        local q = project("q", "heads"):rope { theta = d.theta }
        local k = project("k", "kv_heads"):rope { theta = d.theta }
        h = q:attend(k, project("v", "kv_heads"),
          { scale = d.scale, softcap = d.score_cap, window = layer % 2 == 0 and d.window or nil })
        h = h:linear { "hidden", name = "o", hf = hf "self_attn.o_proj" }
        x = x + norm(h, "attention_out_norm", hf "post_attention_layernorm")
        h = norm(x, "mlp_norm", hf "pre_feedforward_layernorm")
        h = h:linear { "ffn", name = "gate", hf = hf "mlp.gate_proj" }:map(
          h:linear { "ffn", name = "up", hf = hf "mlp.up_proj" }, "gelu(a) * b")
        h = h:linear { "hidden", name = "down", hf = hf "mlp.down_proj" }
        x = x + norm(h, "mlp_out_norm", hf "post_feedforward_layernorm")
      end
      x = norm(x, "norm", "model.norm.weight")
      return x:linear { w }:softcap(d.logit_cap):cross_entropy(m.labels)
    end,
  }
end
