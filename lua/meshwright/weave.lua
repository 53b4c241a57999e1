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

local function shown(filter)
  local parts = {}
  for key, value in pairs(filter) do
    parts[#parts + 1] = ("%s = %s"):format(key, type(value) == "string" and ("%q"):format(value) or tostring(value))
  end
  table.sort(parts)
  return "{ " .. table.concat(parts, ", ") .. " }"
end

-- Whether a fact is what a filter wants, which may have "*" in it for anything: "layers.1.*".
local function alike(wanted, found)
  if wanted == found then return true end
  if type(wanted) ~= "string" or type(found) ~= "string" or not wanted:find("*", 1, true) then return false end
  return found:match("^" .. wanted:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", ".*") .. "$") ~= nil
end

local keys = { code = true, piece = true, op = true, kind = true, layer = true, label = true, phase = true,
  move = true, axis = true, bucket = true }

-- Checks the filter that a verb was given. Returns the conditions of it: with `code` for `through`,
-- and without `last`, which is none.
local function filter_of(lane, verb, given)
  open(lane, verb)
  if type(given) ~= "table" then
    core.refuse(("%s:%s takes a table; got %s"):format(lane, verb, type(given)),
      ('write %s { through = "start" }'):format(verb))
  end
  local filter, known = {}, {}
  for key in pairs(keys) do known[#known + 1] = key end
  table.sort(known)
  for key, value in pairs(given) do
    if key == "through" then
      filter.code = value
    elseif keys[key] then
      filter[key] = value
    elseif key ~= "last" then
      core.refuse(("%s:%s: an instruction has no %s"):format(lane, verb, tostring(key)),
        "through, last, or one of " .. table.concat(known, ", "))
    end
  end
  if next(filter) == nil then
    core.refuse(("%s:%s says which instruction it means"):format(lane, verb),
      ('write %s { through = "start" }'):format(verb))
  end
  return filter
end

local function matches(filter, i)
  for key, wanted in pairs(filter) do
    if not alike(wanted, i[key]) then return false end
  end
  return true
end

-- Says which values instructions have for the keys of a filter with which none of them agrees.
local function none_agrees(code, filter)
  local said = {}
  for key, wanted in pairs(filter) do
    local known, seen = {}, {}
    for _, i in ipairs(code) do
      local value = i[key]
      if value ~= nil and not seen[value] then
        seen[value] = true
        known[#known + 1] = tostring(value)
      end
    end
    table.sort(known)
    local near = #known > 0 and type(wanted) == "string" and core.near(wanted, known)
    if #known == 0 then
      said[#said + 1] = ("none of its instructions has any %s"):format(key)
    else
      said[#said + 1] = ("%s%s is one of %s"):format(near and near .. " " or "", key,
        table.concat(known, ", ", 1, math.min(#known, 12)))
    end
  end
  table.sort(said)
  return table.concat(said, "; ")
end

-- Names the instruction that is nearest to a filter that matches nothing: one that was taken
-- already, or lies in another part of the lane, or agrees with most of the filter.
local function nearest(lane, filter)
  local whole, best, agree = lane.whole, nil, 0
  for n, i in ipairs(whole.code) do
    if matches(filter, i) then
      if n <= whole.taken then
        return ("instruction %d, %s, was taken already"):format(n, text_of(i))
      end
      return ("the next one is instruction %d, %s, behind this part, which ends at %d"):format(n, text_of(i), lane.last)
    end
    local count = 0
    for key, wanted in pairs(filter) do if alike(wanted, i[key]) then count = count + 1 end end
    if count > agree then best, agree = n, count end
  end
  if not best then return none_agrees(whole.code, filter) end
  local i, facts = whole.code[best], {}
  for key in pairs(filter) do facts[key] = i[key] end
  return ("nearest: instruction %d, %s, which has %s"):format(best, text_of(i), shown(facts))
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

-- The place of the first instruction left in the lane that matches, or of the last one; nil: none.
local function found_in(lane, filter, last)
  local found
  for n = lane.whole.taken + 1, lane.last do
    if matches(filter, lane.whole.code[n]) then
      found = n
      if not last then break end
    end
  end
  return found
end

--- Takes all up to the first instruction that matches, or the last one of them, and that one.
function verbs:take(given)
  local filter = filter_of(self, "take", given)
  local found = found_in(self, filter, given.last)
  if not found then
    core.refuse(("%s has nothing left that is %s"):format(self, shown(filter)), nearest(self, filter))
  end
  take_through(self, found)
end

--- Whether it has an instruction left that matches.
function verbs:has(given)
  return found_in(self, filter_of(self, "has", given)) ~= nil
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
local function wrapped(order, name, place)
  return function(request)
    local function refuse(message, hint)
      core.refuse(("the weave %s on stage %d: %s"):format(name or "of the script", request.stage, message), hint, place)
    end
    local lanes, taken = {}, {}
    for number, given in ipairs(request.lanes) do
      local lane = { name = given.name, kind = given.kind, vstage = given.vstage, code = given.code,
        first = 1, last = #given.code }
      lane.whole = { code = lane.code, taken = 0, order = taken, number = number, layers = request.layers }
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
    return setmetatable({ kind = "weave", name = name, order = wrapped(order, name, core.place()) }, made)
  end
end
