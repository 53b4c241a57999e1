-- Rotary angles of models that see longer sequences than they were trained on at first: YaRN's
-- [Peng et al. 2023, arXiv:2309.00071], those of Llama 3 [Grattafiori et al. 2024,
-- arXiv:2407.21783], and positions divided by a number. Keys have the names of Hugging Face's
-- rope_scaling.
local rope = {}

local window = "original_max_position_embeddings"
-- The keys that each type of scaling takes, with their defaults. false: a script must give the key;
-- "": it may leave the key out, and there is no default.
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

-- A config.json has the type of a scaling as `type` or as `rope_type`.
local function type_of(scaling) return scaling and (scaling.type or scaling.rope_type) or "default" end

local function fits(key, value)
  if key == "truncate" then return type(value) == "boolean" end
  return math.type(value) ~= nil and value > 0 and value < math.huge
end

--- Calls refuse(code, key, message, hint) for each fault of a scaling. `others`: names of keys
--- beside those of scalings.
function rope.check(scaling, refuse, others)
  local kind = scaling.type or scaling.rope_type
  local known = types[kind]
  if not known then
    return refuse("option.choice", "rope_scaling", ("its type is %s"):format(tostring(kind)), "types: " .. names(types))
  end
  local given = {}
  for key in pairs(scaling) do given[#given + 1] = key end
  table.sort(given)
  for _, key in ipairs(given) do
    local value = scaling[key]
    if key ~= "type" and key ~= "rope_type" and known[key] == nil and key:sub(1, 1) ~= "$" then
      refuse("option.unknown", "rope_scaling", ("%s has no %s"):format(kind, key),
        ("keys: type, %s%s"):format(others or "", names(known)))
    elseif known[key] ~= nil and not fits(key, value) then
      refuse("option.type", "rope_scaling", ("%s is %s"):format(key, type(value) == "string" and ("%q"):format(value)
        or tostring(value)), key == "truncate" and "truncate = false" or "a number above 0")
    end
  end
  for _, key in ipairs { "factor", "low_freq_factor", "high_freq_factor", window } do
    if known[key] == false and scaling[key] == nil then
      refuse("option.missing", "rope_scaling", ("%s needs %s"):format(kind, key), "as in the model's config.json")
    end
  end
  for _, pair in ipairs { { "low_freq_factor", "high_freq_factor" }, { "beta_slow", "beta_fast" } } do
    local low, high = scaling[pair[1]] or known[pair[1]], scaling[pair[2]] or known[pair[2]]
    if math.type(low) and math.type(high) and low >= high then
      refuse("option.range", "rope_scaling", ("%s = %g is not below %s = %g"):format(pair[1], low, pair[2], high),
        "as in the model's config.json")
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
  local low, high = pair(s.beta_fast or types.yarn.beta_fast), pair(s.beta_slow or types.yarn.beta_slow)
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
  local kind = type_of(scaling)
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
  local all = type_of(scaling) == "yarn" and scaling.mscale_all_dim
  return all and mscale(scaling.factor, all) ^ 2 or 1.0
end

--- The keys of config.json: tables of name, value (nil: null), what a file without the key means in
--- `absent` (nil: that is not compared), and `null`, whether null means that too.
function rope.keys(scaling)
  local kind, list = type_of(scaling), {}
  for key, default in pairs(types[kind]) do
    local value = scaling[key]
    if value == nil and default ~= "" then value = default end
    local usual = default ~= "" and default ~= false
    -- Without the window, that of the file's longest sequence is taken.
    list[#list + 1] = { name = key, value = value, null = usual, absent = usual and default
      or key == window and "max_position_embeddings" or nil }
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  table.insert(list, 1, { name = "rope_type", value = kind, absent = "default" })
  return list
end

return rope
