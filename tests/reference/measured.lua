-- The text of clusters/software/measured.lua: under each stack the configurations with a published
-- step, each once, from the rows of prediction.lua's tables.
local mw = require "meshwright"

local head = [[
-- Configurations with a published step under each stack: parameters, devices, then ways of layers,
-- model, sequence and experts, and the table of tests/reference that has it. Made by
-- `meshwright bench prediction measured`; a test compares.
return {
]]

-- The same text for tables with the same keys.
local function text_of(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for key, one in pairs(value) do
    if not tostring(key):find "^%$" then parts[#parts + 1] = tostring(key) .. "=" .. text_of(one) end
  end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end

local counts = {}

local function parameters(row)
  local key = text_of(row.model)
  if not counts[key] then
    local dp = mw.plugins "dp"
    counts[key] = mw.plan {
      model = row.model, data = mw.synthetic {}, sequence = row.sequence, plan = { dp(1) }, batch = 1, steps = 1,
      optimizer = mw.adamw { lr = 1e-4 },
    }.parameters
  end
  return counts[key]
end

return function(tables)
  local stacks, names = {}, {}
  for _, table_ in ipairs(tables) do
    for _, row in ipairs(table_.unit == nil and table_.rows() or {}) do
      if not stacks[row.stack] then
        stacks[row.stack] = { seen = {} }
        names[#names + 1] = row.stack
      end
      local lines, cp, count = stacks[row.stack], row.cp or 1, parameters(row)
      local devices = row.tp * row.pp * row.dp * cp
      local sizes = ("%.4g, %d, %d, %d, %d, %d"):format(count, devices, row.pp, row.tp, cp, row.ep or 1)
      if not lines.seen[sizes] then
        lines.seen[sizes] = true
        lines[#lines + 1] = { count, devices, ('{ %s, "%s" }'):format(sizes, table_.name) }
      end
    end
  end
  table.sort(names)
  local text = head
  for _, name in ipairs(names) do
    local lines = stacks[name]
    table.sort(lines, function(a, b)
      if a[1] ~= b[1] then return a[1] < b[1] end
      if a[2] ~= b[2] then return a[2] < b[2] end
      return a[3] < b[3]
    end)
    text = text .. ('  ["%s"] = {\n'):format(name)
    for _, line in ipairs(lines) do text = text .. "    " .. line[3] .. ",\n" end
    text = text .. "  },\n"
  end
  return text .. "}"
end
