-- Records what a function of mw.model does with values: a list of ops, as data. A block is given
-- one value; a graph is given the model's data, and says itself which layer its ops are of.
local core = require "meshwright.core"
local getinfo = debug.getinfo  -- which scripts in a sandbox do not have

local value = { __name = "meshwright.value" }
-- Of each value: its tape, and which output of which op it is. Beside the values, so that every
-- name behind a colon is an op's.
local of = setmetatable({}, { __mode = "k" })

local function is_value(given) return getmetatable(given) == value end

local function new(tape, op, output)
  local made = setmetatable({}, value)
  of[made] = { tape = tape, op = op, output = output }
  return made
end

-- A text such as "a number" for messages.
local function described(given)
  if given == nil then return "nothing" end
  return "a " .. type(given)
end

-- Options whose first entry without a name is a value, as x:linear { weight }: that value.
local function value_among(options)
  return type(options) == "table" and is_value(options[1]) and options[1] or nil
end

local function append(name, tape, ...)
  if tape.closed then
    core.refuse(("%s: a value of another layer, or of a function that has returned"):format(name),
      "a block computes with the value that it is given, and a graph with those of its model")
  end
  local inputs, options = {}, nil
  for i = 1, select("#", ...) do
    local given = select(i, ...)
    if is_value(given) then
      if of[given].tape ~= tape then
        core.refuse(("%s: a value of another %s"):format(name, tape.count and "model" or "layer"),
          "a block computes with the value that it is given, and a graph with those of its model")
      end
      inputs[#inputs + 1] = { of[given].op, of[given].output }
    elseif i < select("#", ...) or given == nil or type(given) == "function" then
      core.refuse(("%s takes values, then its options; got %s"):format(name, described(given)),
        ("write x:%s(y, { … })"):format(name))
    else
      options = given
    end
  end
  local own, frozen = nil, nil
  if type(options) == "table" then
    local rest = {}
    for key, item in pairs(options) do
      if is_value(item) then
        core.refuse(("%s: a value among its options"):format(name), ("write x:%s(y, { … })"):format(name))
      end
      if key == "name" then own = item elseif key == "frozen" then frozen = item else rest[key] = item end
    end
    options = rest
  end
  if frozen ~= nil and type(frozen) ~= "boolean" then
    local got = type(frozen) == "string" and ("%q"):format(frozen) or tostring(frozen)
    core.refuse(("%s: frozen must be true or false; got %s"):format(name, got),
      "with frozen = true nothing trains its weights")
  end
  if own ~= nil and (type(own) ~= "string" or not own:find("^[%a][%w_.]*$")) then
    core.refuse(("%s: its name must be a word; got %s"):format(name, tostring(own)), 'for example name = "q"')
  end
  local first_word = own and own:match("^(%w+)%.")
  if not tape.of_kind and (first_word == "shared" or first_word == "layers") then
    core.refuse(("%s: the name %s says that layers share its parameters, and each layer has its own")
      :format(name, own), ('name it otherwise, for example name = "%s"'):format(own:match("([^.]*)$")))
  end
  local outputs = core.op(name, #inputs, options)
  local ops = tape.ops
  ops[#ops + 1] = { op = name, name = own, inputs = inputs, options = options, frozen = frozen or nil, ["$at"] = core.place(),
    layer = tape.count and (tape.layer or tape.count > 0 and tape.count or -1) or nil }
  local made = {}
  for o = 1, outputs do made[o] = new(tape, #ops, o) end
  return table.unpack(made)
end

value.__index = function(_, name)
  name = tostring(name)
  return function(self, ...)
    if not is_value(self) then
      core.refuse(("%s: called without a value"):format(name), ("write x:%s { … }"):format(name))
    end
    local tape = of[self].tape
    local weight = name == "linear" and select("#", ...) == 1 and value_among((...))
    if not weight then return append(name, tape, self, ...) end
    local given = ...
    for key in pairs(given) do
      if key ~= 1 and key ~= "name" and not (key == "frozen" and given.frozen == false) then
        core.refuse(("linear: with a weight of the model it takes no %s"):format(tostring(key)),
          "m:weight { … } takes init, std, hf and frozen")
      end
    end
    return append("contract", tape, self, weight, given.name and { name = given.name } or {})
  end
end
value.__newindex = function(_, name) core.refuse(("a value has no field %s to set"):format(tostring(name))) end

-- What an operator of values, or of a value and a number, records: an expression of them.
local function operator(sign)
  return function(a, b)
    local number, other = a, b
    if is_value(a) then number, other = b, a end
    local tape = of[other].tape
    if is_value(a) and is_value(b) then
      if sign == "+" then return append("add", tape, a, b) end
      return append("map", tape, a, b, ("a %s b"):format(sign))
    elseif math.type(number) and (number ~= number or math.abs(number) == math.huge) then
      core.refuse(("a value %s %s: the number is not finite"):format(sign, number), ("x %s 2"):format(sign))
    elseif math.type(number) == nil then
      core.refuse(("a value %s a value or a number; got %s"):format(sign, described(number)), ("x %s y"):format(sign))
    end
    local text = ("(%.17g)"):format(number)
    return append("map", tape, other, is_value(a) and ("a %s %s"):format(sign, text) or ("%s %s a"):format(text, sign))
  end
end
value.__add, value.__sub, value.__mul, value.__div = operator "+", operator "-", operator "*", operator "/"
value.__unm = function(a) return append("map", of[a].tape, a, "-a") end
value.__pow = function(a, b)
  if not is_value(a) or math.type(b) == nil then
    local given = b
    if not is_value(a) then given = a end
    core.refuse(("a value has a number as its power; got %s"):format(described(given)),
      "x ^ 2; the power of a value is (x * math.log(2)):exp()")
  end
  return append("map", of[a].tape, a, ("a ^ (%.17g)"):format(b))
end
value.__tostring = function(self) return ("a value of the model (op %d)"):format(of[self].op) end

-- What a graph is given: the model's data, its weights, its layers.
local model = { __name = "meshwright.graph" }
local tape_of = setmetatable({}, { __mode = "k" })
model.__index = function(self, name)
  if rawget(model, name) ~= nil then return rawget(model, name) end
  local known = { "layers", "positions_of", "weight" }
  for key in pairs(self) do known[#known + 1] = key end
  table.sort(known)
  core.refuse(("m.%s: a graph has no such value"):format(tostring(name)), "it has m." .. table.concat(known, ", m."))
end

local function tape_of_model(self)
  if not tape_of[self] then core.refuse("called without the model", "write m:weight { … }, m:layers(4)") end
  return tape_of[self]
end

--- m:weight { "name", "vocab", "hidden", init = …, hf = … }: a parameter as a value.
function model:weight(given)
  local tape = tape_of_model(self)
  if type(given) ~= "table" or type(given[1]) ~= "string" then
    core.refuse(("weight takes its name and its dims; got %s"):format(described(given)),
      'm:weight { "embedding", "vocab", "hidden" }')
  end
  if given[2] == nil then
    core.refuse(("the weight %s has no dims"):format(given[1]),
      'm:weight { "embedding", "vocab", "hidden" }; a number is of a dim of size 1')
  end
  local options, dims = {}, {}
  for key, item in pairs(given) do
    if math.type(key) == nil then options[key] = item elseif key > 1 then dims[key - 1] = item end
  end
  options.name, options.dims = given[1], dims
  return append("weight", tape, options)
end

--- m:positions_of "patches": the numbers of a dim's elements, from 0, as m.positions are those of
--- seq.
function model:positions_of(dim)
  return append("positions_of", tape_of_model(self), { dim = dim })
end

--- for layer in m:layers(n) do … end: the ops of each layer.
function model:layers(count)
  local tape = tape_of_model(self)
  if count == nil then count, tape.takes_layers = tape.default, true end
  if math.type(count) ~= "integer" or count < 1 or count > 4096 then
    core.refuse(("layers takes a whole number from 1 to 4096; got %s"):format(
      type(count) == "string" and ("%q"):format(count) or tostring(count)), "for layer in m:layers(4) do … end")
  elseif tape.layer then
    core.refuse("layers within a layer", "a loop over m:layers(n) stands beside another, not in it")
  end
  local first = tape.count
  tape.count = first + count
  local layer = -1
  local function next_layer()
    layer = layer + 1
    tape.layer = layer < count and first + layer or nil
    return layer < count and layer or nil
  end
  -- However the loop ends, what follows it is of no layer.
  return next_layer, nil, nil, setmetatable({}, { __close = function() tape.layer = nil end })
end

-- The record of a tape: its ops, and the values that the function returned.
local function record_of(tape, place, result)
  tape.closed = true
  local record = { ops = tape.ops, ["$at"] = place }
  local function ref(one)
    if is_value(one) and of[one].tape == tape then return { of[one].op, of[one].output } end
    record.got = is_value(one) and "a value of another layer" or described(one)
  end
  if not tape.count then
    record.result = ref(result)
    return record
  end
  record.layers, record.losses, record.takes_layers = tape.count, {}, tape.takes_layers
  for _, loss in ipairs(type(result) == "table" and not is_value(result) and result or { result }) do
    record.losses[#record.losses + 1] = ref(loss)
  end
  if record.got or #record.losses == 0 then
    record.losses, record.got = nil, record.got or described(result)
  end
  return record
end

local function place_of(body)
  local info = getinfo(body, "S")
  return ("%s:%d"):format((info.source:gsub("^[@=]", "")), info.linedefined)
end

-- The functions of a model's table that the program calls: for a layer, what `body` did; for a
-- graph, given the number of layers that the table has.
local function recorder(body)
  local place = place_of(body)
  return function(layer)
    local tape = { ops = {} }
    return record_of(tape, place, (body(new(tape, 0, 1), layer)))
  end
end

local function graph_recorder(body, of_kind, inputs)
  local place = not of_kind and place_of(body) or nil
  return function(layers)
    local tape = { ops = {}, count = 0, default = layers > 0 and layers or nil, of_kind = of_kind }
    local m = { tokens = new(tape, 0, 1), labels = new(tape, 0, 2), positions = new(tape, 0, 3) }
    for i, name in ipairs(inputs) do m[name] = new(tape, 0, 3 + i) end
    tape_of[m] = tape
    return record_of(tape, place, (body(setmetatable(m, model))))
  end
end

-- The names of a graph's inputs, in the order in which the program has them.
local function names_of(inputs)
  local names = {}
  for name in pairs(type(inputs) == "table" and inputs or {}) do
    if type(name) == "string" and name:sub(1, 1) ~= "$" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- A copy of a table in which whole numbers that are floats say so: the program makes integers of
-- them, and transformers refuses an integer where its configuration has a float.
local function with_reals(given)
  if math.type(given) == "float" and given == math.floor(given) and math.abs(given) < 1e15 then
    return { __real__ = given }
  elseif type(given) ~= "table" or given.__real__ then
    return given
  end
  local copy = {}
  for key, item in pairs(given) do copy[key] = with_reals(item) end
  return copy
end

-- The table that mw.model makes, with its functions as the program calls them. `of_kind`: the graph
-- is that of a kind of model (meshwright.kinds), whose lines nobody asks for.
return function(given)
  for _, key in ipairs { "block", "embed", "head" } do
    local body = rawget(given, key)
    if type(body) == "function" then given[key] = recorder(body) end
  end
  local named = rawget(given, "hf")
  if type(named) == "table" and type(named.config) == "table" then named.config = with_reals(named.config) end
  local graph = rawget(given, "graph")
  if type(graph) == "function" then
    given.graph = graph_recorder(graph, rawget(given, "of_kind"), names_of(rawget(given, "inputs")))
  end
  return given
end
