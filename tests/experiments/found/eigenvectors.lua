-- What LAPACK works in was predicted by the least that it asks for, and libraries ask for more.
local mw = require "meshwright"
for _, precision in ipairs { "fp32", "fp64" } do
  for _, ffn in ipairs { 8, 33, 64 } do
    local run = mw.train {
      model = mw.llama { layers = 1, hidden = 8, heads = 4, vocab = 16, ffn = ffn },
      data = mw.synthetic {},
      sequence = 1,
      plan = {},
      batch = 1,
      optimizer = mw.shampoo { lr = 0.1 },
      steps = 1,
      precision = precision,
    }
    for _, category in ipairs { "parameters", "gradients", "optimizer", "activations", "buffers", "host" } do
      assert(run.memory[category] == run.predicted.memory[1][category], category)
    end
    -- Eigenvectors are a library's kernel: what it takes for itself is tried before the run.
    assert(math.abs(run.peak_bytes - run.predicted.peak_bytes) <= 0.02 * run.peak_bytes,
      ("%d bytes, %d predicted"):format(run.peak_bytes, run.predicted.peak_bytes))
  end
end
