-- What `plugins test` runs over a communicator, in two processes: mixes beside one rank, with one
-- rank in a process and with two, then a training whose bytes and memory are held to the prediction.
-- `arg[1]` = "endless": a training that somebody kills.
local mw = require "meshwright"
local dp, tp, pp, zero, sp, ep = mw.plugins("dp", "tp", "pp", "zero", "sp", "ep")

local sizes   = { layers = 4, hidden = 16, heads = 4, ffn = 32, vocab = 32 }
local experts = { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32, experts = 4, top_k = 2 }

local function experiment(plan, steps, model)
  return {
    model = model or mw.llama(sizes), data = mw.synthetic {}, sequence = 8, plan = plan, batch = 8, microbatch = 1,
    optimizer = mw.adamw { lr = 1e-2, clip = 1 }, steps = steps, timeout = 120,
  }
end

if arg[1] == "endless" then
  mw.train(experiment({ dp(2), tp(2) }, 1000000))
else
  for _, plan in ipairs {
    { dp(2) }, { tp(2), sp() }, { pp { 2, schedule = "1f1b" } }, { zero { 2, stage = 3 } }, { sp { 2, form = "ring" } },
    { dp(2), tp(2) }, { pp { 2, schedule = "zb-h1" }, zero { 2, stage = 2 } },
  } do
    mw.verify(experiment(plan, 2))
  end
  mw.verify(experiment({ dp(2), ep(2) }, 2, mw.moe(experts)))
  mw.train(experiment({ dp(2), tp(2) }, 3))
end
