-- What luacheck knows of the project's Lua: scripts, the library, examples and templates.
std = "lua54"
max_line_length = 130
-- A function gets what its caller hands over, whether it needs it or not.
unused_args = false
exclude_files = { "scripts/meshwright.d.lua" }  -- made by the program, for editors
