-- Helps files of lua/meshwright/models to say what Hugging Face's transformers calls a model. Their
-- function hf returns a table:
--   types         model_type, then other types that mean the same with these keys
--   architecture  "LlamaForCausalLM"
--   keys          the keys of config.json, each made by hf.key
--   absent        by type, then by a key's first name: what a missing key means there, if that
--                 differs from what the key says
--   more          further keys that are written, and compared with nothing
--   prefix        what stands before the names of tensors, but for the head's
--   lacks_optional  whether it has no tensors that may be missing
--   none          why no architecture of transformers computes the same
local rope = require "meshwright.rope"

local hf = {}

--- Null, which a table of Lua cannot hold.
hf.null = { null = true }
--- A list without entries, which in Lua is as good as a table without keys.
hf.no_entries = { no_entries = true }

--- A key of config.json. `names`: the name that is written, then others that are read; a dot leads
--- into a table. `value`: nil is null. `option`: the model's option with this value; nil: all
--- models of the kind have it. `absent`: what transformers takes for a missing key; nil: that is
--- not compared. `alike`: other values that mean the same.
function hf.key(names, value, option, absent, alike)
  if type(names) == "string" then names = { names } end
  return { names = names, value = value, option = option, absent = absent, alike = alike }
end

-- Defaults of the configuration classes of transformers 5.23, without those that tensors' shapes
-- show.
local defaults = {
  llama = { num_attention_heads = 32 },
  mistral = { num_attention_heads = 32, num_key_value_heads = 8, sliding_window = 4096 },
  mixtral = { num_attention_heads = 32, num_key_value_heads = 8, rms_norm_eps = 1e-5,
    ["rope_parameters.rope_theta"] = 1e6, num_experts_per_tok = 2 },
  deepseek_v2 = { num_attention_heads = 32 },
  deepseek_v3 = { num_attention_heads = 128, num_key_value_heads = 128, num_experts_per_tok = 8, n_group = 8,
    topk_group = 4, routed_scaling_factor = 2.5 },
  gemma2 = { num_attention_heads = 8, num_key_value_heads = 4, head_dim = 256, sliding_window = 4096 },
  gemma3_text = { num_attention_heads = 8, num_key_value_heads = 4, head_dim = 256, sliding_window = 4096 },
  qwen3 = { num_attention_heads = 32, num_key_value_heads = 32 },
  olmo2 = { num_attention_heads = 32 },
  gpt_oss = { num_attention_heads = 64, num_key_value_heads = 8, sliding_window = 128, rms_norm_eps = 1e-5,
    ["rope_parameters.rope_theta"] = 150000.0, ["rope_parameters.rope_type"] = "yarn", ["rope_parameters.factor"] = 32.0,
    ["rope_parameters.truncate"] = false, ["rope_parameters.original_max_position_embeddings"] = 4096 },
  qwen3_next = { num_attention_heads = 16, num_key_value_heads = 2 },
  glm4_moe = { num_attention_heads = 96, num_key_value_heads = 8, rms_norm_eps = 1e-5, num_experts_per_tok = 8 },
}

--- The configuration of a decoder with RMSNorm, rotary positions and grouped key heads: `o` has the
--- options of meshwright.decoder. A model adds its own keys, and its architecture.
function hf.decoder(o, sequence)
  local key, latent = hf.key, o.kv_lora_rank ~= nil
  local said = o.head_dim and o.head_dim > 0 and o.head_dim
  local head_dim = latent and o.qk_rope_head_dim or said or o.hidden // o.heads
  local plain = latent or head_dim == o.hidden // o.heads
  local config = {
    absent = defaults,
    keys = {
      key("num_hidden_layers", o.layers, "layers"),
      key("hidden_size", o.hidden, "hidden"),
      key("num_attention_heads", o.heads, "heads"),
      key("num_key_value_heads", o.kv_heads or o.heads, "kv_heads", o.heads),
      -- Null in a file means hidden / heads; in latent attention it means whatever is right.
      key("head_dim", head_dim, latent and "qk_rope_head_dim" or "head_dim", latent and head_dim or o.hidden // o.heads,
        plain and { hf.null } or nil),
      key("vocab_size", o.vocab, "vocab"),
      key("rms_norm_eps", o.norm_eps, "norm_eps", 1e-6),
      key({ "rope_parameters.rope_theta", "rope_theta", "rope_scaling.rope_theta" }, o.rope_theta, "rope_theta", 10000.0),
      key("tie_word_embeddings", o.tied, "tied", false),
      key("hidden_act", "silu", nil, "silu", { "swish" }),
      key("attention_bias", false, nil, false),
      key("sliding_window", o.window, "window"),
    },
    -- rope_theta where transformers before version 5 look for it.
    more = { max_position_embeddings = sequence, rope_theta = o.rope_theta },
  }
  for _, one in ipairs(rope.keys(o.rope_scaling)) do
    local name = one.name
    local written = { "rope_parameters." .. name, "rope_scaling." .. name }
    if name == "rope_type" then
      table.move({ "rope_parameters.type", "rope_scaling.type" }, 1, 2, 3, written)
      name = "type"
    end
    hf.add(config, key(written, one.value, "rope_scaling." .. name, one.absent, one.null and { hf.null } or nil))
  end
  return config
end

--- Adds keys to a configuration.
function hf.add(config, ...)
  for _, key in ipairs { ... } do config.keys[#config.keys + 1] = key end
end

--- Keys of which any value means the same, given the others.
function hf.unread(config, ...)
  for _, name in ipairs { ... } do hf.add(config, { names = { name }, unread = true }) end
end

--- Puts a key in the place of the configuration's key of that first name, or of the name `instead`;
--- adds it if there is none.
function hf.set(config, key, instead)
  for i, known in ipairs(config.keys) do
    if known.names[1] == (instead or key.names[1]) then
      config.keys[i] = key
      return
    end
  end
  hf.add(config, key)
end

return hf
