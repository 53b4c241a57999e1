-- Gemma 2 [Gemma Team 2024, arXiv:2408.00118]: every second layer sees a window, scores and logits
-- have a soft cap, and norms stand before and after each part of a layer. The model with 2 billion
-- parameters gives the defaults: https://huggingface.co/google/gemma-2-2b/blob/main/config.json.
local gemma = require "meshwright.gemma"

return gemma { version = 2, type = "gemma2", architecture = "Gemma2ForCausalLM",
  sizes = { layers = 26, hidden = 2304, heads = 8, kv_heads = 4, head_dim = 256, ffn = 9216, vocab = 256000, window = 4096,
    rope_theta = 10000.0 },
  more = {
    { "score_cap", "number", "scores s become score_cap * tanh(s / score_cap)", range = { 1e-9, 1e9 }, fallback = 50.0 },
    { "logit_cap", "number", "as score_cap, for logits", range = { 1e-9, 1e9 }, fallback = 30.0 },
  },
  -- Whether a layer, from 0, sees all tokens.
  sees_all = function(_, layer) return layer % 2 == 1 end }
