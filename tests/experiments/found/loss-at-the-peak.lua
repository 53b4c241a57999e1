-- The loss makes tensors of its scale, which were not counted: where it runs beside what another
-- microbatch has left for its weight gradients, memory is highest there.
local mw = require "meshwright"
local dp, pp = mw.plugins("dp", "pp")
for _, precision in ipairs { "fp32", "fp64" } do
  local run = mw.train {
    model = mw.llama { layers = 2, hidden = 8, heads = 4, vocab = 16, ffn = 8 },
    data = mw.synthetic {},
    sequence = 7,
    plan = {
      dp(2),
      pp {
        2,
        schedule = mw.schedule("mine", function()
          return { "0F0 0F2 0F1 0B1 0B2 0I0 0W0", "1F1 1I1 1W1 1F2 1I2 1F0 1W2 1I0 1W0" }
        end),
        layout = { 0, 2 },
      },
    },
    batch = 6,
    optimizer = mw.sgd { lr = 0.1 },
    steps = 1,
    microbatch = 1,
    precision = precision,
  }
  assert(run.peak_bytes == run.predicted.peak_bytes,
    ("%d bytes, %d predicted"):format(run.peak_bytes, run.predicted.peak_bytes))
end
