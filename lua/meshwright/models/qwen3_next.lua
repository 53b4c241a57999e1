-- Qwen3-Next [Qwen Team 2025; layers by Yang et al. 2024, arXiv:2412.06464]: three layers of the
-- gated delta rule, then one of attention with a gate; experts in all of them. The model with 80
-- billion parameters gives the defaults:
-- https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct/blob/main/config.json.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"
local routing = require "meshwright.routing"

local qwen3_next = { options = decoder.options { layers = 48, hidden = 2048, heads = 16, kv_heads = 2, head_dim = 256,
  vocab = 151936, rope_theta = 1e7, norm_eps = 1e-6, window = decoder.without, ffn = decoder.without } }
decoder.more(qwen3_next.options, {
  { "rotary", "integer", "the first elements of a head, which rotary positions turn", at_least = 2, fallback = 64 },
  { "every", "integer", "one layer of so many has attention, the last of them", at_least = 1, fallback = 4 },
  { "key_heads", "integer", "heads of the delta rule's queries and keys", range = { 1, 65536 }, fallback = 16 },
  { "value_heads", "integer", "heads of the delta rule's values; a multiple of key_heads", range = { 1, 65536 }, fallback = 32 },
  { "key_dim", "integer", "width of a head of the delta rule's queries and keys", at_least = 1, fallback = 128 },
  { "value_dim", "integer", "width of a head of the delta rule's values", at_least = 1, fallback = 128 },
  { "kernel", "integer", "tokens that the delta rule's convolution sees", range = { 1, 1024 }, fallback = 4 },
  { "chunk", "integer", "tokens whose products are made at a time", range = { 1, 65536 }, fallback = 64, unit = "tokens" },
  { "experts", "integer", "experts of a layer", range = { 1, 65536 }, fallback = 512 },
  { "top_k", "integer", "experts that a token chooses", range = { 1, 65536 }, fallback = 10 },
  { "expert_ffn", "integer", "width of an expert", at_least = 1, fallback = 512 },
  { "shared_ffn", "integer", "width of the expert that every token goes through", at_least = 1, fallback = 512 },
})
decoder.more(qwen3_next.options, routing.options { "top_k", "logit_bias", "chosen_by", "score", "scale", "groups", "group_top" })

function qwen3_next.check(o, refuse)
  decoder.check(o, refuse)
  routing.check(o, refuse, o.experts)
  if o.rotary % 2 ~= 0 or o.rotary >= o.head_dim then
    refuse("model.odd", "rotary", ("%d is no even number below head_dim = %d"):format(o.rotary, o.head_dim),
      o.head_dim > 2 and ("nearest: rotary = %d"):format(math.max(math.min(o.rotary, o.head_dim - 1) // 2 * 2, 2))
        or "a wider head, of 4 at least")
  end
  if o.value_heads % o.key_heads ~= 0 then
    refuse("option.divides", "key_heads", ("%d heads of keys cannot share %d heads evenly"):format(o.key_heads, o.value_heads),
      "nearest: key_heads = " .. decoder.near(o.value_heads, o.key_heads))
  end
end

function qwen3_next.dims(o)
  local dims, share = decoder.dims(o), o.value_heads // o.key_heads
  local keys, inner = o.key_heads * o.key_dim, o.value_heads * o.value_dim
  for name, size in pairs { experts = o.experts, expert_ffn = o.expert_ffn, shared_ffn = o.shared_ffn, one = 1 } do
    dims[name] = size
  end
  if o.layers >= o.every then  -- there is a layer of attention
    dims.rotary, dims.query_gate, dims.gate_dim = o.rotary, 2 * o.head_dim, o.head_dim
  end
  if o.every == 1 then return dims end
  for name, size in pairs { value_dim = o.value_dim, state = o.key_dim, kernel = o.kernel, queries_keys = 2 * o.key_dim,
    query_dim = o.key_dim, key_dim = o.key_dim, values_gates = 2 * share * o.value_dim, group_values = share * o.value_dim,
    group_gates = share * o.value_dim, queries_to_gates = 2 * o.key_dim + 2 * share * o.value_dim, all_queries = keys,
    all_keys = keys, shared = 2 * keys, inner = inner, mixed = 2 * keys + inner, group_rates = share, group_steps = share,
    rates_steps = 2 * share } do
    dims[name] = size
  end
  dims.key_heads, dims.value_heads = { o.key_heads, even = true }, { o.value_heads, like = "heads" }
  return dims
end

local function norm(x, o, name, theirs)
  return x:rms_norm { eps = o.norm_eps, plus = 1, name = name, hf = theirs and decoder.hf(theirs) or "model.norm.weight" }
end

-- Attention, of which each element has a gate.
local function attention(h, o)
  local function turned(x, name)
    x = norm(x, o, "attention." .. name .. "_norm", "self_attn." .. name .. "_norm")
    return decoder.turned(x, o, { width = "rotary", first = true, name = "attention." .. name .. "_rope" }, o.rotary)
  end
  local q, gate = h:linear { { "heads", "query_gate" }, name = "attention.q", hf = decoder.hf "self_attn.q_proj" }
    :split { { "head_dim", "gate_dim" }, name = "attention.q_split" }
  q = turned(q, "q"):attend(turned(decoder.project(h, "k", "kv_heads"), "k"), decoder.project(h, "v", "kv_heads"),
    { name = "attention", attention = o.attention })
  gate = gate:as { { "batch", "seq", "heads", "head_dim" }, name = "attention.gate" }
  return decoder.output(q * gate:sigmoid())
end

-- The gated delta rule. The checkpoint has the projections of each head of keys as one matrix.
local function delta_rule(m, h, o)
  local function theirs(name) return "model.layers.{}.linear_attn." .. name end
  local function of_heads(name, init) return m:weight { name, "value_heads", init = init, hf = theirs(name) } end
  local function flat(x, to, of) return x:reshape { to, from = { "key_heads", of }, name = to } end
  local function heads(x, name, number, width) return x:reshape { { number, width }, name = name } end
  local all = h:linear { { "key_heads", "queries_to_gates" }, name = "in", hf = theirs "in_proj_qkvz.weight" }
  local qk, vz = all:split { { "queries_keys", "values_gates" }, name = "in_split" }
  local q, k = qk:split { { "query_dim", "key_dim" }, name = "qk_split" }
  local v, gate = vz:split { { "group_values", "group_gates" }, name = "vz_split" }
  local both = flat(q, "all_queries", "query_dim"):concat(flat(k, "all_keys", "key_dim"), { "shared", name = "both" })
  local kernel = m:weight { "conv", "mixed", "one", "kernel", std = (3 * o.kernel) ^ -0.5, hf = theirs "conv1d.weight" }
  local mixed = both:concat(flat(v, "inner", "group_values"), { "mixed", name = "mixed" })
    :conv(kernel, { name = "convolution" }):silu()
  both, v = mixed:split { { "shared", "inner" }, name = "v_split" }
  q, k = both:split { { "all_queries", "all_keys" }, name = "k_split" }
  local function unit(x, name, scale)
    x = heads(x, name, "key_heads", "state")
    return x:map(x:square():sum { "state", name = name .. "_squares" }, { ("a * rsqrt(abs(b) + 1e-6) * %.17g"):format(scale) })
  end
  q, k, v = unit(q, "q", o.key_dim ^ -0.5), unit(k, "k", 1), heads(v, "v", "value_heads", "value_dim")
  local rate, step = h:linear { { "key_heads", "rates_steps" }, name = "rates", hf = theirs "in_proj_ba.weight" }
    :split { { "group_rates", "group_steps" }, name = "rates_split" }
  rate = rate:reshape { "value_heads", from = { "key_heads", "group_rates" }, name = "rate" }:sigmoid()
  step = step:reshape { "value_heads", from = { "key_heads", "group_steps" }, name = "step" }
  step = (step + of_heads("dt_bias", "ones")):softplus()
  local decay = step:map(of_heads("A_log", "ones"), { "-a * exp(b)", name = "decay" })
  local y = q:scan(k, v, decay, rate, { chunk = o.chunk, delta = true, name = "scan" })
  gate = gate:reshape { { "value_heads", "value_dim" }, from = { "key_heads", "group_gates" }, name = "gates" }
  y = y:rms_norm { eps = o.norm_eps, name = "head_norm", hf = theirs "norm.weight" } * gate:silu()
  return y:linear { "hidden", name = "out", hf = theirs "out_proj.weight" }
end

local function experts(h, o)
  local shared
  local made = routing.experts(h, o, { block = "model.layers.{}.mlp", router = "gate", gate = "gate_proj", up = "up_proj",
    down = "down_proj", beside = function()
      local gate = h:linear { "one", name = "shared.score", hf = decoder.hf "mlp.shared_expert_gate" }:sum "one"
      shared = decoder.mlp(h, decoder.swiglu, "shared", "mlp.shared_expert", "shared_ffn") * gate:sigmoid()
    end })
  return made + shared
end

local function has_attention(o, layer) return (layer + 1) % o.every == 0 end

function qwen3_next.graph(m, o)
  local x, w = decoder.embed(m)
  for layer in m:layers(o.layers) do
    local h = norm(x, o, "mixer_norm", "input_layernorm")
    x = x + (has_attention(o, layer) and attention(h, o) or delta_rule(m, h, o))
    x = x + experts(norm(x, o, "mlp_norm", "post_attention_layernorm"), o)
  end
  return decoder.loss(m, norm(x, o, "norm"):linear { decoder.head(m, o, w), name = "head" })
end

-- The names that a config.json has for options.
local names = { key_heads = "linear_num_key_heads", value_heads = "linear_num_value_heads", key_dim = "linear_key_head_dim",
  value_dim = "linear_value_head_dim", kernel = "linear_conv_kernel_dim", experts = "num_experts", top_k = "num_experts_per_tok",
  expert_ffn = "moe_intermediate_size", shared_ffn = "shared_expert_intermediate_size" }

function qwen3_next.hf(o, sequence)
  local key, config, kinds = hf.key, hf.decoder(o, sequence), {}
  for layer = 0, o.layers - 1 do kinds[layer + 1] = has_attention(o, layer) and "full_attention" or "linear_attention" end
  config.types, config.architecture, config.lacks_optional = { "qwen3_next" }, "Qwen3NextForCausalLM", true
  hf.set(config, key("head_dim", o.head_dim, "head_dim", 256))
  local part = { "rope_parameters.partial_rotary_factor", "partial_rotary_factor", "rope_scaling.partial_rotary_factor" }
  hf.add(config, key("layer_types", kinds), key("full_attention_interval", o.every, "every"),
    key(part, o.rotary / o.head_dim, "rotary / head_dim", 0.25), key("decoder_sparse_step", 1, nil, 1),
    key("mlp_only_layers", hf.no_entries, nil, hf.no_entries), key("norm_topk_prob", o.normalise, "normalise", true))
  for _, option in ipairs(qwen3_next.options) do
    if names[option[1]] then hf.add(config, key(names[option[1]], o[option[1]], option[1], option.fallback)) end
  end
  if o.balance == "bias" then config.none = 'it chooses experts without a bias (balance = "bias" here)' end
  return config
end

return qwen3_next
