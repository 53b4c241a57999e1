-- Scripts with which bash and zsh complete the program's command line.
local bash = [=[
# Completion of meshwright for bash: source <(meshwright completion bash)
_meshwright_table() {
  kind=none choices=()
  case "$1" in
@TABLE@  esac
}

_meshwright() {
  local current=$2 before=$3 path= word kind choices index
  COMPREPLY=()
  # bash cuts words at "=": "--table=memory" is three of them.
  if [[ $current == '=' ]]; then
    current= before=${COMP_WORDS[COMP_CWORD - 1]}
  elif [[ $before == '=' ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $before == -* ]] || return
  fi
  for ((index = 1; index < COMP_CWORD; ++index)); do
    word=${COMP_WORDS[index]}
    [[ $word != -- ]] || { compopt -o default && return; }
    case "$path/$word" in
      @PATHS@) path=$path/$word ;;
    esac
  done
  _meshwright_table "value $path $before"
  if [[ $kind == none ]]; then
    if [[ $current == -* ]]; then
      _meshwright_table "options $path" && kind=words
    else
      _meshwright_table "commands $path"
      if ((${#choices[@]})); then kind=words; else _meshwright_table "positional $path"; fi
    fi
  fi
  case $kind in
    words) COMPREPLY=($(compgen -W "${choices[*]}" -- "$current")) ;;
    files) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    folders) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    either)
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -W "${choices[*]}" -- "$current"; compgen -f -- "$current") ;;
    keys)
      compopt -o nospace
      # Keys below the first level are many: they are offered once their table is there.
      if [[ $current == *[.[]* ]]; then word='@DEEP@'; else word='@KEYS@'; fi
      mapfile -t COMPREPLY < <(compgen -W "$word" -- "$current") ;;
  esac
}
complete -F _meshwright meshwright
]=]
local zsh = [=[
#compdef meshwright
# Completion of meshwright for zsh: source <(meshwright completion zsh), or as _meshwright in fpath
_meshwright_table() {
  kind=none choices=()
  case "$1" in
@TABLE@  esac
}

_meshwright() {
  local at= kind word index current=${words[CURRENT]} before=${words[CURRENT - 1]} option=
  local -a choices
  for ((index = 2; index < CURRENT; ++index)); do
    word=${words[index]}
    [[ $word != -- ]] || { _files && return; }
    case "$at/$word" in
      @PATHS@) at=$at/$word ;;
    esac
  done
  if [[ $current == --*=* ]]; then
    option=${current%%=*} && compset -P '*='
  else
    option=$before
  fi
  _meshwright_table "value $at $option"
  if [[ $kind == none ]]; then
    if [[ $current == -* ]]; then
      _meshwright_table "options $at" && _describe -o option choices && return
    else
      _meshwright_table "commands $at"
      ((${#choices})) && { _describe command choices && return; }
      _meshwright_table "positional $at"
    fi
  fi
  case $kind in
    words) compadd -a choices ;;
    files) _files ;;
    folders) _files -/ ;;
    either) compadd -a choices; _files ;;
    keys)
      # Keys below the first level are many: they are offered once their table is there.
      if [[ $current == *[.[]* ]]; then choices=(@DEEP@); else choices=(@KEYS@); fi
      compadd -S '' -a choices ;;
  esac
}

# As a file of fpath it is the function itself, as a script that is sourced it says whose it is.
if [[ ${funcstack[1]} == _meshwright ]]; then
  _meshwright "$@"
else
  compdef _meshwright meshwright
fi
]=]

-- A word of a shell, the same in both.
local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function each(list, text)
  local all = {}
  for k, one in ipairs(list) do all[k] = text and text(one) or one end
  return table.concat(all, " ")
end

-- What the shell's function is to do for a place: one of its words, a file, a key.
local function action(place)
  local words = #place.words > 0 and (" choices=(%s)"):format(each(place.words)) or ""
  return ("kind=%s%s"):format(place.kind, words)
end

-- A `case` that the shell's function looks into.
local function case_table(nodes, words)
  local lines = {}
  local function add(what, text) lines[#lines + 1] = ("    '%s') %s ;;\n"):format(what, text) end
  for _, node in ipairs(nodes) do
    if #node.commands > 0 then
      add("commands " .. node.path, ("choices=(%s)"):format(each(node.commands, words)))
    end
    add("options " .. node.path, ("choices=(%s)"):format(each(node.options, words)))
    for _, value in ipairs(node.values) do
      add(("value %s %s"):format(node.path, value.option), action(value.place))
    end
    add("positional " .. node.path, action(node.positional))
  end
  return table.concat(lines)
end

-- Words have descriptions in zsh; brackets of keys would be patterns there.
return function(given)
  local is_bash, paths = given.shell == "bash", {}
  for _, node in ipairs(given.nodes) do
    if node.path ~= "" then paths[#paths + 1] = node.path end
  end
  local words = is_bash and function(one) return one[1] end
    or function(one) return quoted(one[1] .. ":" .. one[2]) end
  local filled = {
    TABLE = case_table(given.nodes, words),
    PATHS = table.concat(paths, " | "),
    KEYS = each(given.keys, not is_bash and quoted or nil),
    DEEP = each(given.deep_keys, not is_bash and quoted or nil),
  }
  return ((is_bash and bash or zsh):gsub("@(%u+)@", filled))
end
