-- The Llama decoder [Touvron et al. 2023]; with a window, Mistral's [Jiang et al. 2023].
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"

local llama = { options = decoder.options {}, check = decoder.check, dims = decoder.dims }

function llama.graph(m, o)
  local x, w = decoder.embed(m)
  for _ in m:layers(o.layers) do
    x = decoder.add(x, decoder.attention(decoder.norm(x, o, "attention_norm", "input_layernorm"), o), "attention")
    x = decoder.add(x, decoder.mlp(decoder.norm(x, o, "mlp_norm", "post_attention_layernorm"), decoder.swiglu), "mlp")
  end
  return decoder.loss(m, decoder.logits(m, x, o, w))
end

function llama.hf(o, sequence)
  local config = hf.decoder(o, sequence)
  config.types = o.window and { "mistral", "llama" } or { "llama", "mistral" }
  config.architecture = o.window and "MistralForCausalLM" or "LlamaForCausalLM"
  hf.add(config, hf.key("intermediate_size", o.ffn, "ffn"), hf.key("mlp_bias", false, nil, false))
  return config
end

return llama
