// Slices in time (nnScaler's coshard; Lin et al. 2024, OSDI): a dim of neighbouring ops is computed
// on each rank in parts, one after the other. Where an axis could cut the dim, time can: the pass
// repeats the instructions of such a chain of ops for each slice, over slots of that slice.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "plan/build.h"

namespace mw {
namespace {

// Finds the rule that slices each op of the graph, and refuses ops and dims that cannot be sliced.
class SlicedOps {
 public:
  SlicedOps(const Graph& graph, const Mesh& mesh, const std::vector<SliceRule>& rules,
            Problems& problems)
      : graph_(graph), mesh_(mesh), problems_(problems), of_(graph.ops().size(), nullptr) {
    for (const SliceRule& rule : rules) {
      dims_[&rule] = dims_of(rule.dim);
      take(rule);
    }
  }

  const SliceRule* of(int op) const { return of_[op]; }
  const Dims& dims(const SliceRule& rule) const { return dims_.at(&rule); }
  void refuse(const SliceRule& rule, const std::string& code, const std::string& message,
              const std::string& hint) {
    if (!said_.insert(rule.place + code).second) return;
    problems_.add(Stage::plan, code, key_in(rule.place, rule.option), message, hint);
  }

  // Whether an op can be computed in the rule's slices, which must divide the rank's part of each
  // sliced dim. Adds a problem if not.
  bool fits(const Program& program, int op) {
    const SliceRule& rule = *of_[op];
    const Op& what = graph_.ops()[op];
    const Dims& dims = this->dims(rule);
    const std::string text = fmt::format("{} slices of {}", rule.slices, rule.dim.name());
    if (program.rotations.count(op) > 0) {
      refuse(rule, "slices.ring", fmt::format("{}: {} computes in ring steps", text, what.name),
             "let the slices be of other ops, or let the axis gather");
      return false;
    }
    for (const auto& [follower, leader] : what.follows) {
      if (leader == rule.dim && program.cut[op] != leading(program, op, follower, leader)) {
        refuse(rule, "slices.follow",
               fmt::format("{}: {} is split in {} over ranks that each have all {}", text,
                           what.name, leader.name(), follower.name()),
               fmt::format("let {} divide by the degree that splits {}", follower.name(),
                           leader.name()));
        return false;
      }
    }
    for (const Dim dim : what.space()) {
      if (!contains(dims, dim)) continue;
      std::int64_t ways = 1;
      for (const Layout* cut : {&program.cut[op], &program.follow[op]}) {
        for (std::size_t a = 0; a < cut->size(); ++a) {
          if ((*cut)[a] == Placement::shard(dim)) ways *= mesh_.atoms()[a].ways;
        }
      }
      if (graph_.size(dim) % (ways * rule.slices) == 0) continue;
      refuse_parts(rule, dim, ways);
      return false;
    }
    return can_sum(rule, op, text);
  }

 private:
  // The dim and those that follow it in some op, as kv_heads follow heads.
  Dims dims_of(Dim dim) const {
    Dims dims{dim};
    for (const Op& op : graph_.ops()) {
      for (const auto& [follower, leader] : op.follows) {
        if (leader == dim && !contains(dims, follower)) dims.push_back(follower);
      }
    }
    return dims;
  }

  void take(const SliceRule& rule) {
    const Dims& dims = this->dims(rule);
    bool any = false;
    std::set<std::string> whole;
    for (std::size_t o = 0; o < of_.size(); ++o) {
      const Op& op = graph_.ops()[o];
      const auto sliced = [&](Dim dim) { return contains(dims, dim); };
      const Dims space = op.space();
      if (std::none_of(space.begin(), space.end(), sliced)) continue;
      if (rule.where && !rule.where(op.of_model())) continue;
      if (std::any_of(op.whole.begin(), op.whole.end(), sliced)) {
        whole.insert(op.kind());
        continue;
      }
      any = true;
      const SliceRule*& owner = of_[o];
      if (owner != nullptr) {
        refuse(rule, "slices.twice",
               fmt::format("{} ({} slices of {}) and {} ({} of {}) both slice {}", owner->place,
                           owner->slices, owner->dim.name(), rule.place, rule.slices,
                           rule.dim.name(), op.name),
               "say of each for which ops it is");
        return;
      }
      owner = &rule;
    }
    if (any) return;
    refuse(rule, "slices.nothing",
           fmt::format("no op is computed in slices of {}{}", rule.dim.name(),
                       whole.empty()
                           ? ""
                           : fmt::format(": {} need it whole", join({whole.begin(), whole.end()}))),
           "dims that slices are for: ffn, heads; seq of the head and the loss");
  }

  // The op's cut, where the follower is cut wherever its leader is; else another one, with Partial
  // where they differ.
  static Layout leading(const Program& program, int op, Dim follower, Dim leader) {
    Layout cut = program.cut[op];
    for (std::size_t a = 0; a < cut.size(); ++a) {
      const bool has = program.follow[op][a] == Placement::shard(follower);
      if ((cut[a] == Placement::shard(leader)) != has) cut[a] = Placement::partial();
    }
    return cut;
  }

  void refuse_parts(const SliceRule& rule, Dim dim, std::int64_t ways) {
    const std::int64_t size = graph_.size(dim), each = size / ways;
    std::int64_t nearest = 1;
    for (std::int64_t n = 1; n <= each; ++n) {
      const auto distance = [&](std::int64_t k) { return std::abs(k - rule.slices); };
      if (size % (ways * n) == 0 && distance(n) < distance(nearest)) nearest = n;
    }
    refuse(rule, "slices.divide",
           fmt::format(
               "{} slices cannot part the {} {} of a rank", rule.slices,
               size % ways == 0 ? std::to_string(each) : fmt::format("{} or {}", each, each + 1),
               dim.name()),
           nearest > 1 ? fmt::format("nearest: slices = {}", nearest)
                       : "they do not divide: leave the slices out");
  }

  // Whether outputs of the op without the dim are sums over the slices, of which backward reads
  // nothing. Adds a problem if not.
  bool can_sum(const SliceRule& rule, int op, const std::string& text) {
    const Op& what = graph_.ops()[op];
    const Dims& dims = this->dims(rule);
    const auto sliced = [&](Dim dim) { return contains(dims, dim); };
    const auto sparse = [&](int value) { return graph_.sparse.has(graph_.value(value).dims); };
    bool rows = std::any_of(what.outputs.begin(), what.outputs.end(), sparse);
    for (const Use& use : what.inputs) rows = rows || sparse(use.value);
    std::string why;
    if (rows) why = "works on the rows of experts";
    for (std::size_t k = 0; k < what.outputs.size(); ++k) {
      const Value& value = graph_.value(what.outputs[k]);
      if (std::any_of(value.dims.begin(), value.dims.end(), sliced)) continue;
      if (what.contraction != Reduction::sum) why = "takes a maximum over it";
      if (value.scalar == Scalar::index) why = "makes indices of all of it";
      if (graph_.traits(op).backward_reads_output.at(k)) why = "reads its whole result in backward";
    }
    for (const Use& use : what.inputs) {
      const Dims& own = graph_.value(use.value).dims;
      for (std::size_t d = 0; d < own.size(); ++d) {
        if (own[d] != use.dims[d] && (sliced(own[d]) || sliced(use.dims[d])))
          why = fmt::format("needs {} under two names", rule.dim.name());
      }
    }
    if (why.empty()) return true;
    refuse(rule, "slices.op", fmt::format("{}: {} {}", text, what.name, why),
           "say by `ops` which others the slices are for");
    return false;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  Problems& problems_;
  std::map<const SliceRule*, Dims> dims_;
  std::vector<const SliceRule*> of_;  // by op: the rule that slices it; null: none
  std::set<std::string> said_;
};

// A chain is a row of neighbouring ops that one rule slices together.
struct Chain {
  const SliceRule* rule = nullptr;
  int number = 0;
  std::vector<int> ops;
};

class Slicer {
 public:
  Slicer(Program& program, SlicedOps& ops) : program_(program), graph_(*program.graph), ops_(ops) {}

  void run() {
    for (const Segment& segment : program_.segments) {
      if (segment.kind == SegmentKind::forward) find_chains(segment.code);
    }
    for (const Chain& chain : chains_) {
      if (std::all_of(chain.ops.begin(), chain.ops.end(),
                      [&](int op) { return ops_.fits(program_, op); }))
        slice(chain);
    }
  }

 private:
  void find_chains(const std::vector<Instruction>& code) {
    bool goes_on = false;
    for (const Instruction& i : code) {
      if (i.code != Code::compute) continue;
      const SliceRule* rule = ops_.of(i.op);
      goes_on = goes_on && rule == chains_.back().rule &&
                graph_.ops()[i.op].layer == graph_.ops()[chains_.back().ops.back()].layer;
      if (rule != nullptr && !goes_on)
        chains_.push_back({rule, static_cast<int>(chains_.size()), {}});
      if (rule != nullptr) chains_.back().ops.push_back(i.op);
      goes_on = rule != nullptr;
    }
  }

  void slice(const Chain& chain) {
    throw_if_stopped();
    const Dims& dims = ops_.dims(*chain.rule);
    find_inner(chain, dims);
    for (const int op : chain.ops) program_.slicing[op] = {dims, chain.rule->slices, chain.number};
    for (Segment& segment : program_.segments) {
      if (segment.kind > SegmentKind::wgrad) {
        refuse_touched(segment.code, chain);
        continue;
      }
      // The wgrads of a split backward wait for no one: each is sliced by itself.
      segment.kind == SegmentKind::wgrad ? slice_each(segment.code, chain)
                                         : slice_together(segment.code, chain);
    }
  }

  // Finds the slots of which there is one for each slice: what the chain makes that has the dim,
  // its views and gradients, and what its ops keep.
  void find_inner(const Chain& chain, const Dims& dims) {
    inner_.assign(program_.slots.size(), false);
    copies_.clear();
    pendings_.clear();
    chain_ops_ = {chain.ops.begin(), chain.ops.end()};
    std::set<int> values;
    for (const int op : chain.ops) {
      for (const int value : graph_.ops()[op].outputs) {
        const Dims& own = graph_.value(value).dims;
        if (std::any_of(own.begin(), own.end(), [&](Dim dim) { return contains(dims, dim); }))
          values.insert(value);
      }
    }
    for (std::size_t s = 0; s < program_.slots.size(); ++s) {
      const Slot& slot = program_.slots[s];
      inner_[s] = !slot.persistent && values.count(slot.value) > 0;
    }
    for (const Segment& segment : program_.segments) {
      for (const Instruction& i : segment.code) {
        if (!of_chain(i)) continue;
        for (const int slot : i.saved) inner_[slot] = true;
      }
    }
  }

  bool of_chain(const Instruction& i) const {
    return i.code == Code::compute && chain_ops_.count(i.op) > 0;
  }
  bool is_inner(int slot) const {
    return slot >= 0 && slot < static_cast<int>(inner_.size()) && inner_[slot];
  }
  bool touches_inner(const Instruction& i) const {
    bool any = false;
    for_each_slot(i, [&](int slot) { any = any || is_inner(slot); });
    return any;
  }

  void refuse_leaving(const Chain& chain, const Instruction& i) {
    const SliceRule& rule = *chain.rule;
    ops_.refuse(rule, "slices.chain",
                fmt::format("{} slices of {}: {} needs all slices at once", rule.slices,
                            rule.dim.name(), i.label),
                "let the slices be of all neighbours that share the dim, or of fewer ops");
  }

  void refuse_touched(const std::vector<Instruction>& code, const Chain& chain) {
    for (const Instruction& i : code) {
      if (touches_inner(i)) refuse_leaving(chain, i);
    }
  }

  // Whether slices cannot make a move each for itself: it concerns a sliced dim, or another stage.
  bool moves_dim(const Instruction& i, const Dims& dims) const {
    return (i.code == Code::start || i.code == Code::move) &&
           (contains(dims, i.move.from) || contains(dims, i.move.to) || i.move.peer >= 0);
  }

  // Repeats the chain's instructions for each slice. Instructions between them go before all slices
  // if they need nothing that the chain makes, else after.
  void slice_together(std::vector<Instruction>& code, const Chain& chain) {
    std::size_t first = code.size(), last = 0;
    for (std::size_t n = 0; n < code.size(); ++n) {
      if (!of_chain(code[n]) && !touches_inner(code[n])) continue;
      first = std::min(first, n);
      last = n;
    }
    if (first == code.size()) return;
    std::vector<Instruction> before, group, after;
    std::set<int> made, later;  // slots that the chain makes, and that `after` makes
    for (std::size_t n = first; n <= last; ++n) {
      const Instruction& i = code[n];
      const bool member = of_chain(i) || touches_inner(i);
      bool needs = false, late = false;
      for_each_slot(i, [&](int slot) {
        if (program_.slots[slot].persistent) return;
        needs = needs || made.count(slot) > 0;
        late = late || later.count(slot) > 0;
      });
      const bool whole = member && needs_whole(i, made);
      if (member && (late || whole || moves_dim(i, ops_.dims(*chain.rule)))) {
        refuse_leaving(chain, i);
        return;
      }
      (member ? group : needs || late ? after : before).push_back(i);
      for_each_use(i, [&](int slot, Access access) {
        if (access == Access::read || access == Access::release) return;
        if (member) made.insert(slot);
        if (!member && (needs || late)) later.insert(slot);
      });
    }
    std::vector<Instruction> all(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(first));
    all.insert(all.end(), before.begin(), before.end());
    for (int k = 0; k < chain.rule->slices; ++k) {
      for (const Instruction& i : group) all.push_back(of_slice(i, k, chain));
    }
    all.insert(all.end(), after.begin(), after.end());
    all.insert(all.end(), code.begin() + static_cast<std::ptrdiff_t>(last) + 1, code.end());
    code = std::move(all);
  }

  // Whether an instruction of the group reads a sum over the slices, which is complete only after
  // the last slice, or computes a slice without being an op of the chain.
  bool needs_whole(const Instruction& i, const std::set<int>& made) const {
    if (!of_chain(i)) return i.code == Code::compute;
    const auto sum = [&](int slot) { return slot >= 0 && made.count(slot) > 0 && !is_inner(slot); };
    return std::any_of(i.inputs.begin(), i.inputs.end(), sum) ||
           std::any_of(i.grad_outputs.begin(), i.grad_outputs.end(), sum);
  }

  void slice_each(std::vector<Instruction>& code, const Chain& chain) {
    std::vector<Instruction> all;
    for (const Instruction& i : code) {
      const bool member = of_chain(i);
      if (!member && touches_inner(i)) {
        refuse_leaving(chain, i);
        return;
      }
      for (int k = 0; member && k < chain.rule->slices; ++k) all.push_back(of_slice(i, k, chain));
      if (!member) all.push_back(i);
    }
    code = std::move(all);
  }

  Instruction of_slice(Instruction i, int k, const Chain& chain) {
    if (of_chain(i)) {
      i.slice = k;
      i.slices = chain.rule->slices;
      for (std::size_t n = 0; k > 0 && n < i.grad_inputs.size(); ++n) {
        if (i.grad_inputs[n] >= 0 && !is_inner(i.grad_inputs[n])) i.accumulate[n] = true;
      }
    }
    for (auto* slots : {&i.inputs, &i.outputs, &i.saved, &i.grad_outputs, &i.grad_inputs}) {
      for (int& slot : *slots) {
        if (is_inner(slot)) slot = slot_of_slice(slot, k, chain);
      }
    }
    if (i.pending >= 0) {
      const auto [own, fresh] = pendings_.try_emplace({i.pending, k}, program_.pendings);
      if (fresh) ++program_.pendings;
      i.pending = own->second;
    }
    return i;
  }

  int slot_of_slice(int slot, int k, const Chain& chain) {
    const auto [own, fresh] =
        copies_.try_emplace({slot, k}, static_cast<int>(program_.slots.size()));
    if (!fresh) return own->second;
    Slot copy = program_.slots[slot];
    copy.slices = chain.rule->slices;
    copy.slice = k;
    for (const Dim dim : copy.dims) {
      if (contains(ops_.dims(*chain.rule), dim)) copy.slice_dim = dim;
    }
    const int made = own->second;
    program_.slots.push_back(copy);
    if (copy.alias_of >= 0 && is_inner(copy.alias_of)) {
      const int root = slot_of_slice(copy.alias_of, k, chain);
      program_.slots[made].alias_of = root;
    }
    return made;
  }

  Program& program_;
  const Graph& graph_;
  SlicedOps& ops_;
  std::vector<Chain> chains_;
  std::set<int> chain_ops_;
  std::vector<bool> inner_;                      // by slot: whether each slice has its own
  std::map<std::pair<int, int>, int> copies_;    // (slot, slice) -> the slice's own slot
  std::map<std::pair<int, int>, int> pendings_;  // (pending, slice) -> the slice's own pending
};

}  // namespace

std::vector<bool> slice_ops(std::vector<Program>& programs, const std::vector<SliceRule>& rules,
                            Problems& problems) {
  const Graph& graph = *programs.front().graph;
  std::vector<bool> again(graph.ops().size(), false);
  if (rules.empty()) return again;
  SlicedOps ops(graph, programs.front().mesh, rules, problems);
  for (Program& program : programs) {
    if (!problems.empty()) break;
    Slicer(program, ops).run();
  }
  for (std::size_t o = 0; o < again.size(); ++o) {
    const SliceRule* rule = ops.of(static_cast<int>(o));
    const Op& op = graph.ops()[o];
    again[o] = rule != nullptr && rule->recompute &&
               (in_layers(op, graph) || op.op_class() == OpClass::matrix_product);
  }
  return again;
}

}  // namespace mw
