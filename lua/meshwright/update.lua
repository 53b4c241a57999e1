-- mw.update { states = …, step = function(p, g, s, t) … end, lr = … }: the step is called once,
-- with values that record what is computed of them. The program computes it for each parameter.
local core = require "meshwright.core"

local of = setmetatable({}, { __mode = "k" })  -- by value: its tape, and its index there
local value = { __name = "meshwright.update.value" }

local function is_value(given) return getmetatable(given) == value end

local function new(tape, node)
  tape[#tape + 1] = node
  local one = setmetatable({}, value)
  of[one] = { tape = tape, index = #tape - 1 }
  return one
end

local function described(given)
  return type(given) == "string" and ("%q"):format(given) or type(given) == "number" and tostring(given) or "a " .. type(given)
end

-- The index of a value, or of a number, which becomes a value.
local function index_of(tape, given)
  if is_value(given) then
    if of[given].tape == tape then return of[given].index end
    core.refuse("mw.update: a value of another step", "a step computes with its own p, g, s and t")
  end
  if math.type(given) == nil or given ~= given or math.abs(given) == math.huge then
    core.refuse(("mw.update: a value or a finite number; got %s"):format(described(given)),
      "p, g, the states of s, t.lr and t.step are values: s.m:sqrt(), 0.9 * s.m")
  end
  return of[new(tape, { "number", given })].index
end

local function operator(sign)
  return function(a, b)
    local tape = of[is_value(a) and a or b].tape
    return new(tape, { sign, index_of(tape, a), index_of(tape, b) })
  end
end
value.__add, value.__sub, value.__mul, value.__div = operator "+", operator "-", operator "*", operator "/"
value.__unm = function(a) return new(of[a].tape, { "neg", of[a].index }) end
value.__pow = function(a, b)
  if is_value(a) and math.type(b) then return new(of[a].tape, { "^", of[a].index, b }) end
  local tape = of[is_value(a) and a or b].tape  -- a ^ b = exp(b log(a))
  if math.type(a) and a <= 0 then
    core.refuse(("mw.update: %s ^ a value, which is exp(value * log(%s))"):format(a, a), "a base above 0")
  end
  local log = math.type(a) and math.log(a) or new(tape, { "log", index_of(tape, a) })
  return new(tape, { "exp", of[b * log].index })
end
local function none(what, instead)
  return function() core.refuse(("mw.update: values have no %s"):format(what), instead) end
end
value.__lt = none("order, as they have no numbers yet", "x:max(y), (x - y):step()")
value.__le, value.__eq = value.__lt, value.__lt
value.__len = none("length", "x:sum(), x:mean()")
value.__mod, value.__idiv, value.__concat = none("%", "x - y * k"), none("//", "x / y"), none("..", "x + y")
value.__tostring = function() return "a value of mw.update" end
value.__index = function(_, name)
  return function(self, ...)
    if not is_value(self) then
      core.refuse(("mw.update: %s called without a value"):format(tostring(name)), ("write x:%s()"):format(tostring(name)))
    end
    local tape = of[self].tape
    local node = { name, of[self].index }
    for _, given in ipairs { ... } do
      local over = name == "sum" or name == "mean"
      if over and type(given) ~= "string" then
        core.refuse(("mw.update: %s over %s"):format(name, described(given)), 'x:mean(), x:mean("rows")')
      end
      node[#node + 1] = over and given or index_of(tape, given)
    end
    return new(tape, node)
  end
end
value.__newindex = function(_, name) core.refuse(("mw.update: a value has no field %s to set"):format(tostring(name))) end

-- The states as the function sees them: their values, then what it has set.
local function states_of(tape, given)
  local now, set = {}, {}
  for key, item in pairs(type(given) == "table" and given or { given }) do
    local name = math.type(key) and item or key
    if type(name) == "string" and name:sub(1, 1) ~= "$" then now[name] = false end
  end
  local function known(name)
    if now[name] ~= nil then return end
    core.refuse(("mw.update: the step uses the state %s, which is not declared"):format(tostring(name)),
      ("states = { %q }"):format(tostring(name)))
  end
  local proxy = setmetatable({}, {
    __index = function(_, name)
      known(name)
      now[name] = now[name] or new(tape, { "state", name })
      return now[name]
    end,
    __newindex = function(_, name, item)
      known(name)
      set[name] = index_of(tape, item)
      now[name] = is_value(item) and item or new(tape, { "number", item })
    end,
  })
  return proxy, set
end

return function(given)
  local step = type(given) == "table" and rawget(given, "step")
  if type(step) ~= "function" then
    core.refuse(("mw.update: step must be a function(p, g, s, t); got %s"):format(described(step or nil)),
      "mw.update { lr = 0.1, step = function(p, g, s, t) return p - t.lr * g end }")
  end
  local tape, times = {}, {}
  local p, g = new(tape, { "p" }), new(tape, { "g" })
  local s, set = states_of(tape, given.states)
  setmetatable(times, { __newindex = function() core.refuse("mw.update: t has no numbers to set", "t.lr, t.step") end,
    __index = function(_, name)
    if name ~= "lr" and name ~= "step" then
      core.refuse(("mw.update: t.%s is no number of a step"):format(tostring(name)), "t.lr, t.step (from 1)")
    end
    return new(tape, { "t." .. name })
  end })
  local result = step(p, g, s, times)
  if not is_value(result) then
    core.refuse(("mw.update: the step returned %s, and not the parameter's new value"):format(described(result)),
      "return p - t.lr * g")
  end
  local options = {}
  for key, item in pairs(given) do options[key] = item end
  local record = { list = tape, kept = set, result = of[result].index }
  options.step = function() return record end
  return options
end
