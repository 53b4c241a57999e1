-- What the program asks of the kinds of models that the files of lua/meshwright/models describe. A
-- file returns a table:
--   options  a list of its options: { "layers", "integer", "transformer layers", range = { 1, 8 } }
--            (also at_least, choices, unit, fallback, optional, positional), with `usual`, a
--            function of the table of a script that says whether the option has the value that
--            follows from others
--   check    optional: check(o, refuse) calls refuse(code, option, message, hint) for each fault
--   dims     dims(o): the table of dims, as mw.model has it
--   inputs   optional: inputs(o), as mw.model has them
--   graph    graph(m, o): the graph, as mw.model has it
--   hf       hf(o, sequence): what Hugging Face's transformers calls such a model (meshwright.hf)
-- where o has the values of the options. Ops that are several others (meshwright.composites) have
-- options too, and a body.
local composites = require "meshwright.composites"
local recorded = require "meshwright.model"
local kinds = {}

function kinds.options(kind)
  local list = {}
  for i, option in ipairs(kind.options) do
    local one = { name = option[1], type = option[2], doc = option[3] }
    for key, value in pairs(option) do
      if type(key) == "string" then one[key] = value end
    end
    if one.usual then one.usual = true end
    list[i] = one
  end
  return list
end

function kinds.usual(kind, name, values)
  for _, option in ipairs(kind.options) do
    if option[1] == name then return option.usual(values) end
  end
end

function kinds.check(kind, o, ...)
  local problems = {}
  local function refuse(code, key, message, hint)
    problems[#problems + 1] = { code = code, key = key, message = message, hint = hint }
  end
  if kind.check then kind.check(o, refuse, ...) end
  return problems
end

function kinds.describe(kind, o)
  local inputs = kind.inputs and kind.inputs(o)
  local record = recorded { of_kind = true, inputs = inputs, graph = function(m) return kind.graph(m, o) end }
  return { dims = kind.dims(o), inputs = inputs, graph = record.graph(0) }
end

function kinds.hf(kind, o, sequence) return kind.hf(o, sequence) end

function kinds.body(composite, o, last)
  return recorded { block = function(x) return composite.body(x, o, last) end }.block(0)
end

return function(what, name, ...) return kinds[what](composites[name] or require("meshwright.models." .. name), ...) end
