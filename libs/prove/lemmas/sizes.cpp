// Finds small sizes by search: dims that must have one size form a class, and each class takes the
// first of its candidate sizes with which all relations between sizes hold.
#include "prove/lemmas/values.h"

#include <algorithm>
#include <set>

namespace mw::lemmas {
namespace {

constexpr std::int64_t small_enough = 8;      // a dim of at most this size keeps it
constexpr std::int64_t small_whole = 16;      // small_enough for a dim that must be whole
constexpr std::int64_t most_cells = 1 << 20;  // most elements of one tensor
// Most points of the iteration space of an op that has a large dim.
constexpr std::int64_t most_space = 1 << 19;
// Sizes of a large dim: beyond thresholds of kernels, and primes, which no kernel is made for.
constexpr std::int64_t large_enough = 137, larger[] = {1097, 521};

// A dim that shall be large, and its size. The search may take the next sizes that can be cut.
struct Large {
  Dim dim;
  std::int64_t size = 0;
};

// Dims that must have one size.
struct Class {
  std::vector<Dim> dims;
  std::int64_t actual = 0;
  std::int64_t unit = 1;  // number of equal parts that the axes cut it into
  bool uneven = false, whole = false, rows = false, follows = false;
  bool parts = false;  // whether it counts the parts of batch or seq (OpType::in_parts)
  std::vector<std::int64_t> candidates;
};

class Search {
 public:
  Search(const Graph& graph, const std::vector<int>& ops, const std::vector<SmallAxis>& axes,
         Shrink shrink, Large large = {})
      : graph_(graph), ops_(ops), axes_(axes), shrink_(shrink), large_(large) {
    for (const int op : ops) add(graph.ops()[static_cast<std::size_t>(op)]);
    join_equal();
    for (const auto& [dim, number] : class_of_) describe(dim, classes_[number]);
    std::erase_if(order_, [&](std::size_t c) { return classes_[c].dims.empty(); });
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(classes_[a].actual, a) < std::pair(classes_[b].actual, b);
    });
    for (const std::size_t c : order_) propose(classes_[c]);
    for (const int op : ops) relate(graph.ops()[static_cast<std::size_t>(op)]);
  }

  std::optional<std::map<Dim, std::int64_t>> find() {
    for (const bool ordered : {true, false}) {
      if (auto sizes = find(ordered)) return sizes;
    }
    return find(/*ordered=*/false, /*sums=*/false);
  }
  // `ordered`: what is larger in the graph is not smaller here. `sums`: sizes add up as they do in
  // the graph, where that may be chance.
  std::optional<std::map<Dim, std::int64_t>> find(bool ordered, bool sums = true) {
    ordered_ = ordered;
    add_up_ = sums;
    chosen_.assign(classes_.size(), 0);
    tried_ = 0;
    if (!choose(0)) return std::nullopt;
    std::map<Dim, std::int64_t> sizes;
    for (const auto& [dim, number] : class_of_) sizes[dim] = chosen_[number];
    return sizes;
  }
  // One dim of each class. Leaves out classes that are small in the graph: an op may have their
  // size built in.
  std::vector<Dim> varied() const {
    std::vector<Dim> first;
    for (const std::size_t c : order_) {
      if (!stays(classes_[c]) && !classes_[c].parts) first.push_back(classes_[c].dims.front());
    }
    return first;
  }

 private:
  std::size_t of(Dim dim) {
    const auto [known, fresh] = class_of_.try_emplace(dim, classes_.size());
    if (fresh) {
      order_.push_back(classes_.size());
      classes_.push_back({{dim}, graph_.size(dim)});
    }
    return known->second;
  }
  void join(Dim a, Dim b) {
    const std::size_t to = of(a), from = of(b);
    if (to == from) return;
    for (const Dim dim : classes_[from].dims) {
      class_of_[dim] = to;
      classes_[to].dims.push_back(dim);
    }
    classes_[from].dims.clear();
  }

  // Joins each dim of the op's values with the name by which the op calls it.
  void add(const Op& op) {
    const auto both = [&](const Dims& called, const Dims& own) {
      for (std::size_t k = 0; k < called.size(); ++k) join(called[k], own[k]);
    };
    for (const Use& use : op.inputs) both(use.dims, graph_.value(use.value).dims);
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      both(op.output_dims[k], graph_.value(op.outputs[k]).dims);
  }

  bool has_rows(const Class& c) const {
    return std::any_of(c.dims.begin(), c.dims.end(),
                       [&](Dim dim) { return is_row(dim) || is_part(dim); });
  }
  static bool is_row(Dim dim) {
    static const Dim batch("batch"), seq("seq");
    return dim == batch || dim == seq;
  }
  bool is_part(Dim dim) const {
    return std::any_of(ops_.begin(), ops_.end(), [&](int op) {
      const auto& follows = graph_.ops()[static_cast<std::size_t>(op)].follows;
      return std::any_of(follows.begin(), follows.end(), [&](const auto& pair) {
        return pair.first == dim && is_row(pair.second);
      });
    });
  }

  // How many even parts the axes make of the dim; 1: none, or they need not be even.
  std::int64_t even_parts(Dim dim) const {
    const auto info = graph_.dims().find(dim);
    if (info != graph_.dims().end() && !info->second.even) return 1;
    return ways_of(dim);
  }
  std::int64_t ways_of(Dim dim) const {
    std::int64_t ways = 1;
    for (const SmallAxis& axis : axes_) {
      if (axis.cut == dim || (axis.follow == dim && !axis.ring)) ways *= axis.ways;
    }
    return ways;
  }

  // Dims of one size keep one size, but for a dim whose own size has no such parts as the axes
  // make: it gets another one, and an op may have the size of the other dim built in.
  void join_equal() {
    std::map<std::int64_t, Dim> first;
    std::vector<Dim> dims;
    for (const auto& [dim, c] : class_of_) dims.push_back(dim);
    for (const Dim dim : dims) {
      const Class& c = classes_[of(dim)];
      if (has_rows(c) || c.actual % even_parts(dim) != 0) continue;
      const auto [known, fresh] = first.try_emplace(c.actual, dim);
      if (!fresh) join(known->second, dim);
    }
  }

  void describe(Dim dim, Class& c) {
    c.rows = has_rows(c);
    c.parts = c.parts || is_part(dim);
    c.unit = std::max(c.unit, even_parts(dim));
    if (even_parts(dim) < ways_of(dim)) c.uneven = true;
    for (const int index : ops_) {
      const Op& op = graph_.ops()[static_cast<std::size_t>(index)];
      c.whole = c.whole || contains(op.whole, dim);
      for (const auto& [follower, leader] : op.follows)
        c.follows = c.follows || follower == dim || leader == dim;
    }
  }

  bool stays(const Class& c) const {
    return shrink_ == Shrink::none || (shrink_ == Shrink::cut && c.whole) ||
           (!c.rows && !c.follows && !c.uneven &&
            c.actual <= (c.whole ? small_whole : small_enough));
  }

  void propose(Class& c) const {
    if (large_.dim.valid() && contains(c.dims, large_.dim)) return propose_large(c);
    const bool fits = c.actual % c.unit == 0;
    if (stays(c) && fits) {
      c.candidates = {c.actual};
      return;
    }
    std::vector<std::int64_t> list;
    if (c.parts) {
      // Two parts on each rank, as where a strategy gives ranks tokens from two places.
      list = {2 * std::max<std::int64_t>(c.unit, 2)};
    } else if (c.uneven) {
      list = {7, 5, 10, 11, 13, 17, 19, 12, 24};
    } else if (c.unit > 1) {
      for (const std::int64_t k : {2, 1, 3, 4, 5, 6}) list.push_back(k * c.unit);
      // A size above its own, for a dim that must hold another one which keeps that size, as
      // experts hold the choices of a token.
      if (c.actual <= small_whole) list.push_back((c.actual / c.unit + 1) * c.unit);
    } else if (c.rows || c.follows || c.actual % 2 != 0) {
      list = {3, 5, 2, 4, 7, 6, 9, 11, 13, 17, 8, 12};
    } else {
      list = {4, 6, 2, 8, 10, 12, 14, 16, 18, 20};
    }
    const bool odd = !c.rows && !c.follows && !c.uneven && c.unit == 1 && c.actual % 2 != 0;
    std::erase_if(list, [&](std::int64_t n) { return odd && n % 2 == 0; });
    if (c.actual == 1 && !c.rows) std::erase_if(list, [&](std::int64_t) { return c.unit > 1; });
    if (c.actual == 1 && !c.rows && c.unit == 1) list = {1};
    c.candidates = std::move(list);
    if (!large_.dim.valid() || c.actual == 1) return;
    for (const std::int64_t k : {1, 2, 3})  // for a dim that must not be below the large one
      c.candidates.push_back((large_.size / c.unit + k) * c.unit + (odd ? large_.size % 2 : 0));
  }

  void propose_large(Class& c) const {
    const bool free = c.rows || c.follows || c.uneven || c.unit > 1;
    const std::int64_t step = free ? c.unit : 2,  // a dim that is not free stays odd or even
        first = (large_.size + c.unit - 1) / c.unit * c.unit +
                (free ? 0 : (large_.size + c.actual) % 2);
    for (const std::int64_t k : {0, 2, 1, 3}) c.candidates.push_back(first + k * step);
  }

  // Two lists of classes of one op whose sizes have the same sum.
  struct Sum {
    std::vector<std::size_t> left, right;
  };

  void relate(const Op& op) {
    std::set<std::size_t> here;
    const auto take = [&](const Dims& dims) {
      for (const Dim dim : dims) here.insert(of(dim));
    };
    for (const Use& use : op.inputs) take(use.dims);
    for (const Dims& dims : op.output_dims) take(dims);
    const std::vector<std::size_t> list(here.begin(), here.end());
    const auto actual = [&](std::size_t c) { return classes_[c].actual; };
    for (const std::size_t a : list) {
      for (const std::size_t b : list) {
        if (a == b || classes_[b].rows) continue;
        // Only a dim that must be whole has to stay above batch or seq: at least as many positions
        // are learned as seq has.
        const bool beside = !classes_[a].rows || classes_[b].whole;
        // If two dims have one size, the one that cannot be cut evenly at that size becomes larger.
        const bool grows = actual(a) == actual(b) && actual(a) % classes_[a].unit != 0;
        if (beside && !grows && actual(a) <= actual(b)) smaller_.insert({a, b});
      }
    }
    for (const auto& [follower, leader] : op.follows) divides_.insert({of(follower), of(leader)});
    if (op.whole.empty()) return;
    std::vector<std::size_t> widths;
    for (const std::size_t c : list) {
      if (!classes_[c].rows) widths.push_back(c);
    }
    for (const std::size_t a : widths) {
      for (const std::size_t b : widths) {
        if (b < a) continue;
        for (const std::size_t c : widths) {
          if (c == a || c == b) continue;
          if (actual(a) + actual(b) == actual(c)) add_up({{a, b}, {c}});
          for (const std::size_t d : widths) {
            if (d < c || d == a || d == b) continue;
            const bool pairs =
                actual(a) == actual(c) || actual(a) == actual(d);  // x + y = x + y says nothing
            if (!pairs && actual(a) + actual(b) == actual(c) + actual(d)) add_up({{a, b}, {c, d}});
          }
        }
      }
    }
  }

  // The order of sizes within a sum is kept strictly, so that no part of the sum vanishes.
  void add_up(const Sum& sum) {
    std::vector<std::size_t> all = sum.left;
    all.insert(all.end(), sum.right.begin(), sum.right.end());
    for (const std::size_t a : all) {
      for (const std::size_t b : all) {
        if (classes_[a].actual < classes_[b].actual) strictly_.insert({a, b});
      }
    }
    sums_.push_back(sum);
  }

  bool holds() const {
    const auto known = [&](std::size_t c) { return chosen_[c] > 0; };
    for (const auto& [a, b] : smaller_) {
      if (ordered_ && known(a) && known(b) && chosen_[a] > chosen_[b]) return false;
    }
    for (const auto& [a, b] : strictly_) {
      if (add_up_ && known(a) && known(b) && chosen_[a] >= chosen_[b]) return false;
    }
    for (const auto& [a, b] : divides_) {
      if (!known(a) || !known(b) || a == b) continue;
      if (chosen_[b] % chosen_[a] != 0) return false;
      if (classes_[a].actual < classes_[b].actual && chosen_[a] == chosen_[b]) return false;
    }
    for (const Sum& sum : sums_) {
      std::int64_t left = 0;
      bool all = true;
      for (const std::size_t c : sum.left) left += chosen_[c], all = all && known(c);
      for (const std::size_t c : sum.right) left -= chosen_[c], all = all && known(c);
      if (add_up_ && all && left != 0) return false;
    }
    return true;
  }

  bool choose(std::size_t next) {
    constexpr int most_tries = 20000;
    if (next == order_.size()) return true;
    Class& c = classes_[order_[next]];
    for (const std::int64_t size : c.candidates) {
      if (++tried_ > most_tries) return false;
      chosen_[order_[next]] = size;
      if (holds() && choose(next + 1)) return true;
    }
    chosen_[order_[next]] = 0;
    return false;
  }

  const Graph& graph_;
  const std::vector<int>& ops_;
  const std::vector<SmallAxis>& axes_;
  const Shrink shrink_;
  const Large large_;
  std::map<Dim, std::size_t> class_of_;
  std::vector<Class> classes_;
  std::vector<std::size_t> order_;
  std::set<std::pair<std::size_t, std::size_t>> smaller_, strictly_, divides_;
  std::vector<Sum> sums_;
  std::vector<std::int64_t> chosen_;
  bool ordered_ = true, add_up_ = true;
  int tried_ = 0;
};

bool is_beyond(const Dims& dims, const std::map<Dim, std::int64_t>& sizes, std::int64_t most) {
  std::int64_t cells = 1;
  for (const Dim dim : dims) {
    const std::int64_t size = sizes.at(dim);
    if (size > most / std::max<std::int64_t>(cells, 1)) return true;
    cells *= size;
  }
  return false;
}

bool makes_large(const Graph& graph, const std::vector<int>& ops,
                 const std::map<Dim, std::int64_t>& sizes) {
  const auto large = [&](const Dims& dims) { return is_beyond(dims, sizes, most_cells); };
  return std::ranges::any_of(ops, [&](int index) {
    const Op& op = graph.ops()[static_cast<std::size_t>(index)];
    return std::ranges::any_of(op.inputs, [&](const Use& use) { return large(use.dims); }) ||
           std::ranges::any_of(op.output_dims, large);
  });
}

}  // namespace

std::optional<std::map<Dim, std::int64_t>> small_sizes(const Graph& graph,
                                                       const std::vector<int>& ops,
                                                       const std::vector<SmallAxis>& axes,
                                                       Shrink shrink) {
  auto sizes = Search(graph, ops, axes, shrink).find();
  if (!sizes || makes_large(graph, ops, *sizes)) return std::nullopt;
  return sizes;
}

std::vector<LargeSizes> large_sizes(const Graph& graph, int op, const std::vector<int>& ops,
                                    const std::vector<SmallAxis>& axes, Shrink shrink) {
  const Dims space = graph.ops()[static_cast<std::size_t>(op)].space();
  const auto sizes_with = [&](Dim dim, std::int64_t size) {
    std::vector<std::map<Dim, std::int64_t>> choices;
    for (const bool ordered : {false, true}) {
      auto found = Search(graph, ops, axes, shrink, {dim, size}).find(ordered);
      if (!found || makes_large(graph, ops, *found) || is_beyond(space, *found, most_space))
        continue;
      if (choices.empty() || choices.back() != *found) choices.push_back(std::move(*found));
    }
    return choices;
  };
  std::vector<LargeSizes> all;
  for (const Dim dim : Search(graph, {op}, axes, shrink).varied()) {
    const std::size_t before = all.size();
    const auto add = [&](std::int64_t size) {
      if (auto choices = sizes_with(dim, size); !choices.empty())
        all.push_back({dim, std::move(choices)});
      return all.size() > before;
    };
    std::ranges::any_of(larger, add);
    add(large_enough);
    const std::int64_t actual = graph.size(dim);
    const bool known =
        actual == large_enough || std::ranges::find(larger, actual) != std::end(larger);
    if (actual > small_whole && !known) add(actual);
  }
  return all;
}

}  // namespace mw::lemmas
