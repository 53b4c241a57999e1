-- What `require "meshwright"` yields. Nothing here holds state: constructors make tables, verbs
-- hand them to the program, which checks every key.
local core = require "meshwright.core"

local mw = {}

-- Made tables print as a script would write them: tp { ways = 4 }.
local made = { __name = "meshwright.table" }

local function shown(value)
  if type(value) == "string" then return string.format("%q", value) end
  if type(value) ~= "table" then return tostring(value) end
  local list, names = {}, {}
  for key in pairs(value) do
    local hidden = type(key) ~= "string" or key:sub(1, 1) == "$" and key ~= "$value"
    if not hidden and key ~= "plugin" and key ~= "kind" then
      names[#names + 1] = key
    end
  end
  table.sort(names)
  for _, item in ipairs(value) do list[#list + 1] = shown(item) end
  for _, key in ipairs(names) do
    list[#list + 1] = (key == "$value" and "" or key .. " = ") .. shown(value[key])
  end
  local name = value.plugin or value.kind
  return (name and name .. " " or "") .. (#list > 0 and "{ " .. table.concat(list, ", ") .. " }" or "{}")
end
made.__tostring = shown

-- `require` yields the module and where it was found: mw.llama(require "sizes.small")
-- means the first.
local function arguments(...)
  if select("#", ...) == 2 and type(...) == "table" then
    for _, module in pairs(package.loaded) do
      if rawequal(module, (...)) then return 1, (...) end
    end
  end
  return select("#", ...), ...
end

-- A table { tag = name, … } of what a script wrote behind the name: one table, or one bare value,
-- which stands for the key `positional`. Values without a name do too.
local function make(tag, name, positional, ...)
  local count, given = arguments(...)
  if count > 1 then
    core.refuse(("%s takes one table or one value; got %d values"):format(name, count),
      ("write %s { first = …, second = … }"):format(name))
  end
  if count == 1 and given == nil then
    core.refuse(("%s got nil"):format(name), "a misspelt variable?")
  end
  local result, unnamed = { [tag] = name, ["$at"] = core.place() }, {}
  if type(given) == "table" and getmetatable(given) == nil then
    for key, value in pairs(given) do
      if math.type(key) == "integer" then
        unnamed[key] = value
      elseif key == tag then
        core.refuse(("%s { %s = … }: the key %s is not yours to set"):format(name, key, key))
      else
        result[key] = value
      end
    end
  elseif count == 1 then
    unnamed[1] = given
  end
  if next(unnamed) ~= nil then
    local key = positional and result[positional] == nil and positional or "$value"
    -- One value stands as it is; a lone entry with another number is a hole,
    -- which the program tells.
    local alone = next(unnamed) == 1 and next(unnamed, 1) == nil
    result[key] = alone and unnamed[1] or unnamed
  end
  return setmetatable(result, made)
end

-- Refuses a name that a plugin does not register; `names` are those that it does.
local function lacks(plugin, key, names)
  table.sort(names)
  local near = core.near(tostring(key), names)
  core.refuse(
    ("the plugin %s registers %s, and nothing named %s"):format(plugin, table.concat(names, ", "), tostring(key)),
    near or #names > 1 and ("write %s.NAME { … } with one of these names"):format(plugin)
      or ("write %s { … }; its options stand in the braces, and meshwright plugins show %s lists them"):format(plugin, plugin))
end

-- What a plugin registers, by name: a table that may stand where it is wanted as it is, or be
-- called with options. `fields`: what else its plugin registers. `entry.own`: the table of
-- mw.strategy, where a script makes the strategy itself. `entry.plugin`: the plugin's name, if a
-- plugin registers it.
local function registered(entry, fields)
  local own = entry.own
  return setmetatable({ [entry.tag] = entry.name, ["$strategy"] = own, ["$at"] = own and own["$at"] }, {
    __name = "meshwright.plugin",
    __tostring = shown,
    -- A misspelt field must not pass for a key that was left out: hook = dp.powersdg.
    __index = function(_, key)
      if fields and fields[key] ~= nil then return fields[key] end
      if type(key) ~= "string" or key == "kind" or key == "plugin" or key:sub(1, 1) == "$" then return nil end
      local names = {}
      for name in pairs(fields or { [entry.name] = true }) do names[#names + 1] = name end
      lacks(entry.plugin or entry.name, key, names)
    end,
    __call = function(_, ...)
      local called = make(entry.tag, entry.name, entry.positional, ...)
      called["$strategy"] = own
      return called
    end,
  })
end

-- A plugin: what it registers under its own name, or alone, with the rest as fields.
local function plugin(name, entries)
  local own = #entries == 1 and entries[1] or nil
  local fields, names = {}, {}
  for _, entry in ipairs(entries) do
    entry.plugin = name
    if not own and entry.name == name then own = entry end
  end
  for _, entry in ipairs(entries) do
    if entry ~= own then
      fields[entry.name] = registered(entry)
      names[#names + 1] = entry.name
    end
  end
  if own then
    -- By its own name too, as the others: early.early where the plugin early registers it.
    local result = registered(own, fields)
    fields[own.name] = result
    return result
  end
  table.sort(names)
  local all = table.concat(names, ", ")
  return setmetatable({}, {
    __name = "meshwright.plugin",
    __tostring = function() return ("the plugin %s: %s"):format(name, all) end,
    __index = function(_, key)
      if fields[key] ~= nil then return fields[key] end
      lacks(name, key, names)
    end,
    __call = function()
      core.refuse(("the plugin %s is several things: %s"):format(name, all),
        ("write %s.%s { … }"):format(name, names[1]))
    end,
  })
end

--- mw.plugins("dp", "tp") -> dp, tp
function mw.plugins(...)
  local found = {}
  if select("#", ...) == 0 then
    core.refuse("mw.plugins takes names of plugins; got none", 'for example mw.plugins("dp", "tp")')
  end
  for i, name in ipairs { ... } do found[i] = plugin(core.plugin(name)) end
  return table.unpack(found, 1, select("#", ...))
end

--- mw.plugin "./my_tp.so", or a name as for mw.plugins
function mw.plugin(name)
  if type(name) == "string" and (name:find("/", 1, true) or name:find("%.so$")) then
    return plugin(core.load_plugin(name))
  end
  return plugin(core.plugin(name))
end

for _, constructor in ipairs(core.constructors()) do
  local within, name = constructor.path:match("^([%w_]+)%.([%w_]+)$")
  if within then mw[within] = mw[within] or {} end
  (within and mw[within] or mw)[name or constructor.path] = function(...)
    return make(constructor.tag, constructor.name, constructor.positional, ...)
  end
end

--- mw.lognormal { median, sigma }, mw.uniform { least, most }: lengths of documents, for mw.pack.
for _, name in ipairs { "lognormal", "uniform" } do
  mw[name] = function(options) return { [name] = options } end
end

--- mw.groups { { where = …, OPTIMIZER }, …, OPTIMIZER }: the optimizer of a group gets the key
--- `optimizer`, by which --set and sweeps reach its options, and by which cells are named.
local plain_groups = mw.groups
function mw.groups(given)
  local groups = {}
  for key, entry in pairs(type(given) == "table" and given or {}) do
    local plain = type(entry) == "table" and getmetatable(entry) == nil
    if plain and entry[1] ~= nil and entry.optimizer == nil then
      local named = {}
      for name, item in pairs(entry) do named[name == 1 and "optimizer" or name] = item end
      entry = named
    end
    groups[key] = entry
  end
  return plain_groups(type(given) == "table" and groups or given)
end

--- mw.update { states = …, step = function(p, g, s, t) … end, lr = … }: an optimizer of one's own.
local step_of, plain_update = require "meshwright.update", mw.update
function mw.update(given) return plain_update(step_of(given)) end

--- mw.model { dims = …, layers = n, block = function(x, layer) … end }: a model of one's own.
local recorded, plain_model = require "meshwright.model", mw.model
function mw.model(...) return recorded(plain_model(...)) end

local weave = require "meshwright.weave" (made)

--- mw.schedule("name", function(s) … end): a pipeline schedule of one's own, for
-- pp { schedule = … }. The name may be left out; messages and drawings show it.
function mw.schedule(...)
  local name, order = ...
  if select("#", ...) == 1 then name, order = nil, name end
  if select("#", ...) > 2 or type(order) ~= "function" or (name ~= nil and type(name) ~= "string") then
    core.refuse("mw.schedule takes a function, or a name and a function",
      'write mw.schedule("mine", function(s) return { "0F0 0B0", "1F0 1B0" } end)')
  end
  return setmetatable({ kind = "schedule", name = name, order = order }, made)
end

--- mw.weave { name = "mine", order = function(f, b) … end }: how works that share a stage are
--- interleaved, for pp { weave = … }. The other weaves with options are mw.weave.NAME { … }.
mw.weave = setmetatable(mw.weave or {}, {
  __call = function(_, ...) return weave(...) end,
  __index = function(_, name)
    return function(...) return make("kind", name, nil, ...) end
  end,
})

--- for fl, bl in mw.zip(f:layers(), b:layers()) do … end: lists side by side, to the end of the
--- shortest.
function mw.zip(...)
  local lists, n = { ... }, 0
  for k = 1, select("#", ...) do
    local list = lists[k]
    if type(list) ~= "table" or rawget(list, "whole") then
      core.refuse(("mw.zip takes lists; argument %d is %s"):format(k, type(list) == "table" and tostring(list) or type(list)),
        "write mw.zip(f:layers(), b:layers())")
    end
  end
  return function()
    n = n + 1
    local row = {}
    for k, list in ipairs(lists) do row[k] = list[n] end
    if #row == #lists then return table.unpack(row) end
  end
end

--- mw.rope_angles { type = "yarn", theta = 150000, width = 64, factor = 32, … }: options of
--- x:rope, for rotary angles of longer sequences. `width`: the elements of a head that turn. All
--- other keys have the names and meanings that they have in rope_scaling of a config.json.
local rope = require "meshwright.rope"
function mw.rope_angles(...)
  local _, given = arguments(...)
  local said, scaling = type(given) == "table" and given or {}, {}
  for key, value in pairs(said) do
    if key ~= "theta" and key ~= "rope_theta" and key ~= "width" then scaling[key] = value end
  end
  local theta, width = said.theta or said.rope_theta or 10000.0, said.width
  if math.type(width) ~= "integer" or width < 2 or width % 2 ~= 0 or math.type(theta) == nil or theta < 1 then
    core.refuse(("mw.rope_angles: width is %s and theta %s"):format(tostring(width), tostring(theta)),
      "width is an even number, theta 1 or more: mw.rope_angles { type = \"linear\", width = 64, factor = 4 }")
  end
  rope.check(scaling, function(_, _, message, hint) core.refuse("mw.rope_angles: " .. message, hint) end,
    "theta, width, ")
  return rope.options(theta, width, scaling)
end

--- mw.strategy { name = "mine", axis = { … }, rules = { … } }: a strategy of one's own. What it
--- returns stands in a plan as a plugin does: mine(2), mine { ways = 2 }.
function mw.strategy(...)
  local name, positional = core.strategy(select(2, arguments(...)))
  local own = { ["$at"] = core.place() }
  for key, value in pairs((...)) do own[key] = value end
  return registered { tag = "plugin", name = name, positional = positional ~= "" and positional or nil, own = own }
end

-- Edits of the program, as a strategy that has nothing else.
local passes = require "meshwright.pass"
local function pass_strategy(given)
  local name = type(given.name) == "string" and given.name:gsub("[^%w_]+", "_") or given.name
  local own = { name = name, passes = { given }, ["$at"] = core.place() }
  core.strategy(own)
  return registered { tag = "plugin", name = name, own = own }
end

--- mw.pass { name = "late weights", segments = { "backward" }, edit = function(code) … end }: moves
--- instructions, as far as dataflow allows. It stands in a plan as a strategy does, or in `passes`
--- of one.
function mw.pass(...) return pass_strategy(passes.pass(select(2, arguments(...)))) end

--- mw.directives { { "stream", { axis = "ep" }, "exchange" }, … }: edits that need no function.
function mw.directives(...) return pass_strategy(passes.directives(select(2, arguments(...)))) end

--- mw.load "runs/x.h5": a run's result as mw.train returned it, with its steps and metrics; of a
--- folder of runs, a sweep's too, a list of them.
function mw.load(...) return core.load(select(2, arguments(...))) end

--- mw.cluster("selene", { nodes = 8 }): hardware that a plan is priced for, of those that clusters/
--- describes, or of a file by its path; the table changes its keys.
--- mw.stack "megatron-core": the software that trains there.
local described = require "meshwright.cluster"
function mw.cluster(...) return described.cluster(select(2, arguments(...))) end
function mw.stack(...) return described.stack(select(2, arguments(...))) end

--- mw.goodput { plan = result, mtbf = 1.8e8, checkpoint_seconds = 30, restart_seconds = 600 }: the
--- share of its time in which a run that fails, writes checkpoints and restarts gets on. Instead of
--- a plan's result: step_seconds and devices.
function mw.goodput(...)
  local _, given = arguments(...)
  if type(given) ~= "table" then return core.goodput(given) end
  local request = {}
  for key, value in pairs(given) do request[key] = value end
  local plan = request.plan
  request.plan = nil
  if type(plan) == "table" then
    local predicted = rawget(plan, "predicted")  -- of a run; a plan's result has no such key
    if type(predicted) == "table" then plan = predicted end
    request.step_seconds = request.step_seconds or rawget(plan, "step_seconds")
    request.devices = request.devices or rawget(plan, "ranks")
    if not request.step_seconds then
      core.refuse("mw.goodput: the plan has no step_seconds", "name a cluster in its experiment, or give step_seconds")
    end
  elseif plan ~= nil then
    core.refuse(("mw.goodput: plan is a %s"):format(type(plan)), "give what mw.plan returned, or step_seconds and devices")
  end
  return core.goodput(request)
end

--- mw.published(plan, seconds, note): a line on a plan's step beside the one that was published of
--- it, and what is to be said of that. A plan of which --set or another option changed what is
--- trained, or on what, is another one, which the figure is not of; without seconds none is known.
local beside = { log = true, name = true, overwrite = true, seed = true, steps = true }
function mw.published(...)
  local plan, seconds, note = ...
  if type(plan) ~= "table" or rawget(plan, "kind") ~= "plan" or (seconds ~= nil and type(seconds) ~= "number") then
    core.refuse("mw.published takes what mw.plan returned, and the published seconds of its step",
      "for example print(mw.published(plan, 12.5))")
  end
  local predicted = rawget(plan, "step_seconds")
  local text = predicted and ("%.2f s a step predicted"):format(predicted) or "no time predicted, for want of a cluster"
  local changed = {}
  for _, key in ipairs(rawget(plan, "changed") or {}) do
    if not beside[key] then changed[#changed + 1] = key end
  end
  if #changed > 0 then
    return ("%s; no published figure is for this variant (other than the script: %s)"):format(text,
      table.concat(changed, ", "))
  end
  if not seconds then return text .. "; no step is published" end
  if not predicted then return ("%s; %.2f s published"):format(text, seconds) end
  text = ("%s, %.2f s published (%+.1f %%)"):format(text, seconds, 100 * (predicted / seconds - 1))
  return note and ("%s, %s"):format(text, note) or text
end

--- mw.bar_chart { file = "chart.html", … }: horizontal bars, as a page.
mw.bar_chart = require "meshwright.chart"

--- mw.sweep { name = "mixes", base = { … }, over = { plan = { … } } }: a grid of experiments.
local sweep = require "meshwright.sweep"
function mw.sweep(...) return sweep(select(2, arguments(...))) end

for _, verb in ipairs(core.verbs()) do
  mw[verb] = function(...) return core.call(verb, select(2, arguments(...))) end
end

--- mw.what_if(e, { ["node.bandwidth x"] = { 0.5, 2 }, batch = 512 }): the experiment planned and
--- priced with one value after another changed. A name that ends in " x" is given factors.
function mw.what_if(...)
  local _, given, knobs = arguments(...)
  if type(given) ~= "table" or type(knobs) ~= "table" then
    core.refuse(("mw.what_if takes an experiment and a table of what to change; got %s and %s"):format(type(given),
      type(knobs)), 'for example mw.what_if(e, { ["node.bandwidth x"] = { 0.5, 2 } })')
  end
  local asked, experiment = {}, {}
  for key, value in pairs(given) do experiment[key] = value end
  for knob, values in pairs(knobs) do
    if type(knob) ~= "string" then
      core.refuse(("mw.what_if: what to change has a name; got %s"):format(tostring(knob)),
        'write { ["node.bandwidth x"] = { 0.5, 2 } }')
    end
    asked[#asked + 1] = { knob, type(values) == "table" and values or { values } }
  end
  table.sort(asked, function(a, b) return a[1] < b[1] end)
  if #asked == 0 then
    core.refuse("mw.what_if: nothing is asked", 'for example { ["node.bandwidth x"] = { 0.5, 2 } }')
  end
  experiment["$what_if"] = asked
  return core.call("what_if", experiment)
end

return setmetatable(mw, {
  __index = function(_, key)
    local known = {}
    for name in pairs(mw) do known[#known + 1] = name end
    table.sort(known)
    core.unknown(key, known)
  end,
  __newindex = function(_, key)
    core.refuse(("mw.%s cannot be set"):format(tostring(key)), "keep your own values in a local variable")
  end,
})
