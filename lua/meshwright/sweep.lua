-- mw.sweep { … }: a grid of experiments. What it returns can run them, and write a report of them.
local core = require "meshwright.core"

local methods = {}

-- Which sweep each table that mw.sweep returned stands for.
local numbers = setmetatable({}, { __mode = "k" })

local function number_of(sweep, name)
  if numbers[sweep] then return numbers[sweep] end
  core.refuse(("sweep:%s was called without its sweep"):format(name), ("write sweep:%s(…), with a colon"):format(name))
end

--- Runs what is not done, and returns all cells.
function methods:go(options) return core.sweep_go(number_of(self, "go"), options) end

--- Writes a report of what has been run. Returns the file's name.
function methods:report(file, options) return core.sweep_report(number_of(self, "report"), file, options) end

local sweep = {
  __name = "meshwright.sweep",
  __tostring = function(self) return "the sweep " .. self.name end,
  __index = function(_, key)
    if methods[key] then return methods[key] end
    core.refuse(("a sweep has no %s"):format(tostring(key)), "it has name, folder, go { … } and report(file)")
  end,
}

return function(...)
  local made = { name = type((...)) == "table" and (...).name or nil }
  numbers[made] = core.sweep(...)
  made.folder = "runs/" .. made.name
  return setmetatable(made, sweep)
end
