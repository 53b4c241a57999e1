-- Pitfall: tensor parallelism over all ranks of a model that is not wide. What does it cost
-- beside splitting the batch?
--
-- tp sends 2 (t - 1)/t of b s h elements 4 times a layer and microbatch (Shoeybi et al. 2019,
-- arXiv:1909.08053): that grows with the tokens and waits in the middle of every layer. dp sends
-- 2 (d - 1)/d of the parameters once a step, at its end, while backward goes on. And of a matrix
-- of ffn columns a rank of tp(8) has an eighth: thin matrices reach less of a device's peak. tp
-- is for what does not fit otherwise.
--
-- Bytes, widths and memory are those of any machine; on a cluster the bytes of tp(8) are
-- bearable inside a machine and not between two. Tokens/s are those of this one, whose cores all
-- ranks share.
local mw     = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local ffn = 352
local sweep = mw.sweep {
  name = "tp_too_wide",
  base = {
    model     = mw.llama { layers = 4, hidden = 128, heads = 8, ffn = ffn, vocab = 256 },
    data      = mw.text { "gcide", sequence = 128 },
    batch     = 16,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 5,
    threads   = 1,
  },
  over = { mix = {
    { name = "tp(8)",        plan = { tp(8) } },
    { name = "{ dp(4), tp(2) }", plan = { dp(4), tp(2) } },
    { name = "dp(8)",        plan = { dp(8) } },
  } },
  same_loss_as = "dp(8)",
}
local cells = sweep:go { workers = 1 }           -- one after the other: they are timed

local function bytes(uses)
  local sum = 0
  for _, use in ipairs(uses) do if use.phase ~= "report" then sum = sum + use.bytes end end
  return sum
end

local columns = { ["tp(8)"] = ffn // 8, ["{ dp(4), tp(2) }"] = ffn // 2, ["dp(8)"] = ffn }
print("                sent a rank and step, MiB   ffn's columns a rank   peak, MiB   tokens/s: measured   predicted")
local rows, ran = {}, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local name = cell.values.mix
    local row = { sent = bytes(done and cell.communication or p.communication), columns = columns[name],
                  peak = done and cell.peak_bytes or p.peak_bytes, speed = done and cell.tokens_per_second or nil }
    ran = ran + (done and 1 or 0)
    rows[name] = row
    print(("%-15s %25.2f %22d %11.2f %20s %11.0f"):format(name, row.sent / 2 ^ 20, row.columns, row.peak / 2 ^ 20,
          done and ("%.0f"):format(row.speed) or "", p.tokens_per_second))
  end
end
if ran > 0 then sweep:report("runs/tp_too_wide.html") end

local wide, mixed, plain = rows["tp(8)"], rows["{ dp(4), tp(2) }"], rows["dp(8)"]
if wide and mixed and plain then
  local function speed(row) return row.speed and (", at %.0f tokens/s"):format(row.speed) or "" end
  print(("Mistake: tp(8) sends %.2f MiB a rank and step, %.2f times what dp(8) sends, and leaves a rank %d of ffn's %d "
    .. "columns%s."):format(wide.sent / 2 ^ 20, wide.sent / plain.sent, wide.columns, ffn, speed(wide)))
  print(("Cure: dp(8) sends %.2f MiB and holds %.2f in place of %.2f%s; where that does not fit, { dp(4), tp(2) } sends %.2f "
    .. "and holds %.2f%s."):format(plain.sent / 2 ^ 20, plain.peak / 2 ^ 20, wide.peak / 2 ^ 20, speed(plain),
    mixed.sent / 2 ^ 20, mixed.peak / 2 ^ 20, speed(mixed)))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
