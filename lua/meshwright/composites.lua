-- Ops of mw.model that are several others: x:attention { … }, x:mlp { … }, x:experts { … }. Each
-- has options, as meshwright.kinds reads those of models (`positional`: the one that may stand
-- without its name), and
--   body(x, o, last)  what it makes of x, whose last dim is `last`; the names of its ops begin with
--                     the composite's, and one without a name has that name
-- The op `route` has options and their check alone.
local decoder = require "meshwright.decoder"
local routing = require "meshwright.routing"

local weights = {
  { "bias", "boolean", "with biases, of zeros at first", fallback = false },
  { "std", "number", "of the initial weights", at_least = 0, fallback = 0.02 },
}

-- A linear of x to some dims, by the options above.
local function linear(x, to, name, o) return x:linear { to, bias = o.bias, std = o.std, name = name } end

local attention = {
  options = decoder.more({
    { "heads", "text", "the dim of the query heads", fallback = "heads" },
    { "kv_heads", "text", "that of key and value heads", fallback = "kv_heads" },
    { "head_dim", "text", "that of a head's width", fallback = "head_dim" },
    { "rope", "boolean", "queries and keys are turned by their positions", fallback = true },
    { "theta", "number", "base of the rotary angles", fallback = 10000.0, at_least = 1 },
    decoder.option "window", decoder.option "attention",
  }, weights),
}

function attention.body(x, o, last)
  local q, k = linear(x, { o.heads, o.head_dim }, "q", o), linear(x, { o.kv_heads, o.head_dim }, "k", o)
  local v = linear(x, { o.kv_heads, o.head_dim }, "v", o)
  if o.rope then q, k = q:rope { theta = o.theta, name = "q_rope" }, k:rope { theta = o.theta, name = "k_rope" } end
  return linear(q:attend(k, v, { window = o.window, attention = o.attention }), last, "o", o)
end

local mlp = {
  options = decoder.more({
    { "width", "text", "its dim", fallback = "ffn", positional = true },
    { "act", "choice", "SwiGLU of two linears (gate, up), or GELU of one (up)", choices = { "swiglu", "gelu" },
      fallback = "swiglu" },
  }, weights),
}

function mlp.body(x, o, last)
  local gate = o.act == "swiglu" and linear(x, o.width, "gate", o)
  local up = linear(x, o.width, "up", o)
  return linear(gate and gate:swiglu(up, { name = "swiglu" }) or up:gelu { name = "gelu" }, last, "down", o)
end

local width = { "width", "text", "the dim of an expert's width", fallback = "expert_ffn" }
local experts = { options = decoder.more(routing.options(), { width }) }

function experts.body(x, o, last)
  local rows, places, shares = x:route(routing.chosen(o, { name = "router" }))
  local gate, up = rows:expert_linear { o.width, name = "experts.gate" }, rows:expert_linear { o.width, name = "experts.up" }
  local y = gate:swiglu(up, shares, { weighed = true, name = "experts.swiglu" })
  return y:expert_linear { last, name = "experts.down" }:combine(places, { name = "combine" })
end

local route = { check = routing.check, options = decoder.more(routing.options(), {
  { "hf", "text", "its weight's name in a checkpoint, {} for the layer's number; left out: its own", optional = true },
  { "hf_bias", "text", "as hf, for the bias on the choice, which a checkpoint may lack", optional = true },
}) }

-- What is drawn at random in training: a map of each element (docs/models.md, "Draws").
local function drawn(options, text)
  return { options = options, body = function(x, o) return x:map(text(o)) end }
end
local share = { "p", "number", "the share", range = { 0, 0.9999 }, positional = true }
local function kept(draw)  -- a draw of p or more keeps
  return function(o) return ("a * (1 + training() * ((1 - step(%.17g - %s)) / %.17g - 1))"):format(o.p, draw, 1 - o.p) end
end

local dropout = drawn({ share }, kept "uniform(1)")
local drop_path = drawn({ share }, kept "uniform_of_sample(1)")
local noise = drawn({ { "std", "number", "standard deviation", range = { 0, 1e30 }, positional = true } }, function(o)
  return ("a + %.17g * normal()"):format(o.std)
end)

return { attention = attention, mlp = mlp, experts = experts, route = route, dropout = dropout, drop_path = drop_path,
  noise = noise }
