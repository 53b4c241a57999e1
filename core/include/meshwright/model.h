// The interface of models. A model is made from the options in a script, and builds a graph for a
// number of sequences and a sequence length.
#pragma once

#include <cstdint>
#include <memory>

#include "meshwright/graph.h"
#include "meshwright/json.h"
#include "meshwright/registration.h"

namespace mw {

// A model's constructor takes (const Values&). It checks what the declarations of options cannot
// (hidden divisible by heads, ...), and throws Error (options) with all problems at once.
class Model : public Registered {
 public:
  virtual std::int64_t vocab() const = 0;  // number of token ids
  // Builds the graph of one microbatch. `batch`: its sequences over all ranks; `sequence`: tokens
  // of a sequence; `tokens_per_step`: the tokens of all microbatches of a step on all ranks, by
  // which the sum of losses is divided.
  virtual Graph build(std::int64_t batch, std::int64_t sequence,
                      std::int64_t tokens_per_step) const = 0;
  // Whether graphs for different `batch` differ only in the size of the dim "batch". If so, one
  // graph is built and resized.
  virtual bool batch_is_a_size() const { return false; }
  // What the model depends on beside its options, for the plan's hash; null: nothing.
  virtual Json made_of() const { return {}; }
};

template <>
struct KindOf<Model> {
  static constexpr Kind kind = Kind::model;
  using Make = std::unique_ptr<Model>(const Values& values);
};
template <class Class>
constexpr Registration model(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Model, Class>(name, doc);
}

}  // namespace mw
