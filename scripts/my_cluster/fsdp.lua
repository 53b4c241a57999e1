-- A step of MPT 7B under FSDP on 16 A100 of 40 GB, as MosaicML's LLM Foundry measured it
-- (scripts/train/benchmarking/README.md, 2023). steps.json beside it makes other rows of that
-- table of it, and has the seconds: sequences of a step over sequences a second.
local mw   = require "meshwright"
local zero = mw.plugins("zero")

mw.plan {
  model = mw.gpt { hidden = 4096, heads = 32, layers = 32, vocab = 50368 }, data = mw.synthetic {}, sequence = 2048,
  plan = { zero { ways = 16, stage = 3 } }, batch = 256, microbatch = 16, recompute = "full", precision = "bf16",
  optimizer = mw.adamw { lr = 1e-4 }, steps = 1, name = "FSDP",
}
