-- Records what a block of mw.model does with the value that it is given: a list of ops, as data.
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

local function append(name, first, ...)
  local tape = of[first].tape
  if tape.closed then
    core.refuse(("%s: a value of another layer, or of a block that has returned"):format(name),
      "a block computes with the value that it is given")
  end
  local inputs, options = { { of[first].op, of[first].output } }, nil
  for i = 1, select("#", ...) do
    local given = select(i, ...)
    if is_value(given) then
      if of[given].tape ~= tape then
        core.refuse(("%s: a value of another layer"):format(name), "a block computes with the value that it is given")
      end
      inputs[#inputs + 1] = { of[given].op, of[given].output }
    elseif i < select("#", ...) or given == nil or type(given) == "function" then
      core.refuse(("%s takes values, then its options; got %s"):format(name, described(given)),
        ("write x:%s(y, { … })"):format(name))
    else
      options = given
    end
  end
  local own = nil
  if type(options) == "table" then
    local rest = {}
    for key, item in pairs(options) do
      if is_value(item) then
        core.refuse(("%s: a value among its options"):format(name), ("write x:%s(y, { … })"):format(name))
      end
      if key == "name" then own = item else rest[key] = item end
    end
    options = rest
  end
  if own ~= nil and (type(own) ~= "string" or not own:find("^[%a][%w_.]*$")) then
    core.refuse(("%s: its name must be a word; got %s"):format(name, tostring(own)), 'for example name = "q"')
  end
  local first_word = own and own:match("^(%w+)%.")
  if first_word == "shared" or first_word == "layers" then
    core.refuse(("%s: the name %s says that layers share its parameters, and each layer has its own")
      :format(name, own), ('name it otherwise, for example name = "%s"'):format(own:match("([^.]*)$")))
  end
  local outputs = core.op(name, #inputs, options)
  local ops = tape.ops
  ops[#ops + 1] = { op = name, name = own, inputs = inputs, options = options, ["$at"] = core.place() }
  local made = {}
  for o = 1, outputs do made[o] = new(tape, #ops, o) end
  return table.unpack(made)
end

value.__index = function(_, name)
  return function(self, ...)
    if not is_value(self) then
      core.refuse(("%s: called without a value"):format(tostring(name)), ("write x:%s { … }"):format(tostring(name)))
    end
    return append(tostring(name), self, ...)
  end
end
value.__newindex = function(_, name) core.refuse(("a value has no field %s to set"):format(tostring(name))) end
value.__add = function(a, b)
  if not is_value(a) or not is_value(b) then
    core.refuse(("a value is added to a value; got %s"):format(described(is_value(a) and b or a)), "x + y")
  end
  return append("add", a, b)
end
value.__tostring = function(self) return ("a value of the model (op %d)"):format(of[self].op) end

-- The function of a model's table that the program calls: for a layer, what `body` did.
local function recorder(body)
  local info = getinfo(body, "S")
  local place = ("%s:%d"):format((info.source:gsub("^[@=]", "")), info.linedefined)
  return function(layer)
    local tape = { ops = {} }
    local result = body(new(tape, 0, 1), layer)
    tape.closed = true
    local record = { ops = tape.ops, ["$at"] = place }
    if is_value(result) and of[result].tape == tape then
      record.result = { of[result].op, of[result].output }
    else
      record.got = is_value(result) and "a value of another layer" or described(result)
    end
    return record
  end
end

-- The table that mw.model makes, with its functions as the program calls them.
return function(model)
  for _, key in ipairs { "block", "embed", "head" } do
    local body = rawget(model, key)
    if type(body) == "function" then model[key] = recorder(body) end
  end
  return model
end
