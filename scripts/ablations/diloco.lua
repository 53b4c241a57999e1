-- What does it cost in loss, and save between nodes, if replicas come together only every 20 steps?
--
-- Local SGD lets each replica train by itself and takes their mean (Stich 2019). DiLoCo moves what
-- they have alike by an outer optimizer (Douillard et al. 2023, arXiv:2311.08105), and its
-- streaming form sends a fragment of the layers at a time, in bf16, while the replicas train on
-- (Douillard et al. 2025, arXiv:2501.18512). Trained here on English text, each mix with the same
-- samples; predicted for a model of 1.1 billion parameters on eight nodes of eight H100, which
-- Ethernet of 25 Gb/s a GPU joins. Where InfiniBand joins them, the backward hides the sums of dp.
local mw = require "meshwright"
local diloco, dp, zero = mw.plugins("diloco", "dp", "zero")

local every = 20
local nesterov = mw.sgd { lr = 0.7, momentum = 0.5, nesterov = true }  -- the paper's 0.9 needs more outer steps than these 12
local mixes = {
  { "dp", function(n) return dp(n) end },
  { "Local SGD", function(n) return diloco { n, every = every, outer = "mean" } end },
  { "DiLoCo", function(n) return diloco { n, every = every, outer = nesterov } end },
  { "streaming", function(n)
    return diloco { n, every = every, outer = nesterov, fragments = 4, delay = 1, keeps = 0.5, dtype = "bf16" }
  end },
}

local function shown(result) return tostring(result) and result end  -- not printed again at the end

local function trained(name, entry)
  return shown(mw.train {
    model = mw.llama { layers = 4, hidden = 64, heads = 4, kv_heads = 4, ffn = 172, vocab = 256 }, sequence = 64,
    data = mw.text { "gcide", part = { 0, 0.9 } }, plan = { entry(4) }, batch = 32, steps = 240, threads = 1,
    optimizer = mw.adamw { lr = 2e-3, clip = 1.0 }, schedule = mw.cosine { warmup = 20 },
    evaluate = { data = mw.text { "gcide", part = { 0.9, 1 } }, every = 240, batches = 8,
      by = name == "streaming" and "anchor" or "parameters" } })
end

local function predicted(entry)
  return shown(mw.plan {
    model = mw.llama { layers = 16, hidden = 2048, heads = 16, kv_heads = 16, ffn = 5632, vocab = 32000 }, sequence = 2048,
    data = mw.synthetic {}, plan = { entry(8), zero { 8, stage = 1 } }, batch = 128, steps = 240, precision = "bf16",
    optimizer = mw.adamw { lr = 2e-3 },
    cluster = mw.cluster("dgx-h100", { nodes = 8, network = { nic = 3.125e9, share = 0.88, latency = 15e-6, hop = 6e-6 } }) })
end

print("mix          held-out loss   GiB between nodes a step   tokens/s on 64 H100")
local loss, bytes, speed = {}, {}, {}
for _, mix in ipairs(mixes) do
  local name, entry = mix[1], mix[2]
  local run, plan = trained(name, entry), predicted(entry)
  local sent = plan.outer and plan.outer.bytes / every or 0
  for _, use in ipairs(plan.communication) do if use.axis == "dp" then sent = sent + use.bytes end end
  loss[name], bytes[name], speed[name] = run.held_out_loss, sent, plan.tokens_per_second
  print(("%-12s %13.4f %26.4f %21.0f"):format(name, loss[name], sent / 2 ^ 30, speed[name]))
end
local function against(name)
  return ("%s ends %.3f %s, sends %.3f of the bytes and trains %.2f times as many tokens a second"):format(
    name, math.abs(loss[name] - loss.dp), loss[name] > loss.dp and "above" or "below", bytes[name] / bytes.dp,
    speed[name] / speed.dp)
end
print(("Answer: beside dp, whose held-out loss is %.3f, %s; %s; %s."):format(
  loss.dp, against "Local SGD", against "DiLoCo", against "streaming"))
