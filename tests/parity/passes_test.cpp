// Passes and directives: what they make of mixes equals one rank, and is what they say.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "meshwright/passes.h"
#include "predict/prediction.h"
#include "support/passes.h"
#include "support/sample.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT
using Catch::Contains;

namespace {

// Swaps neighbours that may be swapped, many times, the same ones each time a program is made.
Pass shuffled(unsigned seed) {
  Pass pass;
  pass.name = "shuffled";
  pass.rearrange = [seed](Program& program) {
    std::mt19937 random(seed + static_cast<unsigned>(program.stage));
    for (Segment& segment : program.segments) {
      const std::size_t size = segment.code.size();
      if (segment.kind == SegmentKind::finish || size < 2) continue;
      for (std::size_t k = 0; k < 4 * size; ++k) {
        const std::size_t from = random() % size, to = random() % size;
        moved(program, segment.code, from, to);
      }
    }
  };
  return pass;
}

std::string refusal_of(const Setup& setup) {
  try {
    experiment(setup);
  } catch (const Error& error) {
    return error.problems().front().code + ": " + error.problems().front().message;
  }
  return "";
}

Setup with_pass(Pass pass, NamedMix mix) {
  mix.setup.plan.push_back(does("strange", {}, [pass](Draft& draft) { draft.add_pass(pass); }));
  return mix.setup;
}

}  // namespace

TEST_CASE("Each directive leaves a mix that equals one rank", "[sampled]") {
  const std::vector<DirectedMix> mixes = directed_mixes();
  const int which = GENERATE_COPY(range(0, static_cast<int>(mixes.size())));
  const bool recompute = GENERATE(false, true);
  if (left_out({which, recompute ? 1 : 0}, 2)) return;
  const DirectedMix& mix = mixes[static_cast<std::size_t>(which)];
  if (mix.mix.name.starts_with("a hook")) return;  // which loses some, by choice
  DYNAMIC_SECTION(mix.mix.name << (recompute ? ", recompute" : "")) {
    Setup setup = directed(mix);
    if (recompute) setup.recompute.kind = RecomputePolicy::Kind::full;
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Any order that swaps allow equals one rank", "[sampled]") {
  const std::vector<NamedMix> mixes = all_mixes();
  const int which = GENERATE_COPY(range(0, static_cast<int>(mixes.size())));
  const unsigned seed = GENERATE(1u, 2u, 3u);
  if (left_out({which, static_cast<int>(seed)}, 9)) return;
  const NamedMix& mix = mixes[static_cast<std::size_t>(which)];
  if (mix.name.find("powersgd") != mix.name.npos || mix.name.find("bf16") != mix.name.npos) return;
  DYNAMIC_SECTION(mix.name << ", seed " << seed) {
    must_equal_one_rank(with_pass(shuffled(seed), mix));
  }
}

TEST_CASE("A pass that changes more than it says is refused, with what it changed") {
  const auto first_of = [](Program& program, auto&& wanted) {
    for (Segment& segment : program.segments) {
      for (std::size_t n = 0; n < segment.code.size(); ++n) {
        if (segment.kind == SegmentKind::backward && wanted(segment.code[n]))
          return std::pair(&segment.code, n);
      }
    }
    throw std::logic_error("there is none");
  };
  const auto is_dgrad = [](const Instruction& i) { return i.piece == Piece::dgrad && i.op >= 0; };
  const auto made = [](Pass::Changes changes, std::function<void(Program&)> run) {
    Pass pass;
    pass.name = "bad";
    pass.run = std::move(run);
    pass.changes = changes;
    return pass;
  };
  const auto backwards = [&](Program& program) {  // a dgrad before what makes its gradient
    const auto [code, n] = first_of(program, is_dgrad);
    move_to(*code, n, 0);
  };
  const auto twice = [&](Program& program) {
    const auto [code, n] = first_of(program, is_dgrad);
    code->push_back((*code)[n]);
  };
  const auto gone = [&](Program& program) {
    const auto [code, n] = first_of(program, is_dgrad);
    code->erase(code->begin() + static_cast<std::ptrdiff_t>(n));
  };
  const auto narrow = [](Program& program) { program.reduce_dtype = Dtype::fp32; };
  const auto each = [](Program& program) {
    for (Bucket& bucket : program.buckets) bucket.reduce_per_microbatch = true;
  };
  const NamedMix mix = mixes::mix("dp 2", {dp(2)}, 2);
  using Changes = Pass::Changes;
  const auto refused = [&](Changes changes, const std::function<void(Program&)>& run) {
    return refusal_of(with_pass(made(changes, run), mix));
  };
  CHECK_THAT(refused(Changes::order, backwards),
             Contains("pass.changes") && Contains("the pass puts") && Contains("dgrad of"));
  CHECK_THAT(refused(Changes::order, twice), Contains("is new"));
  CHECK_THAT(refused(Changes::order, gone), Contains("is gone"));
  CHECK_THAT(refused(Changes::placement, twice),
             Contains("is computed 4 times in a step, and was 2 times"));
  CHECK_THAT(refused(Changes::placement, narrow), Contains("a dtype of the program is another"));
  CHECK_THAT(refused(Changes::placement, each), Contains("is summed otherwise"));
  CHECK(refused(Changes::numerics, each).empty());
  Pass late = made(Changes::numerics, [](Program&) {});
  late.rearrange = twice;  // changes order alone, whatever it says
  CHECK_THAT(refusal_of(with_pass(late, mix)), Contains("changes only the order of instructions"));
}

TEST_CASE("Streams: what goes on one has its order in the program and in its price") {
  Setup setup = directed(directed_mixes()[4]);
  const Experiment e = experiment(setup);
  int starts = 0;
  for (const Segment& segment : e.plan->programs[0].segments) {
    for (const Instruction& i : segment.code) {
      if (i.move.stream >= 0) ++starts;
      if (i.code != Code::start) CHECK(i.move.stream == -1);
    }
  }
  CHECK(starts > 0);
  CHECK(e.plan->programs[0].streams == std::vector<std::string>{"one"});
  setup.plan.pop_back();
  CHECK(experiment(setup).plan->hash() != e.plan->hash());
}

TEST_CASE("A transfer between stages on a stream, and a stream that is not there, are not proved") {
  Setup setup = mixes::mix("pp 2", {pp(2, "1f1b", {1, 1})}, 2).setup;
  const bool there = GENERATE(false, true);
  std::vector<Program> programs = experiment(setup).plan->programs;
  if (there) programs[0].streams = {"between"};
  for (Segment& segment : programs[0].segments) {
    for (Instruction& i : segment.code) {
      if (i.code == Code::start && i.move.kind == Move::Kind::send) i.move.stream = 0;
    }
  }
  const Proof proof = prove(programs);
  REQUIRE_FALSE(proof.proved());
  CHECK(proof.refusals.front().code == (there ? "prove.stream" : "prove.operands"));
}
