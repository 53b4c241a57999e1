-- gpt-oss [OpenAI 2025, arXiv:2508.10925]: experts whose SwiGLU has limits, biases everywhere, a
-- sink for each head of attention, every second layer with a window. The model with 20 billion
-- parameters gives the defaults:
-- https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"
local routing = require "meshwright.routing"

local gpt_oss = { dims = decoder.dims, options = decoder.options { layers = 24, hidden = 2880, heads = 64, kv_heads = 8,
  head_dim = 64, vocab = 201088, rope_theta = 150000.0, window = 128, attention = decoder.without,
  ffn = { "ffn", "integer", "width of an expert", at_least = 1, fallback = 2880 },
  rope_scaling = { "rope_scaling", "table", "as in llama's; left out: gpt-oss's own, YaRN with the factor 32", optional = true },
} }
decoder.more(gpt_oss.options, {
  { "experts", "integer", "experts of a layer", range = { 1, 65536 }, fallback = 32 },
  { "top_k", "integer", "experts that a token chooses", range = { 1, 65536 }, fallback = 4 },
  { "swiglu_limit", "number", "gates are this at most, and what they multiply is between this and its negative",
    range = { 1e-9, 1e9 }, fallback = 7.0 },
  { "swiglu_alpha", "number", "a gate x becomes x sigmoid(swiglu_alpha x)", range = { 1e-9, 1e9 }, fallback = 1.702 },
})
decoder.more(gpt_oss.options,
  routing.options { "top_k", "logit_bias", "chosen_by", "score", "normalise", "scale", "groups", "group_top" })

-- The options, with the scaling of published models where none is given.
local function scaled(o)
  local all = { rope_scaling = { type = "yarn", factor = 32.0, beta_fast = 32.0, beta_slow = 1.0, truncate = false,
    original_max_position_embeddings = 4096 } }
  for key, value in pairs(o) do all[key] = value end
  return all
end

function gpt_oss.check(o, refuse)
  decoder.check(o, refuse)
  routing.check(o, refuse, o.experts)
end

function gpt_oss.dims(o)
  local dims = decoder.dims(o)
  dims.experts = o.experts
  return dims
end

local function attention(m, h, o, window)
  local function heads(name, dim) return decoder.project(h, name, dim, true) end
  local function turned(x, name) return decoder.turned(x, o, { name = "attention." .. name .. "_rope" }) end
  local q, k, v = heads("q", "heads"), heads("k", "kv_heads"), heads("v", "kv_heads")
  local sinks = m:weight { "attention.sinks", "heads", hf = "model.layers.{}.self_attn.sinks" }
  q, k = turned(q, "q"), turned(k, "k")
  return decoder.output(q:attend(k, v, sinks, { name = "attention", sinks = true, window = window }), true)
end

-- The checkpoint has gate and up of all experts as one tensor, of which they are every second row.
local function experts(h, o)
  local block = "model.layers.{}.mlp."
  local function linear(rows, weights, to, name, theirs, part)
    local options = { to, bias = true, weighed = weights ~= nil, name = "experts." .. name, hf = block .. "experts." .. theirs,
      hf_bias = block .. "experts." .. theirs .. "_bias", hf_transposed = true, hf_interleaved = part ~= nil,
      hf_part = part and { part, 2 } or nil }
    if weights then return rows:expert_linear(weights, options) end
    return rows:expert_linear(options)
  end
  local rows, places, weights = h:route(routing.chosen(o, { name = "router", logit_bias = true, hf = block .. "router.weight" }))
  local gate, up = linear(rows, nil, "ffn", "gate", "gate_up_proj", 1), linear(rows, nil, "ffn", "up", "gate_up_proj", 2)
  local f = ("(max(min(b, %.17g), -%.17g) + 1) * min(a, %.17g) * sigmoid(min(a, %.17g) * %.17g) * c")
    :format(o.swiglu_limit, o.swiglu_limit, o.swiglu_limit, o.swiglu_limit, o.swiglu_alpha)
  local inner = gate:map(up, weights, { f, name = "experts.swiglu" })
  return linear(inner, weights, "hidden", "down", "down_proj"):combine(places, { name = "combine" })
end

local function window(o, layer) return layer % 2 == 0 and o.window or nil end

function gpt_oss.graph(m, o)
  o = scaled(o)
  local x, w = decoder.embed(m)
  for layer in m:layers(o.layers) do
    local h = decoder.norm(x, o, "attention_norm", "input_layernorm")
    x = decoder.add(x, attention(m, h, o, window(o, layer)), "attention")
    x = decoder.add(x, experts(decoder.norm(x, o, "mlp_norm", "post_attention_layernorm"), o), "mlp")
  end
  return decoder.loss(m, decoder.logits(m, x, o, w))
end

function gpt_oss.hf(o, sequence)
  o = scaled(o)
  local key, config, kinds = hf.key, hf.decoder(o, sequence), {}
  for layer = 0, o.layers - 1 do kinds[layer + 1] = window(o, layer) and "sliding_attention" or "full_attention" end
  config.types, config.architecture, config.lacks_optional = { "gpt_oss" }, "GptOssForCausalLM", true
  hf.set(config, key("attention_bias", true, nil, true))
  hf.set(config, key("head_dim", o.head_dim, "head_dim", 64))
  hf.add(config, key("layer_types", kinds), key("intermediate_size", o.ffn, "ffn", 2880),
    key({ "num_local_experts", "num_experts" }, o.experts, "experts", 128),
    key({ "num_experts_per_tok", "experts_per_token" }, o.top_k, "top_k", 4),
    key("swiglu_limit", o.swiglu_limit, "swiglu_limit", 7.0), key("swiglu_alpha", o.swiglu_alpha, "swiglu_alpha", 1.702))
  if o.balance == "bias" then config.none = 'it chooses experts without a bias (balance = "bias" here)' end
  return config
end

return gpt_oss
