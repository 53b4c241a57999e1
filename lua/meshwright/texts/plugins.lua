-- What can be composed, by kind, and the options of each: of what `plugins list` and `plugins show`
-- write as JSON.
local format = require "meshwright.format"
local options = require "meshwright.texts.options"

local terminal = 80  -- columns

-- The name of a file and its folder.
local function parts(file)
  local folder, name = file:match "^(.*)/([^/]*)$"
  return name or file, folder or ""
end

-- Names of files, whose folders are told at the end; the path of one whose name another folder has
-- too.
local function file_names()
  local folder_of, folders = {}, {}
  local function name_of(file)
    local name, folder = parts(file)
    if folder_of[name] and folder_of[name] ~= folder then return file end
    if not folder_of[name] then
      folder_of[name] = folder
      if not folders[folder] then folders[#folders + 1] = folder end
      folders[folder] = true
    end
    return name
  end
  return name_of, folders
end

-- The noun of each kind, and below it what is of that kind, in lines that fit into a terminal.
local function listing_text(kinds)
  local widest, texts = 0, {}
  for _, kind in ipairs(kinds) do
    for _, entry in ipairs(kind) do widest = math.max(widest, #entry.name) end
  end
  for k, kind in ipairs(kinds) do
    local lines = { kind.noun .. "\n" }
    for _, entry in ipairs(kind) do
      local doc = entry.doc:gsub("%.$", "")
      if entry.source ~= "" then doc = ("%s (%s)"):format(doc, entry.source) end
      local begin = ("  %s%s  "):format(entry.name, (" "):rep(widest - #entry.name))
      lines[#lines + 1] = begin .. format.wrapped(doc, terminal - #begin, #begin) .. "\n"
    end
    texts[k] = table.concat(lines)
  end
  return table.concat(texts, "\n")
end

local function not_built(one)
  return one.hint and ("%s; not built here: %s"):format(one.summary, one.hint) or one.summary
end

local function list(given)
  local name_of, folders = file_names()
  local kinds, broken, plugins = {}, "", 0
  local function add(noun, name, doc, source)
    if #kinds == 0 or kinds[#kinds].noun ~= noun then kinds[#kinds + 1] = { noun = noun } end
    local entries = kinds[#kinds]
    entries[#entries + 1] = { name = name, doc = doc, source = source or "" }
  end
  for _, line in ipairs(given.lines) do
    if line.status == "broken" then
      broken = broken .. ("  %s: %s\n"):format(line.file, line.reason)
      if line.hint ~= "" then broken = broken .. ("    %s\n"):format(line.hint) end
    elseif line.version then
      plugins = plugins + 1
    end
  end
  for kind, noun in pairs(given.nouns) do
    for _, line in ipairs(given.lines) do
      for _, brought in ipairs(line.version and line.status == "ok" and line.brings or {}) do
        if brought.kind == kind then
          add(noun, brought.name, brought.summary, line.file and name_of(line.file) .. " " .. line.version)
        end
      end
    end
    for _, line in ipairs(given.lines) do
      local brings = line.kind == "plugin" and line.status == "ok" and not line.version and line.brings[1].kind
      if line.kind == kind then
        add(noun, line.name, not_built(line))
      elseif brings == kind then
        local _, folder = parts(line.file)
        add(noun, line.name, line.summary, folder ~= given.clusters and name_of(line.file) or "")
      end
    end
    for _, line in ipairs(kind == "cluster" and given.lines or {}) do
      if line.kind == "stack" then add(given.stack_noun, line.name, line.summary) end
    end
  end
  local text = listing_text(kinds)
  table.sort(folders)
  if #folders > 0 then text = text .. "\nplugins without a file are built in; the others are in:\n" end
  for _, folder in ipairs(folders) do text = text .. ("  %s\n"):format(folder) end
  if broken ~= "" then text = text .. "\nbroken:\n" .. broken end
  if plugins == 1 then
    text = text .. "\nno plugins; searched:\n"
    for _, folder in ipairs(given.searched) do text = text .. ("  %s\n"):format(folder) end
  end
  return text
end

-- How a script writes it, after what is to be written before it; nothing where a name in quotes is
-- enough.
local usages = {
  strategy = "plan = { NAME { … } }", op = "y = x:NAME { … } in a block of mw.model", cluster = 'cluster = mw.cluster("NAME")',
  recompute = 'recompute = "NAME"', scheduler = '{ schedule = "NAME" } of a pipeline',
  weave = '{ weave = "NAME" } of a pipeline', hook = '{ hook = "NAME" } of data parallelism',
  observer = 'observers = { NAME { … } }', device = 'device = "NAME"', packing = 'data = mw.pack { …, into = "NAME" }',
}
local made = { model = "model", data = "data", optimizer = "optimizer", microbatch = "microbatch", lr_schedule = "schedule" }

local function usage(given, line, one)
  local key, in_program = made[one.kind], line.name == given.built_in
  if key and in_program then return ("%s = mw.%s { … }"):format(key, one.constructor) end
  local usual = key and key .. " = NAME { … }" or usages[one.kind]
  if not usual then return nil end
  if not key and one.kind ~= "strategy" and one.kind ~= "observer" then return (usual:gsub("NAME", one.name)) end
  local name = one.own and one.name or line.name .. "." .. one.name
  return ('local %s = mw.plugins("%s")  …  %s'):format(line.name, line.name, (usual:gsub("NAME", name)))
end

local function plugin_text(given, line)
  local texts, in_program = {}, line.name == given.built_in
  if not in_program then texts[1] = ("%s %s: %s\n"):format(line.name, line.version, line.summary) end
  for _, one in ipairs(line.brings) do
    local how = usage(given, line, one)
    texts[#texts + 1] = ("%s %s: %s\n\n%s%s"):format(given.nouns[one.kind], one.name, one.summary,
      options.text(one.options, one.positional), how and ("\nIn a script:  %s\n"):format(how) or "")
  end
  return table.concat(texts, "\n")
    .. (in_program and "Built in\n" or ("Built with torch %s, %s\n"):format(line.torch, line.toolchain))
end

-- A described cluster or stack, with the comment that its file begins with.
local function described_text(given, line)
  local comment = ""
  for text in io.lines(line.file) do
    if text:sub(1, 2) ~= "--" then break end
    comment = comment .. "  " .. text:gsub("^[- ]*", "") .. "\n"
  end
  return ('%s %s\n\n%s\nIn a script:  %s = mw.%s("%s")\nDescribed in %s\n'):format(
    line.kind == "stack" and given.stack_noun or given.nouns.cluster, line.name, comment, line.kind, line.kind, line.name,
    line.file)
end

local function shipped_text(given, line)
  return ("%s %s: %s\n%s"):format(given.nouns[line.kind] or line.kind, line.name, line.summary,
    line.hint and ("\nNot built here: %s\n"):format(line.hint)
      or ("\nOn the command line:  --communicator %s\nBuilt in\n"):format(line.name))
end

local function show(given)
  local texts = {}
  for k, line in ipairs(given.lines) do
    local shipped = line.kind == "communicator" or line.status == "not built"
    texts[k] = (line.kind == "plugin" and plugin_text or shipped and shipped_text or described_text)(given, line)
  end
  return table.concat(texts, "\n")
end

return function(given) return (given.show and show or list)(given) end
