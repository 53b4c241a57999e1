-- Overlap: how much of what is sent does it hide?
--
-- dp can reduce a bucket of gradients while backward computes the layers before (Li et al. 2020,
-- arXiv:2006.15704); tp can compute weights' gradients while inputs' gradients are summed; ZeRO
-- 3 can gather the next layer's parameters while this one computes (Zhao et al. 2023,
-- arXiv:2304.11277); exchanges of tokens can go beside shared experts. Of c seconds of compute
-- and s of sending that could go on at once, at most min(c, s) is hidden.
--
-- That needs somebody else to do the sending. Here ranks are threads, and the cores that compute
-- are those that copy: nothing is hidden where every core is taken, and a measured step differs by
-- noise. What is run here shows that losses and bytes do not change. What overlap is worth where
-- links work by themselves is predicted: for models of a real size on eight H100 of one machine.
-- There reductions take some of the device from what computes, so a step gains less than it hides.
local mw               = require "meshwright"
local dp, tp, zero, ep = mw.plugins("dp", "tp", "zero", "ep")

local dense = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 }
local moe   = mw.moe { layers = 2, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256,
                       experts = 8, top_k = 2, expert_ffn = 96, shared_experts = 1 }
local sweep = mw.sweep {
  name = "overlap",
  base = {
    model     = dense,
    data      = mw.text { "gcide", sequence = 64 },
    batch     = 8,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 8,
    threads   = 1,
  },
  over = { mix = {
    { name = "dp off",   plan = { dp { 4, bucket = "256KiB", overlap = false } } },
    { name = "dp on",    plan = { dp { 4, bucket = "256KiB", overlap = true } } },
    { name = "tp off",   plan = { tp { 4, overlap = false } } },
    { name = "tp on",    plan = { tp { 4, overlap = true } } },
    { name = "zero off", plan = { zero { 4, stage = 3, prefetch = 0 } } },
    { name = "zero on",  plan = { zero { 4, stage = 3, prefetch = 1 } } },
    { name = "ep off",   plan = { dp(4), ep { 4, overlap = false } }, model = moe },
    { name = "ep on",    plan = { dp(4), ep { 4, overlap = true } }, model = moe },
  } },
}
local cells = sweep:go { workers = 1 }           -- one after the other: they are timed

local function bytes(uses)
  local sum = 0
  for _, use in ipairs(uses) do sum = sum + use.bytes end
  return sum
end

print("           sent a step, KiB   sending, ms   exposed, ms   step, ms: predicted   measured   loss at last")
local rows, ran = {}, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local seconds = 0
    for _, use in ipairs(p.communication) do seconds = seconds + use.seconds end
    local row = { sent = bytes(done and cell.communication or p.communication), exposed = p.exposed_seconds,
                  step = p.step_seconds, measured = done and cell.step_seconds,
                  loss = done and cell.losses[#cell.losses] }
    ran = ran + (done and 1 or 0)
    rows[cell.values.mix] = row
    print(("%-10s %16.0f %13.2f %13.2f %21.1f %10s %14s"):format(cell.values.mix, row.sent / 1024, 1000 * seconds,
          1000 * row.exposed, 1000 * row.step, done and ("%.1f"):format(1000 * row.measured) or "",
          done and ("%.5f"):format(row.loss) or ""))
  end
end
if ran > 0 then sweep:report("runs/overlap.html") end

-- The same on eight H100.
local large = mw.llama { layers = 16, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 128256 }
local wide  = mw.moe { layers = 16, hidden = 2048, heads = 16, ffn = 10944, vocab = 102400, experts = 64, top_k = 6,
                       expert_ffn = 1408, shared_experts = 2, dense_layers = 1 }
local function on_h100(plan, model, microbatch)
  local result = mw.plan {
    model = model, data = mw.synthetic {}, sequence = 4096, plan = plan, batch = 8, microbatch = microbatch or 1,
    recompute = "full", precision = "bf16", optimizer = mw.adamw { lr = 1e-3 }, steps = 1,
    cluster = mw.cluster("dgx-h100", { nodes = 1 }),
  }
  return tostring(result) and result             -- shown: not printed again at the end
end
local there = {
  { "dp",   on_h100({ dp { 8, overlap = false } }, large), on_h100({ dp { 8, overlap = true } }, large) },
  { "tp",   on_h100({ tp { 8, overlap = false } }, large, 8), on_h100({ tp { 8, overlap = true } }, large, 8) },
  { "zero", on_h100({ zero { 8, stage = 3, prefetch = 0 } }, large),
            on_h100({ zero { 8, stage = 3, prefetch = 1 } }, large) },
  { "ep",   on_h100({ dp(8), ep { 8, overlap = false } }, wide), on_h100({ dp(8), ep { 8, overlap = true } }, wide) },
}
print "8 H100     exposed, ms: off      on   step, ms: off      on"
local gains = {}
for _, row in ipairs(there) do
  local form, off, on = table.unpack(row)
  print(("%-10s %16.1f %7.1f %15.1f %7.1f"):format(form, 1000 * off.exposed_seconds, 1000 * on.exposed_seconds,
        1000 * off.step_seconds, 1000 * on.step_seconds))
  gains[#gains + 1] = ("%.1f of %s's %.1f ms and takes its step from %.0f to %.0f ms"):format(
    1000 * (off.exposed_seconds - on.exposed_seconds), form, 1000 * off.exposed_seconds, 1000 * off.step_seconds,
    1000 * on.step_seconds)
end

local hidden, sent, whole, same, apart = 0, 0, true, 0, 0
for _, form in ipairs { "dp", "tp", "zero", "ep" } do
  local off, on = rows[form .. " off"], rows[form .. " on"]
  if off and on then
    hidden, sent = hidden + off.exposed - on.exposed, sent + off.exposed
    if off.sent == on.sent then same = same + 1 end
    if off.loss and on.loss then apart = math.max(apart, math.abs(off.loss - on.loss)) end
  else
    whole = false
  end
end
if whole then
  print(("Answer: on eight H100, by prediction, overlap hides %s; on these cores it hides %.2f of %.2f ms, as they do the "
    .. "sending too; %d of 4 forms send as many bytes with it as without%s."):format(table.concat(gains, ", "),
    1000 * hidden, 1000 * sent, same,
    ran == 8 and (", and their last losses are at most %.1e apart"):format(apart) or ""))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
