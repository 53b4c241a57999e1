-- What Gemma 2 and Gemma 3 share: norms that add 1 to their weight, before and after each part of a
-- layer, GELU with a gate, an embedding that is scaled, layers of which some see a window.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"

--- A kind of model (meshwright.kinds). `given`: its type and architecture there, sizes (defaults of
--- options), more options, sees_all(o, layer), norms_heads.
return function(given)
  local changes = { tied = decoder.without, rope_scaling = decoder.without, attention = decoder.without, norm_eps = 1e-6 }
  for name, size in pairs(given.sizes) do changes[name] = size end
  local options = decoder.more(decoder.options(changes), {
    { "query_pre_attn_scalar", "integer", "scores are divided by its square root", at_least = 1, fallback = 256 },
  })
  local gemma = { options = decoder.more(options, given.more), check = decoder.check, dims = decoder.dims }

  function gemma.graph(m, o)
    local function norm(x, name, theirs)
      return x:rms_norm { eps = o.norm_eps, plus = 1, name = name, hf = theirs and decoder.hf(theirs) or "model.norm.weight" }
    end
    local x, w = decoder.embed(m)
    x = x * o.hidden ^ 0.5
    for layer in m:layers(o.layers) do
      local all = given.sees_all(o, layer)
      local function turned(h, name, heads)
        local part = decoder.project(h, name, heads)
        if given.norms_heads then part = norm(part, "attention." .. name .. "_norm", "self_attn." .. name .. "_norm") end
        return part:rope { theta = not all and o.local_theta or o.rope_theta }
      end
      local h = norm(x, "attention_norm", "input_layernorm")
      h = turned(h, "q", "heads"):attend(turned(h, "k", "kv_heads"), decoder.project(h, "v", "kv_heads"),
        { name = "attention", scale = o.query_pre_attn_scalar ^ -0.5, softcap = o.score_cap,
          window = not all and o.window or nil })
      x = x + norm(decoder.output(h), "attention_out_norm", "post_attention_layernorm")
      h = norm(x, "mlp_norm", "pre_feedforward_layernorm")
      x = x + norm(decoder.mlp(h, decoder.geglu), "mlp_out_norm", "post_feedforward_layernorm")
    end
    local logits = norm(x, "norm"):linear { w, name = "head" }
    return decoder.loss(m, o.logit_cap and logits:softcap(o.logit_cap) or logits)
  end

  function gemma.hf(o, sequence)
    local config, kinds = hf.decoder(o, sequence), {}
    for layer = 0, o.layers - 1 do kinds[layer + 1] = given.sees_all(o, layer) and "full_attention" or "sliding_attention" end
    config.types, config.architecture = { given.type }, given.architecture
    hf.set(config, hf.key("tie_word_embeddings", true, nil, true))
    hf.set(config, hf.key("hidden_activation", "gelu_pytorch_tanh", nil, "gelu_pytorch_tanh"), "hidden_act")
    hf.set(config, hf.key("query_pre_attn_scalar", o.query_pre_attn_scalar, "query_pre_attn_scalar", 256))
    hf.set(config, hf.key("intermediate_size", o.ffn, "ffn"))
    hf.set(config, hf.key("layer_types", kinds))
    hf.set(config, hf.key("use_bidirectional_attention", false, nil, nil, { hf.null }))
    if given.version == 2 then
      hf.set(config, hf.key("attn_logit_softcapping", o.score_cap, "score_cap", 50.0))
      hf.set(config, hf.key("final_logit_softcapping", o.logit_cap, "logit_cap", 30.0))
    else
      local full = { "rope_parameters.full_attention.rope_theta", "rope_theta" }
      hf.set(config, hf.key(full, o.rope_theta, "rope_theta", 1e6), "rope_parameters.rope_theta")
      local near = { "rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq" }
      hf.set(config, hf.key(near, o.local_theta, "local_theta", 10000.0))
      hf.set(config, hf.key("rope_parameters.full_attention.rope_type", "default", nil, "default"), "rope_parameters.rope_type")
      hf.set(config, hf.key("rope_parameters.sliding_attention.rope_type", "default", nil, "default"))
      -- What files without layer_types say in its place.
      hf.set(config, hf.key("sliding_window_pattern", o.every, "every"))
      config.more.rope_local_base_freq = o.local_theta
    end
    return config
  end

  return gemma
end
