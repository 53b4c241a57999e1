-- The tables of a sweep: what became of its mixes, or what its cells would take.
local format = require "meshwright.format"

local most_rows = 60

-- How many rows have each status, and the statuses, sorted.
local function count(rows)
  local counts, statuses = {}, {}
  for _, row in ipairs(rows) do
    local one = row.status or "queued"
    if not counts[one] then statuses[#statuses + 1] = one end
    counts[one] = (counts[one] or 0) + 1
  end
  table.sort(statuses)
  return counts, statuses
end

local function counts_text(rows)
  local counts, parts, alone, reused = count(rows), {}, 0, 0
  for _, one in ipairs { "done", "predicted", "failed", "refused", "skipped", "running", "queued" } do
    if counts[one] then parts[#parts + 1] = ("%d %s"):format(counts[one], one) end
  end
  for _, row in ipairs(rows) do
    if type(row.same_loss_as) == "userdata" and row.same_loss_as.compared == false then alone = alone + 1 end
    if row.reused then reused = reused + 1 end
  end
  local text = table.concat(parts, ", ")
  if alone > 0 then text = ("%s (%d not compared)"):format(text, alone) end
  return reused > 0 and ("%s (%d found done before)"):format(text, reused) or text
end

local function status_text(rows)
  local counts, statuses = count(rows)
  if #rows == 1 then return statuses[1] end
  for k, one in ipairs(statuses) do statuses[k] = ("%d %s"):format(counts[one], one) end
  return table.concat(statuses, ", ")
end

local function reasons(rows)
  local all = ""
  for _, row in ipairs(rows) do
    if type(row.reason) == "string" and not all:find(row.reason, 1, true) then
      all = all .. (all == "" and "" or "; ") .. row.reason
    end
  end
  return (all:gsub("\n", " "))
end

local function spread(numbers, text)
  if numbers.n < 2 then return numbers.n == 0 and "-" or text(numbers.mean) end
  return ("%s ± %s"):format(text(numbers.mean), text(numbers.deviation))
end

local function others_text(group)
  if not group.others then return "" end
  return ("%.1f"):format(group.others) .. (group.disturbed > 0 and (", %d disturbed"):format(group.disturbed) or "")
end

local function summary(given)
  local lines, measured, wide = {}, false, false
  for k, group in ipairs(given.groups) do
    measured, wide = measured or group.measured, wide or group.wide
    local rows = {}
    for n, cell in ipairs(group.cells) do rows[n] = given.rows[cell + 1] end
    if k <= most_rows then
      lines[k] = { group.name, status_text(rows), spread(group.loss, function(v) return ("%.4f"):format(v) end),
        group.speed, spread(group.peak, format.bytes), group.delta and ("%+.1f %%"):format(100 * group.delta) or "",
        others_text(group), reasons(rows) }
    end
  end
  local header = { "cell", "status", "loss", "tokens/s", "peak a rank", "against base", "others", "reason" }
  local text = ("sweep %s: %s: %s\n\n%s"):format(given.name, format.plural(#given.rows, "cell"),
    counts_text(given.rows), format.table(header, { 3, 4, 5, 6, 7 }, lines, "  "))
  local more = #given.groups - most_rows
  if more > 0 then text = text .. ("  … and %d more, in %s\n"):format(more, given.folder) end
  if measured then
    text = text .. "\n  ± of tokens/s: half of a 95 % interval; of other columns: standard deviation over seeds\n"
      .. "  others: cores that other programs had meanwhile, on average\n"
  end
  if wide then
    text = text .. "  ± ?: these runs are too few, or differ too much, for a 95 % interval that tells anything\n"
  end
  local verdict = given.verdict:gsub("\n", "\n  ")
  return verdict == "" and text or ("%s\n  %s\n"):format(text, verdict)
end

local function dry(given)
  local lines = {}
  for k, cell in ipairs(given.planned) do
    local row, known = given.rows[k], cell.ranks > 0
    lines[k] = { cell.name, row.status == "queued" and "would run" or row.status or "",
      known and ("%.1f ms"):format(1e3 * cell.step_seconds) or "", known and cell.duration or "",
      known and format.bytes(cell.peak) or "", known and format.bytes(cell.memory) or "", reasons { row } }
  end
  local header = { "cell", "", "step", "all steps", "peak a rank", "all ranks", "reason" }
  return ("sweep %s: %d of %s would run\n  %s\n\n%s"):format(given.name, given.queued,
    format.plural(#given.planned, "cell"), given.cost, format.table(header, { 3, 4, 5, 6 }, lines, "  "))
end

return function(given) return (given.planned and dry or summary)(given) end
