-- Runs the experiments that come on standard input, one after the other, and writes what became of
-- each to standard output between two control characters. "N BYTES VERBS" announces the text of a
-- function that makes experiment N.
local mw = require "meshwright"
local plugins = { "dp", "zero", "tp", "sp", "pp", "ep", "coshard", "diloco", "kit" }
for n, plugin in ipairs { mw.plugins(table.unpack(plugins)) } do _G[plugins[n]] = plugin end
_G.mw = mw

-- The same for a name in every process: conditions of generated scripts that look arbitrary.
function hashed(text, salt)
  local h = salt
  for i = 1, #text do h = (h * 31 + text:byte(i)) % 65521 end
  return h
end

local function json(v)
  if type(v) == "table" then
    local parts, list = {}, #v > 0 or next(v) == nil
    for key, value in pairs(v) do
      parts[#parts + 1] = list and json(value) or json(tostring(key)) .. ":" .. json(value)
    end
    if list then
      for n, value in ipairs(v) do parts[n] = json(value) end
    end
    return list and "[" .. table.concat(parts, ",") .. "]" or "{" .. table.concat(parts, ",") .. "}"
  elseif type(v) == "number" then
    return v ~= v and "NaN" or v == math.huge and "Infinity" or v == -math.huge and "-Infinity" or tostring(v)
  elseif type(v) == "boolean" then
    return tostring(v)
  end
  return '"' .. tostring(v):gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

local function tell(facts) io.write("\29", json(facts), "\30") io.flush() end

-- Fields that a result does not have are left out: to ask for one is an error.
local function field(result, name)
  local there, value = pcall(function() return result[name] end)
  return there and value or nil
end

local WANTED = {
  prove = { "verdict", "refusals", "notes", "plan_hash" },
  verify = { "verdict", "max_relative_error", "worst", "divergence", "first_divergence", "note", "plan_hash", "plans" },
  train = { "status", "reason", "losses", "grad_norms", "memory", "peak_bytes", "communication", "predicted", "plan_hash",
            "skipped_steps", "batches" },
}

-- Of a prediction what a run is held to.
local function of_prediction(predicted)
  return { memory = predicted.memory, peak_bytes = predicted.peak_bytes, communication = predicted.communication,
           memory_basis = predicted.memory_basis }
end

local function tried(number, verb, make)
  local facts = { number = number, verb = verb }
  local ok, result = pcall(function() return mw[verb](make()) end)
  if ok then
    for _, name in ipairs(WANTED[verb]) do facts[name] = field(result, name) end
    if facts.predicted then facts.predicted = of_prediction(facts.predicted) end
  else
    local known, problems = pcall(function() return result.problems end)
    facts.problems = known and problems or { { stage = "script", code = "?", key = "", message = tostring(result), hint = "" } }
  end
  tell(facts)
  return ok
end

for line in io.lines() do
  local number, bytes, verbs = line:match("^(%d+) (%d+) ([%a,]+)$")
  local make, why = load(io.read(tonumber(bytes)), "=experiment", "t")
  io.read("L")
  if not make then tell { number = number, verb = "load", problems = { { stage = "script", code = "?", message = why } } } end
  for verb in verbs:gmatch("%a+") do
    if not make or not tried(number, verb, make()) then break end
  end
  tell { number = number, verb = "end" }
end
