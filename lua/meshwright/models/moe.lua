-- Decoders with experts: Mixtral [Jiang et al. 2024], and DeepSeek's fine-grained and shared
-- experts, leading dense layers, balance by a bias, choice within groups, prediction of further
-- tokens [Dai et al. 2024; DeepSeek-AI 2024] and latent attention. Tokens' choices and all losses
-- are defined for each token or sequence, so that neither microbatches nor the mix of strategies
-- change them.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"
local latent = require "meshwright.latent"
local routing = require "meshwright.routing"

local moe = { options = decoder.options {} }
decoder.more(moe.options, latent.options)
decoder.more(moe.options, {
  { "experts", "integer", "experts of a layer", range = { 1, 65536 } },
  { "top_k", "integer", "experts that a token chooses", range = { 1, 65536 } },
  { "expert_ffn", "integer", "width of an expert; default ffn", at_least = 1, optional = true,
    usual = function(v) return v.expert_ffn == v.ffn end },
  { "shared_experts", "integer", "experts that every token goes through, as one of their width", at_least = 0, fallback = 0 },
  { "dense_layers", "integer", "leading layers without experts, of width ffn", at_least = 0, fallback = 0 },
})
decoder.more(moe.options, routing.options { "top_k", "logit_bias" })
decoder.more(moe.options, {
  { "predict_ahead", "integer", "modules behind the layers, of a layer each, that predict the tokens after the next one",
    range = { 0, 64 }, optional = true, usual = function(v) return v.predict_ahead == 0 end },
  { "ahead_weight", "number", "factor of the mean of these modules' losses; left out: 0.3", at_least = 0, optional = true,
    usual = function(v) return v.ahead_weight == 0.3 end },
})

-- How many tokens after the next one are predicted.
local function ahead(o) return o.predict_ahead or 0 end

function moe.check(o, refuse)
  if o.kv_lora_rank then latent.check(o, refuse) else latent.check_absent(o, refuse); decoder.check(o, refuse) end
  routing.check(o, refuse, o.experts)
  if o.ahead_weight and ahead(o) == 0 then
    refuse("option.needs", "ahead_weight", "is the factor of the losses of further tokens, and no module predicts them",
      "give predict_ahead too, or leave it out")
  end
  if o.layers + ahead(o) > 4096 then
    refuse("option.range", "predict_ahead", ("%d layers and %d modules are more than 4096"):format(o.layers, ahead(o)),
      ("predict_ahead = %d at most"):format(4096 - o.layers))
  end
  if o.dense_layers >= o.layers then
    refuse("option.range", "dense_layers", ("%d of %d layers are dense: none has experts"):format(o.dense_layers, o.layers),
      ("dense_layers = %d at most, or mw.llama"):format(o.layers - 1))
  end
end

function moe.dims(o)
  local dims, width = decoder.dims(o), o.expert_ffn or o.ffn
  dims.experts = o.experts
  dims.expert_ffn = { width, ["$from"] = "width of an expert" }
  if o.shared_experts > 0 then
    dims.shared_ffn = { o.shared_experts * width, ["$from"] = "shared_experts x width of an expert" }
  end
  if o.kv_lora_rank then latent.dims(o, dims) end
  if ahead(o) > 0 then dims.ahead = { 2 * o.hidden, ["$from"] = "2 x hidden: of a token and of its stream" } end
  return dims
end

-- Whether it has what only DeepSeek's models have.
local function is_deepseek(o)
  return o.shared_experts > 0 or o.dense_layers > 0 or o.score == "sigmoid" or (o.groups or 1) > 1 or ahead(o) > 0
end

-- The feed-forward part of a layer with experts: x plus what the experts make of h.
local function experts(x, h, o)
  local block = "model.layers.{}." .. (is_deepseek(o) and "mlp" or "block_sparse_moe")
  local names = is_deepseek(o) and { gate = "gate_proj", up = "up_proj", down = "down_proj" }
    or { gate = "w1", up = "w3", down = "w2" }
  names.block, names.router, names.bias = block, "gate", block .. ".gate.e_score_correction_bias"
  local shared
  if o.shared_experts > 0 then
    function names.beside() shared = decoder.mlp(h, decoder.swiglu, "shared", "mlp.shared_experts", "shared_ffn") end
  end
  x = decoder.add(x, routing.experts(h, o, names), "mlp")
  return shared and decoder.add(x, shared, "shared") or x
end

-- A layer; `dense`: without experts.
local function decoder_layer(x, o, dense)
  local attention = o.kv_lora_rank and latent.attention or decoder.attention
  x = decoder.add(x, attention(decoder.norm(x, o, "attention_norm", "input_layernorm"), o), "attention")
  local h = decoder.norm(x, o, "mlp_norm", "post_attention_layernorm")
  if dense then return decoder.add(x, decoder.mlp(h, decoder.swiglu), "mlp") end
  return experts(x, h, o)
end

-- Module k of multi-token prediction [DeepSeek-AI 2024, "DeepSeek-V3", section 2.2]: a layer whose
-- input is made of `h`, which the logits before it are projected of, and of the embedding of the
-- token that those predict. The order of the two, and the norm that both logits and the next module
-- read, are those of published checkpoints. Returns what its own logits are projected of.
local function look_ahead(m, h, o, w, k)
  local token = k > 1 and m.labels:shift { k - 1, name = "ahead.tokens" } or m.labels
  token = decoder.norm(token:lookup(w, { name = "ahead.embedding" }), o, "ahead.token_norm", "enorm")
  local both = token:concat(decoder.norm(h, o, "ahead.stream_norm", "hnorm"), { "ahead", name = "ahead.both" })
  local x = both:linear { "hidden", name = "ahead.project", hf = decoder.hf "eh_proj" }
  return decoder.norm(decoder_layer(x, o), o, "ahead.norm", "shared_head.norm")
end

function moe.graph(m, o)
  local x, w = decoder.embed(m)
  local more = ahead(o)
  local head = more > 0 and decoder.head(m, o, w)  -- before the layers, for which it is one
  for layer in m:layers(o.layers) do x = decoder_layer(x, o, layer < o.dense_layers) end
  if more == 0 then return decoder.loss(m, decoder.logits(m, x, o, w)) end
  local streams = { decoder.last_norm(x, o) }
  for k in m:layers(more) do streams[k + 2] = look_ahead(m, streams[k + 1], o, w, k + 1) end
  local losses = { decoder.loss(m, streams[1]:linear { head, name = "head" }) }
  for k = 1, more do
    local labels = m.labels:shift { k, name = "ahead_labels_" .. k }
    losses[k + 1] = streams[k + 1]:linear { head, name = "ahead_head_" .. k }
      :cross_entropy(labels, { name = "ahead_loss_" .. k, weight = (o.ahead_weight or 0.3) / more })
  end
  return losses
end

function moe.hf(o, sequence)
  local key, config, latents = hf.key, hf.decoder(o, sequence), o.kv_lora_rank ~= nil
  local function lacks(it, why, ...)
    if it and not config.none then config.none = why:format(...) end
  end
  local width, width_option = o.expert_ffn or o.ffn, o.expert_ffn and "expert_ffn" or "ffn"
  if latents then config.none = latent.hf(o, config) end
  hf.add(config, key("num_experts_per_tok", o.top_k, "top_k"))
  lacks(o.chosen_by == "experts", 'tokens choose their experts there (chosen_by = "experts" here)')
  if not is_deepseek(o) then
    config.types, config.architecture, config.lacks_optional = { "mixtral" }, "MixtralForCausalLM", true
    hf.add(config, key({ "num_local_experts", "num_experts" }, o.experts, "experts", 8),
      key("intermediate_size", width, width_option))
    -- In transformers, the balancing loss is the mean over layers of a sum over a token's choices.
    config.more.router_aux_loss_coef = o.balance == "aux" and o.aux_weight * o.layers / o.top_k or 0.0
    lacks(latents, "Mixtral has no latent attention (kv_lora_rank)")
    lacks(not o.normalise, "Mixtral's weights of experts sum to one (normalise = false here)")
    lacks(o.scale ~= 1, "Mixtral has no scale of experts (%g here)", o.scale)
    lacks(o.balance == "bias", 'Mixtral chooses without a bias (balance = "bias" here)')
    return config
  end
  hf.add(config, key("intermediate_size", o.ffn, "ffn"), key("moe_intermediate_size", width, width_option),
    key({ "n_routed_experts", "num_local_experts" }, o.experts, "experts"),
    key("n_shared_experts", o.shared_experts, "shared_experts"), key("first_k_dense_replace", o.dense_layers, "dense_layers"),
    key("routed_scaling_factor", o.scale, "scale", 1.0))
  config.more.num_nextn_predict_layers = ahead(o)
  lacks(o.shared_experts == 0, "its models of this kind have shared experts")
  lacks(o.window, "its models with shared experts have no window")
  if o.score == "sigmoid" then
    hf.add(config, key("norm_topk_prob", o.normalise, "normalise", true), key("n_group", o.groups or 1, "groups"),
      key("topk_group", o.group_top or 1, "group_top"))
    config.types = { latents and "deepseek_v3" or "glm4_moe" }
    config.architecture = latents and "DeepseekV3ForCausalLM" or "Glm4MoeForCausalLM"
    if not latents then
      hf.add(config, key({ "rope_parameters.partial_rotary_factor", "partial_rotary_factor" }, 1.0, nil, 0.5),
        key("use_qk_norm", false, nil, false))
    end
    return config
  end
  config.types, config.architecture, config.lacks_optional = { "deepseek_v2" }, "DeepseekV2ForCausalLM", true
  if (o.groups or 1) > 1 then
    hf.add(config, key("topk_method", "group_limited_greedy", "groups", "greedy"), key("n_group", o.groups, "groups"),
      key("topk_group", o.group_top or 1, "group_top"))
  else
    hf.add(config, key("topk_method", "greedy", "groups", "greedy"))
  end
  lacks(ahead(o) > 0, "it predicts one token (predict_ahead = %d here)", ahead(o))
  lacks(not latents, "experts by softmax beside shared ones or dense layers come with latent attention there (kv_lora_rank)")
  lacks(o.normalise, "its weights of such experts do not sum to one (normalise = false)")
  lacks(o.balance == "bias", 'it chooses such experts without a bias (balance = "bias" here)')
  return config
end

return moe
