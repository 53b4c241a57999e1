-- Bar charts of what a script has measured, as pages like those of reports.
local core = require "meshwright.core"

local function check(chart)
  local function refuse(what) core.refuse("mw.bar_chart: " .. what,
    'for example mw.bar_chart { file = "chart.html", unit = "tokens", series = { "predicted", "run" }, '
      .. 'bars = { { "ring", 4096, 4096 } } }') end
  if type(chart) ~= "table" then refuse("takes a table") end
  for key in pairs(chart) do
    if not ({ file = 1, title = 1, unit = 1, series = 1, bars = 1 })[key] then
      refuse(("unknown key %q"):format(tostring(key)))
    end
  end
  if type(chart.file) ~= "string" then refuse("file must be a path") end
  if not chart.file:find("%.html?$") then refuse(("file must end in .html; got %q"):format(chart.file)) end
  for _, key in ipairs { "title", "unit" } do
    if chart[key] ~= nil and type(chart[key]) ~= "string" then refuse(key .. " must be text") end
  end
  if type(chart.series) ~= "table" or #chart.series == 0 then refuse("series must be a list of names") end
  for i, name in ipairs(chart.series) do
    if type(name) ~= "string" then refuse(("series[%d] is %s, no name"):format(i, tostring(name))) end
  end
  if type(chart.bars) ~= "table" or #chart.bars == 0 then refuse("bars must be a list") end
  for i, bar in ipairs(chart.bars) do
    if type(bar) ~= "table" or #bar ~= #chart.series + 1 then
      refuse(("bars[%d] must be a name and %d numbers"):format(i, #chart.series))
    end
    if type(bar[1]) ~= "string" and type(bar[1]) ~= "number" then
      refuse(("bars[%d][1] is %s, no name"):format(i, tostring(bar[1])))
    end
    for s = 2, #bar do
      if type(bar[s]) ~= "number" or bar[s] < 0 or bar[s] ~= bar[s] or bar[s] == math.huge then
        refuse(("bars[%d][%d] is %s, no number from 0 on"):format(i, s, tostring(bar[s])))
      end
    end
  end
end

--- Writes a page of horizontal bars, a group for each entry of `bars`, a colour for each of
--- `series`, with the numbers as a table. Missing folders are made. Returns the file's name.
return function(chart)
  check(chart)
  core.bar_chart(chart.file, { title = chart.title, unit = chart.unit, series = chart.series, bars = chart.bars })
  return chart.file
end
