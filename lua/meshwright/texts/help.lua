-- What the prompt's help(x) says: the annotations of the Lua module, by name and for people.
local format = require "meshwright.format"

local width = 96
local widest_name = 26
local most_shown = 24  -- keys of a parameter that are listed with the function

-- The text in lines, all but the first of them indented.
local function in_lines(text, indent) return format.wrapped(text, width - indent, indent) end

local function plain_type(type) return (type:gsub("meshwright%.", "")) end

-- Splits a text at its first blank outside of brackets. The types "fun(step: integer): number" and
-- "table<string, any>" have blanks within brackets.
local function split_word(text)
  local depth = 0
  for at = 1, #text do
    local c = text:sub(at, at)
    if c:find "[(<{%[]" then depth = depth + 1 end
    if c:find "[)>}%]]" then depth = depth - 1 end
    if c == " " and depth <= 0 and (at == 1 or text:sub(at - 1, at - 1) ~= ":") then
      return text:sub(1, at - 1), text:sub(at + 1)
    end
  end
  return text, ""
end

local function read_field(text)
  local name, rest = split_word(text)
  local type, about = split_word(rest)
  local bare = name:gsub("%?$", "")
  return { name = bare, optional = bare ~= name, type = plain_type(type), about = about }
end

-- Adds what stands above a line of code or above a blank one: classes, or what declares a function.
local function read(classes, functions, comments, code)
  local about, parameters, returns, open = "", {}, nil, nil
  for _, text in ipairs(comments) do
    local tag, rest = text:match "^@(%l+) (.*)$"
    local class = tag == "class" and rest:match "^meshwright%.(.*)$"
    if class then
      local name, base = class:match "^([^:]*):?%s?(.*)$"
      classes[name] = classes[name] or { about = "", fields = {} }
      open = classes[name]
      if class:find ":" then open.base = plain_type(base) end
      open.about, about = open.about .. about, ""
    elseif tag == "field" or tag == "param" then
      local field = read_field(rest)
      local list = open and open.fields or parameters
      if not open or field.name ~= "[1]" then list[#list + 1] = field end
    elseif tag == "return" then
      returns = plain_type(rest)
    elseif text:sub(1, 1) ~= "@" then
      about = about .. (about == "" and "" or " ") .. text
    end
  end
  local signature = code:match "^function mw%.(.*) end"
  if not signature then return end
  functions[signature:match "^[^(]*"] =
    { signature = "mw." .. signature, about = about, parameters = parameters, returns = returns }
end

local function sorted(table_)
  local names = {}
  for name in pairs(table_) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- The keys of a type such as "Experiment" or "llama|integer"; nil if none are known.
local function class_of(classes, type)
  local found = classes[type:match "^[^|]*"]
  return found and #found.fields > 0 and found or nil
end

local function class_text(classes, name, class)
  local text = class.about == "" and "" or in_lines(class.about, 0) .. "\n"
  local widest, own = 0, {}
  for _, field in ipairs(class.fields) do
    widest = math.max(widest, math.min(widest_name, #field.name))
    own[field.name] = true
  end
  for _, field in ipairs(class.fields) do
    local about = (field.optional and "" or "required; ") .. field.type
      .. (field.about == "" and "" or ": " .. field.about)
    text = text .. ("  %s%s  %s\n"):format(field.name, (" "):rep(widest - #field.name), in_lines(about, widest + 4))
  end
  local base = class.base and class_of(classes, class.base)
  for _, field in ipairs(base and base.fields or {}) do
    if not own[field.name] then
      text = text .. class_text(classes, class.base, base)
      break
    end
  end
  return text == "" and name .. "\n" or text
end

local function function_text(classes, described)
  local text = described.signature .. "\n"
  if described.about ~= "" then text = text .. "  " .. in_lines(described.about, 2) .. "\n" end
  for _, parameter in ipairs(described.parameters) do
    text = text .. "  " .. in_lines(("%s%s: %s%s%s"):format(parameter.name,
      parameter.optional and " (may be left out)" or "", parameter.type, parameter.about == "" and "" or ", ",
      parameter.about), 4) .. "\n"
    local keys = class_of(classes, parameter.type)
    local type = parameter.type:match "^[^|]*"
    if keys and #keys.fields <= most_shown then
      text = text .. class_text(classes, type, keys)
    elseif keys then
      text = text .. ('    its %d keys: help "%s"\n'):format(#keys.fields, type)
    end
  end
  return described.returns and ("%s  %s\n"):format(text, in_lines("returns " .. described.returns, 4)) or text
end

-- All keys of this name: "Experiment.schedule  …".
local function keys_called(classes, name)
  local of, key = name:match "^(.*)%.([^.]*)$"
  key = key or name
  local text = ""
  for _, owner in ipairs(sorted(classes)) do
    local wanted = not of or of == "" or owner == of or owner == "plugin." .. of or of == "mw" and owner == key
    for _, field in ipairs(wanted and classes[owner].fields or {}) do
      if field.name == key then
        local about = field.type .. (field.about == "" and "" or ": " .. field.about)
        text = text .. ("%s.%s\n  %s\n"):format(owner, key, in_lines(about, 2))
      end
    end
  end
  return text
end

local function overview(classes, functions)
  local names, plugins = sorted(functions), {}
  for k, name in ipairs(names) do names[k] = "mw." .. name end
  for _, name in ipairs(sorted(classes)) do plugins[#plugins + 1] = name:match "^make%.(.*)$" end
  return in_lines("help(x): x is a function (help(mw.train)), a value that a function has returned, or a name between "
    .. 'quotes: a plugin (help "tp"), a key (help "steps", help "llama.layers").', 2)
    .. ("\nfunctions: %s\nplugins: %s"):format(in_lines(table.concat(names, ", "), 2),
      in_lines(table.concat(plugins, ", "), 2))
end

-- The text of a function ("mw.train", "train"), a plugin ("tp"), what a constructor makes
-- ("llama"), a key of any table ("steps", "llama.layers", "pp.schedule"), or what a verb returns
-- ("train result"); an empty name stands for all that there is. Where nothing is called so, the
-- list of the name, as it was looked for, and all that there are.
return function(given)
  local classes, functions, comments = {}, {}, {}
  for line in (given.types .. "\n"):gmatch "([^\n]*)\n" do
    if line:sub(1, 3) == "---" then
      comments[#comments + 1] = line:sub(4)
    else
      read(classes, functions, comments, line)
      comments = {}
    end
  end
  read(classes, functions, comments, "")
  if given.name == "" then return overview(classes, functions) end
  local name = given.name:gsub("^mw%.", ""):gsub("^meshwright%.", ""):gsub("^(.)(.*) result$", function(first, rest)
    return first:upper() .. rest .. "Result"
  end)
  local text, made = "", classes["make." .. name]
  if functions[name] then
    text = function_text(classes, functions[name])
  elseif made then
    text = class_text(classes, name, made)
    local options = class_of(classes, "plugin." .. name)
    if options then text = text .. name .. " { … } takes\n" .. class_text(classes, name, options) end
  elseif classes[name] then
    text = class_text(classes, name, classes[name])
  end
  local keys = keys_called(classes, name)
  if keys ~= "" then text = text .. (text == "" and "" or "\nkeys of that name\n") .. keys end
  if text ~= "" then return text end
  local all = sorted(functions)
  table.insert(all, 1, name)
  for _, class in ipairs(sorted(classes)) do
    all[#all + 1] = class
    all[#all + 1] = class:match "^make%.(.*)$"
    for _, field in ipairs(classes[class].fields) do all[#all + 1] = field.name end
  end
  return all
end
