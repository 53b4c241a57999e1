-- Pipelines: how large is each schedule's bubble, for few microbatches and for many?
--
-- With p stages, m microbatches and unit times of F, I and W (a microbatch's forward, and the
-- two halves of its backward), what a stage idles over what it works is k (p - 1)/m: k = 1 for
-- GPipe (Huang et al. 2019, arXiv:1811.06965) and 1F1B; 1/v for v chunks a stage, interleaved
-- (Narayanan et al. 2021, arXiv:2104.04473); 1/3 for ZB-H1, and for ZB-H2 what is outside of a
-- stage's own work (Qi et al. 2023, arXiv:2401.10241); 1/6 for ZB-V, outside as well. So four
-- times the microbatches, or six times less k, is the choice. GPipe pays nothing less and holds
-- m microbatches' activations, 1F1B p.
--
-- The prediction is for ranks with a core each, with each stage's own F, I and W: the last has
-- the head, so stages differ, and so does its bubble from the formula. What is measured where
-- fewer cores than stages are free is mostly waiting for a core, which says nothing of the
-- schedule; activations are those of any machine.
local mw = require "meshwright"
local pp = mw.plugins("pp")

local stages = 4
local sweep = mw.sweep {
  name = "schedules",
  base = {
    model     = mw.llama { layers = 8, hidden = 128, heads = 4, ffn = 352, vocab = 256 },
    data      = mw.text { "gcide", sequence = 64 },
    batch     = 16,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 3,
    threads   = 1,
  },
  over = {
    microbatch = { 4, 1 },                       -- sequences: 4 and 16 microbatches
    order = {
      { name = "gpipe",       plan = { pp { stages, schedule = "gpipe" } } },
      { name = "1f1b",        plan = { pp { stages, schedule = "1f1b" } } },
      { name = "interleaved", plan = { pp { stages, schedule = "interleaved", chunks = 2 } } },
      { name = "zb-h1",       plan = { pp { stages, schedule = "zb-h1" } } },
      { name = "zb-h2",       plan = { pp { stages, schedule = "zb-h2" } } },
      { name = "zbv",         plan = { pp { stages, schedule = "zbv" } } },
    },
  },
}
local cells = sweep:go()

local k = { gpipe = 1, ["1f1b"] = 1, interleaved = 1 / 2, ["zb-h1"] = 1 / 3, ["zb-h2"] = 1 / 3, zbv = 1 / 6 }
local function share(over) return 100 * over / (1 + over) end   -- of the step, from idle over work

print("microbatches   schedule      bubble by formula   predicted   measured here   activations at most, KiB")
local rows, ran, compared = { [4] = {}, [16] = {} }, 0, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local name, m = cell.values.order, 16 // tonumber(cell.values.microbatch)
    local activations = 0
    for _, stage in ipairs(p.memory) do activations = math.max(activations, stage.activations) end
    if done then activations, ran = cell.memory.activations, ran + 1 end
    local row = { name = name, bubble = 100 * p.bubble_fraction, activations = activations,
                  formula = share(k[name] * (stages - 1) / m) }
    print(("%12d   %-11s %16.1f %% %9.1f %% %13s %26.0f"):format(m, name, row.formula, row.bubble,
          done and ("%.1f %%"):format(100 * cell.bubble_fraction) or "", activations / 1024))
    table.insert(rows[m], row)
    compared = math.max(compared, math.abs(row.bubble - row.formula))
  end
end
if ran > 0 then sweep:report("runs/schedules.html") end

-- The bubble at an end of the order, and who has it: several, if the table shows no difference.
local function at(m, first)
  table.sort(rows[m], function(a, b) return a.bubble < b.bubble end)
  local shown, names = ("%.1f %%"):format(rows[m][first and 1 or #rows[m]].bubble), {}
  for _, row in ipairs(rows[m]) do
    if ("%.1f %%"):format(row.bubble) == shown then names[#names + 1] = row.name .. "'s" end
  end
  table.sort(names)
  return table.concat(names, " and ") .. ", " .. shown
end
if #rows[4] > 1 and #rows[16] > 1 then
  local function said(m)
    return ("with %d microbatches the largest is %s, and the smallest %s"):format(m, at(m, false), at(m, true))
  end
  print(("Answer: of the predicted bubbles of %d stages, %s; %s; the formulas, of stages that take equally long, are at "
    .. "most %.1f points off."):format(stages, said(4), said(16), compared))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
