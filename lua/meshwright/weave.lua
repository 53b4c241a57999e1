-- mw.weave { name, order = function(lanes…) … end }: how works that share a stage are interleaved.
-- The function takes instructions from its lanes; what it takes stands in the braid in that order.
local core = require "meshwright.core"

local verbs, Lane = {}, {}
local fields = { name = true, kind = true, vstage = true, layer = true }

function Lane.__index(_, key)
  if verbs[key] or fields[key] then return verbs[key] end
  core.refuse("a lane has no " .. tostring(key), type(key) == "number" and
    "a lane is no list: f:layers() has its parts, f:left() its instructions" or
    "it has name, kind, vstage, of a part layer; take, has, rest, layers, left")
end

-- Refuses to call a verb on what is no lane, or on a lane whose braid is woven already.
local function open(lane, verb)
  if getmetatable(lane) ~= Lane then
    core.refuse(verb .. " of a lane is called with a colon", ("write f:%s(…)"):format(verb))
  elseif lane.whole.over then
    core.refuse(("%s:%s: it is a lane of a braid that is woven already"):format(lane, verb),
      "take from the lanes that this call of the function is given")
  end
end

local function text_of(i)
  local parts = { i.code }
  for _, key in ipairs { "piece", "move", "label" } do
    if i[key] then parts[#parts + 1] = i[key] end
  end
  return table.concat(parts, " ")
end

-- Reads what a verb is given: the condition, without `last`, which is none; and `last`.
local function condition_of(lane, verb, given)
  open(lane, verb)
  if type(given) ~= "table" then
    core.refuse(("%s:%s takes a table; got %s"):format(lane, verb, type(given)),
      ('write %s { through = "start" }'):format(verb))
  elseif given.last ~= nil and type(given.last) ~= "boolean" then
    core.refuse(("%s:%s: last is true or false; got %s"):format(lane, verb, tostring(given.last)), "write last = true")
  end
  local condition = {}
  for key, value in pairs(given) do
    if key ~= "last" then condition[key] = value end
  end
  return condition, given.last
end

-- The place of the first instruction left in the lane that matches, or of the last one; nil: none.
local function found_in(lane, verb, condition, last)
  return core.lane_find(lane.whole.facts, ("%s:%s"):format(lane, verb), condition, lane.whole.taken + 1, lane.last, last)
end

function Lane:__tostring() return "the lane " .. self.name end

-- Takes the lane's instructions up to the n-th: they stand next in the braid.
local function take_through(lane, n)
  local whole = lane.whole
  while whole.taken < n do
    whole.taken = whole.taken + 1
    whole.order[#whole.order + 1] = whole.number
  end
end

--- Takes all up to the first instruction that matches, or the last one of them, and that one.
function verbs:take(given)
  local condition, last = condition_of(self, "take", given)
  local found = found_in(self, "take", condition, last)
  if found then return take_through(self, found) end
  if condition.optional then return end
  local whole, text, why = self.whole, core.lane_nothing(self.whole.facts, condition)
  local taken = core.lane_find(whole.facts, "take", condition, 1, whole.taken, true)
  local behind = core.lane_find(whole.facts, "take", condition, self.last + 1, #whole.code, false)
  core.refuse(("%s has nothing left that is %s"):format(self, text),
    taken and ("instruction %d, %s, was taken already"):format(taken, text_of(whole.code[taken])) or
    behind and ("the next one is instruction %d, %s, behind this part, which ends at %d"):format(behind,
      text_of(whole.code[behind]), self.last) or why)
end

--- Whether it has an instruction left that matches.
function verbs:has(given)
  local found, near = found_in(self, "has", condition_of(self, "has", given))
  if near then core.refuse(("%s:has: there is no op of that kind"):format(self), near) end
  return found ~= nil
end

--- Takes all that is left.
function verbs:rest()
  open(self, "rest")
  take_through(self, self.last)
end

--- The instructions that are left, to look at.
function verbs:left()
  open(self, "left")
  return table.move(self.whole.code, math.max(self.whole.taken + 1, self.first), self.last, 1, {})
end

--- The lane in parts, one for each layer that it computes, in its order. What comes before the
--- first layer belongs to that, and what comes after the last to the last.
function verbs:layers()
  open(self, "layers")
  local parts, seen = {}, {}
  for n = math.max(self.whole.taken + 1, self.first), self.last do
    local i = self.whole.code[n]
    local layer = i.layer
    if i.code == "compute" and layer and layer >= 0 and layer < self.whole.layers and not seen[layer] then
      seen[layer] = true
      if #parts > 0 then parts[#parts].last = n - 1 end
      parts[#parts + 1] = setmetatable({ name = ("%s, layer %d"):format(self.name, layer), kind = self.kind,
        layer = layer, whole = self.whole, first = n, last = self.last }, Lane)
    end
  end
  return parts
end

-- Reads the list that a script's function has returned, of the instructions in the braid's order.
-- Returns the number of each one's lane, and for each lane the place of its first instruction that
-- is not in the list. `refuse` names the weave and the stage.
local function listed(list, lanes, refuse)
  local place, order, next_of = {}, {}, {}
  for number, lane in ipairs(lanes) do
    next_of[number] = 1
    for n, i in ipairs(lane.code) do place[i] = { number, n } end
  end
  for at, i in ipairs(list) do
    local found = place[i]
    if not found then
      refuse(("entry %d of the list is no instruction of a lane"):format(at),
        "return instructions as lane:left() has them, or nothing")
    end
    local number, n = found[1], found[2]
    local lane = lanes[number]
    if n ~= next_of[number] then
      local before = lane.code[next_of[number]]
      refuse(("%s: instruction %d, %s, stands before instruction %d, %s; a weave can only merge"):format(lane, n,
        text_of(i), next_of[number], before and text_of(before) or "none"), "keep each lane's own order")
    end
    next_of[number] = n + 1
    order[at] = number
  end
  return order, next_of
end

-- The function that a plan calls for each braid: it makes lanes of the request, has the script's
-- function `order` take from them, and returns the number of the lane of each next instruction.
local function wrapped(order, name)
  local made = { ["$at"] = core.place() }  -- under this key, the place is no part of what the function does
  return function(request)
    local function refuse(message, hint)
      core.refuse(("the weave %s on stage %d: %s"):format(name or "of the script", request.stage, message), hint, made["$at"])
    end
    local lanes, taken = {}, {}
    for number, given in ipairs(request.lanes) do
      local lane = { name = given.name, kind = given.kind, vstage = given.vstage, code = given.code,
        first = 1, last = #given.code }
      lane.whole = { code = lane.code, facts = core.lane_facts(lane.code, request.axes), taken = 0, order = taken,
        number = number, layers = request.layers }
      lanes[number] = setmetatable(lane, Lane)
    end
    local list = order(table.unpack(lanes))
    if list ~= nil then
      if type(list) ~= "table" then
        refuse("its function returned a " .. type(list),
          "take instructions from the lanes and return nothing, or return a list of them")
      end
      local said, next_of = listed(list, lanes, refuse)
      taken = said
      for number, lane in ipairs(lanes) do
        lane.whole.taken, lane.whole.order = next_of[number] - 1, taken
      end
    end
    for _, lane in ipairs(lanes) do
      lane:rest()
      lane.whole.over = true
    end
    return taken
  end
end

return function(made)
  return function(given)
    local order = type(given) == "table" and given.order or given
    if type(order) ~= "function" then
      core.refuse("mw.weave takes a table with a function `order`",
        "write mw.weave { name = \"mine\", order = function(f, b) … end }")
    end
    local name = type(given) == "table" and given.name or nil
    if name ~= nil and type(name) ~= "string" then
      core.refuse("mw.weave: name is a text; got " .. type(name), 'write name = "mine"')
    end
    return setmetatable({ kind = "weave", name = name, order = wrapped(order, name) }, made)
  end
end
