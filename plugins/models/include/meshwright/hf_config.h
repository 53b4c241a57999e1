// What Hugging Face's transformers calls a model: its architecture, and the keys of its
// config.json. A model whose class is an HfModel too is exported with a config.json, and the
// config.json beside imported weights is held to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// A key of config.json with the value that it must have for a model.
struct HfKey {
  // First the name that is written, then other names that are read. A dot leads into a table:
  // "rope_parameters.rope_theta".
  std::vector<std::string> names;
  Json value;
  std::string option;  // the model's option with this value; empty: all models of the kind have it
  // transformers' default for a missing key; null: a missing key is not compared.
  Json absent = {};
  std::vector<Json> alike = {};  // other values that mean the same
  // Whether any value means the same, given the other keys. Such a key is not written.
  bool unread = false;
};

struct HfConfig {
  // The model_type that is written, then other types that mean the same with these keys.
  std::vector<std::string> types;
  std::string architecture;  // "LlamaForCausalLM"
  std::vector<HfKey> keys;
  // By model_type, then by a key's first name: transformers' default where that key is missing, if
  // it differs from HfKey::absent.
  Json absent = Json::object();
  Json more = Json::object();  // further keys that are written, and compared with nothing
  std::string prefix;  // put before the names of tensors that HfName gives, but for the head's
  bool lacks_optional = false;  // the architecture has no tensors that HfName calls optional
  // What the names of tensors begin with that a checkpoint has and the model does not compute with.
  std::vector<std::string> without = {};
  bool of_script = false;  // whether a script says all this of a model of its own
  // The reason why no architecture of transformers computes the same; empty: this one does. The
  // types and keys that there are are compared at import all the same.
  std::string none;
};

class HfModel {
 public:
  virtual ~HfModel() = default;
  // `sequence`: tokens in a sample of the experiment. Nothing if nobody says what the model is.
  virtual std::optional<HfConfig> hf_config(std::int64_t sequence) const = 0;
};

}  // namespace mw
