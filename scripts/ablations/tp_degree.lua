-- Tensor parallelism: up to which degree do tokens/s grow?
--
-- Of t ranks each computes 1/t of every layer, and sends 2 (t - 1)/t of each sum: 4 sums a layer
-- of b s h elements (Shoeybi et al. 2019, arXiv:1909.08053), whatever t is. So work a rank falls
-- with t and bytes do not, and from some degree on another doubling makes a step slower.
-- Matrices of a t-th of the width also reach less of the peak.
--
-- Bytes and flops a rank are those of any machine. Where tokens/s fall is not: here ranks are
-- threads, so it is at the latest where there are more of them than cores, as all have the same
-- work to do and the sums on top; on a cluster it is usually where tp leaves the machine. The
-- prediction supposes that the cores do nothing else; what is measured on a machine that does is
-- less, and a few percent between two cells are noise.
local mw = require "meshwright"
local tp = mw.plugins("tp")

local sweep = mw.sweep {
  name = "tp_degree",
  base = {
    model     = mw.llama { layers = 4, hidden = 256, heads = 8, ffn = 704, vocab = 256 },
    data      = mw.text { "gcide", sequence = 128 },
    batch     = 4,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 8,
    threads   = 1,
  },
  over = { degree = {
    { name = "1", plan = {} },
    { name = "2", plan = { tp(2) } },
    { name = "4", plan = { tp(4) } },
    { name = "8", plan = { tp(8) } },
  } },
  same_loss_as = "1",
}
local cells = sweep:go { workers = 1 }           -- one after the other: they are timed

local function bytes(uses)
  local sum = 0
  for _, use in ipairs(uses) do if use.axis == "tp" and use.phase ~= "report" then sum = sum + use.bytes end end
  return sum
end

print("tp   tokens/s, measured   predicted   sent a rank and step, MiB   predicted   M flop a rank   bytes/1000 flop")
local rows, ran = {}, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local t = tonumber(cell.values.degree)
    local row = { t = t, speed = done and cell.tokens_per_second or p.tokens_per_second,
                  predicted = p.tokens_per_second,
                  sent = bytes(done and cell.communication or p.communication), flops = p.flops_per_step / t }
    ran = ran + (done and 1 or 0)
    rows[#rows + 1] = row
    print(("%2d %20s %11.0f %27.2f %11.2f %15.0f %17.2f"):format(t,
          done and ("%.0f"):format(row.speed) or "", row.predicted,
          row.sent / 2 ^ 20, bytes(p.communication) / 2 ^ 20, row.flops / 1e6, 1000 * row.sent / row.flops))
  end
end
if ran > 0 then sweep:report("runs/tp_degree.html") end

-- The first degree that is slower than the one before it.
local function falls(key)
  for i = 2, #rows do
    if rows[i][key] < rows[i - 1][key] then
      return ("fall at tp(%d), %.0f after %.0f"):format(rows[i].t, rows[i][key], rows[i - 1][key])
    end
  end
  return ("do not fall up to tp(%d), %.0f"):format(rows[#rows].t, rows[#rows][key])
end
if #rows == 4 and (ran == 0 or ran == 4) then
  local measured = ran == 4 and falls("speed") .. ", and " or ""
  print(("Answer: tokens/s %sby prediction %s; from tp(2) to tp(8) a rank's work falls to %.2f of it and its bytes grow "
    .. "%.2f times."):format(measured, falls("predicted"), rows[4].flops / rows[2].flops, rows[4].sent / rows[2].sent))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
