// What Hugging Face's transformers calls a model: its architecture, and the keys of its
// config.json. A model whose class is an HfModel too is exported with a config.json, and the
// config.json beside imported weights is held to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// A key of config.json with what it has to be for this model.
struct HfKey {
  // The name that is written, then other names that files have; "rope_parameters.rope_theta" lies
  // in a table.
  std::vector<std::string> names;
  Json value;
  std::string option;  // of the model, which says the same; empty: it is so of every such model
  Json absent = {};    // what transformers takes where no name is there; null: whatever is right
  std::vector<Json> alike = {};  // other values that mean the same
};

struct HfConfig {
  // The model_type that is written, then others that mean the same with these keys.
  std::vector<std::string> types;
  std::string architecture;  // "LlamaForCausalLM"
  std::vector<HfKey> keys;
  // By model_type, then by a key's first name: what transformers takes where that key is not there,
  // if it is another value than HfKey::absent.
  Json absent = Json::object();
  Json more = Json::object();   // further keys to write, which are compared with nothing
  std::string prefix;           // of names of tensors, before what HfName says; the head has none
  bool lacks_optional = false;  // no place for tensors that a checkpoint may lack (HfName)
  // Why transformers has no architecture that computes the same; empty: it has this one. Import
  // compares what types and keys there are all the same.
  std::string none;
};

class HfModel {
 public:
  virtual ~HfModel() = default;
  // `sequence`: tokens of a sample of the experiment.
  virtual HfConfig hf_config(std::int64_t sequence) const = 0;
};

}  // namespace mw
