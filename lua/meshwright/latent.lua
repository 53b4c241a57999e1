-- Multi-head latent attention [DeepSeek-AI 2024, "DeepSeek-V2", section 2.1; "DeepSeek-V3", section
-- 2.1.1]: queries are made from a narrow latent, keys and values from another. A part of each head
-- is turned by rotary positions; for keys, all heads share that part, which is projected straight
-- from the residual stream. Options and parameters are named as in DeepSeek's configuration and
-- checkpoints.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"
local rope = require "meshwright.rope"

local latent = {
  options = {
    { "kv_lora_rank", "integer", "latent attention: width of the latent that keys and values of all heads are made from; "
      .. "left out: grouped attention", at_least = 1, optional = true },
    { "q_lora_rank", "integer", "width of the latent that queries are made from; left out: from the stream", at_least = 1,
      optional = true },
    { "qk_nope_head_dim", "integer", "width of the part of a query or key head that has no rotary positions", at_least = 1,
      optional = true },
    { "qk_rope_head_dim", "integer", "width of the part with rotary positions; all heads share that part of the keys",
      at_least = 2, optional = true },
    { "v_head_dim", "integer", "width of a value head", at_least = 1, optional = true },
  },
}
local needed = { "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim" }

--- Checks a model without latent attention.
function latent.check_absent(o, refuse)
  for _, key in ipairs { "q_lora_rank", table.unpack(needed) } do
    if o[key] then
      refuse("option.needs", key, "is for latent attention, and there is no kv_lora_rank",
        "give kv_lora_rank too, or leave it out")
    end
  end
end

--- Checks a model with it.
function latent.check(o, refuse)
  for _, key in ipairs(needed) do
    if not o[key] then
      refuse("option.missing", key, "missing beside kv_lora_rank",
        "DeepSeek-V3 has qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128")
    end
  end
  if o.head_dim then
    refuse("option.conflict", "head_dim", "latent attention has widths of its own for queries, keys and values",
      "leave head_dim or kv_lora_rank out")
  end
  if o.kv_heads then
    refuse("option.conflict", "kv_heads", "latent attention has a key for every head", "leave kv_heads or kv_lora_rank out")
  end
  if o.rope_scaling then rope.check(o.rope_scaling, refuse) end
  if o.qk_rope_head_dim and o.qk_rope_head_dim % 2 ~= 0 then
    refuse("model.odd", "qk_rope_head_dim",
      ("%d is odd; rotary positions turn the dims of a head in pairs"):format(o.qk_rope_head_dim), "make it even")
  end
end

--- Adds the dims of latent attention.
function latent.dims(o, dims)
  local function dim(name, size, from) dims[name] = { size, even = true, ["$from"] = from } end
  local rank, plain, turned, value = o.kv_lora_rank, o.qk_nope_head_dim, o.qk_rope_head_dim, o.v_head_dim
  if o.q_lora_rank then dim("q_rank", o.q_lora_rank, "q_lora_rank") end
  dim("kv_rank", rank, "kv_lora_rank")
  dim("rope_dim", turned, "qk_rope_head_dim")
  dim("latent", rank + turned, "kv_lora_rank + qk_rope_head_dim")
  dim("qk_dim", plain + turned, "qk_nope_head_dim + qk_rope_head_dim")
  dim("kv_dim", plain + value, "qk_nope_head_dim + v_head_dim")
  dim("value_dim", value, "v_head_dim")
end

--- Latent attention of h, projected back.
function latent.attention(h, o)
  local function linear(x, to, name, theirs, from)
    return x:linear { to, from = from, name = "attention." .. name, hf = decoder.hf("self_attn." .. theirs) }
  end
  local function norm(x, name, theirs)
    return x:rms_norm { eps = o.norm_eps, name = "attention." .. name, hf = decoder.hf("self_attn." .. theirs) }
  end
  local function turn(x, name)
    return decoder.turned(x, o, { pairs = "neighbours", width = "rope_dim", name = "attention." .. name }, o.qk_rope_head_dim)
  end
  local q
  if o.q_lora_rank then
    q = norm(linear(h, "q_rank", "q_down", "q_a_proj"), "q_norm", "q_a_layernorm")
    q = linear(q, { "heads", "qk_dim" }, "q", "q_b_proj")
  else
    q = linear(h, { "heads", "qk_dim" }, "q", "q_proj")
  end
  q = turn(q, "q_rope")
  local down, turned = linear(h, "latent", "kv_down", "kv_a_proj_with_mqa")
    :split { { "kv_rank", "rope_dim" }, name = "attention.kv_split" }
  turned = turn(turned, "k_rope")
  local kv = linear(norm(down, "kv_norm", "kv_a_layernorm"), { "heads", "kv_dim" }, "kv", "kv_b_proj")
  local k, v = kv:latent_keys(turned, { keys = "qk_dim", values = "value_dim", name = "attention.keys" })
  local scale, width = rope.score_scale(o.rope_scaling), o.qk_nope_head_dim + o.qk_rope_head_dim
  h = q:attend(k, v, { name = "attention", window = o.window, attention = o.attention,
    scale = scale ~= 1 and scale * width ^ -0.5 or nil })
  return linear(h, "hidden", "o", "o_proj")
end

--- Adds the keys of config.json; returns why transformers does not compute the same, if so.
function latent.hf(o, config)
  for _, name in ipairs { "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank" } do
    hf.add(config, hf.key(name, o[name], name))
  end
  hf.add(config, hf.key("rope_interleave", true, nil, true))
  -- transformers uses this epsilon in the norms of latents, whatever rms_norm_eps is.
  local latent_eps = 1e-6
  if o.norm_eps == latent_eps then return nil end
  return ("norm_eps = %g, and its norms of latents have %g always; train with norm_eps = %g")
    :format(o.norm_eps, latent_eps, latent_eps)
end

return latent
