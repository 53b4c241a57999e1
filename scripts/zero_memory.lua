-- What a rank holds of parameters, gradients and optimizer state under ZeRO: table 1 of Rajbhandari
-- et al. 2020, from the predictor, and below it a small model's bytes, measured. Both in mixed
-- precision: 2 + 2 + 12 bytes a parameter (bf16 parameters and gradients;
-- fp32 masters and AdamW's two averages).
local mw   = require "meshwright"
local zero = mw.plugins("zero")

local function gpt(layers, hidden, parameters)
  local blocks = layers * (12 * hidden + 13) * hidden
  return mw.gpt { layers = layers, hidden = hidden, heads = 32, tied = true,
                  vocab = (parameters - blocks) // hidden }   -- fills up to the size
end

local function states(memory)                  -- what parts make smaller
  return memory.parameters + memory.gradients + memory.optimizer
end

local function experiment(model, ways, stage, sequence)
  return { model = model, data = mw.synthetic {}, sequence = sequence, plan = { zero { ways, stage = stage } },
           batch = ways, optimizer = mw.adamw { lr = 1e-3 }, steps = 2, precision = "bf16" }
end

local function quiet(result)                   -- a result that was shown is not printed at the end
  return tostring(result) and result
end

-- Bytes of n parameters over d ranks (section 5 of the paper).
local formulas = { function(n, d) return 4 * n + 12 * n / d end, function(n, d) return 2 * n + 14 * n / d end,
                   function(n, d) return 16 * n / d end }

print("GB a rank, predicted | by the paper's formula")
local sizes = { { "7.5B", gpt(36, 4096, 7500000000) }, { "128B", gpt(101, 10240, 128000000000) },
                { "1T", gpt(127, 25600, 1000000000000) } }
local head = "   DP"
for _, size in ipairs(sizes) do
  for stage = 1, 3 do head = head .. (" %19s"):format(("%s stage %d"):format(size[1], stage)) end
end
print(head)
for _, ways in ipairs { 1, 4, 16, 64, 256, 1024 } do
  local row = ("%5d"):format(ways)
  for _, size in ipairs(sizes) do
    for stage = 1, 3 do
      local plan = quiet(mw.plan(experiment(size[2], ways, stage, 8)))
      row = row .. (" %9.2f |%8.2f"):format(states(plan.memory[1]) / 1e9,
                                            formulas[stage](plan.parameters, ways) / 1e9)
    end
  end
  print(row)
end

print("\nKiB a rank of a model of 0.2 M parameters in bf16: measured, predicted, and by the formula")
local small = mw.llama { layers = 4, hidden = 64, heads = 4, ffn = 172, vocab = 256 }
print(" ways  stage   measured  predicted    formula   off by")
for _, ways in ipairs { 1, 2, 4, 8 } do
  for stage = 1, 3 do
    local run = quiet(mw.train(experiment(small, ways, stage, 16)))
    local held, formula = states(run.memory), formulas[stage](run.predicted.parameters, ways)
    print(("%5d %6d %10.1f %10.1f %10.1f %7.3f %%"):format(ways, stage, held / 1024,
          states(run.predicted.memory[1]) / 1024, formula / 1024, 100 * (held / formula - 1)))
  end
end
