-- Annotations for the Lua language server, from the same declarations that check scripts.
local options = require "meshwright.texts.options"

local lua_names = { text = "string", size = "integer|string", list = "any[]" }

local function lua_type(option)
  return option.type == "choice" and options.choices(option, "|") or lua_names[option.type] or option.type
end

local function field(option, kind, required)
  local doc, range = option.doc, options.range(option)
  if option.default ~= nil then doc = ("%s (default %s)"):format(doc, options.default(option)) end
  if range ~= "" then doc = ("%s (%s)"):format(doc, range) end
  return ("---@field %s%s %s %s\n"):format(option.name, required and "" or "?", kind, doc)
end

-- `types`: of options that hold more than their declaration says.
local function fields(declared, types)
  local text = ""
  for _, option in ipairs(declared.options) do
    text = text .. field(option, types and types[option.name] or lua_type(option),
      option.required and option.name ~= declared.positional)
    -- The value without a name is the first of the table.
    if option.name == declared.positional then
      text = text .. ("---@field [1]? %s the same as %s\n"):format(lua_type(option), option.name)
    end
  end
  return text
end

local function class(name, declared, types)
  return ("---@class meshwright.%s\n%s\n"):format(name, fields(declared, types))
end

-- "|integer" where a bare value may stand for the table.
local function bare(declared)
  for _, option in ipairs(declared.options) do
    if option.name == declared.positional then return "|" .. lua_type(option) end
  end
  return ""
end

-- In an experiment, tables of a group are the constructors' results.
local groups = {
  model = "meshwright.Model", data = "meshwright.Data", optimizer = "meshwright.Optimizer",
  schedule = "meshwright.Schedule|fun(step: integer): number", plan = "meshwright.Strategy[]",
  microbatch = "integer|integer[]|meshwright.Microbatch|fun(step: integer): integer|integer[]|table",
  observe = "fun(step: integer, facts: meshwright.Facts): table<string, number|boolean>?",
}

local function upper(name) return (name:gsub("^%l", string.upper)) end

-- The class of what a constructor makes.
local function class_of(kind) return kind == "lr_schedule" and "Schedule" or upper(kind) end

-- Tables of these kinds lie in results of others, and are no results by themselves.
local parts = { predicted = true, timing = true }

local function result_class(given, kind)
  if #given.results[kind] == 0 then return "meshwright.Result" end
  return "meshwright." .. upper(kind) .. (parts[kind] and "" or "Result")
end

local function result_types(given)
  local text = ""
  for kind, list in pairs(given.results) do
    if #list > 0 then
      text = text .. ("---@class %s%s\n"):format(result_class(given, kind), parts[kind] and "" or ": meshwright.Result")
      for _, one in ipairs(list) do
        local name, type, doc = one[1], one[2], one[3]
        local plain = type:gsub("%?$", "")
        text = text .. ("---@field %s%s %s%s%s\n"):format(name, plain ~= type and "?" or "", plain,
          doc == "" and "" or " ", doc)
      end
      text = text .. "\n"
    end
  end
  return text
end

local function search_types(given)
  local types = { strategies = "(string|table)[]", schedules = "string[]", microbatch = "integer|integer[]" }
  for _, option in ipairs(given.experiment.options) do
    types[option.name] = types[option.name] or groups[option.name] or lua_type(option)
  end
  local required = { model = true, batch = true, cluster = true }
  local text = "---What may be chosen, and an experiment.\n---@class meshwright.SearchTable\n"
  for _, option in ipairs(given.search.options) do
    text = text .. field(option, types[option.name] or lua_type(option), required[option.name])
  end
  return text .. "\n"
end

local function verb_types(given)
  local text = ""
  for _, verb in ipairs(given.verbs) do
    if verb.name ~= "what_if" then  -- takes knobs too: types.lua
      local names = verb.experiments == 1 and { "experiment" } or { "a", "b" }
      text = text .. ("---%s\n"):format(verb.doc)
      for _, name in ipairs(names) do
        text = text .. ("---@param %s meshwright.%s\n"):format(name,
          verb.name == "search" and "SearchTable" or "Experiment")
      end
      text = text .. ("---@return %s\nfunction mw.%s(%s) end\n\n"):format(result_class(given, verb.name), verb.name,
        table.concat(names, ", "))
    end
  end
  return text
end

-- What functions of mw.model compute with: a method for each op.
local function value_types(given)
  local classes, methods = "", ""
  for _, op in ipairs(given.ops) do
    classes = classes .. ("---@class meshwright.op.%s\n---@field name? string of the op and its parameters\n"
      .. "---@field frozen? boolean whether nothing trains its weights\n%s\n"):format(
      op.name, fields(op.takes))
    if op.name ~= "weight" then  -- a method of the graph: types.lua
      methods = methods .. ("---@field %s fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.%s|string|number"
        .. "): meshwright.Value, meshwright.Value? %s\n"):format(op.name, op.name, op.doc)
    end
  end
  local operators = ""
  for _, operator in ipairs { "add", "sub", "mul", "div" } do
    operators = operators .. ("---@operator %s(meshwright.Value|number): meshwright.Value\n"):format(operator)
  end
  return classes .. "---A value over named dims, in a function of mw.model.\n---@class meshwright.Value\n" .. operators
    .. "---@operator pow(number): meshwright.Value\n---@operator unm: meshwright.Value\n" .. methods .. "\n"
end

-- Options of mw.model hold more than their declarations say.
local model_types = {
  dims = "table<string, integer|table>",
  block = "fun(x: meshwright.Value, layer: integer): meshwright.Value?",
  embed = "fun(x: meshwright.Value): meshwright.Value?",
  head = "fun(x: meshwright.Value): meshwright.Value?",
  graph = "fun(m: meshwright.Graph): meshwright.Value|meshwright.Value[]|nil",
}

local function constructor_types(given)
  local text, tables = "", {}
  for _, one in ipairs(given.constructors) do
    local within = one.path:match("^([^.]*)%.")
    if within and not tables[within] then
      tables[within] = true
      text = text .. ("mw.%s = {}\n\n"):format(within)
    end
    text = text .. class(one.path, one.takes, one.kind == "model" and one.name == "model" and model_types or nil)
    text = text .. ("---%s\n---@param options? meshwright.%s%s\n---@return meshwright.%s\nfunction mw.%s(options) end\n\n")
      :format(one.doc, one.path, bare(one.takes), class_of(one.kind), one.path)
  end
  return text
end

-- What mw.plugins("name") yields: a function, with what else the plugin registers as fields.
local function plugin_types(plugin)
  local text, more, call = "", "", ""
  for _, one in ipairs(plugin.brings) do
    local own = #plugin.brings == 1 or plugin.name == one.name
    local key = own and plugin.name or plugin.name .. "." .. one.name
    local type = ("fun(options?: meshwright.plugin.%s%s): meshwright.%s"):format(key, bare(one.takes), class_of(one.kind))
    if own and one.kind ~= "op" then
      text = text .. class("plugin." .. key, one.takes)
      call = ("---%s\n---@overload %s\n"):format(one.doc, type)
    elseif #one.takes.options > 0 and one.kind ~= "op" then  -- an op is a method of values
      text = text .. class("plugin." .. key, one.takes)
      local plain = not one.name:find("[^a-z_]")  -- "zb-h1" is no name in Lua
      more = more .. ("---@field %s %s %s\n"):format(plain and one.name or ('["%s"]'):format(one.name), type, one.doc)
    end
  end
  return ("%s%s---@class meshwright.make.%s\n%s\n"):format(text, call, plugin.name, more)
end

-- The types of what nothing declares, which types.lua has after its head.
local path = package.searchpath("meshwright.types", package.path) or "meshwright/types.lua"
local file = io.open(path)
local hand_written = file and file:read("a"):match "local mw = {}\n\n(.*)$"
if not hand_written then error(path .. " is missing or cut off", 0) end

local function sweep_types(given)
  return class("SweepTable", given.sweep, {
    base = "meshwright.Experiment", over = "table<string, any>|table<string, any>[]",
    skip = "fun(cell: meshwright.CellSoFar): string?", same_loss_as = "string|table", repeats = "integer|table",
  }) .. class("GoOptions", given.go, { only = "string|string[]" })
end

local function strategy_types(given)
  local rules = "(string|meshwright.StrategyRule)[]"
  return class("StrategyAxis", given.axis)
    .. class("StrategyRule", given.rule, { where = "fun(op: meshwright.Op): boolean?" })
    .. class("StrategyStore", given.store, { where = "fun(parameter: meshwright.Parameter): boolean?" })
    .. class("StrategyTable", given.strategy, {
      axis = "string|meshwright.StrategyAxis|meshwright.StrategyAxis[]",
      rules = ("%s|fun(plan: meshwright.RulesRequest): %s"):format(rules, rules),
      store = "(string|meshwright.StrategyStore)[]",
    })
end

return function(given)
  local text = "---@meta meshwright\n"
    .. "-- Made by `meshwright lua-types` from the options that the program declares. Do not edit.\n\n"
    .. "---@class meshwright\nlocal mw = {}\n\n"
    .. result_types(given) .. class("Experiment", given.experiment, groups) .. search_types(given) .. verb_types(given)
    .. value_types(given) .. constructor_types(given)
  local known, overloads = {}, ""
  for k, plugin in ipairs(given.plugins) do
    text = text .. plugin_types(plugin)
    known[k] = ('"%s"'):format(plugin.name)
    overloads = overloads .. ("---@overload fun(name: %s): meshwright.make.%s\n"):format(known[k], plugin.name)
  end
  return text .. '---Plugins by name: `local one, other = mw.plugins("one", "other")`.\n'
    .. ("---@param ... %s\n"):format(known[1] and table.concat(known, "|") or "string")
    .. "---@return fun(options?: table|integer): meshwright.Strategy ...\nfunction mw.plugins(...) end\n\n"
    .. sweep_types(given) .. strategy_types(given)
    .. '---A plugin by name, or by the path of its file: `mw.plugin "./my_tp.so"`.\n' .. overloads
    .. "---@param name string\n---@return fun(options?: table|integer): meshwright.Strategy\n"
    .. "function mw.plugin(name) end\n\n" .. hand_written
end
