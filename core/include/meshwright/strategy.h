// A parallelism strategy: asks for a mesh axis and says which dim lives on it, and where. All
// collectives and their adjoints follow from that (docs/architecture.md). This is the first layer
// of the SDK; with plugin.h it is all that a form of rules needs:
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
  // Empty: ranks of its own. Else those of these axes, in this order, as far as the plan has them:
  // names, or roles ("data"), each of which stands for all axes of that role with ranks of their
  // own, in the plan's order.
  std::vector<std::string> borrow = {};
};

// "`dim` lives on `axis`" in the ops that `where` takes.
struct Rule {
  std::string strategy;  // who says so
  Dim dim;
  std::string axis;
  std::function<bool(const Op&)> where;  // empty: every op that has the dim
  bool named = false;                    // for particular ops: outweighs a general rule
  std::vector<int> only;                 // atoms of the axis; empty: all of them
  // Who says so, for messages: "plan[2]", and which of its options, "rules[1]", or "".
  std::string place, option = {};
  const std::vector<int>& atoms(const Mesh& mesh) const {
    return only.empty() ? mesh.axis(axis).atoms : only;
  }
};

// "The parameters that `where` takes are stored sharded on `axis` along `dim`" although they are
// not used so: gathered before use, their gradient reduce-scattered.
struct StorageRule {
  std::string strategy;
  Dim dim;
  std::string axis;
  std::function<bool(const Value&)> where;
  std::string place, option = {};
};

// "In the ops that `where` takes, `dim` goes round the ranks of `axis`" instead of being gathered.
struct RotationRule {
  std::string strategy;
  Dim dim;
  std::string axis;
  std::function<bool(const Op&)> where;
  std::string place;
};

// "`dim` is computed in so many slices, one after the other", on each rank, in the ops that `where`
// takes.
struct SliceRule {
  std::string strategy;
  Dim dim;
  int slices = 1;
  std::function<bool(const Op&)> where;  // empty: every op that has the dim
  bool recompute = true;  // backward makes again, slice by slice, what is made inside of one
  std::string place, option = {};
};

// "The layers live on `axis`": the model split into virtual stages, and in which order each stage
// computes. What crosses from one to another is sent; a parameter that several stages use is stored
// on each, and its gradient is a sum over them.
struct Pipeline {
  std::string axis;           // its ranks are the stages; "": one stage
  std::vector<int> layers;    // of each virtual stage, in model order; empty: all in one
  std::vector<int> stage_of;  // of each virtual stage; empty: one stage
  // Called with what is known of the plan by then: the times and sizes of works, unless `stage_of`
  // is empty and only the schedule tells the placement. Throws Error for what cannot be met.
  std::function<Schedule(const ScheduleRequest&)> schedule;
  std::vector<WorkTimes> times;  // as ScheduleRequest's; empty: predicted
  double memory_limit = 0;       // bytes of activations of a rank; 0: none
  bool adapts = false;  // the schedule heeds a memory limit: asked again with less, it holds less
  // Whether the schedule may part a backward into I and W, for whatever number of microbatches.
  // Gradients that I and W make apart are then reduced apart, in every step alike.
  bool splits = true;
  // Whether `layers` was chosen for want of better knowledge (stage_balance.h): who knows what
  // works take on the hardware that the plan is for may have others (PlanRequest::stage_layers).
  bool balances = false;
  // How the works of a group (Schedule::joined) are interleaved; null: they run one after the
  // other.
  std::shared_ptr<const Weave> weave = nullptr;
  std::string strategy = {}, place = {};  // of who says so: "plan[2]"; set by the planner
};

// Draft::expect_imbalance, and who said it: "plan[2]".
struct ExpectedImbalance {
  double factor = 1, most = 0;
  std::string place, option;
};

// The plan while strategies edit it. What matches nothing makes the planner refuse the plan, with
// what there is: a dim that the model lacks, an axis that the mesh lacks, a `where` that takes no
// op with the dim, a rule that another entry has said already for the same ops. So is an axis of
// several ranks on which nothing lives, as all of them would do the same work.
class Draft {
 public:
  Draft(const Graph& graph, const Mesh& mesh);
  Draft(const Draft&) = delete;
  ~Draft();

  const Graph& graph() const { return graph_; }
  const Mesh& mesh() const { return mesh_; }
  // Whose calls follow, and where a script has it ("plan[2]"); set by the planner.
  void set_strategy(std::string strategy, std::string place = "") {
    strategy_ = std::move(strategy);
    place_ = std::move(place);
    option_.clear();
  }
  // Which of the strategy's options what follows is for, as messages name it ("rules[1]").
  void set_option(std::string option) { option_ = std::move(option); }

  // A general rule: `dim` is cut by `axis` in every op that has it, and so is each dim that the
  // model declares to be like it (DimInfo::like), if that divides. A dim whose parts must be even
  // and are not makes the planner refuse the plan, with the nearest ways that fit.
  void shard(Dim dim, const std::string& axis);
  // A rule for the ops that `where` takes; it outweighs general ones there.
  // `atoms`: of the axis; empty: all.
  void shard_in(Dim dim, const std::string& axis, std::function<bool(const Op&)> where,
                std::vector<int> atoms = {});
  // A general rule limited to some ops (tp leaves the residual stream alone).
  void shard_where(Dim dim, const std::string& axis, std::function<bool(const Op&)> where);
  void store(Dim dim, const std::string& axis, std::function<bool(const Value&)> where);
  // Where `axis` cuts such an op along the dim that its `dim` is called elsewhere (keys: seq), the
  // shards are passed round in ring steps, while the one that is there is computed with
  // (OpTraits::rotates).
  void rotate(Dim dim, const std::string& axis, std::function<bool(const Op&)> where);
  // Each rank computes its part of `dim` in so many equal slices, one after the other, in
  // neighbouring ops that `where` takes: what they make of one slice is gone, or kept for backward,
  // before the next one begins. What sums over the dim adds up. With `recompute`, backward makes
  // again what a slice has inside (outside of layers: products of matrices alone).
  void slice(Dim dim, int slices, std::function<bool(const Op&)> where, bool recompute);
  // The elements of `dim` lie in this order, in data and all that is made of it, and are cut as
  // they lie. The ranges are those of the whole dim, each once.
  void permute_tokens(Dim dim, std::vector<Range> order);
  // Tells predictions the rows of sparse tensors on the rank that has most, over the average.
  // `option`: which of the strategy's says so, for advice after a run; `most`: more no rank can
  // have (0: not known).
  void expect_imbalance(double factor, std::string option = "", double most = 0) {
    imbalance_ = {factor, most, place_, std::move(option)};
  }
  const ExpectedImbalance& imbalance() const { return imbalance_; }
  // True if `axis` cuts `dim` into equal parts.
  bool divides(const std::string& axis, Dim dim) const;

  void add_pass(Pass pass);
  // One strategy at most may part the layers.
  void pipeline(Pipeline pipeline);
  // `code`: one of docs/errors.md, or of the plugin's own, "ring.too-short". `option`: which of the
  // strategy's is at fault; empty: none. The message may begin with the strategy's name, as in
  // "tp(3) cannot …"; else the option or the name is put before it.
  void refuse(std::string code, std::string option, std::string message, std::string hint);
  // A sentence for the printed plan ("kv_heads 2 < tp 4: keys and values are replicated").
  void note(std::string text) { notes_.push_back(std::move(text)); }

  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<StorageRule>& storage() const { return storage_; }
  const std::vector<RotationRule>& rotations() const { return rotations_; }
  const std::vector<SliceRule>& slices() const { return slices_; }
  const std::map<Dim, std::vector<Range>>& order() const { return order_; }
  const std::vector<Pass>& passes() const { return passes_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::optional<Pipeline>& pipeline() const { return pipeline_; }
  Problems& problems() { return problems_; }

 private:
  // Whether there are such a dim and such an axis; refuses what is not there.
  bool there(const std::string& what, Dim dim, const std::string& axis);
  // Adds it, and the same for each dim that is like its own (DimInfo::like).
  void add_rule(Rule rule);

  const Graph& graph_;
  const Mesh& mesh_;
  std::string strategy_, place_, option_;
  std::vector<Rule> rules_;
  std::vector<StorageRule> storage_;
  std::vector<RotationRule> rotations_;
  std::vector<SliceRule> slices_;
  std::map<Dim, std::vector<Range>> order_;
  ExpectedImbalance imbalance_;
  std::vector<Pass> passes_;
  std::vector<std::string> notes_;
  std::optional<Pipeline> pipeline_;
  std::string pipeline_by_;
  Problems problems_;
};

// With some of its options changed a strategy lets a rank hold less: what the search for a plan
// that fits memory tries. Each is planned as it is, and offered if it fits.
struct Lighter {
  std::string what;      // for people, as in "no ZeRO stage would fit"
  Json options;          // that change, with their new values: { stage = 3 }
  bool drastic = false;  // takes more ranks, or other memory: tried if all else does not suffice
};

// One entry of a plan. Made of options that are checked against the plugin's, when the script's
// table is read, and kept as long as any plan of that table; called in the script's thread, and
// again for each plan that is made of it (of other steps, in float64 for `verify`). So its answers
// follow from its options, and what it is asked about, alone. The Draft is the planner's and goes
// when the plan is made; functions that are given to it may refer to the strategy.
//
// Whatever these functions, and the constructor, throw refuses the plan, with the plugin's name and
// the script's line. An Error keeps its own words; its key is the option that is at fault, if any.
class Strategy {
 public:
  virtual ~Strategy() = default;
  // The axes it needs, outermost first. A name is letters, digits and "_", and no role's.
  virtual std::vector<AxisRequest> axes() const = 0;
  // Its rules, passes and notes.
  virtual void edit(Draft& draft) const = 0;
  // Its lighter variants, the mildest first. One that is refused in this plan does no harm.
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
