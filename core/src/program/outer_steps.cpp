// Says what happens after which step where replicas differ, and how an outer step updates a bucket.
#include "meshwright/outer_steps.h"

#include "meshwright/program.h"

namespace mw {
namespace {

// The anchor becomes the mean of the replicas' parameters.
class Mean final : public ElementOp {
 public:
  std::string name() const override { return "mean"; }
  void run(const UpdateCall& call) const override {
    call.parameter.sub_(call.gradient, call.grad_scale);
  }
};

// How many steps earlier than those of the first fragment the outer steps of a fragment come.
std::int64_t offset(const OuterSteps& outer, int fragment) {
  return outer.every * fragment / outer.fragments;
}

}  // namespace

std::vector<OuterEvent> outer_events(const OuterSteps& outer, std::int64_t step) {
  std::vector<OuterEvent> ends, events;
  for (int f = 0; f < outer.fragments; ++f) {
    const auto due = [&](std::int64_t done) {
      return done > 0 && (done + offset(outer, f)) % outer.every == 0;
    };
    const auto count = [&](std::int64_t done) {
      return (done + offset(outer, f)) / outer.every - 1;
    };
    const std::int64_t done = step + 1;
    if (due(done)) events.push_back({f, true, outer.delay == 0, count(done)});
    if (outer.delay > 0 && due(done - outer.delay))
      ends.push_back({f, false, true, count(done - outer.delay)});
  }
  ends.insert(ends.end(), events.begin(), events.end());
  return ends;
}

std::vector<OuterEvent> kinds_of_outer_events(const OuterSteps& outer) {
  std::vector<OuterEvent> kinds;
  for (int f = 0; f < outer.fragments; ++f) {
    kinds.push_back({f, true, outer.delay == 0});
    if (outer.delay > 0) kinds.push_back({f, false, true});
  }
  return kinds;
}

const UpdateRule& rule_of_outer_step(const Program& program, int bucket) {
  static const Mean op;
  static const UpdateRule mean{.apply = &op};
  const bool averages = program.outer->optimizer == nullptr || program.buckets[bucket].counts;
  return averages ? mean : program.outer->rule;
}

std::vector<std::pair<std::string, int>> states_of_outer_steps(const Program& program,
                                                               const Bucket& bucket) {
  const FlatSlots& flat = bucket.flat;
  if (flat.anchor < 0) return {};
  std::vector<std::pair<std::string, int>> states{{"anchor", flat.anchor}};
  for (std::size_t k = 0; k < flat.outer_states.size(); ++k)
    states.emplace_back("outer " + program.outer->rule.states[k], flat.outer_states[k]);
  if (!program.slots[flat.outer_gradient].transient)
    states.emplace_back("outer gradient", flat.outer_gradient);
  return states;
}

}  // namespace mw
