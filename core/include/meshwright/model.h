// A model as a script describes it: made of its options, it builds a graph for a number of
// sequences and a sequence length.
#pragma once

#include <cstdint>
#include <memory>

#include "meshwright/graph.h"
#include "meshwright/json.h"
#include "meshwright/registration.h"

namespace mw {

// Its constructor checks what options alone cannot (hidden divisible by heads, ...), and throws
// Error (options) with all problems at once.
class Model : public Registered {
 public:
  virtual std::int64_t vocab() const = 0;  // ids that it knows
  // `batch`: sequences of one microbatch over all ranks; `sequence`: tokens of each.
  // `tokens_per_step`: what the loss sum is divided by (all microbatches of a step, all ranks).
  virtual Graph build(std::int64_t batch, std::int64_t sequence,
                      std::int64_t tokens_per_step) const = 0;
  // Whether graphs of any `batch` differ in the size of that dim alone: then one is built for all.
  virtual bool batch_is_a_size() const { return false; }
  // What it is made of where its options do not say: a part of the plan's hash.
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
