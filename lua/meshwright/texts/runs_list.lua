-- Runs as a table, a line each, and why those failed that did.
local format = require "meshwright.format"

local widest_mix = 48

local function cut(text)
  if #text <= widest_mix then return text end
  local last = widest_mix - 1
  while last > 0 and text:byte(last + 1) & 0xc0 == 0x80 do last = last - 1 end
  return text:sub(1, last) .. "…"
end

return function(runs)
  local rows, reasons = {}, ""
  for k, run in ipairs(runs) do
    local function field(name) return format.field(name, run[name]) end
    rows[k] = { field "name", cut(field "mix"), field "status", field "steps", field "loss", field "tokens_per_second",
      field "peak_bytes", format.local_time(run.created), field "path" }
    if run.reason then
      reasons = reasons .. format.line(("%s: %s: %s"):format(run.name, run.status, run.reason)) .. "\n"
    end
  end
  local header = { "name", "mix", "status", "steps", "loss", "tokens/s", "peak", "when", "file" }
  return format.table(header, { 4, 5, 6, 7 }, rows) .. (reasons == "" and "" or "\n" .. reasons)
end
