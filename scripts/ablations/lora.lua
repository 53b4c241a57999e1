-- What does LoRA save? Memory and bytes sent of a decoder that is trained whole, and of one whose
-- weights are frozen, with a low-rank sum beside each linear of attention.
--
-- A frozen weight has no gradient and no optimizer state, and nothing of it is reduced (Hu et al.
-- 2021, "LoRA", arXiv:2106.09685, reports a third of the memory of Adam for GPT-3). Its activations
-- stay, as gradients still go through it to the layers before. Under ZeRO 3 frozen weights are
-- sharded like the others.
local mw       = require "meshwright"
local dp, zero = mw.plugins("dp", "zero")

local function decoder(frozen)
  return mw.model {
    name = frozen and "lora" or "whole",
    dims = { hidden = 128, heads = 8, head_dim = 16, ffn = 352, vocab = 256, rank = frozen and 4 or nil },
    graph = function(m)
      local function linear(x, name, to)
        local y = x:linear { to, name = name, frozen = frozen }
        return frozen and y + x:linear { "rank", name = name .. "_a" }:linear { to, name = name .. "_b" } or y
      end
      local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden", frozen = frozen })
      for _ in m:layers(4) do
        local h, heads = x:rms_norm { frozen = frozen }, { "heads", "head_dim" }
        local q, k, v = linear(h, "q", heads), linear(h, "k", heads), linear(h, "v", heads)
        x = x + linear(q:rope():attend(k:rope(), v), "o", "hidden")
        x = x + x:rms_norm { frozen = frozen }:mlp { frozen = frozen }
      end
      return x:rms_norm { frozen = frozen }:linear { "vocab", name = "head", frozen = frozen }:cross_entropy(m.labels)
    end,
  }
end

local function run(frozen, plan)
  local result = mw.train {
    model = decoder(frozen), data = mw.text { "gcide", sequence = 64 }, plan = plan, batch = 8, microbatch = 1,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 4, threads = 1,
  }
  return tostring(result) and result            -- shown: not printed again at the end
end

print("model   plan           parameters, KiB   gradients   optimizer   activations   predicted   sent, KiB")
local function row(name, frozen, plan)
  local result = run(frozen, plan)
  local m, p, sent = result.memory, result.predicted.memory[1], 0
  for _, use in ipairs(result.communication) do sent = sent + use.bytes end
  local states, forecast = m.parameters + m.gradients + m.optimizer, p.parameters + p.gradients + p.optimizer
  print(("%-7s %-14s %15.1f %11.1f %11.1f %13.1f %11.1f %11.1f"):format(frozen and "LoRA" or "whole", name, m.parameters / 1024,
        m.gradients / 1024, m.optimizer / 1024, m.activations / 1024, (forecast + p.activations) / 1024, sent / 1024))
  return { states = states, off = states - forecast, sent = sent, activations = m.activations }
end

local off, found = 0, {}
for _, mix in ipairs { { "dp(2)", { dp(2) } }, { "ZeRO 3", { zero { 2, stage = 3 } } } } do
  local whole, lora = row(mix[1], false, mix[2]), row(mix[1], true, mix[2])
  off = math.max(off, math.abs(whole.off), math.abs(lora.off))
  found[#found + 1] = ("under %s LoRA keeps %.3f of the states, %.2f of the activations, and sends %.3f of the bytes"):format(
    mix[1], lora.states / whole.states, lora.activations / whole.activations, lora.sent / whole.sent)
end
print(("Answer: %s; states are at most %d bytes off the prediction."):format(table.concat(found, "; "), off))
