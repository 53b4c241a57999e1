-- In what experiments differ, and their results beside each other, of `runs compare --json`.
local format = require "meshwright.format"

local most_columns = 5  -- of runs; more are rows

local function setting_text(value)
  return value == nil and "-" or type(value) == "string" and value or format.json(value)
end

-- A table of lines with a value for each run. `text`: of a value, by its key and the run's number.
local function table_of(names, lines, text, right)
  local rows, keys, aligned = {}, {}, {}
  for key in pairs(lines) do keys[#keys + 1] = key end
  local across, down = names, keys
  if #names > most_columns then across, down = keys, names end
  for column = 1, right and #across or 0 do aligned[column] = column + 1 end
  for k, one in ipairs(down) do
    rows[k] = { one }
    for c, other in ipairs(across) do
      local run, key = c, one
      if down == names then run, key = k, other end
      rows[k][c + 1] = text(key, lines[key][run], run)
    end
  end
  return format.table({ "", table.unpack(across) }, aligned, rows, "  ")
end

return function(given)
  local names, marked = {}, {}
  for k, name in ipairs(given.runs) do
    names[k], marked[k] = name, name == given.baseline and name .. " (baseline)" or name
  end
  local text = "the experiments do not differ\n"
  if #given.differences > 0 then
    text = "differ in\n" .. table_of(names, given.differences, function(_, value) return setting_text(value) end, false)
  end
  text = text .. "\nresults\n" .. table_of(marked, given.results, function(key, value, run)
    local shown, change = format.field(key, value), given.deltas[key] and given.deltas[key][run]
    if not change or given.runs[run] == given.baseline or key == "ranks" or key == "steps" then return shown end
    return ("%s (%+.1f %%)"):format(shown, 100 * change)
  end, true)
  for _, note in ipairs(given.notes) do text = text .. "\n  " .. format.line(note) end
  return text
end
