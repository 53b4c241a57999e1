// Runs a check on the first operands that an op accepts, and remembers the outcomes of checks.
#include "prove/lemmas/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <set>

namespace mw::lemmas {
namespace {

// Outcomes without failures, by a text of everything that they depend on. The text has addresses of
// op types, which are kept alive so that no other type gets the address. Never destroyed: plugins
// may be gone by then.
struct Memory {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Outcome>> known;
  std::set<std::shared_ptr<const OpType>> types;
};
Memory& memory() {
  static auto* all = new Memory;
  return *all;
}
constexpr std::size_t most_known = 4096;

std::string text_of(const Dims& dims) {
  std::string text = "(";
  for (const Dim dim : dims) text += dim.name() + ",";
  return text + ")";
}

// A text of all properties of an op that its lemmas depend on, but for sizes and names.
std::string text_of(const Graph& graph, const Op& op) {
  std::string text = fmt::format("{} {}", static_cast<const void*>(op.type.get()),
                                 static_cast<int>(op.contraction));
  const auto value_text = [&](int index) {
    const Value& value = graph.value(index);
    return fmt::format("{}{}{}{}{}", text_of(value.dims), static_cast<int>(value.scalar),
                       static_cast<int>(value.source), value.needs_grad ? 1 : 0,
                       value.counts ? 1 : 0);
  };
  for (const Use& use : op.inputs) {
    text += fmt::format(" in {}{}{}{}", text_of(use.dims), use.additive ? 1 : 0, use.linear ? 1 : 0,
                        value_text(use.value));
  }
  for (std::size_t k = 0; k < op.outputs.size(); ++k)
    text += fmt::format(" out {}{}", text_of(op.output_dims[k]), value_text(op.outputs[k]));
  text += " whole " + text_of(op.whole);
  for (const auto& [follower, leader] : op.follows)
    text += " " + follower.name() + "<" + leader.name();
  return text;
}

// The fraction, from 0 to 1, of the op's output numbers that change where of() changes its real
// operands.
template <class Of>
double changed(const WholeOp& whole, const Of& of) {
  OpCase c = whole.whole();
  for (at::Tensor& input : c.inputs) {
    if (input.is_floating_point()) input = of(input);
  }
  const Made made = forward(c);
  std::int64_t all = 0, other = 0;
  for (std::size_t k = 0; k < made.outputs.size(); ++k) {
    if (!made.outputs[k].is_floating_point()) continue;
    all += made.outputs[k].numel();
    other += made.outputs[k].ne(whole.made().outputs[k]).sum().item<std::int64_t>();
  }
  return all > 0 ? static_cast<double>(other) / static_cast<double>(all) : 0;
}

// Whether the op computes in less than fp64: its results do not depend on the digits of fp64
// operands beyond fp32. An op that ignores still more digits rounds on purpose (to eighths), which
// is no matter of precision.
bool computes_in_less(const WholeOp& whole) {
  const auto in_fp32 = [](const at::Tensor& input) {
    return input.to(at::kFloat).to(input.scalar_type());
  };
  const auto moved = [](const at::Tensor& input) { return input * (1 + 1e-5); };
  return changed(whole, in_fp32) == 0 && changed(whole, moved) > 0.5;
}

class Attempts {
 public:
  Attempts(const Graph& graph, int op, const std::vector<SmallAxis>& axes, bool large)
      : graph_(graph), op_(op), axes_(axes), large_(large) {}

  // Runs the check on the first operands that the op accepts.
  Outcome run(const Try& body) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      for (const Shrink shrink : {Shrink::all, Shrink::cut, Shrink::none}) {
        Outcome drawn, made;
        const bool takes_drawn = small(type, shrink, Draw::random, body, drawn);
        if (takes_drawn && drawn.failures.empty()) return drawn;
        // An op need not be right for random operands that no op of the graph could make.
        if (small(type, shrink, Draw::made, body, made)) return made;
        if (takes_drawn) return drawn;
      }
    }
    Outcome outcome;
    const Op& op = graph_.ops()[static_cast<std::size_t>(op_)];
    if (!wrong_.empty()) {
      outcome.tried = true;
      outcome.failures.push_back(wrong_results());
    } else if (fails_) {
      outcome.tried = true;
      outcome.failures.push_back({Stage::plan, "prove.lemma", "",
                                  fmt::format("{} ({}) fails at the sizes that it has in the "
                                              "model: {}",
                                              op.name, op.kind(), why_),
                                  "mend the op's kernel"});
    } else {
      outcome.not_checked.push_back(
          fmt::format("the op {} was not tried, because no small operands were found that it "
                      "takes ({})",
                      op.kind(), why_));
    }
    return outcome;
  }

 private:
  using Sizes = std::map<Dim, std::int64_t>;

  // Runs the check at small sizes and, if it holds there, at large ones. False: the op does not
  // accept such operands.
  bool small(at::ScalarType type, Shrink shrink, Draw draw, const Try& body, Outcome& outcome) {
    const std::vector<int> ops = with_makers(graph_, op_, draw);
    const auto sizes = small_sizes(graph_, ops, axes_, shrink);
    if (!sizes) {
      if (why_.empty()) why_ = "none hold what holds for its sizes";
      return false;
    }
    if (!once(type, shrink, draw, *sizes, body, outcome)) return false;
    if (!large_) return true;
    for (const LargeSizes& large : large_sizes(graph_, op_, ops, axes_, shrink)) {
      if (!outcome.failures.empty()) break;
      wrong_.clear();
      // An op that refuses a large size computes nothing wrong there.
      const bool taken = std::ranges::any_of(large.choices, [&](const Sizes& choice) {
        return once(type, shrink, draw, choice, body, outcome);
      });
      if (!taken && !wrong_.empty()) outcome.failures.push_back(wrong_results());
      for (Problem& failure : outcome.failures)
        failure.message += fmt::format(" (only where {} is as large as {})", large.dim.name(),
                                       large.choices.front().at(large.dim));
    }
    return true;
  }

  Problem wrong_results() const {
    const Op& op = graph_.ops()[static_cast<std::size_t>(op_)];
    return {
        Stage::plan, "prove.lemma", "",
        fmt::format("{} ({}), forward: {}", op.name, op.kind(), wrong_),
        "results have the shapes of the op's output dims, whose sizes OpCall::dims says, and the "
        "dtype of the plan's reals, or int64 where they are indices (meshwright/op.h)"};
  }

  bool once(at::ScalarType type, Shrink shrink, Draw draw, const Sizes& sizes, const Try& body,
            Outcome& outcome) {
    std::unique_ptr<WholeOp> whole;
    try {
      whole = std::make_unique<WholeOp>(graph_, op_, sizes, draw, type);
      const Bound bound = bound_of(type);
      body(*whole, bound, outcome);
    } catch (const NotChecked& why) {
      why_ = why.what();
      return false;
    } catch (const WrongResults& wrong) {
      wrong_ = wrong.what();
      return false;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      why_ = words_of_thrown();
      fails_ = fails_ || (shrink == Shrink::none && type == at::kDouble);
      return false;
    }
    outcome.tried = true;
    outcome.keeps = shrink == Shrink::all && type == at::kDouble;
    const Op& op = whole->op();
    if (type != at::kDouble) {
      outcome.not_checked.push_back(fmt::format(
          "the op {} was held to 1e-4 alone, because it does not work in fp64", op.kind()));
    } else if (!outcome.failures.empty()) {
      hold_to_less(*whole, body, outcome);
    }
    return true;
  }

  // Checks an op that computes in less than fp64 again, with the bound of fp32. Its failures stay
  // if it throws.
  static void hold_to_less(WholeOp& whole, const Try& body, Outcome& outcome) try {
    if (!computes_in_less(whole)) return;
    Outcome less = outcome;
    less.failures.clear();
    less.not_checked.push_back(
        fmt::format("the op {} was held to 1e-4 alone, because it computes in less than fp64",
                    whole.op().kind()));
    body(whole, bound_of(at::kFloat), less);
    outcome = std::move(less);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
  }

  const Graph& graph_;
  const int op_;
  const std::vector<SmallAxis>& axes_;
  const bool large_;
  std::string why_;
  std::string wrong_;  // how its results differ from those that it declares; empty: they do not
  bool fails_ = false;
};

}  // namespace

Outcome try_op(const Graph& graph, int op, const std::vector<SmallAxis>& axes, bool large,
               const Try& body) {
  return Attempts(graph, op, axes, large).run(body);
}

TryKey key_of(const Graph& graph, int op, const std::vector<SmallAxis>& axes, bool large,
              const std::string& about) {
  TryKey key;
  const std::vector<int> ops = with_makers(graph, op, Draw::made);
  const auto sizes = small_sizes(graph, ops, axes, Shrink::all);
  if (!sizes) return key;
  key.text = about + text_of(graph.sparse.dims);
  for (const int index : ops) {
    const Op& what = graph.ops()[static_cast<std::size_t>(index)];
    key.text += "; " + text_of(graph, what);
    key.types.push_back(what.type);
    if (!what.model_op) continue;
    key.text += " of " + text_of(graph, *what.model_op);
    key.types.push_back(what.model_op->type);
  }
  for (const auto& [dim, size] : *sizes) {
    key.text += fmt::format(" {}={}", dim.name(), size);
    if (large) key.text += fmt::format("<{}", graph.size(dim));
  }
  return key;
}

std::shared_ptr<const Outcome> remembered(const TryKey& key) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto known = all.known.find(key.text);
  return known == all.known.end() ? nullptr : known->second;
}

void remember(const TryKey& key, const Outcome& outcome) {
  if (!outcome.keeps || !outcome.failures.empty() || key.text.empty()) return;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (all.known.size() >= most_known) {
    all.known.clear();
    all.types.clear();
  }
  all.known.emplace(key.text, std::make_shared<const Outcome>(outcome));
  all.types.insert(key.types.begin(), key.types.end());
}

void forget() {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  all.known.clear();
  all.types.clear();
}

}  // namespace mw::lemmas
