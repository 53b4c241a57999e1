-- A weave's function met a lane that had nothing left, as the first stage has where it sends no
-- gradient. An empty table of Lua was no list: the plan ended in an exception of the JSON library.
local mw = require "meshwright"
local pp = mw.plugins("pp")
local proof = mw.prove {
  model = mw.llama { layers = 1, hidden = 8, heads = 4, vocab = 16, ffn = 8 },
  data = mw.synthetic {},
  sequence = 8,
  plan = {
    pp {
      3,
      schedule = { kind = "zb-h2", pair = true },
      weave = mw.weave(function(...)
        local lanes = { ... }
        for n = #lanes, 1, -1 do
          if lanes[n]:has { through = "wait" } then lanes[n]:take { through = "wait" } end
        end
      end),
    },
  },
  batch = 2,
  microbatch = 1,
  optimizer = mw.sgd { lr = 0.1 },
  steps = 1,
}
assert(proof.verdict == "proved", proof.text)
