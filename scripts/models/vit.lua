-- A vision transformer that names the class of an image [Dosovitskiy et al. 2020,
-- arXiv:2010.11929]. A learned token before the patches gathers what the head reads. Weights are
-- read and written as ViTForImageClassification has them. The images are noise: mw.synthetic
-- makes every input that a model declares.
--
--   ./meshwright verify scripts/models/vit.lua
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local layers, edge, patch = 4, 32, 8
local patches = (edge // patch) * (edge // patch)
local dims = { hidden = 64, heads = 4, ffn = 256, classes = 10, patches = patches, places = patches + 1, one = 1, only = 1,
  colors = 3, rows = patch, columns = patch }
local labels = {}
for class = 0, dims.classes - 1 do labels[tostring(class)] = "LABEL_" .. class end

local vit = mw.model {
  name = "vit", dims = dims,
  inputs = { image = { "batch", "patches", "colors", "rows", "columns" }, class = { "batch", below = "classes" } },
  hf = { type = "vit", architecture = "ViTForImageClassification", config = { num_hidden_layers = layers,
    hidden_size = dims.hidden, num_attention_heads = dims.heads, intermediate_size = dims.ffn, image_size = edge,
    patch_size = patch, num_channels = 3, layer_norm_eps = 1e-12, hidden_act = "gelu", qkv_bias = true, id2label = labels } },
  graph = function(m)
    local front = "vit.embeddings."
    local x = m.image:linear { "hidden", from = { "colors", "rows", "columns" }, bias = true, name = "patch",
      hf = front .. "patch_embeddings.projection.weight" }
    local token = m:weight { "token", "only", "one", "hidden", init = "zeros", hf = front .. "cls_token" }:sum "only"
    x = token:concat(x, { "places", of = { "one", "patches" } })
    x = x + m:weight { "position", "only", "places", "hidden", hf = front .. "position_embeddings" }:sum "only"
    for _ in m:layers(layers) do
      local block = "vit.encoder.layer.{}."
      local function linear(of, to, from, name, theirs)
        return of:linear { to, from = from, bias = true, name = name, hf = block .. theirs .. ".weight" }
      end
      local h = x:layer_norm { eps = 1e-12, name = "attention_norm", hf = block .. "layernorm_before" }
      local function heads(name, theirs)
        return linear(h, { "heads", "head_dim" }, "hidden", name, "attention.attention." .. theirs)
      end
      h = heads("q", "query"):attend(heads("k", "key"), heads("v", "value"), { causal = false })
      x = x + linear(h, "hidden", { "heads", "head_dim" }, "o", "attention.output.dense")
      h = x:layer_norm { eps = 1e-12, name = "mlp_norm", hf = block .. "layernorm_after" }
      h = linear(h, "ffn", "hidden", "up", "intermediate.dense"):gelu_erf()
      x = x + linear(h, "hidden", "ffn", "down", "output.dense")
    end
    x = x:split { { "one", "patches" }, of = "places", name = "first" }:sum "one"
    x = x:layer_norm { eps = 1e-12, name = "norm", hf = "vit.layernorm" }
    return x:linear { "classes", bias = true, name = "head", hf = "classifier.weight" }:cross_entropy(m.class)
  end,
}

mw.train {
  model = vit, data = mw.synthetic { sequence = 1 }, plan = { dp(2), tp(2) },
  batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 5,
}
