-- Bar charts as SVG, for what a script has measured.
local core = require "meshwright.core"

local colours = { "#9aa7b8", "#2f6f9f", "#c8733f", "#5d8a4a" }  -- of the series

local function escaped(text)
  return (tostring(text):gsub("%c", " "):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

-- 12345 -> "12,345"
local function grouped(value)
  if value ~= math.floor(value) or value >= 2 ^ 53 then return ("%.4g"):format(value) end
  local text = ("%d"):format(value)
  repeat
    local more
    text, more = text:gsub("^(-?%d+)(%d%d%d)", "%1,%2")
  until more == 0
  return text
end

-- A step of 1, 2 or 5 times a power of ten, at most six of them up to `most`.
local function step_for(most)
  local power = 10 ^ math.floor(math.log(most / 6, 10))
  for _, factor in ipairs { 1, 2, 5, 10 } do
    if most / (factor * power) <= 6 then return factor * power end
  end
end

local function check(chart)
  local function refuse(what) core.refuse("mw.bar_chart: " .. what,
    'for example mw.bar_chart { file = "chart.svg", unit = "tokens", series = { "predicted", "run" }, '
      .. 'bars = { { "ring", 4096, 4096 } } }') end
  if type(chart) ~= "table" then refuse("takes a table") end
  for key in pairs(chart) do
    if not ({ file = 1, title = 1, unit = 1, series = 1, bars = 1 })[key] then
      refuse(("unknown key %q"):format(tostring(key)))
    end
  end
  if type(chart.file) ~= "string" then refuse("file must be a path") end
  if type(chart.series) ~= "table" or #chart.series == 0 then refuse("series must be a list of names") end
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

--- Writes horizontal bars, a group for each entry of `bars`, a colour for each of `series`.
--- Missing folders are made. Returns the file's name.
return function(chart)
  check(chart)
  local left, width, thick, gap = 170, 560, 14, 12
  local group = #chart.series * thick + gap
  local top = 64
  local height = top + #chart.bars * group + 46
  local most = 0
  for _, bar in ipairs(chart.bars) do
    for s = 2, #bar do most = math.max(most, bar[s]) end
  end
  if most == 0 then most = 1 end
  local function x(value) return left + width * value / most end
  local out = {}
  local function put(format, ...) out[#out + 1] = format:format(...) end
  put('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">',
    left + width + 90, height)
  put('<rect width="100%%" height="100%%" fill="white"/>')
  put('<text x="16" y="24" font-size="15" font-weight="bold">%s</text>', escaped(chart.title or ""))
  local at = left
  for s, name in ipairs(chart.series) do
    put('<rect x="%d" y="38" width="11" height="11" fill="%s"/><text x="%d" y="48">%s</text>', at,
      colours[(s - 1) % #colours + 1], at + 16, escaped(name))
    at = at + 40 + 7 * #name
  end
  local bottom = top + #chart.bars * group
  for tick = 0, most, step_for(most) do
    put('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e3e3e3"/>', x(tick), top - 4, x(tick), bottom)
    put('<text x="%.1f" y="%d" text-anchor="middle" fill="#555">%s</text>', x(tick), bottom + 16, grouped(tick))
  end
  put('<text x="%.1f" y="%d" text-anchor="end" fill="#555">%s</text>', left + width, bottom + 34,
    escaped(chart.unit or ""))
  for b, bar in ipairs(chart.bars) do
    local y = top + (b - 1) * group
    put('<text x="%d" y="%.1f" text-anchor="end">%s</text>', left - 10, y + #chart.series * thick / 2 + 4,
      escaped(bar[1]))
    for s = 1, #chart.series do
      local value = bar[s + 1]
      local row = y + (s - 1) * thick
      put('<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>', left, row, width * value / most, thick - 2,
        colours[(s - 1) % #colours + 1])
      put('<text x="%.1f" y="%.1f" font-size="11">%s</text>', x(value) + 5, row + thick - 4, grouped(value))
    end
  end
  put('</svg>')
  core.write("mw.bar_chart", chart.file, table.concat(out, "\n") .. "\n")
  return chart.file
end
