-- What `meshwright bench prediction --ablate` does: takes each key of each stack and cluster out of
-- its description, as if the file did not have it, and plans rows of the published tables without
-- it, one after the other, until a step or the reported memory moves by 0.3 %. A key that moves
-- none earns no place. Of the rows of a stack or a cluster so many are planned, spread over all.
local most_rows, moved = 24, 0.003
-- What names a description, or tells of it, and prices nothing.
local names = { name = true, kind = true, changed = true, fitted = true, runs = true, measured = true, ["$at"] = true }

-- The rows by the name of what they are planned with.
local function rows_by(field, tables)
  local of, order = {}, {}
  for _, table_ in ipairs(tables) do
    for _, row in ipairs(table_.rows()) do
      local name = row[field]
      if not of[name] then
        of[name] = {}
        order[#order + 1] = name
      end
      table.insert(of[name], row)
    end
  end
  table.sort(order)
  return of, order
end

-- The first, the one in the middle, those at quarters, and so on: rows that differ come first.
local function spread(rows)
  local order, seen, step = {}, {}, #rows
  while #order < math.min(most_rows, #rows) do
    for i = 1, #rows, math.max(1, math.floor(step)) do
      if not seen[i] and #order < most_rows then
        seen[i] = true
        order[#order + 1] = rows[i]
      end
    end
    step = step / 2
  end
  return order
end

-- The paths of the keys of a description, sorted: { "host" }, { "node", "latency" }. The table
-- `ops` is one key.
local function keys_of(description)
  local found = {}
  local function add(path, key, value)
    if type(key) ~= "string" or key == "name" or #path == 0 and names[key] then return end
    if #path == 0 and key ~= "ops" and type(value) == "table" and #value == 0 then
      for inner, of_inner in pairs(value) do add({ key }, inner, of_inner) end
    else
      found[#found + 1] = #path == 0 and { key } or { path[1], key }
    end
  end
  for key, value in pairs(description) do add({}, key, value) end
  table.sort(found, function(a, b) return table.concat(a, ".") < table.concat(b, ".") end)
  return found
end

local function change(before, after)
  local most = 0
  for _, field in ipairs { "step_seconds", "reported_bytes" } do
    most = math.max(most, math.abs(after[field] / before[field] - 1))
  end
  return most
end

-- How far the key moves the row that it moves most of those that were looked at, and that row; nil
-- for a key that a description must have.
local function ablate(rows, what, path, plan_of, base)
  local most, where = 0, nil
  for _, row in ipairs(rows) do
    base[row] = base[row] or plan_of(row, {})
    local good, without = pcall(plan_of, row, { without = { what, table.unpack(path) } })
    if not good then
      if tostring(without):find "is missing" then return nil end
      error(without, 0)
    end
    local by = change(base[row], without)
    if by > most then most, where = by, row end
    if most >= moved then break end
  end
  return most, where
end

local function check_names(wanted, stacks, clusters)
  local known = {}
  for _, list in ipairs { stacks, clusters } do
    for _, name in ipairs(list) do known[#known + 1], known[name] = name, true end
  end
  for name in pairs(wanted) do
    if not known[name] then
      error(('no row of a table has the stack or the cluster "%s"; there are %s'):format(name, table.concat(known, ", ")), 0)
    end
  end
end

return function(mw, tables, plan_of, wanted)
  local rows_of = { stack = { rows_by("stack", tables) }, cluster = { rows_by("cluster", tables) } }
  check_names(wanted, rows_of.stack[2], rows_of.cluster[2])
  print(("%-9s %-18s %-28s %9s  %s"):format("of", "name", "key", "moves", "row"))
  local all, useless = {}, {}
  for _, what in ipairs { "stack", "cluster" } do
    local of, order = table.unpack(rows_of[what])
    for _, name in ipairs(order) do
      local rows, base = spread(of[name]), {}
      local asked = not next(wanted) or wanted[name]
      for _, path in ipairs(asked and keys_of(mw[what](name)) or {}) do
        local key = what .. " " .. table.concat(path, ".")
        local by, row = ablate(rows, what, path, plan_of, base)
        all[key] = all[key] or by == nil or by >= moved
        print(("%-9s %-18s %-28s %9s  %s"):format(what, name, table.concat(path, "."),
          by and ("%.2f %%"):format(100 * by) or "required", by and (row and row.name or "none") or ""))
      end
    end
  end
  for key, good in pairs(all) do
    if not good then useless[#useless + 1] = key end
  end
  table.sort(useless)
  print(#useless == 0 and "each key moves a published row by 0.3 % or more"
    or "move no published row by 0.3 %: " .. table.concat(useless, ", "))
end
