-- Rotary angles of models that see longer sequences than they were trained on at first: YaRN's
-- [Peng et al. 2023, arXiv:2309.00071], those of Llama 3 [Grattafiori et al. 2024,
-- arXiv:2407.21783], and positions divided by a number. Keys have the names of Hugging Face's
-- rope_scaling.
local rope = {}

local window = "original_max_position_embeddings"
-- Of each type its keys, and their defaults; false: there is none, "": the key may be left out.
local types = {
  default = {},
  linear = { factor = false },
  llama3 = { factor = false, low_freq_factor = false, high_freq_factor = false, [window] = false },
  yarn = { factor = false, [window] = false, beta_fast = 32, beta_slow = 1, truncate = true, attention_factor = "",
    mscale = "", mscale_all_dim = "" },
}

local function names(of)
  local list = {}
  for name in pairs(of) do list[#list + 1] = name end
  table.sort(list)
  return table.concat(list, ", ")
end

--- Calls refuse(code, key, message, hint) for each fault of a scaling.
function rope.check(scaling, refuse)
  local known = types[scaling.type]
  if not known then
    return refuse("option.choice", "rope_scaling", ("its type is %s"):format(tostring(scaling.type)), "types: " .. names(types))
  end
  for key, value in pairs(scaling) do
    if key ~= "type" and known[key] == nil and key:sub(1, 1) ~= "$" then
      refuse("option.unknown", "rope_scaling", ("%s has no %s"):format(scaling.type, key), "keys: type, " .. names(known))
    elseif known[key] ~= nil and (key == "truncate" and type(value) ~= "boolean"
      or key ~= "truncate" and (math.type(value) == nil or value <= 0)) then
      refuse("option.type", "rope_scaling", ("%s is %s"):format(key, tostring(value)),
        key == "truncate" and "truncate = false" or "a number above 0")
    end
  end
  for key, value in pairs(known) do
    if value == false and scaling[key] == nil then
      refuse("option.missing", "rope_scaling", ("%s needs %s"):format(scaling.type, key), "as in the model's config.json")
    end
  end
end

-- How much attention's scores grow with `factor` [YaRN, section 3.4].
local function mscale(factor, by) return factor <= 1 and 1.0 or 0.1 * by * math.log(factor) + 1 end

local function llama3(angle, s)
  local length = 2 * math.pi / angle
  if length < s[window] / s.high_freq_factor then return angle end
  if length > s[window] / s.low_freq_factor then return angle / s.factor end
  local smooth = (s[window] / length - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
  return (1 - smooth) * angle / s.factor + smooth * angle
end

-- Pairs that turn often within the window stay; those that turn less than once are slowed down.
local function yarn(theta, width, s)
  local function pair(turns) return width * math.log(s[window] / (turns * 2 * math.pi)) / (2 * math.log(theta)) end
  local low, high = pair(s.beta_fast or 32), pair(s.beta_slow or 1)
  if s.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, width - 1)
  if low == high then high = high + 0.001 end
  return function(angle, i)
    local ramp = math.min(math.max((i - low) / (high - low), 0), 1)
    return angle / s.factor * ramp + angle * (1 - ramp)
  end
end

--- The options of x:rope for a base, the number of elements of a head that turn, and a scaling or
--- nil: { theta = … }, or { angles = …, scale = … }.
function rope.options(theta, width, scaling)
  local kind = scaling and scaling.type or "default"
  if kind == "default" then return { theta = theta } end
  local change = kind == "yarn" and yarn(theta, width, scaling) or function(angle)
    return kind == "llama3" and llama3(angle, scaling) or angle / scaling.factor
  end
  local angles, scale = {}, 1.0
  for i = 0, width // 2 - 1 do angles[i + 1] = change(theta ^ (-2 * i / width), i) end
  if kind == "yarn" then
    local all = scaling.mscale and scaling.mscale_all_dim
    scale = scaling.attention_factor or all and mscale(scaling.factor, scaling.mscale) / mscale(scaling.factor, all)
      or mscale(scaling.factor, 1)
  end
  return { angles = angles, scale = scale }
end

--- What DeepSeek's models multiply the scores of attention by.
function rope.score_scale(scaling)
  local all = scaling and scaling.type == "yarn" and scaling.mscale_all_dim
  return all and mscale(scaling.factor, all) ^ 2 or 1.0
end

--- The keys of config.json: pairs of a name and a value.
function rope.keys(scaling)
  local list = { { "rope_type", scaling and scaling.type or "default" } }
  for key, default in pairs(scaling and types[scaling.type] or {}) do
    local value = scaling[key]
    if value == nil and default ~= "" then value = default end
    if value ~= nil then list[#list + 1] = { key, value, default } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

return rope
