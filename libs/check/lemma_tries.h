// Tries one thing of an op with the first operands that its kernels take, and remembers what held.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check/lemma_parts.h"
#include "meshwright/error.h"

namespace mw::lemmas {

struct Outcome {
  std::vector<Problem> failures;
  std::vector<std::string> not_checked;
  bool tried = false;
  bool keeps = false;  // may be remembered
};

using Try = std::function<void(WholeOp&, const Bound&, Outcome&)>;

// Sizes are changed as little as the op wants (Shrink), operands are drawn or made (Draw), and
// reals are fp64, or fp32 where the op takes nothing else.
Outcome try_op(const Graph& graph, int op, const std::vector<SmallAxis>& axes, const Try& body);

// Under what an outcome is remembered: what is tried (`about`), the small sizes, and all of the op
// and of those that make its operands that it depends on. An empty text: it is not remembered.
struct TryKey {
  std::string text;
  std::vector<std::shared_ptr<const OpType>> types;
};
TryKey key_of(const Graph& graph, int op, const std::vector<SmallAxis>& axes,
              const std::string& about);
// What is remembered under a key: a thing without a failure. Null: nothing.
std::shared_ptr<const Outcome> remembered(const TryKey& key);
void remember(const TryKey& key, const Outcome& outcome);
void forget();

}  // namespace mw::lemmas
