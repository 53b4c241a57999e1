-- Pitfall: a pipeline with few microbatches. How much of a step do its stages idle?
--
-- The last stage waits for the first microbatch and the first for its gradient: with p stages
-- and m microbatches of 1F1B they idle (p - 1)/m of the time that they work, (p - 1)/(m + p - 1)
-- of the step (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). The cure is more, smaller
-- microbatches, which hold less at a time too; a rule of thumb is m of 4 p or more. Where the
-- batch has no more, a schedule that parts backward fills two thirds of the wait (ZB-H1: Qi et
-- al. 2023, arXiv:2401.10241).
--
-- The formula is for stages that take equally long; the prediction has each stage's own times,
-- on ranks with a core each. What is measured where fewer cores than stages are free is mostly
-- waiting for a core. On a cluster smaller microbatches also reach less of a device's peak,
-- which no bubble shows.
local mw = require "meshwright"
local pp = mw.plugins("pp")

local stages, batch = 4, 16
local sweep = mw.sweep {
  name = "few_microbatches",
  base = {
    model     = mw.llama { layers = 8, hidden = 128, heads = 4, ffn = 352, vocab = 256 },
    data      = mw.text { "gcide", sequence = 64 },
    batch     = batch,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 3,
    threads   = 1,
  },
  over = { mix = {
    { name = "2, 1f1b",  plan = { pp { stages, schedule = "1f1b" } }, microbatch = batch // 2 },
    { name = "2, zb-h1", plan = { pp { stages, schedule = "zb-h1" } }, microbatch = batch // 2 },
    { name = "4, 1f1b",  plan = { pp { stages, schedule = "1f1b" } }, microbatch = batch // 4 },
    { name = "16, 1f1b", plan = { pp { stages, schedule = "1f1b" } }, microbatch = batch // 16 },
  } },
  same_loss_as = "16, 1f1b",
}
local cells = sweep:go()

local function formula(m) return 100 * (stages - 1) / (m + stages - 1) end

print("microbatches   bubble of 1F1B by formula   predicted   measured here   peak of the fullest stage, MiB")
local rows, ran = {}, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local row = { m = tonumber(cell.values.mix:match "%d+"), bubble = 100 * p.bubble_fraction, peak = p.peak_bytes }
    if done then ran, row.peak = ran + 1, cell.peak_bytes end
    rows[cell.values.mix] = row
    print(("%-12s %25.1f %% %9.1f %% %13s %32.2f"):format(cell.values.mix, formula(row.m), row.bubble,
          done and ("%.1f %%"):format(100 * cell.bubble_fraction) or "", row.peak / 2 ^ 20))
  end
end
if ran > 0 then sweep:report("runs/few_microbatches.html") end

local few, filled, many = rows["2, 1f1b"], rows["2, zb-h1"], rows["16, 1f1b"]
if few and filled and many then
  print(("Mistake: %d stages with %d microbatches idle %.1f %% of a step by prediction (%.1f %% by the formula) and "
    .. "hold %.2f MiB."):format(stages, few.m, few.bubble, formula(few.m), few.peak / 2 ^ 20))
  print(("Cure: with %d microbatches of the same batch they idle %.1f %% (%.1f %%) and hold %.2f MiB; where there are "
    .. "no more than %d, zb-h1 idles %.1f %%."):format(many.m, many.bubble, formula(many.m), many.peak / 2 ^ 20, few.m,
    filled.bubble))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
