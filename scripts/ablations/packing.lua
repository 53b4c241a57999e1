-- Documents: what do policies that pack them gain, as rows get longer?
--
-- A token sees its own document alone, so the work of a row is the sum over its documents of the
-- squares of their lengths. A row that is one long document then takes a multiple of the time of a
-- row of many short ones; ranks wait for the slowest, and stages for the slowest microbatch.
-- WLB-LLM (Wang et al. 2025, arXiv:2503.17924) packs documents by work and parts them by document
-- within a context group, and reports 1.23 times the speed on average. Here documents are packed
-- greedily (the longest first, where there is room), or balanced (where there is least work), and
-- rows are dealt to ranks and microbatches so that these have equal work; at last, each document
-- is parted over the ranks that share its row.
--
-- lengths.csv are the lengths of a public collection: the 4,847 files of git's own repository
-- (commit 1a3e64c6c4a6), a token taken as 4 bytes, in 50 classes. Files of more than 8,192 tokens
-- have 60 % of all tokens.
--
-- The script runs rows of 1,024 tokens on two ranks, whose documents have a median of 22 tokens and
-- a few very long ones. It predicts rows of 8 k to 128 k for 64 H100.
local mw = require "meshwright"
local dp, tp, pp, zero, sp = mw.plugins("dp", "tp", "pp", "zero", "sp")

local lengths = "lengths.csv"
local policies = {
  { name = "sequential" },
  { name = "dealt",    balance_ranks = true },
  { name = "greedy",   into = "greedy" },
  { name = "balanced", into = "balanced" },
  { name = "parted",   into = "balanced", by = "documents" },
}
local function packed(policy, of)
  return mw.pack { mw.synthetic {}, lengths = of, into = policy.into, balance_ranks = policy.balance_ranks }
end

local short = {}                                  -- each policy, for documents that fit rows of 1,024
for _, policy in ipairs(policies) do
  if not policy.by then                           -- no ranks share a row here
    short[#short + 1] = { name = policy.name, data = packed(policy, mw.lognormal { median = 22, sigma = 1.8 }) }
  end
end
local sweep = mw.sweep {
  name = "packing",
  base = {
    model      = mw.llama { layers = 2, hidden = 64, heads = 8, ffn = 128, vocab = 256 },
    sequence   = 1024,
    plan       = { dp(2) },
    batch      = 8,
    microbatch = 1,
    optimizer  = mw.adamw { lr = 1e-3 },
    steps      = 8,
    threads    = 1,
  },
  over = { policy = short },
}
local cells = sweep:go { workers = 1 }            -- one after the other: they are timed

print("here         work   fullest rank   microbatch   step, ms: predicted   measured")
local ran = 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local d = p.documents
    ran = ran + (done and 1 or 0)
    print(("%-10s %5.0f %% %14.2f %12.2f %21.1f %10s"):format(cell.values.policy, 100 * d.work, d.imbalance.ranks,
          d.imbalance.microbatches, 1000 * d.mean_seconds, done and ("%.1f"):format(1000 * cell.step_seconds) or ""))
  end
end
if ran > 0 then sweep:report("runs/packing.html") end

-- Rows of a real size: Llama 3 of 8 G parameters, 2 M tokens a step.
local function on_h100(sequence, policy)
  local result = mw.plan {
    model = mw.llama { layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 128256 },
    data = packed(policy, lengths), sequence = sequence, batch = (1 << 21) // sequence, microbatch = 1,
    plan = { pp { 4, schedule = "1f1b" }, zero(2), sp { 2, form = "allgather", balance = policy.by }, tp(4), sp() },
    recompute = "selective", precision = "bf16", optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
    cluster = mw.cluster("dgx-h100", { nodes = 8 }), stack = mw.stack "megatron-core",
  }
  return tostring(result) and result.documents     -- shown: not printed again at the end
end
print "64 H100   tokens   policy        work   fullest rank   microbatch   of a sequence   step, s: mean      95 %   speed"
local gains = {}
for _, tokens in ipairs { 8, 32, 128 } do
  local first
  for _, policy in ipairs(policies) do
    local d = on_h100(tokens * 1024, policy)
    first = first or d.mean_seconds
    gains[tokens] = math.max(gains[tokens] or 0, first / d.mean_seconds)
    print(("%14d k   %-10s %5.0f %% %14.2f %12.2f %15.2f %15.2f %9.2f %7.2f"):format(tokens, policy.name, 100 * d.work,
          d.imbalance.ranks, d.imbalance.microbatches, d.imbalance.context, d.mean_seconds, d.p95_seconds,
          first / d.mean_seconds))
  end
end
print(("Answer: by prediction for 64 H100, the best policy makes steps %.2f times as fast for rows of 8 k tokens, "
  .. "%.2f times for 32 k, and %.2f times for 128 k."):format(gains[8], gains[32], gains[128]))
