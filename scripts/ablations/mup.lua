-- Does the best learning rate stay the same as a model gets wider?
--
-- The usual parameterization needs a lower rate for a wider model. In muP (Yang et al. 2022,
-- "Tensor Programs V", arXiv:2203.03466, table 3, for Adam) the rate that is best for a narrow
-- model is best for a wide one. MuP draws the weights of matrices with a standard deviation of
-- fan-in^-1/2, and the head's with 1 / fan-in. It divides the rates of matrices and of the head by
-- width / base, where base is a width for which nothing changes.
--
-- muP is a script here: initial scales are the model's, and rates are groups of the optimizer. The
-- script trains two widths at five rates each, in both ways.
local mw = require "meshwright"

local base, widths, rates, steps = 32, { 32, 256 }, { -12, -10, -8, -6, -4 }, 60   -- rates: powers of 2

local function decoder(width, mup)
  return mw.model {
    name = "mup", dims = { hidden = width, heads = width // 16, head_dim = 16, ffn = 2 * width, vocab = 256 },
    graph = function(m)
      local function linear(x, to, name, from)
        return x:linear { to, name = name, std = mup and from ^ -0.5 or 0.02 }
      end
      local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden", std = mup and 1 or 0.02 })
      for _ in m:layers(2) do
        local h, heads = x:rms_norm(), { "heads", "head_dim" }
        local q, k, v = linear(h, heads, "q", width), linear(h, heads, "k", width), linear(h, heads, "v", width)
        x = x + linear(q:rope():attend(k:rope(), v), "hidden", "o", width)
        h = x:rms_norm()
        x = x + linear(linear(h, "ffn", "up", width):gelu(), "hidden", "down", 2 * width)
      end
      local head = { "vocab", name = "head", std = mup and base ^ 0.5 / width or 0.02 }
      return x:rms_norm():linear(head):cross_entropy(m.labels)
    end,
  }
end

-- The last losses' mean.
local function loss(width, mup, rate)
  local optimizer = mw.adamw { lr = rate, weight_decay = 0 }
  if mup then
    optimizer = mw.groups {
      { where = { "embedding", "norm" }, mw.adamw { lr = rate, weight_decay = 0 } },
      mw.adamw { lr = rate * base / width, weight_decay = 0 },
    }
  end
  local result = mw.train {
    model = decoder(width, mup), data = mw.text { "gcide", sequence = 64 }, plan = {}, batch = 16, microbatch = 16,
    optimizer = optimizer, steps = steps, threads = 2,
  }
  local sum, last = 0, math.min(10, #result.losses)
  for n = #result.losses - last + 1, #result.losses do sum = sum + result.losses[n] end
  return tostring(result) and sum / last        -- shown: not printed again at the end
end

print("                 width  loss at a rate of 2^-12     2^-10      2^-8      2^-6      2^-4")
local best = {}
for _, mup in ipairs { false, true } do
  for _, width in ipairs(widths) do
    local losses, least = {}, 1
    for n, power in ipairs(rates) do
      losses[n] = loss(width, mup, 2.0 ^ power)
      if losses[n] < losses[least] then least = n end
    end
    best[#best + 1] = rates[least]
    print(("%-15s %6d %24.3f %9.3f %9.3f %9.3f %9.3f"):format(mup and "muP" or "as usual", width, table.unpack(losses)))
  end
end
print(("Answer: with a width of %d and of %d the best rates are 2^%d and 2^%d as usual, and 2^%d and 2^%d with muP."):format(
  widths[1], widths[2], best[1], best[2], best[3], best[4]))
