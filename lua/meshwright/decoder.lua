-- Parts that the models of lua/meshwright/models share, with the names that Hugging Face's
-- checkpoints have for their weights.
local decoder = {}

--- The name of a weight of each layer in a checkpoint.
function decoder.hf(name) return "model.layers.{}." .. name .. ".weight" end

--- The dims of a model, from its sizes.
function decoder.dims(sizes)
  local dims = {}
  for _, name in ipairs { "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab" } do dims[name] = sizes[name] end
  return dims
end

--- The weight of the embedding of the tokens.
function decoder.embedding(m) return m:weight { "embedding", "vocab", "hidden", hf = "model.embed_tokens.weight" } end

--- The queries, keys or values of h: `name` is "q", "k" or "v", `heads` the dim of their heads.
function decoder.project(h, name, heads)
  return h:linear { { heads, "head_dim" }, name = name, hf = decoder.hf("self_attn." .. name .. "_proj") }
end

--- What attention has made of each head, projected back to the width of the stream.
function decoder.output(heads) return heads:linear { "hidden", name = "o", hf = decoder.hf "self_attn.o_proj" } end

--- An MLP with a gate: `joined(gate, up)` is what goes back to the width of the stream.
function decoder.mlp(h, joined)
  local gate = h:linear { "ffn", name = "gate", hf = decoder.hf "mlp.gate_proj" }
  local up = h:linear { "ffn", name = "up", hf = decoder.hf "mlp.up_proj" }
  return joined(gate, up):linear { "hidden", name = "down", hf = decoder.hf "mlp.down_proj" }
end

function decoder.swiglu(gate, up) return gate:swiglu(up) end
function decoder.geglu(gate, up) return gate:map(up, "gelu(a) * b") end

return decoder
