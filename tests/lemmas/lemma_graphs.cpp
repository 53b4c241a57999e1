// Lists what lemma_graphs.h says.
#include "lemma_graphs.h"

#include <algorithm>
#include <set>

namespace mw::test {
namespace {

class Lister {
 public:
  Lister(const Graph& graph, int index)
      : graph_(graph), index_(index), op_(graph.ops()[static_cast<std::size_t>(index)]) {}

  std::vector<Lemma> list() {
    std::vector<std::string> dims;
    for (const Dim dim : op_.space()) {
      const bool follows = std::any_of(op_.follows.begin(), op_.follows.end(),
                                       [&](const auto& pair) { return pair.first == dim; });
      if (!contains(op_.whole, dim) && !follows) dims.push_back(dim.name());
    }
    add({}, {}, false, false);
    for (const std::string& first : dims) {
      cut({first});
      for (const std::string& second : dims) cut({first, second});
    }
    const bool linear = std::any_of(op_.inputs.begin(), op_.inputs.end(),
                                    [](const Use& use) { return use.linear; });
    if (linear) {
      add({}, {}, true, false);
      for (const std::string& dim : dims) add({dim}, {}, true, false);
    }
    return {all_.begin(), all_.end()};
  }

 private:
  void cut(const std::vector<std::string>& dims) {
    add(dims, followers(dims, {}), false, false);
    for (const auto& [follower, leader] : op_.follows) {
      if (std::find(dims.begin(), dims.end(), leader.name()) != dims.end())
        add(dims, followers(dims, follower), false, false);
    }
    const Dim rotates = graph_.traits(index_).rotates;
    const bool tokens = std::find(dims.begin(), dims.end(), "seq") != dims.end();
    if (!rotates.valid() || !tokens) return;
    std::vector<std::string> follow;
    for (const std::string& dim : dims) {
      if (dim == "seq") follow.push_back(rotates.name());
      for (const auto& [follower, leader] : op_.follows) {
        if (dim == leader.name()) follow.push_back(follower.name());
      }
    }
    add(dims, follow, false, true);
    add(dims, {rotates.name()}, false, true);
  }

  // The names of the dims that must be cut as `dims` are: `one`, if it follows one of them, and all
  // dims that follow seq, because a rank has the parts of a sequence in which its tokens lie.
  std::vector<std::string> followers(const std::vector<std::string>& dims, Dim one) const {
    std::vector<std::string> names;
    for (const std::string& dim : dims) {
      for (const auto& [follower, leader] : op_.follows) {
        if (leader.name() == dim && (follower == one || dim == "seq"))
          names.push_back(follower.name());
      }
    }
    return names;
  }

  void add(const std::vector<std::string>& cut, const std::vector<std::string>& follow,
           bool carried, bool ring) {
    const OpTraits& traits = graph_.traits(index_);
    std::vector<Piece> pieces{Piece::forward};
    if (traits.splits) {
      pieces.insert(pieces.end(), {Piece::dgrad, Piece::wgrad});
    } else if (traits.differentiable) {
      pieces.push_back(Piece::backward);
    }
    for (const Piece piece : pieces)
      all_.insert({index_, op_.kind(), piece, cut, follow, carried, ring});
  }

  const Graph& graph_;
  const int index_;
  const Op& op_;
  std::set<Lemma> all_;
};

}  // namespace

std::vector<Lemma> every_lemma(const Graph& graph) {
  std::vector<Lemma> lemmas;
  for (int op = 0; op < static_cast<int>(graph.ops().size()); ++op) {
    if (graph.kind(op) != op) continue;
    const std::vector<Lemma> of_op = Lister(graph, op).list();
    lemmas.insert(lemmas.end(), of_op.begin(), of_op.end());
  }
  return lemmas;
}

}  // namespace mw::test
