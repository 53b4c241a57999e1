-- Searches for the best mix for a GPT-3 of 175 billion parameters on 32 nodes, as
-- `./meshwright search scripts/search.lua` does.
local mw = require "meshwright"

local found = mw.search {
  model     = mw.gpt { layers = 96, hidden = 12288, heads = 96, vocab = 51200 },
  sequence  = 2048,
  batch     = 512,                                -- sequences per step, over all ranks
  precision = "bf16",
  optimizer = mw.adamw { lr = 1e-4 },
  cluster   = mw.cluster("selene", { nodes = 32 }),
  stack     = mw.stack "megatron-2022",
  recompute = { "none", "selective", "full" },    -- what it may choose; left out: these three
  best      = 3,
}
print(found)
