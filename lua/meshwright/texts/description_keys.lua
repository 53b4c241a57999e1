-- The page of the keys that clusters and stacks may have, as docs/ has it.
local options = require "meshwright.texts.options"

local head = [[
# Keys of clusters and stacks

`meshwright description-keys` makes this page from the declarations by which descriptions are
checked; a test compares. Rates are per second, times in seconds, sizes in bytes or as `"80GiB"`.
[Prediction](prediction.md) says what the numbers do.

Any number here is a knob of `mw.what_if` and `plan --what-if` by the name that it has on this
page, `network.nic` or `stack.host`, and a key of `mw.cluster(name, { … })`, `mw.stack(name, { … })`
and `--set cluster.network.nic=…`.

## Clusters

A cluster is a table with tables in it: `{ name = …, nodes = …, device = { … }, node = { … }, … }`.

]]

local function keys_text(keys, prefix)
  local text = "| key | holds | left out | what it says |\n|---|---|---|---|\n"
  for _, option in ipairs(keys) do
    if option.name ~= "kind" and option.name ~= "changed" then  -- mw.cluster writes these
      local range = options.range(option)
      local otherwise = option.required and "must be there" or option.default == nil and "not said"
        or options.default(option)
      text = text .. ("| `%s%s` | %s%s | %s | %s |\n"):format(prefix, option.name, options.type(option),
        range == "" and "" or ", " .. range, otherwise, option.doc)
    end
  end
  return text
end

return function(given)
  local text = head
  for table, keys in pairs(given.clusters) do
    if table ~= "" then text = text .. ("\n### %s\n\n"):format(table) end
    text = text .. keys_text(keys, table == "" and "" or table .. ".")
  end
  return text .. "\n## Stacks\n\nA stack is one table.\n\n" .. keys_text(given.stack, "stack.")
end
