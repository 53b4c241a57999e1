-- Declared options as people read them, of what `plugins show --json` says of each.
local format = require "meshwright.format"
local options = {}

function options.choices(option, separator)
  local quoted = {}
  for k, choice in ipairs(option.choices) do quoted[k] = format.lua(choice) end
  return table.concat(quoted, separator)
end

--- "integer", "size", "\"a\" | \"b\"".
function options.type(option)
  return option.type == "choice" and options.choices(option, " | ") or option.type
end

--- ">= 1", "1 .. 8", "".
function options.range(option)
  local function limit(value)
    return value ~= nil and (option.type == "size" and format.bytes or format.describe)(value)
  end
  local least, most = limit(option.least), limit(option.most)
  return least and most and least .. " .. " .. most or least and ">= " .. least or most and "<= " .. most or ""
end

--- "25 MiB", "required", "none".
function options.default(option)
  local value = option.default
  if value == nil then return option.required and "required" or "none" end
  if option.type == "size" and type(value) == "number" then return format.bytes(value) end
  return (math.type(value) == "float" and format.number or format.json)(value)
end

--- A table of all of them. `positional`: the key that a value without a name is.
function options.text(list, positional)
  if #list == 0 then return "  no options\n" end
  local units = false
  for _, option in ipairs(list) do units = units or option.unit ~= nil end
  local function row(...)
    local cells = { ... }
    if not units then table.remove(cells, 5) end
    return cells
  end
  local rows = {}
  for k, option in ipairs(list) do
    rows[k] = row(option.name, options.type(option), options.range(option), options.default(option),
      option.unit or "", option.doc)
  end
  local text = format.table(row("option", "type", "range", "default", "unit", "what it does"), {}, rows, "  ")
  return positional == "" and text or ("%s  A value without a name is %s.\n"):format(text, positional)
end

return options
