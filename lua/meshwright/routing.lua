-- The options by which tokens choose experts, for models with experts and for ops.
local decoder = require "meshwright.decoder"

local routing = {}

local known = {
  { "top_k", "integer", "experts that a token chooses", range = { 1, 65536 }, positional = true },
  { "capacity", "number", "an expert takes at most so many times its even share of a sequence's choices, earlier positions "
    .. "first; left out: all (dropless)", range = { 1e-3, 1e6 }, optional = true },
  { "chosen_by", "choice", "tokens choose experts; or each expert chooses the tokens of a sequence with the highest affinities "
    .. "to it, capacity times an even share of them, so that a token has top_k experts on average",
    choices = { "tokens", "experts" }, fallback = "tokens" },
  { "balance", "choice", "how the load of experts is balanced: by a loss of each sequence's choices; by a bias on the choice "
    .. "that moves against the load of each step; not at all", choices = { "aux", "bias", "none" }, fallback = "aux" },
  { "aux_weight", "number", "factor of the balancing loss", at_least = 0, fallback = 0.01 },
  { "bias_rate", "number", "change of a bias in a step", at_least = 0, fallback = 0.001 },
  { "z_weight", "number", "factor of a loss that keeps router logits small", at_least = 0, fallback = 0.0 },
  { "jitter", "number", "the router's input is multiplied in training by a number drawn in [1 - jitter, 1 + jitter) (Switch "
    .. "Transformer)", range = { 0, 0.5 }, optional = true },
  { "noise", "number", "standard deviation of what is added to router logits in training, drawn from a normal distribution",
    range = { 0, 1e30 }, optional = true },
  { "score", "choice", "a token's affinity to the experts, from logits", choices = { "softmax", "sigmoid" },
    fallback = "softmax" },
  { "normalise", "boolean", "the weights of a token's experts sum to one (times scale)", fallback = true },
  { "scale", "number", "factor of the experts' weights", fallback = 1.0 },
  { "logit_bias", "boolean", "the router's logits have a bias, which is trained", fallback = false },
  { "groups", "integer", "equal groups that the experts stand in", range = { 1, 65536 }, optional = true,
    usual = function(v) return v.groups == 1 end },
  { "group_top", "integer", "groups that a token chooses its experts in: those whose two highest experts sum to most; with "
    .. "softmax, those with the highest expert", range = { 1, 65536 }, optional = true,
    usual = function(v) return v.group_top == 1 end },
}

--- The options as a list of its own, without those that are named.
function routing.options(without)
  local list = {}
  for _, option in ipairs(known) do
    local goes = false
    for _, name in ipairs(without or {}) do goes = goes or option[1] == name end
    if not goes then list[#list + 1] = option end
  end
  return list
end

--- Puts their values in `o` into the table `to`, for x:route.
function routing.chosen(o, to)
  for _, option in ipairs(known) do
    if o[option[1]] ~= nil then to[option[1]] = o[option[1]] end
  end
  return to
end

--- What experts of SwiGLU make of h. `given` has the parts of which names in a checkpoint are put
--- together: `block`, `router`, `gate`, `up`, `down`, and `bias`, if the router has one. It may
--- have a function `beside`, which is called between dispatch and experts: the ops that it appends
--- run while tokens are sent to their experts.
function routing.experts(h, o, given)
  local function linear(rows, to, name)
    return rows:expert_linear { to, name = "experts." .. name,
      hf = ("%s.experts.{}.%s.weight"):format(given.block, given[name]) }
  end
  local rows, places, weights = h:route(routing.chosen(o, { name = "router", hf_bias = given.bias,
    hf = ("%s.%s.weight"):format(given.block, given.router) }))
  if given.beside then given.beside() end
  local gate, up = linear(rows, "expert_ffn", "gate"), linear(rows, "expert_ffn", "up")
  local inner = gate:swiglu(up, weights, { weighed = true, name = "experts.swiglu" })
  return linear(inner, "hidden", "down"):combine(places, { name = "combine" })
end

-- The default of an option.
local function usual(name)
  for _, option in ipairs(known) do
    if option[1] == name then return option.fallback end
  end
end

--- Checks what a token chooses, of all experts or within groups of them.
function routing.check(o, refuse, experts)
  for _, needed in ipairs { { "aux_weight", "aux" }, { "bias_rate", "bias" } } do
    local name, balance = table.unpack(needed)
    if o[name] ~= nil and o[name] ~= usual(name) and o.balance ~= balance then
      refuse("option.conflict", name, ("is for balance = %q, and balance is %q"):format(balance, o.balance),
        ("leave out %s, or balance = %q"):format(name, balance))
    end
  end
  if o.chosen_by == "experts" then
    -- Experts have equal loads; weights of a token do not sum to one, as nobody knows how many
    -- it has.
    for _, needed in ipairs { { "balance", "none" }, { "normalise", false }, { "groups", 1 } } do
      local name, value = table.unpack(needed)
      if o[name] ~= nil and o[name] ~= value then
        refuse("option.conflict", name, ('experts choose their tokens (chosen_by = "experts"), and %s is %s'):format(name,
          tostring(o[name])), ("%s = %s"):format(name, type(value) == "string" and ("%q"):format(value) or tostring(value)))
      end
    end
  end
  local groups, group_top = o.groups or 1, o.group_top or 1
  if experts % groups ~= 0 then
    refuse("option.divides", "groups", ("%d groups do not divide %d experts"):format(groups, experts),
      "nearest: groups = " .. decoder.near(experts, groups))
  end
  if group_top > groups then
    refuse("option.range", "group_top", ("a token cannot choose %d of %d groups"):format(group_top, groups),
      ("group_top = %d at most"):format(groups))
  end
  local of = math.min(group_top, groups)
  local open = experts // groups * of
  if o.top_k > experts then
    refuse("option.range", "top_k", ("a token cannot choose %d of %d experts"):format(o.top_k, experts),
      ("top_k = %d at most"):format(experts))
  elseif experts % groups == 0 and o.top_k > open then
    refuse("option.range", "top_k",
      ("a token cannot choose %d of %d experts, which %d of %d groups have"):format(o.top_k, open, of, groups),
      ("top_k = %d at most, or group_top = %d"):format(open, math.ceil(o.top_k * groups / experts)))
  end
end

return routing
