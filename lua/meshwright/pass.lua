-- mw.pass { name, segments, changes, edit = function(code) … end } and mw.directives { … } edit a
-- plan's program. What the function is given stands for the code of one segment: it yields
-- instructions, whose fields are read and whose verbs move them.
local core = require "meshwright.core"

local Instruction, Code = {}, {}
local edit_of, number_of = {}, {}  -- keys that no field of an instruction has

local function instruction(edit, number) return setmetatable({ [edit_of] = edit, [number_of] = number }, Instruction) end

-- The number of the instruction that a verb is given. What is none is passed on, to be refused; a
-- table as an empty one, since it may hold anything.
local function number(given)
  if type(given) == "table" and getmetatable(given) == Instruction then return given[number_of] end
  return type(given) == "table" and {} or given
end

local verbs = {}
--- Moves it up, past what `over` takes, `by` places at most, as far as dataflow allows. Returns by
--- how many places it moved.
function verbs:hoist(how) return core.pass("hoist", self[edit_of], self[number_of], how) end
--- Moves it down, by the same rules.
function verbs:sink(how) return core.pass("sink", self[edit_of], self[number_of], how) end
--- Moves it up, with what it depends on, so that it stands before another one.
function verbs:before(other) return core.pass("before", self[edit_of], self[number_of], number(other)) end
--- Moves it down, with what depends on it, so that it stands after another one.
function verbs:after(other) return core.pass("after", self[edit_of], self[number_of], number(other)) end
--- Puts a transfer on a stream.
function verbs:stream(name) return core.pass("stream", self[edit_of], self[number_of], name) end

Instruction.__name = "meshwright.instruction"
function Instruction.__index(self, key)
  return verbs[key] or core.pass("fact", rawget(self, edit_of), rawget(self, number_of), tostring(key))
end
function Instruction.__newindex(_, key)
  core.refuse(("%s of an instruction cannot be set"):format(tostring(key)), "its verbs are hoist, sink, before, after, stream")
end
function Instruction.__tostring(self) return core.pass("text", self[edit_of], self[number_of]) end

Code.__name = "meshwright.code"
Code.__index = Code

--- The instructions that a condition takes, { code = "start", axis = "ep" }, as they stand now.
function Code:list(filter)
  if getmetatable(self) ~= Code then
    core.refuse("code.list and code.each are called with a colon", 'for start in code:each { code = "start" } do … end')
  end
  local found = core.pass("find", self.edit, filter)
  for n, each in ipairs(found) do found[n] = instruction(self.edit, each) end
  return found
end

--- for start in code:each { code = "start" } do … end
function Code:each(filter)
  local found, n = Code.list(self, filter), 0
  return function()
    n = n + 1
    return found[n]
  end
end

local function checked(verb, given, example)
  if type(given) ~= "table" then
    core.refuse(("%s takes a table; got %s"):format(verb, type(given)), example)
  end
  return given
end

local example = 'write mw.pass { name = "late", segments = { "backward" }, edit = function(code) … end }'

local function pass(given)
  local made = {}
  for key, value in pairs(checked("mw.pass", given, example)) do made[key] = value end
  made["$at"] = core.place()
  if type(made.name) ~= "string" then core.refuse("mw.pass: a pass has a name", example) end
  local edit = made.edit
  if type(edit) == "function" then
    made.edit = function(code) edit(setmetatable(code, Code)) end
  end
  return made
end

local function directives(given)
  local list = {}
  for key, value in pairs(checked("mw.directives", given, 'write mw.directives { { "stream", { axis = "ep" }, "exchange" } }')) do
    if math.type(key) == "integer" then
      list[key] = value
    elseif key ~= "name" and key ~= "segments" then
      core.refuse(("mw.directives takes a list, a name and segments; got %s"):format(tostring(key)),
        'write mw.directives { name = "calm", { "stream", { axis = "ep" }, "exchange" } }')
    end
  end
  return { name = given.name or "directives", segments = given.segments, directives = list, ["$at"] = core.place() }
end

return { pass = pass, directives = directives }
