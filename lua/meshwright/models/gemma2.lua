-- Gemma 2 [Gemma Team 2024, arXiv:2408.00118]: norms before and after each part, soft caps on
-- scores and logits, and a window in every second layer.
local mw = require "meshwright"
local decoder = require "meshwright.decoder"
local sizes = require "meshwright.models.sizes"

--- gemma2 { layers, hidden, heads, kv_heads, head_dim, ffn, vocab, window, scale, score_cap,
--- logit_cap, eps, theta }. The model with 2 billion parameters gives the defaults:
--- https://huggingface.co/google/gemma-2-2b/blob/main/config.json.
return function(given)
  local d = sizes("gemma2", { layers = 26, hidden = 2304, heads = 8, kv_heads = 4, head_dim = 256, ffn = 9216, vocab = 256000,
    window = 4096, scale = 256 ^ -0.5, score_cap = 50, logit_cap = 30, eps = 1e-6, theta = 10000 }, given)
  local hf = decoder.hf
  return mw.model {
    name = "gemma2",
    dims = decoder.dims(d),
    graph = function(m)
      local function norm(x, name, theirs)
        return x:rms_norm { eps = d.eps, plus = 1, name = name, hf = theirs }
      end
      local w = decoder.embedding(m)
      local x = m.tokens:lookup(w) * d.hidden ^ 0.5
      for layer in m:layers(d.layers) do
        local h = norm(x, "attention_norm", hf "input_layernorm")
        local q = decoder.project(h, "q", "heads"):rope { theta = d.theta }
        local k = decoder.project(h, "k", "kv_heads"):rope { theta = d.theta }
        h = q:attend(k, decoder.project(h, "v", "kv_heads"),
          { scale = d.scale, softcap = d.score_cap, window = layer % 2 == 0 and d.window or nil })
        x = x + norm(decoder.output(h), "attention_out_norm", hf "post_attention_layernorm")
        h = norm(x, "mlp_norm", hf "pre_feedforward_layernorm")
        x = x + norm(decoder.mlp(h, decoder.geglu), "mlp_out_norm", hf "post_feedforward_layernorm")
      end
      x = norm(x, "norm", "model.norm.weight")
      return x:linear { w }:softcap(d.logit_cap):cross_entropy(m.labels)
    end,
  }
end
