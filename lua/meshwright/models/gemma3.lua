-- Gemma 3's text model [Gemma Team 2025, arXiv:2503.19786]: queries and keys are normed, and five
-- layers that see a window stand before each layer that sees all tokens. The model with 1 billion
-- parameters gives the defaults: https://huggingface.co/google/gemma-3-1b-pt/blob/main/config.json.
local gemma = require "meshwright.gemma"

return gemma { version = 3, type = "gemma3_text", architecture = "Gemma3ForCausalLM", norms_heads = true,
  sizes = { layers = 26, hidden = 1152, heads = 4, kv_heads = 1, head_dim = 256, ffn = 6912, vocab = 262144, window = 512,
    rope_theta = 1e6 },
  more = {
    { "every", "integer", "one layer of so many sees all tokens, the last of them", at_least = 1, fallback = 6 },
    { "local_theta", "number", "base of the rotary angles of layers with a window", at_least = 1, fallback = 10000.0 },
  },
  sees_all = function(o, layer) return (layer + 1) % o.every == 0 end }
