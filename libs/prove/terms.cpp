// Numbers multisets of terms, and walks a graph backwards for the terms of each value's gradient.
#include "prove/terms.h"

#include <algorithm>
#include <iterator>

namespace mw::proving {

TermSets::TermSets() : sets_(1) {
  by_digest_.emplace(0, 0);
}

TermSet TermSets::number(std::vector<int> terms) {
  std::size_t digest = terms.size();
  for (const int term : terms)
    digest = (digest ^ static_cast<std::size_t>(term)) * 0x9E3779B97F4A7C15ull ^ digest >> 29;
  const auto [begin, end] = by_digest_.equal_range(digest);
  for (auto known = begin; known != end; ++known) {
    if (sets_[known->second] == terms) return known->second;
  }
  sets_.push_back(std::move(terms));
  const int made = static_cast<int>(sets_.size()) - 1;
  by_digest_.emplace(digest, made);
  return made;
}

TermSet TermSets::join(TermSet a, TermSet b) {
  if (a == 0 || b == 0) return a + b;
  if (a > b) std::swap(a, b);
  const std::uint64_t key = static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
  const auto known = joined_.find(key);
  if (known != joined_.end()) return known->second;
  std::vector<int> all;
  all.reserve(sets_[a].size() + sets_[b].size());
  std::merge(sets_[a].begin(), sets_[a].end(), sets_[b].begin(), sets_[b].end(),
             std::back_inserter(all));
  const TermSet made = number(std::move(all));
  joined_.emplace(key, made);
  return made;
}

Gradients::Gradients(const Graph& graph)
    : graph_(graph), complete_(graph.values().size(), 0), goes_back_(graph.ops().size(), false) {
  int terms = 0;
  for (const Op& op : graph.ops()) {
    first_.push_back(terms);
    terms += static_cast<int>(op.inputs.size());
  }
  first_.push_back(terms);
  for (const int loss : graph.losses()) complete_[loss] = sets.single(seed());
  for (int o = static_cast<int>(graph.ops().size()) - 1; o >= 0; --o) {
    const Op& op = graph.ops()[o];
    const OpTraits& traits = graph.traits(o);
    goes_back_[o] =
        traits.differentiable && std::any_of(op.outputs.begin(), op.outputs.end(),
                                             [&](int value) { return complete_[value] != 0; });
    if (!goes_back_[o]) continue;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const int value = op.inputs[i].value;
      if (!graph.value(value).needs_grad) continue;
      const bool passes = i < traits.gradient_passes.size() && traits.gradient_passes[i];
      const TermSet more =
          passes ? complete_[op.outputs[0]] : sets.single(term(o, static_cast<int>(i)));
      complete_[value] = sets.join(complete_[value], more);
    }
  }
}

std::string Gradients::text(int term) const {
  if (term == seed()) return "the seed of the loss";
  if (term > seed()) return graph_.value(term - seed() - 1).name;
  const auto op = std::upper_bound(first_.begin(), first_.end(), term) - first_.begin() - 1;
  const Op& of = graph_.ops()[op];
  const int input = term - first_[op];
  return "what " + of.name + " gives " + graph_.value(of.inputs[input].value).name;
}

}  // namespace mw::proving
