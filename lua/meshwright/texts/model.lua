-- A model's dims, ops and parameters, as tables; what layers have alike is said once.
local format = require "meshwright.format"

-- "0-3", "0, 2", "": layers, of so many in all.
local function ranges(layers, all)
  local parts, at = {}, 1
  while at <= #layers do
    local first, last = layers[at], layers[at]
    at = at + 1
    while layers[at] == last + 1 do last, at = last + 1, at + 1 end
    parts[#parts + 1] = first == last and tostring(first) or ("%d-%d"):format(first, last)
  end
  local text = table.concat(parts, ", ")
  return text == ("0-%d"):format(all - 1) and "all" or text
end

local function in_brackets(names) return ("(%s)"):format(table.concat(names, ", ")) end

local function operands(list)
  local parts = {}
  for k, one in ipairs(list) do
    parts[k] = ((one.name or "") == "" and "" or one.name .. " ") .. in_brackets(one.dims)
  end
  return table.concat(parts, ", ")
end

return function(model)
  local dims, ops, parameters = {}, {}, {}
  for k, dim in ipairs(model.dims) do
    dims[k] = { dim.name, tostring(dim.size), (dim.even and "even" or "any") .. (dim.like and ", as " .. dim.like or ""),
      dim.from, table.concat(dim.cut_in, ", "), table.concat(dim.whole_in, ", ") }
  end
  for k, op in ipairs(model.ops) do
    ops[k] = { op.name, op.kind, ranges(op.layers, model.layers), operands(op.inputs), operands(op.outputs),
      table.concat(op.whole, ", ") }
  end
  for k, one in ipairs(model.parameters) do
    parameters[k] = { one.name, in_brackets(one.dims), table.concat(one.shape, " x "), tostring(one.elements),
      ranges(one.layers, model.layers), one.init .. (one.std and " " .. format.number(one.std) or "") }
  end
  return ("%s: %s, %d elements of parameters\n\n%s\n%s\n%s"):format(model.name, format.plural(model.layers, "layer"),
    model.elements,
    format.table({ "dim", "size", "parts", "from", "may be cut in", "whole in" }, { 2 }, dims, "  "),
    format.table({ "op", "kind", "layers", "takes", "makes", "needs whole" }, {}, ops, "  "),
    format.table({ "parameter", "dims", "shape", "elements", "layers", "init" }, { 4 }, parameters, "  "))
end
