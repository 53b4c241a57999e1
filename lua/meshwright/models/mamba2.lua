-- The Mamba-2 decoder [Dao and Gu 2024, "Transformers are SSMs", arXiv:2405.21060]: layers without
-- attention, of a causal convolution and a linear recurrence. Codestral Mamba with 7 billion
-- parameters gives the defaults: https://huggingface.co/mistralai/Mamba-Codestral-7B-v0.1.
local decoder = require "meshwright.decoder"
local hf = require "meshwright.hf"

local mamba2 = { options = decoder.options { layers = 64, hidden = 4096, vocab = 32768, ffn = decoder.without,
  kv_heads = decoder.without, rope_theta = decoder.without, rope_scaling = decoder.without,
  window = decoder.without, attention = decoder.without,
  heads = { "heads", "integer", "heads of the recurrence", range = { 1, 65536 }, fallback = 128 },
  head_dim = { "head_dim", "integer", "width of a head", at_least = 1, fallback = 64 } } }
decoder.more(mamba2.options, {
  { "groups", "integer", "groups of heads, which share keys and queries; must divide heads", range = { 1, 65536 }, fallback = 8 },
  { "state", "integer", "width of a key: a head's state is a matrix of state and head_dim", at_least = 1, fallback = 128 },
  { "kernel", "integer", "tokens that the convolution sees", range = { 1, 1024 }, fallback = 4 },
  { "chunk", "integer", "tokens whose products are made at a time", range = { 1, 65536 }, fallback = 256, unit = "tokens" },
}, "head_dim")

function mamba2.check(o, refuse)
  if o.heads % o.groups == 0 then return end
  refuse("option.divides", "groups", ("%d groups cannot share %d heads evenly"):format(o.groups, o.heads),
    "nearest: groups = " .. decoder.near(o.heads, o.groups))
end

function mamba2.dims(o)
  local inner, group = o.heads * o.head_dim, o.groups * o.state
  local dims = { hidden = o.hidden, vocab = o.vocab, heads = o.heads, head_dim = o.head_dim, kv_heads = o.groups, state = o.state,
    inner = inner, group_keys = group, group_queries = group, shared = 2 * group, mixed = inner + 2 * group,
    mixed_steps = inner + 2 * group + o.heads, projected = 2 * inner + 2 * group + o.heads, kernel = o.kernel, single = 1 }
  if o.groups > 1 then dims.group_width = inner // o.groups end
  return dims
end

-- What a layer adds to x: a recurrence whose decay and step depend on the token, and a gate.
local function mixer(m, h, o)
  local function theirs(name) return "backbone.layers.{}.mixer." .. name end
  local function of_heads(name, init) return m:weight { name, "heads", init = init, hf = theirs(name) } end
  local function heads(x, name, number, width) return x:reshape { { number, width }, name = name } end
  -- The checkpoint has one matrix of all projections, whose parts are of different widths.
  local all = h:linear { "projected", name = "in", hf = theirs "in_proj.weight" }
  local gate, mixed = all:split { { "inner", "mixed_steps" }, name = "gate" }
  local step, k, q, v
  mixed, step = mixed:split { { "mixed", "heads" }, name = "steps" }
  local kernel = m:weight { "conv", "mixed", "single", "kernel", std = (3 * o.kernel) ^ -0.5, hf = theirs "conv1d.weight" }
  local bias = m:weight { "conv_bias", "mixed", init = "zeros", hf = theirs "conv1d.bias" }
  mixed = mixed:conv(kernel, bias, { bias = true, name = "convolution" }):silu()
  v, mixed = mixed:split { { "inner", "shared" }, name = "values" }
  k, q = mixed:split { { "group_keys", "group_queries" }, name = "keys" }
  v, gate = heads(v, "v", "heads", "head_dim"), heads(gate, "gates", "heads", "head_dim")
  k, q = heads(k, "k", "kv_heads", "state"), heads(q, "q", "kv_heads", "state")
  step = (step + of_heads("dt_bias", "zeros")):softplus()
  -- One map, so that its gradient by A_log is summed over ranks with those of other weights.
  local decay = step:map(of_heads("A_log", "ones"), { "-a * exp(b)", name = "decay" })
  local y = q:scan(k, v * step, decay, { chunk = o.chunk, name = "scan" }) + v * of_heads("D", "ones")
  y = y * gate:silu()
  -- An RMSNorm of each group, whose heads may be cut if there is one group.
  local number, width, over = "heads", "head_dim", { "heads", "head_dim" }
  if o.groups > 1 then
    number, width, over = "kv_heads", "group_width", "group_width"
    y = y:reshape { { number, width }, from = { "heads", "head_dim" }, name = "groups" }
  end
  local scale = m:weight { "mixer_norm", number, width, init = "ones", hf = theirs "norm.weight" }
  return decoder.norm_over(y, over, scale, o, "normed"):linear { "hidden", name = "out", hf = theirs "out_proj.weight" }
end

function mamba2.graph(m, o)
  local function norm(x, name, theirs) return x:rms_norm { eps = o.norm_eps, name = name, hf = theirs } end
  local w = m:weight { "embedding", "vocab", "hidden", hf = "backbone.embeddings.weight" }
  local x = m.tokens:lookup(w, { name = "embedding" })
  for _ in m:layers(o.layers) do
    x = decoder.add(x, mixer(m, norm(x, "norm", "backbone.layers.{}.norm.weight"), o), "mixer")
  end
  local last = norm(x, "norm", "backbone.norm_f.weight")
  return decoder.loss(m, last:linear { decoder.head(m, o, w), name = "head" })
end

-- The options' names there, where their defaults are the same.
local names = { layers = "num_hidden_layers", hidden = "hidden_size", vocab = "vocab_size", heads = "num_heads",
  head_dim = "head_dim", groups = "n_groups", state = "state_size", kernel = "conv_kernel", norm_eps = "layer_norm_epsilon",
  tied = "tie_word_embeddings" }

function mamba2.hf(o)
  local key, inner, all = hf.key, o.heads * o.head_dim, { 0.0, { __float__ = "Infinity" } }
  local config = { types = { "mamba2" }, architecture = "Mamba2ForCausalLM", more = { chunk_size = o.chunk },
    none = inner % o.hidden ~= 0 and ("heads x head_dim = %d is no multiple of hidden = %d"):format(inner, o.hidden) or nil,
    keys = { key("expand", inner // o.hidden, "heads", 2), key("hidden_act", "silu", nil, "silu", { "swish" }),
      key("use_bias", false, nil, false), key("use_conv_bias", true, nil, true), key("time_step_limit", all, nil, all) } }
  for _, option in ipairs(mamba2.options) do
    local name = option[1]
    if names[name] then hf.add(config, key(names[name], o[name], name, option.fallback)) end
  end
  return config
end

return mamba2
