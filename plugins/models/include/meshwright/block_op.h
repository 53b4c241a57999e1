// Registers ops under names by which blocks of mw.model call them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/builder.h"
#include "meshwright/registration.h"

namespace mw {

// An op, or several, that blocks of mw.model call by name: x:rms_norm { eps = 1e-6 }. The class has
// static options() and a constructor that takes their values, like all that is registered. A call
// also takes the option `name`, which is not among options(). The class's doc says the dims of its
// inputs and outputs:
//
//   mw::op<RmsNorm>("rms_norm", "x (…, width) -> (…, width): x over its root mean square")
class BlockOp : public Registered {
 public:
  // Names of the inputs, for messages; the first input is what stands before the colon.
  virtual std::vector<std::string> inputs() const { return {"x"}; }
  virtual int outputs() const { return 1; }
  // The expression of the inputs a, b, … that the op computes for each element (ops.h: map), if it
  // does no more than that. A model joins such ops where nothing else uses what lies between them.
  virtual std::optional<std::string> expression() const { return std::nullopt; }
  // Adds the op to the builder's graph under `name` (in full: "layers.3.norm") and returns the
  // values that it makes, as many as outputs(). `inputs` are as many as inputs(). Const and without
  // memory: a graph is built several times, for microbatches of different sizes.
  virtual std::vector<int> append(Builder& b, const std::string& name,
                                  const std::vector<int>& inputs) const = 0;
};

// The dims that the option `key` names by a text or a list of texts; empty if it is left out.
Dims dims_of(const Values& values, const char* key);

// Makes the op that a call names, of the options of the call. `key`: of errors. Throws Error
// (options).
std::shared_ptr<const BlockOp> make_block_op(const std::string& name, const Json& options,
                                             const std::shared_ptr<const ScriptReach>& reach,
                                             const std::string& key = "");
// Checks a call of an op with `given` values, and returns how many values it makes. Throws as
// make_block_op(), and Error (script, "script.argument") if the op takes another number of values.
int check_call(const std::string& name, std::int64_t given, const Json& options,
               const std::shared_ptr<const ScriptReach>& reach);

template <>
struct KindOf<BlockOp> {
  static constexpr Kind kind = Kind::op;
  using Make = std::unique_ptr<BlockOp>(const Values& values);
};
template <class Class>
constexpr Registration op(const char* name = nullptr, const char* doc = nullptr) {
  return registration<BlockOp, Class>(name, doc);
}

}  // namespace mw
