// A plugin that does what none should: throws anything from anywhere, asks for axes that cannot be,
// says rules that match nothing. What it does not do wrong is batch -> b.
#include <map>
#include <stdexcept>

#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/strategy.h"

namespace {

struct Other {};

[[noreturn]] void throw_what(const std::string& what) {
  if (what == "integer") throw 42;
  if (what == "text") throw std::string("a text");
  if (what == "letters") throw "letters";
  if (what == "null") throw static_cast<const char*>(nullptr);
  if (what == "other") throw Other();
  if (what == "bytes") throw std::runtime_error("not \xff\x01 text");
  if (what == "error")
    throw mw::Error(mw::Stage::plan, "hostile.own", "", "an error of its own", "a hint of its own");
  throw std::runtime_error("an exception");
}

// Sums as dp does, or throws there.
class Hook : public mw::ReductionHook {
 public:
  Hook(std::string at, std::string what) : at_(std::move(at)), what_(std::move(what)) {}
  std::string name() const override { return passing("hook.name"), "hostile"; }
  bool exact(const mw::BucketShape&) const override { return passing("hook.exact"), true; }
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override {
    passing("hook.cost");
    mw::ReductionCost cost;
    cost.start.calls = {{mw::Collective::all_reduce, bucket.elements * bucket.element}};
    return cost;
  }
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape&,
                                            at::TensorOptions) const override {
    passing("hook.make");
    if (at_ == "hook.nothing") return nullptr;
    return std::make_unique<Sum>(*this);
  }

 private:
  class Sum : public mw::BucketReduction {
   public:
    explicit Sum(const Hook& hook) : hook_(hook) {}
    void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
      hook_.passing("hook.start");
      pending_ = ranks.all_reduce(gradient, mw::Reduction::sum, purpose);
    }
    void finish() override {
      hook_.passing("hook.finish");
      pending_.wait();
    }

   private:
    const Hook& hook_;
    mw::Pending pending_;
  };

  void passing(const std::string& place) const {
    if (at_ == place) throw_what(what_);
  }

  std::string at_, what_;
};

class Hostile : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks of the axis b")
        .positional("ways")
        .text("at", "where it throws, or what it does wrong")
        .fallback("nowhere")
        .text("what", "what it throws")
        .fallback("exception");
  }

  explicit Hostile(const mw::Values& values)
      : ways_(static_cast<int>(values.integer("ways"))),
        at_(values.text("at")),
        what_(values.text("what")) {
    passing("constructor");
  }

  std::vector<mw::AxisRequest> axes() const override {
    passing("axes");
    if (at_ == "negative ways") return {{"b", -3, {}}};
    if (at_ == "no ways") return {{"b", 0, {}}};
    if (at_ == "huge ways") return {{"b", 2147483647, {}}};
    if (at_ == "no name") return {{"", ways_, {}}};
    if (at_ == "bytes as name") return {{std::string("x\"\n\xff\0y", 6), ways_, {}}};
    if (at_ == "long name") return {{std::string(100'000, 'b'), ways_, {}}};
    if (at_ == "overflow")
      return {{"b", 65536, {}}, {"c", 65536, {}}, {"d", 65536, {}}, {"e", 65536, {}}};
    if (at_ == "one axis twice") return {{"b", ways_, {}}, {"b", ways_, {}}};
    if (at_ == "the axis of dp") return {{"dp", ways_, {}}};
    if (at_ == "borrows from nobody") return {{"b", ways_, {}, {"nobody"}}};
    if (at_ == "borrows too many") return {{"b", 7, {}, {"dp"}}};
    if (at_ == "borrows one twice") return {{"b", 4, {}, {"dp", "dp"}}};
    return {{"b", ways_, {}}};
  }

  void edit(mw::Draft& draft) const override {
    passing("edit");
    const auto asked = [this](const auto&) { return passing("where"), false; };
    static const std::map<std::string, void (*)(mw::Draft&)> rules = {
        {"no rule", [](mw::Draft&) {}},
        {"no such dim", [](mw::Draft& d) { d.shard("bacth", "b"); }},
        {"no such axis", [](mw::Draft& d) { d.shard("batch", "bb"); }},
        {"bytes as dim", [](mw::Draft& d) { d.shard(std::string("\xff\n"), "b"); }},
        {"divides no axis", [](mw::Draft& d) { d.divides("bb", "batch"); }},
        {"twice", [](mw::Draft& d) { d.shard("batch", "b"), d.shard("batch", "b"); }},
        {"where nothing",
         [](mw::Draft& d) { d.shard_where("batch", "b", [](const mw::Op&) { return false; }); }},
        {"where without the dim",
         [](mw::Draft& d) {
           d.shard_in("vocab", "b", [](const mw::Op& op) { return op.kind() == "attention"; });
         }},
        {"no such atom",
         [](mw::Draft& d) { d.shard_in("batch", "b", [](const mw::Op&) { return true; }, {7}); }},
        {"stores no dim", [](mw::Draft& d) { d.store("hiden", "b", {}); }},
        {"stores nothing",
         [](mw::Draft& d) { d.store("hidden", "b", [](const mw::Value&) { return false; }); }},
        {"rotates nothing",
         [](mw::Draft& d) { d.rotate("keys", "b", [](const mw::Op&) { return false; }); }},
        {"arranges too little",
         [](mw::Draft& d) {
           d.permute_tokens("seq", {{0, 4}});
         }},
        {"arranges one twice",
         [](mw::Draft& d) {
           d.permute_tokens("seq", {{0, 4}, {0, 4}});
         }},
        {"arranges no dim",
         [](mw::Draft& d) {
           d.permute_tokens("sqe", {{0, 8}});
         }},
        {"stages on no axis",
         [](mw::Draft& d) {
           d.pipeline({"ppp", {1, 1}, {0, 1}, schedule, {}, 0, false});
         }},
        {"stages beyond",
         [](mw::Draft& d) {
           d.pipeline({"b", {1, 1}, {0, 7}, schedule, {}, 0, false});
         }},
        {"stages of too few layers",
         [](mw::Draft& d) {
           d.pipeline({"b", {1, 7}, {0, 1}, schedule, {}, 0, false});
         }},
        {"no schedule",
         [](mw::Draft& d) {
           d.pipeline({"b", {1, 1}, {0, 1}, {}, {}, 0, false});
         }},
        {"an empty pass",
         [](mw::Draft& d) {
           d.add_pass({"empty", {}});
         }},
        {"a pass of no axis", [](mw::Draft& d) { d.add_pass(mw::reduce_each_microbatch("bb")); }},
        {"hidden", [](mw::Draft& d) { d.shard("hidden", "b"); }},
        {"seq", [](mw::Draft& d) { d.shard("seq", "b"); }},
        {"layers", [](mw::Draft& d) { d.shard("layers", "b"); }},
        {"experts", [](mw::Draft& d) { d.shard("experts", "b"); }},
        {"head_dim", [](mw::Draft& d) { d.shard("head_dim", "b"); }},
        {"all",
         [](mw::Draft& d) {
           for (const char* dim : {"batch", "seq", "heads", "kv_heads", "ffn", "vocab"})
             d.shard(dim, "b");
         }},
        {"a pass for no sums",
         [](mw::Draft& d) {
           d.shard("heads", "b");
           d.add_pass(mw::reduce_each_microbatch("b"));
         }},
    };
    if (const auto rule = rules.find(at_); rule != rules.end()) return rule->second(draft);
    if (at_ == "schedule") {
      draft.pipeline({"b",
                      {1, 1},
                      {0, 1},
                      [this](const mw::ScheduleRequest& request) {
                        passing("schedule");
                        return schedule(request);
                      },
                      {},
                      0,
                      false});
      return;
    }
    if (at_ == "where") draft.shard_in("hidden", "b", asked);
    if (at_ == "where of storage") {
      draft.store("hidden", "b", [this](const mw::Value&) -> bool { throw_what(what_); });
    }
    draft.shard("batch", "b");
    if (at_ == "refuse")
      draft.refuse("hostile.dislikes", "", "it does not like the plan", "leave it out");
    if (at_ == "pass") draft.add_pass({"throws", [this](mw::Program&) { passing("pass"); }});
    if (at_.starts_with("hook")) {
      draft.add_pass(mw::hook_reductions("b", [this](const mw::BucketShape&) {
        passing("hook");
        return std::make_shared<Hook>(at_, what_);
      }));
    }
  }

 private:
  static mw::Schedule schedule(const mw::ScheduleRequest& request) {
    mw::Schedule schedule{"hostile", request.microbatches, {}, {}};
    for (int stage = 0; stage < request.stages; ++stage) {
      schedule.stage_of.push_back(stage);
      auto& order = schedule.order.emplace_back();
      for (const mw::Work work : {mw::Work::forward, mw::Work::backward}) {
        for (int m = 0; m < request.microbatches; ++m) order.push_back({stage, work, m});
      }
    }
    return schedule;
  }

  void passing(const std::string& place) const {
    if (at_ == place) throw_what(what_);
  }

  int ways_;
  std::string at_, what_;
};

}  // namespace

MESHWRIGHT_PLUGIN("hostile", "1.0.0", "throws, and asks for what cannot be",
                  mw::strategy<Hostile>())
