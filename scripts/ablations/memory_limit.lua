-- What is the largest model, and the largest batch, that 8 ranks hold under a limit: with plain
-- data parallelism, and with ZeRO?
--
-- States of F parameters take 16 F bytes a rank with dp, (8 + 8/8) F, (4 + 12/8) F and 16/8 F
-- with ZeRO 1, 2 and 3 (Rajbhandari et al. 2020, arXiv:1910.02054), beside activations, which
-- grow with the batch and with layers and which ZeRO leaves alone, and beside what ZeRO gathers
-- for a moment. So the largest model grows less than 8 times, and the largest batch by what the
-- states leave.
--
-- What is found is by prediction, one layer or one sequence a rank at a time; the largest models
-- are then trained within that limit, and the ledger ends a run that needs a byte more. Memory
-- is that of any machine.
local mw       = require "meshwright"
local dp, zero = mw.plugins("dp", "zero")

local ranks, limit = 8, 16 * 2 ^ 20              -- bytes a rank
local mixes = {
  { name = "dp",     plan = { dp(ranks) } },
  { name = "ZeRO 1", plan = { zero { ranks, stage = 1 } } },
  { name = "ZeRO 2", plan = { zero { ranks, stage = 2 } } },
  { name = "ZeRO 3", plan = { zero { ranks, stage = 3 } } },
}

local function model(layers)
  return mw.llama { layers = layers, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 }
end
local function experiment(mix, layers, batch)
  return { model = model(layers), data = mw.text { "gcide", sequence = 32 }, plan = mix.plan, batch = batch,
           optimizer = mw.adamw { lr = 1e-3 }, steps = 2, threads = 1 }
end
local function peak(mix, layers, sequences)
  local plan = mw.plan(experiment(mix, layers, ranks * sequences))
  return tostring(plan) and plan.peak_bytes      -- shown: not printed again at the end
end

-- The largest number whose plan fits; 0: none.
local function largest(fits)
  if not fits(1) then return 0 end
  local most, over = 1, 2
  while fits(over) do most, over = over, 2 * over end
  while over - most > 1 do
    local middle = (most + over) // 2
    if fits(middle) then most = middle else over = middle end
  end
  return most
end

local grid = {}
for _, mix in ipairs(mixes) do
  mix.layers = largest(function(n) return peak(mix, n, 1) <= limit end)
  grid[#grid + 1] = { name = mix.name, plan = mix.plan, model = model(math.max(1, mix.layers)) }
end
local base = experiment(mixes[1], 1, ranks)
base.plan, base.model, base.memory = nil, nil, limit
local sweep = mw.sweep { name = "memory_limit", base = base, over = { mix = grid } }
local cells = sweep:go()

print(("%d ranks, %.0f MiB each   layers that fit   parameters   peak, MiB: predicted   measured   "
  .. "largest batch, of %d layers"):format(ranks, limit / 2 ^ 20, mixes[1].layers))
local of, ran, within = {}, 0, 0
for _, cell in ipairs(cells) do of[cell.values.mix] = cell end
for _, mix in ipairs(mixes) do
  local cell = of[mix.name]
  mix.batch = ranks * largest(function(n) return peak(mix, math.max(1, mixes[1].layers), n) <= limit end)
  local p, done = cell and cell.predicted, cell and cell.status == "done"
  if p then mix.parameters = p.parameters end
  if done then
    ran = ran + 1
    if cell.peak_bytes <= limit then within = within + 1 end
  end
  print(("%-24s %15d %12s %22s %10s %28d"):format(mix.name, mix.layers,
        p and ("%.0f k"):format(p.parameters / 1e3) or "",
        p and ("%.2f"):format(p.peak_bytes / 2 ^ 20) or "", done and ("%.2f"):format(cell.peak_bytes / 2 ^ 20) or "",
        mix.batch))
end
if ran > 0 then sweep:report("runs/memory_limit.html") end

local plain, full = mixes[1], mixes[4]
if plain.parameters and full.parameters and plain.layers > 0 then
  print(("Answer: in %.0f MiB a rank the largest model has %.0f k parameters with dp and %.0f k with ZeRO 3, %.2f times "
    .. "as many, and of dp's largest the largest batch is %d sequences with dp and %d with ZeRO 3; %s."):format(limit / 2 ^ 20,
    plain.parameters / 1e3, full.parameters / 1e3, full.parameters / plain.parameters, plain.batch, full.batch,
    ran == 0 and "all of it predicted" or ("%d were run, and %d of them stayed within the limit"):format(ran, within)))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
