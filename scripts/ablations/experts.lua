-- Experts: what does the width of ep save and send, and how uneven is what tokens choose?
--
-- With ep(n) a rank holds 1/n of the experts, and T tokens send T top_k h (n - 1)/n elements to
-- them and as many back, in each layer, forward and backward, if choices are even (Lepikhin et
-- al. 2020, arXiv:2006.16668). The gradients of experts are reduced over fewer copies: from dp's
-- whole all-reduce at n = 1 to nothing at n = dp. Choices are not even: a rank of few experts is
-- as late as its fullest. A loss on uneven choices evens them out with time (Fedus, Zoph and
-- Shazeer 2022, arXiv:2101.03961); the width itself does not change what is chosen. An expert
-- that all tokens choose has experts/top_k times the mean, 4 here.
--
-- Parameters and predicted bytes are those of any machine; what tokens choose is that of this
-- model, text and number of steps, and the same for every width. No time is compared.
local mw     = require "meshwright"
local dp, ep = mw.plugins("dp", "ep")

local function model(balance)
  return mw.moe { layers = 2, hidden = 64, heads = 4, ffn = 172, vocab = 256, experts = 8, top_k = 2, expert_ffn = 128,
                  score = "sigmoid", balance = balance, aux_weight = balance == "aux" and 0.05 or nil }
end
local sweep = mw.sweep {
  name = "experts",
  base = {
    data      = mw.text { "gcide", sequence = 128 },
    batch     = 8,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 30,
    threads   = 1,
  },
  over = {
    balance = { { name = "none", model = model("none") }, { name = "aux", model = model("aux") } },
    width = {
      { name = "1", plan = { dp(8) } },
      { name = "2", plan = { dp(8), ep(2) } },
      { name = "4", plan = { dp(8), ep(4) } },
      { name = "8", plan = { dp(8), ep(8) } },
    },
  },
}
local cells = sweep:go()

-- Bytes of exchanges and of all else.
local function bytes(uses)
  local exchanged, reduced = 0, 0
  for _, use in ipairs(uses) do
    if use.axis == "ep" then exchanged = exchanged + use.bytes
    elseif use.phase ~= "report" then reduced = reduced + use.bytes end
  end
  return exchanged, reduced
end

-- The fullest rank's choices over the mean of the ranks, of the last step's fullest layer.
local function of_ranks(experts, ways)
  local worst = 1
  for _, layer in ipairs(experts.layers) do
    local sum, rank, most = 0, 0, 0
    for i, chosen in ipairs(layer.chosen) do
      sum, rank = sum + chosen, rank + chosen
      if i % (#layer.chosen // ways) == 0 then most, rank = math.max(most, rank), 0 end
    end
    worst = math.max(worst, most * ways / sum)
  end
  return worst
end

print("balance   ep   states, KiB   exchanged, KiB: measured   predicted   reduced, KiB   fullest expert   rank")
local rows, ran, steps = {}, 0, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local ways, m = tonumber(cell.values.width), p.memory[1]
    local even, reduced = bytes(p.communication)
    local row = { states = m.parameters + m.gradients + m.optimizer, exchanged = even, reduced = reduced }
    if done then
      ran, steps = ran + 1, cell.steps
      row.exchanged = bytes(cell.communication)
      row.expert, row.rank = cell.experts.imbalance, of_ranks(cell.experts, ways)
    end
    rows[cell.values.balance .. ways] = row
    print(("%-7s %4d %13.0f %26s %11.0f %14.0f %16s %6s"):format(cell.values.balance, ways, row.states / 1024,
          done and ("%.0f"):format(row.exchanged / 1024) or "", even / 1024, reduced / 1024,
          done and ("%.2f"):format(row.expert) or "", done and ("%.2f"):format(row.rank) or ""))
  end
end
if ran > 0 then sweep:report("runs/experts.html") end

local one, wide, even = rows.none1, rows.none8, rows.aux8
if one and wide and even then
  local line = ("Answer: ep(8) holds %.2f of the states of ep(1), exchanges %.0f KiB a rank and step and reduces "
    .. "%.0f in place of %.0f KiB"):format(wide.states / one.states, wide.exchanged / 1024,
    wide.reduced / 1024, one.reduced / 1024)
  local two = rows.none2
  if ran == 8 then
    line = line .. ("; after %d steps its fullest rank has %.2f times the mean, ep(2)'s %.2f, "
      .. "and with a balancing loss ep(8)'s %.2f"):format(steps, wide.rank, two.rank, even.rank)
  end
  print(line .. (ran == 0 and ", all of it predicted." or "."))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
