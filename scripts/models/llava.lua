-- LLaVA [Liu et al. 2023, arXiv:2304.08485]: a language model that sees an image. CLIP's encoder
-- [Radford et al. 2021, arXiv:2103.00020] makes a vector of each patch, and these vectors replace
-- the embeddings of some tokens. The input `place` names a patch for each token; a token whose
-- `shown` is above zero gets the vector of that patch. Weights are read and written as
-- LlavaForConditionalGeneration has them.
--
--   ./meshwright verify scripts/models/llava.lua
local mw = require "meshwright"
local zero, tp = mw.plugins("zero", "tp")

local layers, edge, patch = 2, 24, 8
local patches = (edge // patch) * (edge // patch)
local dims = { hidden = 64, heads = 4, kv_heads = 2, ffn = 128, vocab = 256, vision = 32, vision_ffn = { 64, like = "ffn" },
  vision_dim = 8, projected = 64, patches = patches, places = patches + 1, one = 1, colors = 3, rows = patch, columns = patch }

-- CLIP's encoder, whose names in a checkpoint begin with `front`.
local function encoder(m, front)
  local x = m.image:linear { "vision", from = { "colors", "rows", "columns" }, name = "patch",
    hf = front .. "embeddings.patch_embedding.weight" }
  local token = m:weight { "token", "vision", hf = front .. "embeddings.class_embedding" }:reshape { { "one", "vision" } }
  x = token:concat(x, { "places", of = { "one", "patches" } })
  x = x + m:weight { "position", "places", "vision", hf = front .. "embeddings.position_embedding.weight" }
  x = x:layer_norm { name = "vision_norm", hf = front .. "pre_layrnorm" }
  for _ in m:layers(layers) do
    local block = front .. "encoder.layers.{}."
    local function linear(of, to, from, name, theirs)
      return of:linear { to, from = from, bias = true, name = name, hf = block .. theirs .. ".weight" }
    end
    local h = x:layer_norm { name = "attention_norm", hf = block .. "layer_norm1" }
    local function heads(name) return linear(h, { "heads", "vision_dim" }, "vision", name, "self_attn." .. name .. "_proj") end
    h = heads "q":attend(heads "k", heads "v", { causal = false })
    x = x + linear(h, "vision", { "heads", "vision_dim" }, "o", "self_attn.out_proj")
    h = linear(x:layer_norm { name = "mlp_norm", hf = block .. "layer_norm2" }, "vision_ffn", "vision", "up", "mlp.fc1")
    x = x + linear(h:map "a * sigmoid(1.702 * a)", "vision", "vision_ffn", "down", "mlp.fc2")
  end
  local _, seen = x:split { { "one", "patches" }, of = "places", name = "seen" }
  return seen
end

local llava = mw.model {
  name = "llava", dims = dims,
  inputs = { image = { "batch", "patches", "colors", "rows", "columns" }, place = { "batch", "seq", below = "patches" },
    shown = { "batch", "seq" } },
  -- The layers behind the one that is read, and the norm behind all, are computed by nobody.
  hf = { type = "llava", architecture = "LlavaForConditionalGeneration",
    without = { "vision_tower.post_layernorm.", ("vision_tower.encoder.layers.%d."):format(layers) },
    config = { vision_feature_layer = -2, vision_feature_select_strategy = "default", projector_hidden_act = "gelu",
      multimodal_projector_bias = true, image_seq_length = patches, tie_word_embeddings = false,
      vision_config = { model_type = "clip_vision_model", num_hidden_layers = layers + 1, hidden_size = dims.vision,
        intermediate_size = dims.vision_ffn[1], num_attention_heads = dims.heads, image_size = edge, patch_size = patch,
        num_channels = 3, hidden_act = "quick_gelu", layer_norm_eps = 1e-5 },
      text_config = { model_type = "llama", num_hidden_layers = layers, hidden_size = dims.hidden, intermediate_size = dims.ffn,
        num_attention_heads = dims.heads, num_key_value_heads = dims.kv_heads, vocab_size = dims.vocab, rms_norm_eps = 1e-6,
        hidden_act = "silu", rope_parameters = { rope_type = "default", rope_theta = 10000.0 } } } },
  graph = function(m)
    local project, text = "multi_modal_projector.", "language_model.model."
    local v = encoder(m, "vision_tower.")
    v = v:linear { "projected", from = "vision", bias = true, name = "project_1", hf = project .. "linear_1.weight" }:gelu_erf()
    v = v:linear { "hidden", from = "projected", bias = true, name = "project_2", hf = project .. "linear_2.weight" }
    local x = m.tokens:lookup(m:weight { "embedding", "vocab", "hidden", hf = text .. "embed_tokens.weight" })
    local shown = m.shown:map "step(a)"
    x = x * (1 - shown) + v:gather(m.place) * shown
    for layer in m:layers(layers) do
      local block = ("%slayers.%d."):format(text, layer)
      local function norm(name, theirs)
        return x:rms_norm { eps = 1e-6, name = name, hf = block .. theirs .. "_layernorm.weight" }
      end
      local function linear(of, to, name, theirs) return of:linear { to, name = name, hf = block .. theirs .. "_proj.weight" } end
      local h = norm("attention_norm", "input")
      local function heads(name, dim) return linear(h, { dim, "head_dim" }, name, "self_attn." .. name) end
      h = heads("q", "heads"):rope():attend(heads("k", "kv_heads"):rope(), heads("v", "kv_heads"))
      x = x + linear(h, "hidden", "o", "self_attn.o")
      h = norm("mlp_norm", "post_attention")
      h = linear(h, "ffn", "gate", "mlp.gate"):swiglu(linear(h, "ffn", "up", "mlp.up"))
      x = x + linear(h, "hidden", "down", "mlp.down")
    end
    x = x:rms_norm { eps = 1e-6, name = "norm", hf = text .. "norm.weight" }
    return x:linear { m:weight { "head", "vocab", "hidden", hf = "language_model.lm_head.weight" } }:cross_entropy(m.labels)
  end,
}

mw.train {
  model = llava, data = mw.synthetic { sequence = 16 }, plan = { zero { 2, stage = 3 }, tp(2) },
  batch = 4, microbatch = 1, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
