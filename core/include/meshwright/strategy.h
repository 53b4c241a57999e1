// The interface of parallelism strategies. A strategy asks for mesh axes, and adds rules that say
// which dim is split over which axis. All collectives of forward and backward follow from the rules
// (docs/architecture.md). This is the first layer of the SDK; a strategy that consists of rules
// needs only this file and plugin.h:
//
//   std::vector<mw::AxisRequest> axes() const override { return {{"tp", ways_}}; }
//   void edit(mw::Draft& draft) const override {
//     draft.shard("heads", "tp");
//     draft.shard("ffn", "tp");
//     if (!draft.divides("tp", "vocab")) draft.note("tp: the vocab's parts are uneven");
//   }
//
// kernel.h (ops, models) is the second layer, program.h with passes.h the third.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/mesh.h"
#include "meshwright/options.h"
#include "meshwright/placement.h"
#include "meshwright/registration.h"
#include "meshwright/schedule.h"

namespace mw {

struct Pass;  // an edit of the derived program (passes.h)
class Weave;  // how works that share a stage are interleaved (weave.h)

// A mesh axis that a strategy asks for: ranks of its own, or borrowed from others.
struct AxisRequest {
  std::string name;
  int ways = 1;
  Role role = Role::none;
  // The axes from which ranks are borrowed, in this order; those that the plan lacks are skipped.
  // Each entry is a name, or a role ("data"), which stands for all axes of that role that borrow no
  // ranks, in the plan's order. Empty: the axis has ranks of its own.
  std::vector<std::string> borrow = {};
};

// The rule "`dim` is split over `axis`" for the ops for which `where` is true.
struct Rule {
  std::string strategy;  // the strategy that added the rule
  Dim dim;
  std::string axis;
  std::function<bool(const Op&)> where;  // empty: every op that has the dim
  bool named = false;                    // a rule for particular ops, which overrides general rules
  std::vector<int> only;                 // the atoms of the axis to use; empty: all
  // The strategy's place, "plan[2]", and the option that led to the rule, "rules[1]" or "", for
  // messages.
  std::string place, option = {};
  const std::vector<int>& atoms(const Mesh& mesh) const {
    return only.empty() ? mesh.axis(axis).atoms : only;
  }
};

// The rule "parameters are stored as shards over `axis` along `dim`" for the parameters for which
// `where` is true. Ops use whole parameters: these are gathered before use, and their gradients are
// reduce-scattered.
struct StorageRule {
  std::string strategy;
  Dim dim;
  std::string axis;
  std::function<bool(const Value&)> where;
  std::string place, option = {};
};

// The rule "the shards of `dim` are passed round the ranks of `axis` in ring steps", instead of
// being gathered, for the ops for which `where` is true.
struct RotationRule {
  std::string strategy;
  Dim dim;
  std::string axis;
  std::function<bool(const Op&)> where;
  std::string place;
};

// The rule "each rank computes its part of `dim` in `slices` slices, one after the other" for the
// ops for which `where` is true.
struct SliceRule {
  std::string strategy;
  Dim dim;
  int slices = 1;
  std::function<bool(const Op&)> where;  // empty: every op that has the dim
  bool recompute = true;  // backward recomputes, slice by slice, values that only a slice uses
  std::string place, option = {};
};

// The rule "the layers are split over `axis`": the virtual stages of the model, and the order in
// which each stage computes. Values that one stage makes and another one uses are sent. A parameter
// that several stages use is stored on each of them, and its gradient is a sum over them.
struct Pipeline {
  std::string axis;           // the axis whose ranks are the stages; "": one stage
  std::vector<int> layers;    // layers of each virtual stage, in order; empty: one virtual stage
  std::vector<int> stage_of;  // the stage of each virtual stage; empty: one stage
  // Makes the schedule. The request has the times and sizes of actions, unless `stage_of` is empty,
  // so that only the schedule gives the placement. Throws Error if it cannot meet the request.
  std::function<Schedule(const ScheduleRequest&)> schedule;
  std::vector<WorkTimes> times;  // for ScheduleRequest::times; empty: predicted times
  double memory_limit = 0;       // limit of a rank's activations, in bytes; 0: none
  bool adapts = false;  // whether the schedule holds less memory if asked with a lower limit
  // Whether the schedule may split a backward into I and W, for any number of microbatches. If so,
  // gradients that I and W make are in different buckets, in every step.
  bool splits = true;
  // Whether `layers` is only a guess (stage_balance.h), which a planner that knows the times of
  // actions on the plan's hardware may replace (PlanRequest::stage_layers).
  bool balances = false;
  // How the actions of a group (Schedule::joined) are interleaved; null: they run one after the
  // other.
  std::shared_ptr<const Weave> weave = nullptr;
  std::string strategy = {}, place = {};  // name and place ("plan[2]") of the strategy
};

// The arguments of Draft::expect_imbalance, and the place of the strategy, "plan[2]".
struct ExpectedImbalance {
  double factor = 1, most = 0;
  std::string place, option;
};

// Collects the rules and passes of strategies while a plan is made. The planner refuses the plan,
// and lists the valid choices, if a rule names a dim that the model lacks or an axis that the mesh
// lacks, if `where` is true for no op with the dim, or if another entry of the plan has the same
// rule for the same ops. It also refuses an axis of several ranks over which nothing is split,
// because all its ranks would do the same work.
class Draft {
 public:
  Draft(const Graph& graph, const Mesh& mesh);
  Draft(const Draft&) = delete;
  ~Draft();

  const Graph& graph() const { return graph_; }
  const Mesh& mesh() const { return mesh_; }
  // Called by the planner before each strategy's edit(): its name, and its place ("plan[2]").
  void set_strategy(std::string strategy, std::string place = "") {
    strategy_ = std::move(strategy);
    place_ = std::move(place);
    option_.clear();
  }
  // Names the option of the strategy that leads to the next calls ("rules[1]"), for messages.
  void set_option(std::string option) { option_ = std::move(option); }

  // Adds a general rule: `axis` splits `dim` in every op that has the dim. The rule also holds for
  // each dim that the model declares to be like `dim` (DimInfo::like), if the axis divides it. If
  // the parts of a dim must be even but are not, the planner refuses the plan, with the nearest
  // ways that fit.
  void shard(Dim dim, const std::string& axis);
  // Adds a rule for the ops for which `where` is true, which overrides general rules in these ops.
  // `atoms`: the atoms of the axis to use; empty: all.
  void shard_in(Dim dim, const std::string& axis, std::function<bool(const Op&)> where,
                std::vector<int> atoms = {});
  // Adds a general rule that is limited to some ops (tp leaves the residual stream alone).
  void shard_where(Dim dim, const std::string& axis, std::function<bool(const Op&)> where);
  // Adds a StorageRule.
  void store(Dim dim, const std::string& axis, std::function<bool(const Value&)> where);
  // Adds a RotationRule, for ops with OpTraits::rotates. `dim` is the op's own name of the dim
  // ("keys" for what other ops call "seq"). If `axis` splits this dim, its shards are passed round
  // in ring steps, and the rank computes with one shard while the next one arrives.
  void rotate(Dim dim, const std::string& axis, std::function<bool(const Op&)> where);
  // Adds a SliceRule: each rank computes its part of `dim` in so many equal slices, in chains of
  // neighbouring ops for which `where` is true. All ops of a chain finish one slice, whose values
  // are freed or kept for backward, before they begin the next. Sums over the dim are added up over
  // the slices. With `recompute`, backward recomputes the values inside of a slice (outside of
  // layers: those of matrix products only).
  void slice(Dim dim, int slices, std::function<bool(const Op&)> where, bool recompute);
  // Changes the order of the elements of `dim`, in the data and in all tensors that depend on them;
  // axes then split the dim in its new order. `order`: ranges that cover the whole dim once.
  void permute_tokens(Dim dim, std::vector<Range> order);
  // Where rows hold several documents: parts each document over the `ways` parts into which seq is
  // cut (parted_by_documents), in the data of each row. Refuses models with ops that have no form
  // for this (OpType::in_parted_documents).
  void part_documents(int ways);
  // For predictions, sets the number of rows of sparse tensors on the fullest rank, divided by the
  // average over ranks. `option`: the strategy's option that gives it, for advice after a run;
  // `most`: the largest possible value (0: not known).
  void expect_imbalance(double factor, std::string option = "", double most = 0) {
    imbalance_ = {factor, most, place_, std::move(option)};
  }
  const ExpectedImbalance& imbalance() const { return imbalance_; }
  // Whether `axis` splits `dim` into equal parts.
  bool divides(const std::string& axis, Dim dim) const;

  void add_pass(Pass pass);
  // Splits the layers into stages. At most one strategy of a plan may do this.
  void pipeline(Pipeline pipeline);
  // Refuses the plan. `code`: one of docs/errors.md, or the plugin's own, "ring.too-short".
  // `option`: the strategy's option that is at fault; empty: none. The message may begin with the
  // strategy's name, as in "tp(3) cannot …"; else the option or the name is put before it.
  void refuse(std::string code, std::string option, std::string message, std::string hint);
  // Adds a sentence to the printed plan ("kv_heads 2 < tp 4: keys and values are replicated").
  void note(std::string text) { notes_.push_back(std::move(text)); }

  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<StorageRule>& storage() const { return storage_; }
  const std::vector<RotationRule>& rotations() const { return rotations_; }
  const std::vector<SliceRule>& slices() const { return slices_; }
  const std::map<Dim, std::vector<Range>>& order() const { return order_; }
  int document_parts() const { return document_parts_; }
  const std::vector<Pass>& passes() const { return passes_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::optional<Pipeline>& pipeline() const { return pipeline_; }
  Problems& problems() { return problems_; }

 private:
  // Whether the dim and the axis exist; refuses the plan if not.
  bool there(const std::string& what, Dim dim, const std::string& axis);
  // Adds the rule, and the same rule for each dim that is like its dim (DimInfo::like).
  void add_rule(Rule rule);

  const Graph& graph_;
  const Mesh& mesh_;
  std::string strategy_, place_, option_;
  std::vector<Rule> rules_;
  std::vector<StorageRule> storage_;
  std::vector<RotationRule> rotations_;
  std::vector<SliceRule> slices_;
  std::map<Dim, std::vector<Range>> order_;
  int document_parts_ = 1;
  ExpectedImbalance imbalance_;
  std::vector<Pass> passes_;
  std::vector<std::string> notes_;
  std::optional<Pipeline> pipeline_;
  std::string pipeline_by_;
  Problems problems_;
};

// Changed options of a strategy with which a rank holds less memory. The search for a plan that
// fits into memory makes a plan with each, and offers it if it fits.
struct Lighter {
  std::string what;      // a noun for messages, as in "no ZeRO stage would fit"
  Json options;          // the options that change, with their new values: { stage = 3 }
  bool drastic = false;  // needs more ranks or other memory: tried only if nothing else suffices
};

// A strategy, one entry of a plan. It is made from checked options when the script's table is read,
// and lives as long as any plan of that table. It is called in the script's thread, and again for
// each plan that is made from it (for other steps, in float64 for `verify`), so its results must
// depend only on its options and arguments. The Draft lives until the plan is made; functions that
// the strategy gives to it may refer to the strategy.
//
// An exception of these functions or of the constructor refuses the plan, with the plugin's name
// and the script's line. An Error keeps its own words; its key is the option at fault, if any.
class Strategy {
 public:
  virtual ~Strategy() = default;
  // The axes that the strategy needs, outermost first. A name consists of letters, digits and "_",
  // and is not the name of a role.
  virtual std::vector<AxisRequest> axes() const = 0;
  // Adds the strategy's rules, passes and notes to the draft.
  virtual void edit(Draft& draft) const = 0;
  // Variants of the strategy with less memory, the mildest first. A variant that the planner
  // refuses is skipped.
  virtual std::vector<Lighter> lighter() const { return {}; }
};

template <>
struct KindOf<Strategy> {
  static constexpr Kind kind = Kind::strategy;
  using Make = std::unique_ptr<Strategy>(const Values& values);
};
template <class Class>
constexpr Registration strategy(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Strategy, Class>(name, doc);
}

}  // namespace mw
