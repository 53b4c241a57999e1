-- Sequence parallelism on tp's ranks: what does sp() save, and what does it send for that?
--
-- tp leaves what runs along the residual stream whole on every rank: of what a layer keeps for
-- backward, s b h (10 + 24/t + 5 a s/(h t)) bytes in 16 bits, the 10. sp() cuts it along the
-- sequence; each of tp's all-reduces becomes a reduce-scatter and an all-gather, which together
-- send the same; what is added is a sum over tp of the gradients of norms and biases along that
-- stream, of which each rank now has a part of the tokens. With what linears gather fetched
-- again in backward, activations become s b h/t (34 + 5 a s/h), for one gather more (Korthikanti
-- et al. 2022, arXiv:2205.05198, section 4.2.2 and table 2; docs/recompute.md has the terms that
-- differ here).
--
-- Memory and bytes are those of any machine; no time is compared.
local mw     = require "meshwright"
local tp, sp = mw.plugins("tp", "sp")

local sweep = mw.sweep {
  name = "sequence_parallel",
  base = {
    model     = mw.gpt { layers = 4, hidden = 128, heads = 8, vocab = 256 },
    data      = mw.text { "gcide", sequence = 256 },
    batch     = 4,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 3,
    threads   = 1,
  },
  over = { mix = {
    { name = "tp",             plan = { tp(4) } },
    { name = "tp, sp",         plan = { tp(4), sp() } },
    { name = "tp, sp, gathers", plan = { tp(4), sp() }, recompute = { gathers = true } },
  } },
  same_loss_as = "tp",
}
local cells = sweep:go()

local function bytes(uses)
  local sum = 0
  for _, use in ipairs(uses) do if use.phase ~= "report" then sum = sum + use.bytes end end
  return sum
end

print("                  activations, MiB: measured   predicted   sent a step, MiB: measured   predicted")
local rows, ran, off = {}, 0, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local name = cell.values.mix
    local row = { held = p.memory[1].activations, sent = bytes(p.communication) }
    if done then
      ran, off = ran + 1, math.max(off, math.abs(bytes(cell.communication) - row.sent))
      row = { held = cell.memory.activations, sent = bytes(cell.communication) }
    end
    rows[name] = row
    print(("%-17s %26s %11.2f %28s %11.2f"):format(name, done and ("%.2f"):format(row.held / 2 ^ 20) or "",
          p.memory[1].activations / 2 ^ 20, done and ("%.2f"):format(row.sent / 2 ^ 20) or "",
          bytes(p.communication) / 2 ^ 20))
  end
end
if ran > 0 then sweep:report("runs/sequence_parallel.html") end

local plain, cut, again = rows["tp"], rows["tp, sp"], rows["tp, sp, gathers"]
if plain and cut and again then
  print(("Answer: on tp(4), sp() keeps %.2f of the activations and sends %.3f times the bytes; with gathers made again "
    .. "it keeps %.2f and sends %.3f times as many; %s."):format(cut.held / plain.held, cut.sent / plain.sent,
    again.held / plain.held, again.sent / plain.sent, ran == 0 and "all of it predicted"
      or ("%d of 3 were run, bytes at most %d off predicted"):format(ran, off)))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
