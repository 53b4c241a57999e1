-- Evaluates the value of a `--set key=value` that is more than a number or a word. Names mean what
-- they mean in scripts, without the `mw.` and without asking for plugins first:
-- --set 'plan={dp(2), tp{ways=4}}'.
local core = require "meshwright.core"
local mw = require "meshwright"
local load = load  -- which scripts in a sandbox do not have

local names = setmetatable({ mw = mw }, {
  __index = function(_, key)
    if rawget(mw, key) ~= nil then return rawget(mw, key) end
    local known = core.plugin_names()
    for _, name in ipairs(known) do
      if name == key then return mw.plugin(key) end
    end
    if _G[key] ~= nil then return _G[key] end
    for name in pairs(mw) do known[#known + 1] = name end
    core.unknown(key, known, ("there is nothing called %s here: no plugin, nothing of mw, no variable"):format(key))
  end,
})

return function(text)
  local chunk, message = load("return " .. text, "=--set", "t", names)
  if not chunk then error(message, 0) end
  local values = table.pack(chunk())
  if values.n > 1 then
    error(("these are %d values, of which a key takes one; a list is written { … }"):format(values.n), 0)
  end
  return values[1]
end
