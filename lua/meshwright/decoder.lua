-- Parts that the models of lua/meshwright/models share: options and their checks, projections,
-- attention, the feed-forward part, head and loss, with the names that Hugging Face's checkpoints
-- have for their weights.
local rope = require "meshwright.rope"

local decoder = {}

-- The options of all decoders, as meshwright.kinds reads them.
local known = {
  { "layers", "integer", "transformer layers", range = { 1, 4096 } },
  { "hidden", "integer", "width of the residual stream", at_least = 1 },
  { "heads", "integer", "query heads; must divide hidden, unless head_dim is given", range = { 1, 65536 } },
  { "kv_heads", "integer", "key and value heads; must divide heads, which they default to", range = { 1, 65536 },
    optional = true, usual = function(v) return v.kv_heads == v.heads and v.kv_lora_rank == nil end },
  { "head_dim", "integer", "width of a head; 0 or left out: hidden / heads", at_least = 0, optional = true,
    usual = function(v)
      if v.kv_lora_rank ~= nil then return false end  -- head_dim has no meaning in latent attention
      return v.head_dim == 0 or (math.type(v.heads) == "integer" and v.heads > 0 and v.head_dim * v.heads == v.hidden)
    end },
  { "ffn", "integer", "width of the feed-forward part", at_least = 1 },
  { "vocab", "integer", "size of the vocabulary", at_least = 1, unit = "tokens" },
  { "tied", "boolean", "the output projection is the embedding's weight", fallback = false },
  { "rope_theta", "number", "base of the rotary angles", fallback = 10000.0, at_least = 1 },
  { "rope_scaling", "table", 'angles for longer sequences, with the keys of config.json: { type = "llama3" | "yarn" | "linear", '
    .. 'factor = 8, … }', optional = true },
  { "window", "integer", "tokens that a query sees, itself and those before it; left out: all", at_least = 1,
    optional = true, unit = "tokens" },
  { "norm_eps", "number", "added to the mean square in RMSNorm", fallback = 1e-5, at_least = 0 },
  { "attention", "choice", '"unfused" makes scores and softmax as tensors, and keeps the softmax for backward; '
    .. '"flash", the default, keeps no scores', choices = { "flash", "unfused" }, optional = true,
    usual = function(v) return v.attention == "flash" end },
}

--- Stands in place of an option that a model does not have.
decoder.without = {}

--- The option of decoders that has this name.
function decoder.option(name)
  for _, option in ipairs(known) do
    if option[1] == name then return option end
  end
end

--- The options of decoders. `changes`, by name: a default, another declaration, or decoder.without.
function decoder.options(changes)
  local list = {}
  for _, option in ipairs(known) do
    local change, one = changes[option[1]], {}
    for key, value in pairs(option) do one[key] = value end
    if type(change) == "table" then
      one = change
    elseif change ~= nil then
      one.fallback, one.optional, one.usual = change, nil, nil
      -- What is left out has that value, and nothing follows from other options.
      one.doc = (one[3]:gsub("; [^;]*left out.*$", ""):gsub(", which they default to", ""))
      if one[1] == "head_dim" then one.at_least = 1 end
    end
    if change ~= decoder.without then list[#list + 1] = one end
  end
  return list
end

--- Adds a list of options to another, at its end or behind the option `after`.
function decoder.more(options, more, after)
  local at = #options
  for i, option in ipairs(options) do
    if option[1] == after then at = i end
  end
  for i, option in ipairs(more) do table.insert(options, at + i, option) end
  return options
end

local function says_head_dim(o) return o.head_dim ~= nil and o.head_dim > 0 end

--- The divisors of `whole` next to `part`, the one below and the one above, as text.
function decoder.near(whole, part)
  local most = math.min(whole, 65536)
  local below, above = math.min(part, most), part + 1
  while whole % below ~= 0 do below = below - 1 end
  while above <= most and whole % above ~= 0 do above = above + 1 end
  return above > most and tostring(below) or ("%d or %d"):format(below, above)
end

--- Checks the number and the width of heads; `turned`: whether rotary positions turn them.
function decoder.check_heads(o, refuse, turned)
  if not says_head_dim(o) and o.hidden % o.heads ~= 0 then
    return refuse("option.divides", "heads", ("%d heads do not divide hidden = %d"):format(o.heads, o.hidden),
      ("nearest: heads = %s; or give head_dim"):format(decoder.near(o.hidden, o.heads)))
  elseif o.kv_heads and o.heads % o.kv_heads ~= 0 then
    return refuse("option.divides", "kv_heads",
      ("%d key heads cannot share %d heads evenly"):format(o.kv_heads, o.heads),
      "nearest: kv_heads = " .. decoder.near(o.heads, o.kv_heads))
  end
  local width = says_head_dim(o) and o.head_dim or o.hidden // o.heads
  if not turned or width % 2 == 0 then return end
  if says_head_dim(o) then
    refuse("model.odd", "head_dim", ("%d is odd; rotary positions turn the dims of a head in pairs"):format(width),
      ("nearest: head_dim = %d"):format(width + 1))
  else
    refuse("model.odd", "heads",
      ("hidden / heads = %d / %d = %d is odd; rotary positions turn the dims of a head in pairs")
        :format(o.hidden, o.heads, width),
      ("make it even, e.g. hidden = %d"):format(o.heads * (width + 1)))
  end
end

--- What a decoder with rotary positions checks.
function decoder.check(o, refuse)
  decoder.check_heads(o, refuse, true)
  if o.rope_scaling then rope.check(o.rope_scaling, refuse) end
end

--- The dims of a decoder.
function decoder.dims(o)
  local dims = { hidden = o.hidden, heads = o.heads, kv_heads = o.kv_heads or o.heads, ffn = o.ffn, vocab = o.vocab }
  if says_head_dim(o) then dims.head_dim = o.head_dim end
  return dims
end

--- The name of a weight of each layer in a checkpoint.
function decoder.hf(name) return "model.layers.{}." .. name .. ".weight" end

--- The tokens' rows of the embedding, and the embedding's weight.
function decoder.embed(m)
  local w = m:weight { "embedding", "vocab", "hidden", hf = "model.embed_tokens.weight" }
  return m.tokens:lookup(w, { name = "embedding" }), w
end

--- The RMSNorm of x; `theirs`: its name in a checkpoint.
function decoder.norm(x, o, name, theirs) return x:rms_norm { eps = o.norm_eps, name = name, hf = decoder.hf(theirs) } end

--- An RMSNorm over several dims, or over one that is cut: `over`, with the weight `scale`. Where
--- `over` is cut, ranks add up their squares. A proof tries the map at means of any sign.
function decoder.norm_over(x, over, scale, o, name)
  local squares = x:square():mean { over, name = name .. ".squares" }
  return x:map(squares, scale, { ("a * rsqrt(abs(b) + %.17g) * c"):format(o.norm_eps), name = name })
end

--- The queries, keys or values of h: `name` is "q", "k" or "v", `heads` the dim of their heads.
function decoder.project(h, name, heads, bias)
  return h:linear { { heads, "head_dim" }, name = "attention." .. name, bias = bias,
    hf = decoder.hf("self_attn." .. name .. "_proj") }
end

--- What attention has made of each head, projected back to the width of the stream.
function decoder.output(heads, bias)
  return heads:linear { "hidden", name = "attention.o", bias = bias, hf = decoder.hf "self_attn.o_proj" }
end

--- The rotary positions of x, of which `width` elements of a head turn (default: all); `more`:
--- other options of x:rope.
function decoder.turned(x, o, more, width)
  width = width or o.head_dim and o.head_dim > 0 and o.head_dim or o.hidden // o.heads
  local options = rope.options(o.rope_theta, width, o.rope_scaling)
  for key, value in pairs(more or {}) do options[key] = value end
  return x:rope(options)
end

--- Grouped attention of h with rotary positions, projected back.
function decoder.attention(h, o)
  local function turned(x, name) return decoder.turned(x, o, { name = "attention." .. name .. "_rope" }) end
  local q, k, v = decoder.project(h, "q", "heads"), decoder.project(h, "k", "kv_heads"), decoder.project(h, "v", "kv_heads")
  q, k = turned(q, "q"), turned(k, "k")
  return decoder.output(q:attend(k, v, { name = "attention", window = o.window, attention = o.attention }))
end

--- An MLP with a gate: `joined(gate, up, part)` is what goes back to the width of the stream.
--- `part`, `theirs`: what its names and those of a checkpoint begin with; `width`: its dim.
function decoder.mlp(h, joined, part, theirs, width)
  part, theirs, width = part or "mlp", theirs or "mlp", width or "ffn"
  local gate = h:linear { width, name = part .. ".gate", hf = decoder.hf(theirs .. ".gate_proj") }
  local up = h:linear { width, name = part .. ".up", hf = decoder.hf(theirs .. ".up_proj") }
  return joined(gate, up, part):linear { "hidden", name = part .. ".down", hf = decoder.hf(theirs .. ".down_proj") }
end

function decoder.swiglu(gate, up, part) return gate:swiglu(up, { name = part .. ".swiglu" }) end
function decoder.geglu(gate, up, part) return gate:map(up, { "gelu(a) * b", name = part .. ".geglu" }) end

--- The residual sum of x and what a part of the layer made.
function decoder.add(x, made, name) return x:add(made, { name = name .. "_add" }) end

--- The last norm, and the logits; `w`: the embedding's weight, for models that project by it.
function decoder.logits(m, x, o, w)
  x = decoder.last_norm(x, o)
  return x:linear { decoder.head(m, o, w), name = "head" }
end

function decoder.last_norm(x, o) return x:rms_norm { eps = o.norm_eps, name = "norm", hf = "model.norm.weight" } end

--- The weight that projects to the vocabulary; `w`: that of the embedding.
function decoder.head(m, o, w)
  return o.tied and w or m:weight { "head", "vocab", "hidden", hf = "lm_head.weight" }
end

--- The loss of a token, of the logits.
function decoder.loss(m, logits) return logits:cross_entropy(m.labels, { name = "loss" }) end

return decoder
