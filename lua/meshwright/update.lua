-- mw.update { states = …, step = function(p, g, s, t) … end, lr = … } calls the step once, and
-- records what it computes of its values. The program computes the record for each parameter.
local core = require "meshwright.core"

-- What a value has numbers for.
local parameter, matrix, rows, columns, elements = 1, 2, 3, 4, 5
local texts = { "the parameter", "each matrix", "rows", "columns", "elements" }
local function joined(a, b)
  local both = math.max(a, b)
  return math.min(a, b) == rows and both == columns and elements or both
end

-- Facts of a value, by the value: its tape, its index on the tape, what it has numbers for, and how
-- many sums stand one in another in it.
local of = setmetatable({}, { __mode = "k" })
local value = { __name = "meshwright.update.value" }

local function is_value(given) return getmetatable(given) == value end

local function described(given)
  return type(given) == "string" and ("%q"):format(given) or type(given) == "number" and tostring(given) or "a " .. type(given)
end

local function new(tape, node, extent, rounds)
  tape.list[#tape.list + 1] = node
  local one = setmetatable({}, value)
  of[one] = { tape = tape, index = #tape.list - 1, extent = extent or parameter, rounds = rounds or 0 }
  return one
end

-- An operand of expressions, by its place: p, g, t.lr, t.step, the states, and the sums.
local function operand(tape, place, extent, rounds)
  if place >= 26 then core.refuse("mw.update: the states and sums are too many", "22 of them at most") end
  return new(tape, { "operand", place }, extent, rounds)
end

-- A given value, or a number as a value.
local function taken(tape, given)
  if is_value(given) then
    if of[given].tape == tape then return given end
    core.refuse("mw.update: a value of another step", "a step computes with its own p, g, s and t")
  end
  if math.type(given) == nil or given ~= given or math.abs(given) == math.huge then
    core.refuse(("mw.update: a value or a finite number; got %s"):format(described(given)),
      "p, g, the states of s, t.lr and t.step are values: s.m:sqrt(), 0.9 * s.m")
  end
  return new(tape, { "number", given })
end

local function computed(tape, name, ...)
  local node, extent, rounds = { name }, parameter, 0
  for k, given in ipairs { ... } do
    local one = of[taken(tape, given)]
    node[k + 1], extent, rounds = one.index, joined(extent, one.extent), math.max(rounds, one.rounds)
  end
  return new(tape, node, extent, rounds)
end

-- A sum is an operand of what is computed after it.
local function sum(self, name, over)
  local one = of[self]
  local left = ({ all = parameter, matrix = matrix, columns = rows, rows = columns })[over == nil and "all" or over]
  if not left then
    core.refuse(("mw.update: %s over %s"):format(name, described(over)), 'x:mean(), or over "rows", "columns" or "matrix"')
  end
  local of_vector = name == "mean" and (one.extent == rows or one.extent == columns) and left <= matrix
  if one.extent ~= elements and not of_vector then
    core.refuse(("mw.update: a %s over nothing: what is summed has numbers for %s alone"):format(name, texts[one.extent]),
      'sum what is computed of p, g or a state of elements; of rows and columns there is x:mean("matrix")')
  end
  local sums = one.tape.sums
  sums[#sums + 1] = { of = one.index, mean = name == "mean", round = one.rounds, each = left ~= parameter,
    side = left == rows and "rows" or left == columns and "columns" or "one" }
  return operand(one.tape, one.tape.first_sum + #sums - 1, left, one.rounds + 1)
end

local function operator(sign)
  return function(a, b) return computed(of[is_value(a) and a or b].tape, sign, a, b) end
end
value.__add, value.__sub, value.__mul, value.__div = operator "+", operator "-", operator "*", operator "/"
value.__unm = function(a) return computed(of[a].tape, "neg", a) end
value.__pow = function(a, b)
  if is_value(a) and math.type(b) then
    return new(of[a].tape, { "^", of[a].index, b }, of[a].extent, of[a].rounds)
  end
  local tape = of[is_value(a) and a or b].tape  -- a ^ b = exp(b log(a))
  if math.type(a) and a <= 0 then
    core.refuse(("mw.update: %s ^ a value, which is exp(value * log(%s))"):format(a, a), "a base above 0")
  end
  return computed(tape, "exp", b * (math.type(a) and math.log(a) or computed(tape, "log", a)))
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
    if name == "sum" or name == "mean" then return sum(self, name, ...) end
    return computed(of[self].tape, name, self, ...)
  end
end
value.__newindex = function(_, name) core.refuse(("mw.update: a value has no field %s to set"):format(tostring(name))) end

-- The states of a table: names of those of elements, and of those by rows or by columns.
local function declared(given)
  local names, by, known = {}, {}, {}
  for key, item in pairs(type(given) == "table" and given or { given }) do
    local name = math.type(key) and item or key
    local own = type(key) == "string" and key:sub(1, 1) ~= "$"
    if (math.type(key) or own) and (type(name) ~= "string" or name == "" or known[name]) then
      core.refuse(("mw.update: the state %s is no name, or is there twice"):format(described(name)),
        'states = { "m", "v", r = "rows" }')
    elseif own and item ~= "rows" and item ~= "columns" then
      core.refuse(("mw.update: the state %s is by %s"):format(name, described(item)),
        'a state of matrices is by "rows" or "columns"')
    end
    if math.type(key) then names[key] = name elseif own then by[#by + 1] = name end
    if math.type(key) or own then known[name] = own and (item == "rows" and rows or columns) or elements end
  end
  table.sort(by)
  return names, by, known
end

-- The states as the function sees them: their values, then what it has set.
local function states_of(tape, given)
  local names, by, known = declared(given)
  local now = {}
  for place, name in ipairs(names) do now[name] = operand(tape, 3 + place, elements) end
  for place, name in ipairs(by) do now[name] = operand(tape, 3 + #names + place, known[name]) end
  tape.first_sum, tape.states, tape.by = 4 + #names + #by, names, {}
  for k, name in ipairs(by) do tape.by[k] = { name, texts[known[name]] } end
  local set = {}
  local function check(name)
    if known[name] then return end
    core.refuse(("mw.update: the step uses the state %s, which is not declared"):format(tostring(name)),
      ("states = { %q }"):format(tostring(name)))
  end
  local proxy = setmetatable({}, {
    __index = function(_, name)
      check(name)
      return set[name] or now[name]
    end,
    __newindex = function(_, name, item)
      check(name)
      local one = taken(tape, item)
      if joined(known[name], of[one].extent) ~= known[name] then
        core.refuse(("mw.update: the state %s has numbers for %s, and what the step sets it to for %s"):format(
          name, texts[known[name]], texts[of[one].extent]), 'take a mean over the others, as (g * g):mean("columns") for rows')
      end
      set[name] = one
    end,
  })
  return proxy, function()
    tape.kept = {}
    for _, list in ipairs { names, by } do
      for _, name in ipairs(list) do
        if not set[name] then
          core.refuse(("mw.update: the state %s is declared, and the step never sets it"):format(name),
            ("s.%s = …, or leave it out"):format(name))
        end
        tape.kept[#tape.kept + 1] = of[set[name]].index
      end
    end
    return known
  end
end

return function(given)
  local step = type(given) == "table" and rawget(given, "step")
  if type(step) ~= "function" then
    core.refuse(("mw.update: step must be a function(p, g, s, t); got %s"):format(described(step or nil)),
      "mw.update { lr = 0.1, step = function(p, g, s, t) return p - t.lr * g end }")
  end
  local tape = { list = {}, sums = {} }
  local p, g = operand(tape, 0, elements), operand(tape, 1, elements)
  local numbers = { lr = operand(tape, 2), step = operand(tape, 3) }
  local s, keep = states_of(tape, given.states)
  local times = setmetatable({}, {
    __index = function(_, name)
      if numbers[name] then return numbers[name] end
      core.refuse(("mw.update: t.%s is no number of a step"):format(tostring(name)), "t.lr, t.step (from 1)")
    end,
    __newindex = function() core.refuse("mw.update: t has no numbers to set", "t.lr, t.step") end,
  })
  local result = step(p, g, s, times)
  if not is_value(result) then
    core.refuse(("mw.update: the step returned %s, and not the parameter's new value"):format(described(result)),
      "return p - t.lr * g")
  end
  tape.result = of[taken(tape, result)].index
  local known = keep()
  if given.average and known[given.average] ~= elements then
    core.refuse(("mw.update: the average %s is no state of elements"):format(described(given.average)),
      ("states = { %s }"):format(described(given.average)))
  end
  local options = {}
  for key, item in pairs(given) do options[key] = item end
  local record = { list = tape.list, sums = tape.sums, states = tape.states, by = tape.by, kept = tape.kept,
    result = tape.result }
  options.step = function() return record end
  return options
end
