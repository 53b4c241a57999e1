// Groups the lemmas of a proof that are tried together, tries each group, and remembers outcomes.
#include "prove/lemmas/lemmas.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <typeinfo>

#include "meshwright/engine/host.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/registry.h"
#include "meshwright/optimizer.h"
#include "meshwright/reduction_hook.h"
#include "prove/lemmas/parts.h"
#include "prove/lemmas/updates.h"

namespace mw {
namespace lemmas {
namespace {

// Lemmas that differ in the piece alone are tried together.
struct Group {
  int op = -1;
  std::vector<std::string> cut, follow;
  bool carried = false, ring = false;
  friend auto operator<=>(const Group&, const Group&) = default;
  friend bool operator==(const Group&, const Group&) = default;
};

Dim own_name(const Graph& graph, const Op& op, Dim called) {
  for (const Use& use : op.inputs) {
    for (std::size_t k = 0; k < use.dims.size(); ++k) {
      if (use.dims[k] == called) return graph.value(use.value).dims[k];
    }
  }
  return called;
}

// The axes of the small mesh on which a group is tried: one for each dim that is cut, equal ones
// merged. round[c]: the rotating dim goes round the axis of cut c.
std::vector<SmallAxis> axes_of(const Graph& graph, const Group& group,
                               const std::vector<bool>& round) {
  const Op& op = graph.ops()[static_cast<std::size_t>(group.op)];
  std::vector<std::string> followers = group.follow;
  const Dim rotates = graph.traits(group.op).rotates;
  if (group.ring) std::erase(followers, rotates.name());
  std::vector<SmallAxis> axes;
  std::size_t next = 0;
  for (std::size_t c = 0; c < group.cut.size(); ++c) {
    SmallAxis axis{Dim(group.cut[c]), {}, 2, false};
    const auto follows = [&](const auto& pair) {
      return pair.first.name() == followers[next] && pair.second == axis.cut;
    };
    if (round[c]) {
      axis.follow = rotates;
      axis.ring = true;
    } else if (next < followers.size() &&
               std::any_of(op.follows.begin(), op.follows.end(), follows)) {
      axis.follow = Dim(followers[next++]);
    }
    const auto alike = [&](const SmallAxis& other) {
      return other.cut == axis.cut && other.follow == axis.follow;
    };
    if (std::none_of(axes.begin(), axes.end(), alike)) axes.push_back(axis);
  }
  for (SmallAxis& axis : axes) {
    const auto info = graph.dims().find(axis.cut);
    const bool uneven = info != graph.dims().end() && !info->second.even;
    if (axis.ring || (uneven && axes.size() == 1)) axis.ways = 3;
  }
  return axes;
}

// axes_of() a group for each choice of the axes that the rotating dim goes round: a lemma does not
// say whether an axis that cuts the tokens stands inside or outside of the ring.
std::vector<std::vector<SmallAxis>> all_axes_of(const Graph& graph, const Group& group) {
  const Op& op = graph.ops()[static_cast<std::size_t>(group.op)];
  const Dim rotates = graph.traits(group.op).rotates;
  const std::string own = rotates.valid() ? own_name(graph, op, rotates).name() : "";
  std::vector<std::size_t> places;
  for (std::size_t c = 0; group.ring && c < group.cut.size(); ++c) {
    if (group.cut[c] == own) places.push_back(c);
  }
  const auto count = std::min<std::ptrdiff_t>(
      std::count(group.follow.begin(), group.follow.end(), rotates.valid() ? rotates.name() : ""),
      static_cast<std::ptrdiff_t>(places.size()));
  std::vector<bool> chosen(places.size(), false);
  std::fill(chosen.end() - (group.ring ? count : 0), chosen.end(), true);
  std::vector<std::vector<SmallAxis>> all;
  do {
    std::vector<bool> round(group.cut.size(), false);
    for (std::size_t p = 0; p < places.size(); ++p) round[places[p]] = chosen[p];
    all.push_back(axes_of(graph, group, round));
  } while (std::next_permutation(chosen.begin(), chosen.end()));
  return all;
}

constexpr std::size_t most_faults = 3;  // most faults of one op that are reported

void say(const Op& op, const std::string& cut, std::vector<Fault> faults, const char* hint,
         Outcome& outcome) {
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) {
    return (a.piece == Piece::forward) > (b.piece == Piece::forward);
  });
  if (faults.size() > most_faults) faults.resize(most_faults);
  for (const Fault& fault : faults) {
    outcome.failures.push_back(
        {Stage::plan, "prove.lemma", "",
         fmt::format("{} ({}), {}{}{}: {}", op.name, op.kind(), name_of(fault.piece),
                     cut.empty() ? "" : ", cut by ", cut, fault.text),
         hint});
  }
}

class Checker {
 public:
  Checker(const Graph& graph, const LemmaOptions& options, bool trains, LemmaReport& report)
      : graph_(graph), options_(options), trains_(trains), report_(report) {}

  void parts(const Group& group, bool backward, int count) {
    for (const std::vector<SmallAxis>& axes : all_axes_of(graph_, group)) {
      parts(group, axes, backward, count);
      count = 0;  // the other choices of axes try the same lemma
    }
  }

  void alone(int op, bool backward) {
    adjoint(op, backward || passes_gradient(op));
    const std::vector<SmallAxis> axes;
    take(op, axes, "contract", 1, [&](WholeOp& whole, const Bound& bound, Outcome& outcome) {
      say(whole.op(), "", check_contract(whole, bound),
          "OpCall in meshwright/op.h says where gradients go and what may be overwritten", outcome);
    });
    const Op& what = graph_.ops()[static_cast<std::size_t>(op)];
    if (reads(graph_, what, DataValue::starts)) {
      take(op, axes, "documents", 1, [&](WholeOp& whole, const Bound& bound, Outcome& outcome) {
        say(whole.op(), "", check_documents(whole, bound),
            "OpType::in_documents in meshwright/op.h says what a token may see", outcome);
      });
    }
    if (reads(graph_, what, DataValue::places)) {
      take(op, axes, "parted documents", 1,
           [&](WholeOp& whole, const Bound& bound, Outcome& outcome) {
             say(whole.op(), "", check_parted_documents(whole, bound),
                 "OpType::in_parted_documents in meshwright/op.h says where tokens' places are",
                 outcome);
           });
    }
    if (!what.model_op || !what.is_of_model()) return;
    take(op, axes, "in parts", 1, [&](WholeOp& whole, const Bound& bound, Outcome& outcome) {
      say(whole.op(), "", check_in_parts(whole, bound),
          "OpType::in_parts in meshwright/op.h says which ops must compute the same", outcome);
    });
  }

  void adjoint(int op, bool backward) {
    const bool differentiable = graph_.traits(op).differentiable;
    if (!(differentiable ? backward : trains_)) return;
    const Op& what = graph_.ops()[static_cast<std::size_t>(op)];
    if (is_straight_through(what)) {
      leave_out(
          fmt::format("the derivative of the op {} was not tried, because the op says that its "
                      "gradient is meant to be no derivative",
                      what.kind()));
      return;
    }
    const std::vector<SmallAxis> axes;
    take(op, axes, "adjoint", differentiable ? 1 : 0,
         [&](WholeOp& whole, const Bound& bound, Outcome& outcome) {
           if (whole.whole().inputs.empty()) return;
           if (bound.relative > Bound{}.relative) {
             outcome.not_checked.push_back(fmt::format(
                 "the derivative of the op {} was not tried, because the op does not work in fp64",
                 whole.op().kind()));
             return;
           }
           if (!differentiable) {
             say(whole.op(), "", check_constant(whole),
                 "declare it differentiable, or its results without a gradient (Graph::Output)",
                 outcome);
             return;
           }
           say(whole.op(), "", check_adjoint(whole),
               "mend its backward; an op whose gradient is meant to be no derivative says so "
               "(meshwright/autograd_op.h)",
               outcome);
         });
  }

  // Tries the op on parts of the batch, as microbatches cut it in time.
  void microbatches(int op, bool backward) {
    static const Dim batch("batch");
    const Op& what = graph_.ops()[static_cast<std::size_t>(op)];
    const std::vector<int> losses = graph_.losses();
    const bool is_loss = std::any_of(what.outputs.begin(), what.outputs.end(), [&](int value) {
      return std::find(losses.begin(), losses.end(), value) != losses.end();
    });
    if (!is_loss) {
      if (options_.microbatches && what.has(batch) && !contains(what.whole, batch))
        parts({op, {"batch"}, {}, false, false}, backward, 0);
      return;
    }
    if (!what.has(batch) || contains(what.whole, batch)) {
      leave_out(
          fmt::format("the op {} was not tried on parts of a batch, because its loss is that of "
                      "a whole batch: microbatches have losses of their own",
                      what.kind()));
      return;
    }
    parts({op, {"batch"}, {}, false, false}, backward, 1);
  }

  void leave_out(const std::string& what) {
    std::vector<std::string>& list = report_.not_checked;
    if (std::find(list.begin(), list.end(), what) == list.end()) list.push_back(what);
  }

 private:
  // Whether the op says that the gradient of an input is that of its output: no piece makes it.
  bool passes_gradient(int op) const {
    const std::vector<Use>& inputs = graph_.ops()[static_cast<std::size_t>(op)].inputs;
    const std::vector<bool>& passes = graph_.traits(op).gradient_passes;
    for (std::size_t i = 0; i < passes.size() && i < inputs.size(); ++i) {
      if (passes[i] && graph_.value(inputs[i].value).needs_grad) return true;
    }
    return false;
  }

  void parts(const Group& group, const std::vector<SmallAxis>& axes, bool backward, int count) {
    const std::vector<Dim> permuted = permuted_of(group.op);
    if (axes.empty() && !group.carried && permuted.empty()) {
      report_.checked += count;  // nothing is cut
      return;
    }
    std::string about = fmt::format("parts {} {} {}", group.carried, group.ring, backward);
    for (const SmallAxis& axis : axes)
      about +=
          fmt::format(" {}/{}", axis.cut.name(), axis.follow.valid() ? axis.follow.name() : "");
    for (const Dim dim : permuted) about += " permuted " + dim.name();
    take(group.op, axes, about, count, [&](WholeOp& whole, const Bound& bound, Outcome& outcome) {
      for (const bool in_order : {true, false}) {
        if (!in_order && permuted.empty()) continue;
        CutOp cut(whole, axes, group.carried, in_order ? std::vector<Dim>{} : permuted);
        say(whole.op(), cut.text(), check_parts(whole, cut, backward, bound),
            "a kernel computes the part that OpCall::dims says, and leaves a sum's share where a "
            "dim is contracted (meshwright/op.h); a dim that it needs whole is declared whole",
            outcome);
      }
    });
  }

  std::vector<Dim> permuted_of(int op) const {
    const Op& what = graph_.ops()[static_cast<std::size_t>(op)];
    std::vector<Dim> dims;
    for (const Dim dim : options_.permuted) {
      if (what.has(dim)) dims.push_back(dim);
    }
    return dims;
  }

  void take(int op, const std::vector<SmallAxis>& axes, const std::string& about, int count,
            const Try& body) {
    const OpType& type = *graph_.ops()[static_cast<std::size_t>(op)].type;
    bool large = axes.size() <= 1 && (options_.large || !is_built_in(typeid(type)));
    TryKey key = key_of(graph_, op, axes, large, about);
    auto known = remembered(key);
    if (large && !known && ++of_class_[alike(op) + about] > most_of_class) {
      large = false;
      key = key_of(graph_, op, axes, large, about);
      known = remembered(key);
      leave_out(
          fmt::format("only {} objects of the op {} were tried at large sizes, and the others at "
                      "small sizes alone, because the model has an object for each use of it",
                      most_of_class, type.kind()));
    }
    if (known) {
      for (const std::string& what : known->not_checked) leave_out(what);
      report_.checked += count;
      return;
    }
    const Outcome outcome = try_op(graph_, op, axes, large, body);
    if (outcome.tried) report_.checked += count;
    for (const std::string& what : outcome.not_checked) leave_out(what);
    report_.failures.insert(report_.failures.end(), outcome.failures.begin(),
                            outcome.failures.end());
    remember(key, outcome);
  }

  // A text that two ops share if they have one class and the same dims, whatever their objects.
  std::string alike(int op) const {
    const Op& what = graph_.ops()[static_cast<std::size_t>(op)];
    std::string text = typeid(*what.type).name();
    for (const Use& use : what.inputs) {
      for (const Dim dim : use.dims) text += " " + dim.name();
    }
    return text + ";";
  }

  // How many objects of one class are tried at large sizes: each layer may have its own.
  static constexpr int most_of_class = 4;

  const Graph& graph_;
  const LemmaOptions& options_;
  const bool trains_;
  LemmaReport& report_;
  std::map<std::string, int> of_class_;  // by class, dims and lemma: number of objects tried
};

const void* library_of(const void* address) {
  Dl_info there{};
  return dladdr(address, &there) != 0 ? there.dli_fbase : nullptr;
}

void check_rules(const std::vector<Program>& stages, LemmaReport& report) {
  std::set<std::tuple<const void*, const void*, const void*>> seen;
  std::set<std::string> hooks;
  for (const Program& program : stages) {
    for (const Bucket& bucket : program.buckets) {
      const auto& hook = bucket.hook;
      if (hook && hook->exact(shape_of(program, bucket, program.first())) &&
          hooks.insert(hook->name()).second)
        report.not_checked.push_back(
            fmt::format("the reduction hook {}, which says that its sums are exact, was not tried, "
                        "because it runs on several ranks alone: mw.verify runs it",
                        hook->name()));
      if (!bucket.rule) continue;
      const UpdateRule& rule = *bucket.rule;
      if (!seen.insert({rule.direction, rule.whole, rule.apply}).second) continue;
      ++report.checked;
      for (const std::string& fault : update_faults(rule)) {
        report.failures.push_back(
            {Stage::plan, "prove.lemma", "optimizer", fault,
             "an ElementOp may not look across elements, nor a MatrixOp across matrices "
             "(meshwright/optimizer.h): which of them a rank holds depends on the plan"});
      }
    }
  }
}

}  // namespace
}  // namespace lemmas

bool is_built_in(const std::type_info& type) {
  static const std::set<const void*> own = [] {
    std::set<const void*> libraries;
    for (const Registration& one : registrations_of(built_in()))
      libraries.insert(lemmas::library_of(one.maker));
    return libraries;
  }();
  return own.contains(lemmas::library_of(&type));
}

LemmaReport check_lemmas(const Graph& graph, const std::vector<Lemma>& list,
                         const LemmaOptions& options) {
  const double begin = seconds_now();
  LemmaReport report;
  std::map<lemmas::Group, std::vector<Piece>> groups;
  std::map<int, bool> ops;  // by op: whether any lemma is of its backward
  for (const Lemma& lemma : list) {
    const OpType& type = *graph.ops().at(static_cast<std::size_t>(lemma.op)).type;
    if (options.of_plugins_alone && is_built_in(typeid(type))) continue;
    groups[{lemma.op, lemma.cut, lemma.follow, lemma.carried, lemma.ring}].push_back(lemma.piece);
    bool& backward = ops[lemma.op];
    backward = backward || lemma.piece != Piece::forward;
  }
  const bool trains = std::ranges::any_of(ops, [](const auto& one) { return one.second; });
  lemmas::Checker checker(graph, options, trains, report);
  for (const auto& [op, backward] : ops) {
    throw_if_stopped();
    checker.alone(op, backward);
  }
  for (const auto& [group, pieces] : groups) {
    throw_if_stopped();
    const bool backward = std::any_of(pieces.begin(), pieces.end(),
                                      [](Piece piece) { return piece != Piece::forward; });
    checker.parts(group, backward, static_cast<int>(pieces.size()));
  }
  for (const auto& [op, backward] : ops) {
    throw_if_stopped();
    checker.microbatches(op, backward);
  }
  report.seconds = seconds_now() - begin;
  return report;
}

LemmaReport check_lemmas(const std::vector<Program>& stages, const std::vector<Lemma>& list,
                         LemmaOptions options) {
  const double begin = seconds_now();
  LemmaReport report;
  if (stages.empty()) return report;
  options.microbatches = stages.front().microbatches > 1;
  options.permuted.clear();
  for (const auto& [dim, order] : stages.front().token_permutation) options.permuted.push_back(dim);
  report = check_lemmas(*stages.front().graph, list, options);
  lemmas::check_rules(stages, report);
  report.seconds = seconds_now() - begin;
  return report;
}

void forget_lemmas() {
  lemmas::forget();
}

}  // namespace mw
