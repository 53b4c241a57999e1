-- The tables of a what-if, of its result.
local format = require "meshwright.format"

local function share(value)
  local percent = 100 * value
  if math.abs(percent) < 0.005 then return "0 %" end
  return (math.abs(percent) < 1 and "%+.2f %%" or "%+.1f %%"):format(percent)
end

return function(result)
  local rows = {}
  for k, row in ipairs(result.rows) do
    if row.refused then
      rows[k] = { row.knob, row.given, row.shown, "-", "", "", "", "refused", "", row.refused }
    else
      local fits = row.fits == nil and "?" or row.fits and "yes" or "no"
      rows[k] = { row.knob, row.given, row.shown, format.duration(row.step_seconds), share(row.change),
        format.count(row.tokens_per_second), format.bytes(row.peak_bytes), fits, row.basis, row.changed }
    end
  end
  local text = ("what if, of %s\n  as it is %s a step, %s tokens/s, %s a rank; on %s\n\n"):format(result.plan,
    format.duration(result.step_seconds), format.count(result.tokens_per_second), format.bytes(result.peak_bytes),
    result.priced_for) .. format.table(
    { "what if", "", "value", "step", "change", "tokens/s", "memory", "fits", "basis", "what changed" },
    { 3, 4, 5, 6, 7 }, rows, "  ")
  if #result.sensitivities == 0 then return text end
  local worths = {}
  for k, row in ipairs(result.sensitivities) do
    worths[k] = { row.knob, share(row.worth), share(row.tokens_worth), row.by }
  end
  return text .. "\n"
    .. format.table({ "a tenth more of", "of the step", "of tokens/s", "how" }, { 2, 3 }, worths, "  ")
end
