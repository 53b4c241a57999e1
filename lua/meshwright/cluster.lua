-- mw.cluster and mw.stack: descriptions of hardware and software, read from the files of
-- clusters/ by name, or from a file of one's own by its path; clusters also by name from files of
-- the plugin path, NAME.cluster.lua, and from plugins.
local core = require "meshwright.core"
local loadfile = loadfile  -- which scripts in a sandbox do not have

local home = package.searchpath("meshwright.cluster", package.path):match("^(.*)/lua/meshwright/[^/]*$")
  .. "/clusters/"

local function read(file, what, name)
  local chunk, why = loadfile(file, "t")
  if not chunk then core.refuse(("%s %s: %s"):format(what, name, why)) end
  -- A description includes others by their names in clusters/: (...)("devices/a100").
  local good, made = pcall(chunk, function(part) return read(home .. part .. ".lua", what, part) end)
  if not good then core.refuse(("%s %s: %s"):format(what, name, made)) end
  return made
end

local function check_arguments(what, example, name, changes)
  local wrong = type(name) ~= "string" and name or changes
  if type(name) ~= "string" or changes ~= nil and type(changes) ~= "table" then
    core.refuse(("mw.%s takes a name, and a table of what is to be otherwise; got %s"):format(what, type(wrong)),
      ("for example %s"):format(example))
  end
end

local function checked(file, made)
  if type(made) ~= "table" then
    core.refuse(("%s: a description is a table; got %s"):format(file, type(made)), "return { name = …, … }")
  end
  return made
end

-- The table of a file: of `folder`, by its path, or one of `more`, by name.
local function described(what, folder, name, more)
  local path = name:find("/", 1, true) or name:find("%.lua$")
  local file = path and name or home .. folder .. name .. ".lua"
  local theirs = not path and more[name] or {}
  local all = { table.unpack(theirs) }
  if core.is_file(file) then table.insert(all, 1, file) end
  if #all > 1 then
    core.refuse(("two files describe the %s %s: %s and %s"):format(what, name, all[1], all[2]),
      "rename one of them, or name one by its path")
  end
  if #all == 1 then return checked(all[1], read(all[1], what, name)) end
  local names = {}
  if path then core.refuse(("there is no %s file %s"):format(what, name), "a relative path counts from here") end
  for _, known in ipairs(read(home .. "names.lua", what, "names")[what]) do names[#names + 1] = known end
  for known in pairs(more) do names[#names + 1] = known end
  return nil, names
end

local function refuse_unknown(what, name, names)
  table.sort(names)
  local all = ("there are %s; or the path of a file of your own, ./%s.lua"):format(table.concat(names, ", "), what)
  local near = core.near(name, names)
  core.refuse(("there is no %s %s"):format(what, name), near and near .. " " .. all or all)
end

-- A copy of the table with the changes in it, tables within likewise.
local function changed(table_, changes)
  local result = {}
  for key, value in pairs(table_) do result[key] = value end
  for key, value in pairs(changes) do
    local within = type(value) == "table" and type(result[key]) == "table" and #value == 0 and #result[key] == 0
    result[key] = within and changed(result[key], value) or value
  end
  return result
end

-- The keys, as a text, in which a description is other than that of its name. How many nodes there
-- are is part of no name, and a description with a name of its own is another one.
local function keys_changed(table_, changes)
  local keys = {}
  if changes.name ~= nil and changes.name ~= table_.name then return nil end
  local function look(before, now, path)
    for key, value in pairs(now) do
      local old = before[key]
      local within = type(value) == "table" and type(old) == "table" and #value == 0 and #old == 0
      if within then
        look(old, value, path .. key .. ".")
      elseif (type(value) == "table" or value ~= old) and path .. key ~= "nodes" and type(key) == "string" then
        keys[#keys + 1] = path .. key
      end
    end
  end
  look(table_, changes, "")
  table.sort(keys)
  return #keys > 0 and table.concat(keys, ", ") or nil
end

local made = {}

local function has(list, name)
  for _, one in ipairs(list) do
    if one == name then return true end
  end
  return false
end

function made.cluster(name, changes)
  check_arguments("cluster", 'mw.cluster("selene", { nodes = 8 })', name, changes)
  local files, brought = core.clusters()
  local cluster, names = described("cluster", "", name, files)
  changes = changes or {}
  if cluster and has(brought, name) then
    core.refuse(("a plugin and a file describe the cluster %s"):format(name), "rename one of them")
  end
  if not cluster then
    -- What no file describes may be in any plugin: only now are those opened that nobody named.
    local _, all = core.clusters(not has(brought, name))
    if not has(all, name) then
      refuse_unknown("cluster", name, table.move(all, 1, #all, #names + 1, names))
    end
    cluster, changes = core.cluster(name, changes)
  end
  local other = keys_changed(cluster, changes)
  cluster = changed(cluster, changes)
  cluster.changed = other
  cluster["$at"], cluster.kind = core.place(), "cluster"
  return cluster
end

function made.stack(name, changes)
  check_arguments("stack", 'mw.stack("megatron-core")', name, changes)
  local stack, names = described("stack", "stacks/", name, {})
  if not stack then refuse_unknown("stack", name, names) end
  local other = keys_changed(stack, changes or {})
  stack = changed(stack, changes or {})
  stack.changed = other
  stack["$at"], stack.kind = core.place(), "stack"
  return stack
end

return made
