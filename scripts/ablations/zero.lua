-- ZeRO: what does each stage save on 8 ranks, and what does it send for that?
--
-- Of F parameters in fp32 with AdamW, dp keeps 4 F bytes of parameters, 4 F of gradients and 8 F
-- of optimizer state on every rank. Of N ranks, stage 1 keeps one Nth of the optimizer's state
-- on each, stage 2 of gradients too, stage 3 of parameters too (Rajbhandari et al. 2020,
-- arXiv:1910.02054, section 5). Stages 1 and 2 send what dp's all-reduce sends, 2 (N - 1)/N of 4
-- F bytes; stage 3 gathers parameters for forward and for backward, 3 (N - 1)/N at most.
--
-- Memory and bytes are those of any machine and hold for a cluster. Times would not: the ranks
-- share these cores.
local mw       = require "meshwright"
local dp, zero = mw.plugins("dp", "zero")

local ranks = 8
local sweep = mw.sweep {
  name = "zero",
  base = {
    model     = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
    data      = mw.text { "gcide", sequence = 64 },
    batch     = ranks,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 4,
    threads   = 1,
  },
  over = { mix = {
    { name = "dp",     plan = { dp(ranks) } },
    { name = "ZeRO 1", plan = { zero { ranks, stage = 1 } } },
    { name = "ZeRO 2", plan = { zero { ranks, stage = 2 } } },
    { name = "ZeRO 3", plan = { zero { ranks, stage = 3 } } },
  } },
  same_loss_as = "dp",
}
local cells = sweep:go()

-- Of what lasts from step to step, how much of F parameters a rank keeps; and what it sends a
-- step.
local held = { dp = 16, ["ZeRO 1"] = 8 + 8 / ranks, ["ZeRO 2"] = 4 + 12 / ranks, ["ZeRO 3"] = 16 / ranks }
local sent = { dp = 8, ["ZeRO 1"] = 8, ["ZeRO 2"] = 8, ["ZeRO 3"] = 12 }

local function states(memory) return memory.parameters + memory.gradients + memory.optimizer end
local function bytes(uses)
  local sum = 0
  for _, use in ipairs(uses) do if use.phase ~= "report" then sum = sum + use.bytes end end
  return sum
end

print("KiB a rank   states: measured   predicted   formula   sent a step: measured   predicted   formula   peak")
local rows, ran, off = {}, 0, 0
for _, cell in ipairs(cells) do
  local name, p, done = cell.values.mix, cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local row = { name = name, states = states(p.memory[1]), sent = bytes(p.communication), parameters = p.parameters }
    if done then
      ran = ran + 1
      off = math.max(off, math.abs(states(cell.memory) - row.states), math.abs(bytes(cell.communication) - row.sent))
      row.states, row.sent = states(cell.memory), bytes(cell.communication)
    end
    rows[name] = row
    print(("%-10s %18s %11.1f %9.1f %23s %11.1f %9.1f %6.0f"):format(name,
          done and ("%.1f"):format(row.states / 1024) or "",
          states(p.memory[1]) / 1024, held[name] * p.parameters / 1024, done and ("%.1f"):format(row.sent / 1024) or "",
          bytes(p.communication) / 1024, sent[name] * (ranks - 1) / ranks * p.parameters / 1024,
          (done and cell.peak_bytes or p.peak_bytes) / 1024))
  end
end
if ran > 0 then sweep:report("runs/zero.html") end

local all, one, two, three = rows["dp"], rows["ZeRO 1"], rows["ZeRO 2"], rows["ZeRO 3"]
if all and one and two and three then
  print(("Answer: of dp's states a rank keeps %.3f with ZeRO 1, %.3f with ZeRO 2 and %.3f with ZeRO 3, by the paper "
    .. "%.3f, %.3f and %.3f; they send %.2f, %.2f and %.2f times dp's bytes; %s."):format(one.states / all.states,
    two.states / all.states, three.states / all.states, held["ZeRO 1"] / 16, held["ZeRO 2"] / 16, held["ZeRO 3"] / 16,
    one.sent / all.sent, two.sent / all.sent, three.sent / all.sent, ran == 0 and "all of it predicted"
      or ("%d of 4 were run, and measured is at most %d bytes off predicted"):format(ran, off)))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
