// The interface of recompute policies, which say which activations backward recomputes instead of
// keeping them. A plugin may implement one; "selective" is built in.
#pragma once

#include <memory>

#include "meshwright/graph.h"
#include "meshwright/registration.h"

namespace mw {

class Recompute {
 public:
  virtual ~Recompute() = default;
  // Whether backward recomputes the outputs of this op. Called once for each op of a layer; the
  // outputs of all other ops are kept.
  virtual bool takes(const Op& op) const = 0;
};

template <>
struct KindOf<Recompute> {
  static constexpr Kind kind = Kind::recompute;
  using Make = std::unique_ptr<Recompute>(const Values& values);
};
template <class Class>
constexpr Registration recompute(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Recompute, Class>(name, doc);
}

}  // namespace mw
