-- Every rank, one owner, or each rank of tp its own part: who should orthogonalise Muon's matrices?
--
-- Newton-Schulz needs a whole matrix. Ranks of tp gather it, and ranks of dp have it anyway. If
-- every rank orthogonalises it ("every"), all do the same work. An owner ("owner") does the work
-- for all, and the others get their part (Jordan 2024; Liu et al. 2025, arXiv:2502.16982). With
-- "shards", each rank of tp keeps its part, and the ranks sum a Gram matrix in each step. Matrices
-- of one bucket are shared out to owners, so that large buckets have work for all ranks. Predicted
-- on eight H100 at billions of parameters; compared with one rank in float64 and measured here,
-- on small models.
local mw = require "meshwright"
local dp, tp, zero = mw.plugins("dp", "tp", "zero")

local mixes = { { "dp(8)", { dp { 8, bucket = "2GB" } }, { dp(2) } }, { "tp(8)", { tp(8) }, { tp(2) } },
                { "ZeRO 1 x tp(4)", { zero { 2, stage = 1, bucket = "2GB" }, tp(4) }, { zero { 2, stage = 1 }, tp(2) } } }

local function experiment(by, plan, more)
  local e = { model = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 8, ffn = 352, vocab = 256 }, sequence = 64,
    data = mw.synthetic {}, plan = plan, batch = 8, microbatch = 1, steps = 2, threads = 1,
    optimizer = mw.muon { lr = 2e-3, matrices = by } }
  for key, value in pairs(more or {}) do e[key] = value end
  return e
end

local large = {
  model = mw.llama { layers = 16, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 32000 },
  sequence = 4096, data = mw.synthetic {}, batch = 64, precision = "bf16", cluster = mw.cluster("dgx-h100", { nodes = 1 }) }

local wide = mw.llama { layers = 2, hidden = 384, heads = 8, kv_heads = 8, ffn = 1024, vocab = 256 }

local function shown(result) return tostring(result) and result end  -- not printed again at the end

print("mix              matrices   step on H100, s   sent by updates, GiB   two ranks here, ms a step")
local best, apart = {}, 0
for _, mix in ipairs(mixes) do
  local step = {}
  for _, by in ipairs { "every", "owner", "shards" } do
    local plan = shown(mw.plan(experiment(by, mix[2], large)))
    local bytes = 0
    for _, use in ipairs(plan.communication) do if use.phase == "optimizer" then bytes = bytes + use.bytes end end
    local verdict = shown(mw.verify(experiment(by, mix[3])))
    for _, error in pairs(verdict.max_relative_error) do apart = math.max(apart, error) end
    local run = shown(mw.train(experiment(by, mix[3], { model = wide, steps = 6 })))
    step[by] = plan.step_seconds
    print(("%-16s %-10s %15.3f %22.2f %26.0f"):format(mix[1], by, step[by], bytes / 2 ^ 30, 1000 * run.step_seconds))
  end
  best[#best + 1] = ("with %s a step takes %.2f of the time with an owner, %.2f by shards"):format(
    mix[1], step.owner / step.every, step.shards / step.every)
end
print(("Answer: %s; all equal one rank to %.0e."):format(table.concat(best, ", "), math.max(apart, 1e-16)))
