-- The sizes of a model of this folder: its own, with those that a script gives in their place.
local core = require "meshwright.core"

return function(model, sizes, given)
  local known = {}
  for key in pairs(sizes) do known[#known + 1] = key end
  table.sort(known)
  if given ~= nil and type(given) ~= "table" then
    core.refuse(("%s takes a table of sizes; got a %s"):format(model, type(given)), ("%s { layers = 2, … }"):format(model))
  end
  for key, value in pairs(given or {}) do
    if sizes[key] == nil then
      core.refuse(("%s has no %s"):format(model, tostring(key)), "it has " .. table.concat(known, ", "))
    elseif type(value) ~= type(sizes[key]) then
      core.refuse(("%s.%s is a %s; got a %s"):format(model, key, type(sizes[key]), type(value)),
        ("left out, it is %s"):format(tostring(sizes[key])))
    end
    sizes[key] = value
  end
  return sizes
end
