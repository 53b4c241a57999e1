-- All that a run file says of its run, of the run's JSON and of what only people are told.
local format = require "meshwright.format"

local function bytes(count) return count and format.bytes(count) or "-" end

local function head_text(run, given)
  local reason = run.reason and ": " .. format.line(run.reason) or ""
  local lines = { format.line(run.name .. ": " .. run.status) .. reason .. "\n" }
  local function add(what, value)
    if (value or "") ~= "" then lines[#lines + 1] = ("  %-10s%s\n"):format(what, format.line(value)) end
  end
  add("file", run.log)
  add("mix", given.mix)
  add("hash", run.hash)
  add("plan hash", run.plan_hash)
  add("seed", tostring(run.seed))
  add("created", run.created)
  add("machine", run.host)
  add("sweep", run.sweep)
  for key, value in pairs(run.values or {}) do add("", key .. " = " .. value) end
  local versions = {}
  for name, version in pairs(type(run.versions) == "userdata" and run.versions or {}) do
    versions[#versions + 1] = name .. " " .. (type(version) == "string" and version or format.json(version))
  end
  add("versions", table.concat(versions, ", "))
  if given.machine then lines[#lines + 1] = ("  machine's own file: %s\n"):format(given.machine) end
  return table.concat(lines)
end

local function experiment_text(experiment)
  local rows = {}
  for _, leaf in ipairs(format.leaves(experiment)) do
    if leaf[3] then rows[#rows + 1] = { leaf[1], leaf[3] } end
  end
  return format.table({ "", "" }, {}, rows, "  ")
end

local function result_text(given)
  local rows = {}
  for k, name in ipairs { "steps", "first_loss", "loss", "grad_norm", "step_seconds", "tokens_per_second",
    "cpu_seconds_per_step", "mfu", "bubble_fraction", "startup_seconds", "others_cores" } do
    rows[k] = { name, format.field(name, given.numbers[name]) }
  end
  local text = format.table({ "", "" }, { 2 }, rows, "  ")
  if given.disturbance == "" then return text end
  return ("%s  %s%s\n"):format(text, given.disturbance,
    given.disturbed and "; its wall seconds are not the machine's own" or "")
end

return function(given)
  local run, kept = given.run, type(given.kept) == "userdata" and given.kept or {}
  local text = head_text(run, given) .. "\nexperiment\n" .. experiment_text(run.experiment)
  if type(kept.plan) == "string" then text = text .. "\n" .. kept.plan end
  text = text .. "\nresult\n" .. result_text(given)
  local memory, sent = {}, {}
  for name, sizes in pairs(run.memory_beside_predicted) do
    memory[#memory + 1] = { name, bytes(sizes.bytes), bytes(sizes.predicted_bytes) }
  end
  if #memory > 0 then
    text = text .. "\n" .. format.table({ "memory", "measured", "predicted" }, { 2, 3 }, memory, "  ")
  end
  for k, use in ipairs(given.sent) do
    sent[k] = { use[1], use[2], use[3], tostring(use[4]), bytes(use[5]), bytes(use[6]) }
  end
  if #sent > 0 then
    text = text .. "\n" .. format.table({ "axis", "op", "phase", "calls", "bytes a rank and step", "predicted" },
      { 4, 5, 6 }, sent, "  ")
  end
  if given.account then
    text = text .. ("\n  account: where the seconds of a step went: runs show %s --where\n"):format(run.log)
  end
  local note = kept.experts and kept.experts.note
  if note then text = text .. ("\n  %s\n"):format(note) end
  local events = {}
  for k, event in ipairs(given.events) do events[k] = ("  step %d: %s: %s\n"):format(event[1], event[2], event[3]) end
  return text .. (#events > 0 and "\nevents\n" .. table.concat(events) or "")
end
