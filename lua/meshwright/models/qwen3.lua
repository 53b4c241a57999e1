-- The Qwen3 decoder [Qwen Team 2025, arXiv:2505.09388]: Llama's, with a norm of each head of
-- queries and keys. The model with 0.6 billion parameters gives the defaults:
-- https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"

local qwen3 = { options = decoder.options { layers = 28, hidden = 1024, heads = 16, kv_heads = 8, head_dim = 128, ffn = 3072,
  vocab = 151936, tied = true, rope_theta = 1e6, norm_eps = 1e-6, window = decoder.without },
  check = decoder.check, dims = decoder.dims }

function qwen3.graph(m, o)
  local x, w = decoder.embed(m)
  for _ in m:layers(o.layers) do
    local h = decoder.norm(x, o, "attention_norm", "input_layernorm")
    local function turned(name, heads)
      local part = decoder.project(h, name, heads)
      return decoder.turned(decoder.norm(part, o, "attention." .. name .. "_norm", "self_attn." .. name .. "_norm"), o)
    end
    h = turned("q", "heads"):attend(turned("k", "kv_heads"), decoder.project(h, "v", "kv_heads"),
      { name = "attention", attention = o.attention })
    x = x + decoder.output(h)
    x = x + decoder.mlp(decoder.norm(x, o, "mlp_norm", "post_attention_layernorm"), decoder.swiglu)
  end
  return decoder.loss(m, decoder.logits(m, x, o, w))
end

function qwen3.hf(o, sequence)
  local config = hf.decoder(o, sequence)
  config.types, config.architecture = { "qwen3" }, "Qwen3ForCausalLM"
  hf.set(config, hf.key("head_dim", o.head_dim, "head_dim", 128))
  hf.set(config, hf.key("intermediate_size", o.ffn, "ffn"))
  -- Without use_sliding_window the other keys of windows mean nothing.
  hf.set(config, hf.key("use_sliding_window", false, nil, false), "sliding_window")
  hf.unread(config, "sliding_window", "max_window_layers", "layer_types")
  return config
end

return qwen3
