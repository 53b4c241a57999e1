-- The longest sequence that a rank's memory holds, for each way to part it over four ranks:
-- predicted, then run within that limit. The ledger stops a run that needs a byte more.
local mw     = require "meshwright"
local tp, sp = mw.plugins("tp", "sp")

local limit = 48                                -- MiB a rank
local step  = 64                                -- tokens: what all forms can cut
local model = mw.llama { layers = 2, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 }

local forms = {
  { "one rank",           {} },
  { "tp",                 { tp(4) } },
  { "tp, sp",             { tp(4), sp() } },
  { "Ulysses",            { sp { 4, form = "ulysses" } } },
  { "gathered keys",      { sp { 4, form = "allgather" } } },
  { "ring",               { sp { 4, form = "ring" } } },
  { "ring, no zigzag",    { sp { 4, form = "ring", balance = "none" } } },
  { "ring x Ulysses",     { sp { 4, form = "ring", ulysses = 2 } } },
}

local function experiment(plan, sequence)
  return { model = model, data = mw.text { "gcide", sequence = sequence }, plan = plan, batch = 1,
           optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }
end

local function quiet(result)                    -- a result that was shown is not printed at the end
  return tostring(result) and result
end

local function peak(plan, tokens)
  local predicted = quiet(mw.plan(experiment(plan, tokens)))
  return predicted.memory[1].peak
end

-- The most steps of tokens whose predicted peak is within the limit.
local function longest(plan)
  local fits, over = 1, 2
  while peak(plan, over * step) <= limit * 2 ^ 20 do fits, over = over, 2 * over end
  while over - fits > 1 do
    local middle = (fits + over) // 2
    if peak(plan, middle * step) <= limit * 2 ^ 20 then fits = middle else over = middle end
  end
  return fits * step
end

print(("within %d MiB a rank:"):format(limit))
print("  form               tokens   peak, MiB   predicted   activations, MiB   s a step   loss")
local bars = {}
for _, form in ipairs(forms) do
  local name, plan = form[1], form[2]
  local e = experiment(plan, longest(plan))
  e.memory, e.log = limit .. "MiB", "runs/long_context-{name}.h5"
  local tokens, run = e.data.sequence, quiet(mw.train(e))
  local memory = run.predicted.memory[1]        -- "~": kernels too large to be tried, so scratch is an estimate
  local predicted = (memory.scratch_basis == "estimated" and "~" or "") .. ("%.2f"):format(memory.peak / 2 ^ 20)
  print(("  %-17s %7d %11.2f %11s %18.2f %10.2f %6.2f"):format(name, tokens, run.peak_bytes / 2 ^ 20, predicted,
        run.memory.activations / 2 ^ 20, run.step_seconds, run.losses[1]))
  bars[#bars + 1] = { name, tokens, run.status == "done" and tokens or 0 }
end
print("chart: " .. mw.bar_chart { file = "runs/long_context.html", unit = "tokens", series = { "predicted", "run" },
  title = ("The longest sequence within %d MiB a rank"):format(limit), bars = bars })
