-- The OLMo 2 decoder [OLMo Team 2024, arXiv:2501.00656]: norms follow each part of a layer, and all
-- heads of queries or keys have one norm. The model with 7 billion parameters gives the defaults:
-- https://huggingface.co/allenai/OLMo-2-1124-7B/blob/main/config.json.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"

local olmo2 = { options = decoder.options { layers = 32, hidden = 4096, heads = 32, kv_heads = 32, ffn = 11008,
  vocab = 100352, rope_theta = 5e5, norm_eps = 1e-6, window = decoder.without }, check = decoder.check, dims = decoder.dims }

function olmo2.graph(m, o)
  local x, w = decoder.embed(m)
  for _ in m:layers(o.layers) do
    local function turned(name, heads)
      local part, norm = decoder.project(x, name, heads), "attention." .. name .. "_norm"
      local scale = m:weight { norm, heads, "head_dim", init = "ones", hf = decoder.hf("self_attn." .. name .. "_norm") }
      return decoder.turned(decoder.norm_over(part, { heads, "head_dim" }, scale, o, norm), o)
    end
    local h = turned("q", "heads"):attend(turned("k", "kv_heads"), decoder.project(x, "v", "kv_heads"),
      { name = "attention", attention = o.attention })
    x = x + decoder.norm(decoder.output(h), o, "attention_norm", "post_attention_layernorm")
    x = x + decoder.norm(decoder.mlp(x, decoder.swiglu), o, "mlp_norm", "post_feedforward_layernorm")
  end
  return decoder.loss(m, decoder.logits(m, x, o, w))
end

function olmo2.hf(o, sequence)
  local config = hf.decoder(o, sequence)
  config.types, config.architecture = { "olmo2" }, "Olmo2ForCausalLM"
  hf.set(config, hf.key("rms_norm_eps", o.norm_eps, "norm_eps", 1e-5))
  hf.set(config, hf.key("intermediate_size", o.ffn, "ffn"))
  return config
end

return olmo2
