-- Which right mix of 8 ranks is the fastest here, and does any of them train differently? Every mix
-- trains the same small model on the same text with three seeds, each run in a process of its own;
-- a mix whose losses are not those of plain data parallelism is no candidate, however fast.
--
--   ./meshwright sweep scripts/ablations/mixes.lua
--
-- Ended half way, by whatever, the same command goes on.
local mw = require "meshwright"
local dp, tp, sp, zero, pp = mw.plugins("dp", "tp", "sp", "zero", "pp")

local sweep = mw.sweep {
  name = "mixes",
  base = {
    model     = mw.llama { layers = 4, hidden = 64, heads = 8, ffn = 172, vocab = 256 },
    data      = mw.text { "gcide", sequence = 64 },
    batch     = 16,                              -- sequences a step over all ranks, whatever the mix
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 20,
    threads   = 1,
  },
  over = {
    plan = {
      { dp(8) },
      { zero { 8, stage = 1 } },
      { zero { 8, stage = 2 } },
      { zero { 8, stage = 3 } },
      { tp(8) },
      { dp(4), tp(2) },
      { dp(2), tp(4) },
      { dp(2), tp(4), sp() },
      { zero { 4, stage = 3 }, tp(2), sp() },
      { dp(4), sp { 2, form = "ring" } },
      { dp(4), sp { 2, form = "ulysses" } },
      { pp { ways = 2, schedule = "1f1b" }, dp(4) },
      { pp { ways = 4, schedule = "1f1b" }, dp(2) },
      { pp { ways = 2, schedule = "zb-h1" }, dp(2), tp(2) },
      { pp { ways = 2, schedule = "1f1b" }, zero { 4, stage = 2 } },
    },
    -- A pipeline wants several microbatches; the others have all their sequences at once.
    microbatch = function(cell) return cell.plan[1].plugin == "pp" and { 1 } or nil end,
    seed = { 1, 2, 3 },
  },
  same_loss_as = "dp(8)",
}

local cells = sweep:go()

-- Mean speed of each mix, of those that are done and right with every seed.
local mixes, names = {}, {}
for _, cell in ipairs(cells) do
  local name = cell.values.plan
  local mix = mixes[name]
  if not mix then
    mix = { tokens = 0, runs = 0, right = true }
    mixes[name], names[#names + 1] = mix, name
  end
  if cell.status == "done" then
    mix.tokens, mix.runs = mix.tokens + cell.tokens_per_second, mix.runs + 1
  else
    mix.right = false
  end
end
table.sort(names, function(a, b)
  local left, right = mixes[a], mixes[b]
  return left.tokens / math.max(1, left.runs) > right.tokens / math.max(1, right.runs)
end)
local fastest, differ, apart = nil, {}, 0
for _, name in ipairs(names) do
  if mixes[name].right then fastest = fastest or name else differ[#differ + 1] = name end
end
for _, cell in ipairs(cells) do
  local found = cell.same_loss_as
  if cell.status == "done" and found and found.compared then apart = math.max(apart, found.difference) end
end
local base = mixes["dp(8)"]
if not fastest then
  print "No answer: no mix is done with all its seeds; the table says why."
elseif not (base and base.right) then
  print "No answer: dp(8), which the others are held to, is not done with all its seeds; the table says why."
else
  local function speed(mix) return mix.tokens / mix.runs end
  print(("Answer: the fastest right mix here is %s: %.0f tokens/s, %+.0f %% against dp(8); %s."):format(
    fastest, speed(mixes[fastest]), 100 * (speed(mixes[fastest]) / speed(base) - 1),
    #differ == 0 and ("all %d mixes train alike, their losses at most %.1e apart"):format(#names, apart)
      or ("these train differently or are not done: %s"):format(table.concat(differ, ", "))))
  sweep:report("runs/mixes/report.html", { baseline = "dp(8)" })
end
