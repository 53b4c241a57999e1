// A model as a script describes it: a kind and its options, from which a graph is built for a
// number of sequences and a sequence length.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/options.h"

namespace mw {

class ModelKind {
 public:
  virtual ~ModelKind() = default;
  virtual std::string name() const = 0;  // "llama": the function in Lua
  virtual std::string doc() const = 0;
  virtual const Options& options() const = 0;
  // Checks what options alone cannot (hidden divisible by heads, ...); messages start with `path`.
  virtual void check(const Values& values, const std::string& path, Problems& problems) const = 0;
  // `batch`: sequences of one microbatch over all ranks; `sequence`: tokens of each.
  // `tokens_per_step`: what the loss sum is divided by (all microbatches of a step, all ranks).
  virtual Graph build(const Values& values, std::int64_t batch, std::int64_t sequence,
                      std::int64_t tokens_per_step) const = 0;
};

// The built-in kinds: llama, gpt, moe.
const std::vector<const ModelKind*>& model_kinds();
const ModelKind* find_model_kind(const std::string& name);  // nullptr if there is none

}  // namespace mw
