-- A weave of one's own: layer by layer, the exchanges of one microbatch behind the compute of
-- another, in the order that Megatron-Core has built in (`overlap_moe_expert_parallel_comm`). F is
-- the microbatch that goes forward, B the one that goes back:
--
--   exchange  combine's gradient (B) | dispatch (F) | dispatch's gradient (B) | combine (F)
--   compute   attention, router (F)  | experts (B)  | experts (F)             | attention (B)
local mw         = require "meshwright"
local pp, dp, ep = mw.plugins("pp", "dp", "ep")

local layerwise = mw.weave {
  name  = "layer by layer",
  order = function(...)
    local f, b
    for _, lane in ipairs { ... } do
      if lane.kind == "forward" then f = lane else b = b or lane end
    end
    if not (f and b) then return end          -- two works of one kind: one after the other
    local combine, dispatch = { through = "start", kind = "combine" }, { through = "start", kind = "dispatch" }
    for fl, bl in mw.zip(f:layers(), b:layers()) do     -- backward's layers come last first
      if bl:has(combine) then bl:take(combine) end      -- the gradient of combine goes out
      if fl:has(dispatch) then fl:take(dispatch) end    -- attention and router; their rows go out
      if bl:has(dispatch) then bl:take(dispatch) end    -- experts' backward; the gradient of dispatch goes out
      if fl:has(combine) then fl:take(combine) end      -- experts; their rows go back
      bl:rest()                                         -- attention's backward
      fl:rest()
    end
  end,
}

print(mw.train {
  model      = mw.moe { layers = 4, hidden = 64, heads = 4, kv_heads = 4, ffn = 64, vocab = 256, experts = 4, top_k = 2 },
  data       = mw.text { "gcide", sequence = 64 },
  plan       = { pp { 2, schedule = "dualpipev", weave = layerwise }, dp(2), ep(2) },
  batch      = 8,
  microbatch = 1,
  optimizer  = mw.adamw { lr = 3e-3, clip = 1.0 },
  steps      = 5,
  log        = "runs/my_weave.h5",
})
