// Instructions say what is done: a reader of the program alone sees when sums begin, what is
// settled before it is read, which transfers are under way and what the totals count; and the
// executor knows nothing more.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "meshwright/engine/ranks.h"
#include "meshwright/passes.h"
#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

std::vector<Mix> mixes() {
  const std::int64_t small = 1 << 12;
  return {{"one rank", {}},
          {"dp", {dp(2, small)}},
          {"zero 1 with replicas", {zero(4, 1, 2)}},
          {"zero 2", {zero(2, 2)}},
          {"zero 2 by chunk", {pp(2, "interleaved", {1, 1, 1, 1}), zero_by_chunk(2, 2)}},
          {"zero 3", {zero(2, 3), tp(2)}},
          {"zero 3, gathered once", {zero(2, 3, 1, 1, true)}},
          {"zero 3, parameters in host memory", {zero(2, 3, 1, 1, false, small, "parameters")}},
          {"zero 3, gathered once from host memory", {zero(2, 3, 1, 1, true, small, "parameters")}},
          {"zero bubble", {pp(2, "zb-h1", {2, 2}), dp(2)}},
          {"reduced in every microbatch", {dp(2), does("each", {}, [](Draft& draft) {
                                             draft.add_pass(reduce_each_microbatch("dp"));
                                           })}}};
}

Setup setup_of(const Mix& mix) {
  Setup setup;
  setup.options["layers"] = 4;
  setup.microbatch = 2;
  setup.plan = mix.plan;
  return setup;
}

// Follows the instructions of a step.
class Reader {
 public:
  explicit Reader(const Program& program) : program_(program) {
    for (const Bucket& bucket : program.buckets) {
      sums_.insert(bucket.flat.gradients);
      if (program.slots[bucket.flat.reduced].alias_of < 0) sums_.insert(bucket.flat.reduced);
    }
    sums_.insert(program.loss);
    for (const Bucket& bucket : program.buckets) {
      if (bucket.gather_overlaps_forward) outlasting_.insert({bucket.flat.gather, -1});
    }
    underway_ = outlasting_;  // as the step before leaves it
  }

  void run() {
    const SegmentRun& first = program_.timeline.front();
    CHECK(program_.segments[first.segment].kind == SegmentKind::begin);
    for (const SegmentRun& run : program_.timeline) {
      for (const Instruction& i : program_.segments[run.segment].code) {
        INFO(program_.segments[run.segment].name << ": " << name_of(i.code) << " " << i.label);
        read(i, run.microbatch);
      }
    }
    CHECK(underway_ == outlasting_);
    for (const int slot : sums_) {
      INFO(program_.slots[slot].name);
      CHECK((program_.slots[slot].transient || begun_.contains(slot)));
    }
  }

 private:
  bool is_sum(int slot) const { return sums_.contains(slot); }
  void read(const Instruction& i, int microbatch) {
    const bool lasts = between_lasting(program_, i);
    const std::pair key(i.pending, lasts ? -1 : microbatch);
    if (i.code == Code::begin_sum) begun_.insert(i.outputs.begin(), i.outputs.end());
    if (i.code == Code::settle) unsettled_.erase(i.outputs[0]);
    if (i.code == Code::start || i.code == Code::hook_start) {
      CHECK(underway_.insert(key).second);
      over_.erase(key);
      for (const int slot : i.inputs) CHECK(program_.slots[slot].memory == Memory::device);
    }
    if (i.code == Code::wait || i.code == Code::hook_finish) {
      CHECK((underway_.erase(key) == 1 || (i.again && over_.contains(key))));
      over_.insert(key);
    }
    // Who reads a sum as a whole reads what is settled.
    if (lasts || i.code == Code::totals) {
      for (const int slot : i.inputs)
        CHECK_FALSE((i.code != Code::wait && unsettled_.contains(program_.root(slot))));
    }
    if (i.code == Code::totals) {
      CHECK(i.inputs[0] == program_.loss);
      CHECK(i.contributing.size() == i.inputs.size());
    }
    for (const int slot : i.grad_inputs) write(slot);
    if (i.code == Code::add) write(i.outputs[0]);
  }
  void write(int slot) {
    if (slot < 0 || !is_sum(program_.root(slot))) return;
    const int root = program_.root(slot);
    CHECK((program_.slots[root].transient || begun_.contains(root)));
    unsettled_.insert(root);
  }

  const Program& program_;
  std::set<int> sums_, begun_, unsettled_;
  std::set<std::pair<int, int>> underway_, over_, outlasting_;
};

// The loss of each step of a plan whose programs were edited, at a rate of zero.
std::vector<double> losses(const Experiment& e, const std::function<void(Program&)>& edit,
                           int steps) {
  Plan plan = *e.plan;
  for (Program& program : plan.programs) edit(program);
  std::vector<double> losses(static_cast<std::size_t>(steps));
  with_ranks(e, plan, nullptr, [&](RankRun& executor, Ledger&) {
    for (int step = 0; step < steps; ++step) {
      const double loss = executor.step(step, 0).loss;
      if (executor.rank() == 0) losses[static_cast<std::size_t>(step)] = loss;
    }
  });
  return losses;
}

// Takes out what `which` takes; how many.
int take_out(Program& program, const std::function<bool(const Instruction&)>& which) {
  std::size_t removed = 0;
  for (Segment& segment : program.segments) removed += std::erase_if(segment.code, which);
  return static_cast<int>(removed);
}

std::string words_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.problems().front().code + ": " + error.problems().front().message;
  }
  return "none";
}

}  // namespace

TEST_CASE("Sums begin, are settled before they are read, and transfers are begun before waits") {
  for (const Mix& mix : mixes()) {
    INFO(mix.name);
    const Experiment e = experiment(setup_of(mix));
    for (const Program& program : e.plan->programs) Reader(program).run();
  }
}

TEST_CASE("A shard in host memory comes to the device by a copy before its gather") {
  const Experiment e = experiment(setup_of({"", {zero(2, 3, 1, 1, false, 1 << 12, "parameters")}}));
  const Program& program = e.plan->programs.front();
  int copies = 0;
  for (const Segment& segment : program.segments) {
    for (std::size_t n = 0; n + 1 < segment.code.size(); ++n) {
      const Instruction &copy = segment.code[n], &start = segment.code[n + 1];
      if (copy.code != Code::copy || program.slots[copy.outputs[0]].memory != Memory::device ||
          program.slots[copy.inputs[0]].memory != Memory::host)
        continue;
      ++copies;
      CHECK(start.code == Code::start);
      CHECK(start.inputs[0] == copy.outputs[0]);
      CHECK(copy.inputs[0] == program.buckets[copy.bucket].flat.stored);
    }
  }
  CHECK(copies >= 8);  // four layers, forward and backward
}

TEST_CASE("Without the instruction that begins them, a step's sums go on from the last step's") {
  const Experiment e = experiment(setup_of({"", {dp(2)}}));
  const auto as_it_is = losses(
      e, [](Program&) {}, 2);
  const auto edited = losses(
      e,
      [](Program& program) {
        CHECK(take_out(program, [](const Instruction& i) { return i.code == Code::begin_sum; }) ==
              1);
      },
      2);
  CHECK(edited[0] == Approx(as_it_is[0]));
  CHECK(edited[1] == Approx(as_it_is[0] + as_it_is[1]));
}

TEST_CASE("A wait for what was never begun ends the run and names its slot") {
  const Experiment e = experiment(setup_of({"", {dp(2)}}));
  const std::string said = words_of([&] {
    losses(
        e,
        [](Program& program) {
          CHECK(take_out(program, [&](const Instruction& i) {
                  return i.code == Code::start && between_lasting(program, i);
                }) > 0);
        },
        1);
  });
  CHECK_THAT(said, Catch::Contains("run.internal") && Catch::Contains("never begun") &&
                       Catch::Contains("bucket 0 reduced gradients"));
}

TEST_CASE("Only a wait that says so may come after its transfer is over") {
  const Experiment e = experiment(setup_of({"", {zero(2, 3, 1, 1, true)}}));
  CHECK(losses(
            e, [](Program&) {}, 2)
            .size() == 2);
  const std::string said = words_of([&] {
    losses(
        e,
        [](Program& program) {
          for (Segment& segment : program.segments) {
            for (Instruction& i : segment.code) i.again = false;
          }
        },
        1);
  });
  CHECK_THAT(said, Catch::Contains("never begun"));
}

TEST_CASE("The totals count each bucket once over the ranks that hold it alike") {
  const Experiment e = experiment(setup_of({"", {pp(2, "1f1b", {2, 2}), zero(2, 1), tp(2)}}));
  for (const Program& program : e.plan->programs) {
    const Segment& segment =
        program.segments.at(static_cast<std::size_t>(program.segment("totals")));
    const Instruction& totals = segment.code.back();
    REQUIRE(totals.code == Code::totals);
    std::set<int> counted;
    for (std::size_t k = 1; k < totals.inputs.size(); ++k) {
      const Slot& slot = program.slots[totals.inputs[k]];
      const Bucket& bucket = program.buckets[slot.bucket];
      counted.insert(slot.bucket);
      for (std::size_t a = 0; a < program.mesh.atoms().size(); ++a) {
        const int atom = static_cast<int>(a);
        const auto in = [&](const std::vector<int>& list) {
          return std::find(list.begin(), list.end(), atom) != list.end();
        };
        const bool parts = in(bucket.parameter_atoms) || in(bucket.shard_atoms);
        CHECK(in(totals.contributing[k]) == (!parts && atom != program.stage_atom));
      }
    }
    CHECK(counted.size() == program.buckets.size());
  }
}
