-- Plans of a script as a list: a line for each but the first, which is shown whole above it.
local format = require "meshwright.format"

local most_keys = 3

-- The keys of an experiment by their dotted names, and what they hold. Its plan is not among them:
-- a line has the mix. Nor is what is of a run alone.
local function keys_of(row, of_run)
  local names, values = {}, {}
  for _, leaf in ipairs(format.leaves(row.experiment or {})) do
    local name, first = leaf[1], leaf[1]:match "^[^.%[]*"
    if first ~= "plan" and not of_run[first] then
      if not values[name] then names[#names + 1] = name end
      values[name] = leaf[2]
    end
  end
  table.sort(names)
  return names, values
end

-- "batch = 32, model.layers = 4": where the experiment is not that of the first row.
local function keys_apart(row, names_before, before, of_run)
  local names, values = keys_of(row, of_run)
  local texts = {}
  for _, name in ipairs(names) do
    if values[name] ~= before[name] then texts[#texts + 1] = name .. " = " .. values[name] end
  end
  for _, name in ipairs(names_before) do
    if not values[name] then texts[#texts + 1] = name .. " = nil" end
  end
  local more = #texts - most_keys
  if more <= 0 then return table.concat(texts, ", ") end
  return ("%s, %d more"):format(table.concat(texts, ", ", 1, most_keys), more)
end

local function step_text(seconds)
  if not seconds then return "" end
  return seconds < 1 and ("%.3g ms"):format(1e3 * seconds) or ("%.4g s"):format(seconds)
end

return function(given)
  local first, of_run, machines, lines = given.rows[1], {}, false, {}
  for _, key in ipairs(given.of_run) do of_run[key] = true end
  local names_before, before = keys_of(first, of_run)
  for _, row in ipairs(given.rows) do machines = machines or row.priced_for ~= first.priced_for end
  for k = 2, #given.rows do
    local row = given.rows[k]
    local mix = row.plan or ""
    local name = row.name or mix
    lines[k - 1] = { row.plan_hash or "", name == mix and mix or name .. ": " .. mix,
      keys_apart(row, names_before, before, of_run),
      step_text(row.step_seconds), row.tokens_per_second and format.count(row.tokens_per_second) or "",
      format.bytes(row.peak_bytes), row.fits == false and "does not fit" or "",
      machines and (row.priced_for or "") or nil }
  end
  local header = { "plan", "mix", "other than the first", "step", "tokens/s", "peak", "", machines and "on" or nil }
  return ("\n%s more, a line each; print(plan) in the script shows one whole, and meshwright plan SCRIPT --full all of "
    .. "them\n\n%s"):format(format.plural(#lines, "plan"), format.table(header, { 4, 5, 6 }, lines, "  "))
end
