-- mw.cluster and mw.stack: descriptions of hardware and software, read from the files of
-- clusters/ by name, or from a file of one's own by its path.
local core = require "meshwright.core"

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

local function there_is(file)
  local handle = io.open(file)
  if handle then handle:close() end
  return handle ~= nil
end

local function described(what, folder, example, name)
  if type(name) ~= "string" then
    core.refuse(("mw.%s takes a name, and a table of what is to be otherwise; got %s"):format(what, type(name)),
      ("for example %s"):format(example))
  end
  local path = name:find("/", 1, true) or name:find("%.lua$")
  local file = path and name or home .. folder .. name .. ".lua"
  if not there_is(file) then
    local names = read(home .. "names.lua", what, "names")[what]
    core.refuse(("there is no %s %s"):format(what, path and "file " .. name or name),
      ("there are %s; or the path of a file of your own, ./%s.lua"):format(table.concat(names, ", "), what))
  end
  local made = read(file, what, name)
  if type(made) ~= "table" then
    core.refuse(("%s: a description is a table; got %s"):format(file, type(made)), "return { name = …, … }")
  end
  return made
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

local made = {}

function made.cluster(name, changes)
  local cluster = described("cluster", "", 'mw.cluster("selene", { nodes = 8 })', name)
  cluster = changed(cluster, changes or {})
  cluster["$at"], cluster.kind = core.place(), "cluster"
  return cluster
end

function made.stack(name, changes)
  local stack = described("stack", "stacks/", 'mw.stack("megatron-core")', name)
  stack = changed(stack, changes or {})
  stack["$at"], stack.kind = core.place(), "stack"
  return stack
end

return made
