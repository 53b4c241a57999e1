// Plans that are right are proved, and programs with one fault are refused where the fault is, each
// by the rule that it breaks.
#include "prove/prove.h"

#include <algorithm>
#include <functional>

#include "meshwright/passes.h"
#include "prove/proved.h"
#include "support/mixes.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

using Programs = std::vector<Program>;

Setup small(std::vector<StrategyChoice> plan, std::int64_t microbatch = 2) {
  Setup setup;
  setup.options = {{"layers", 2},   {"hidden", 16}, {"heads", 4},
                   {"kv_heads", 4}, {"ffn", 24},    {"vocab", 31}};
  setup.batch = 8;
  setup.microbatch = microbatch;
  setup.plan = std::move(plan);
  return setup;
}

Programs programs_of(const Setup& setup) {
  return experiment(setup).plan->programs;
}

// The only refusal of programs that cannot be proved.
Refusal refused(const Programs& programs, const ProveOptions& options = {}) {
  const Proof proof = prove(programs, options);
  REQUIRE(proof.refusals.size() == 1);
  CHECK_FALSE(proof.refusals[0].message.empty());
  return proof.refusals[0];
}

using Which = std::function<bool(const Instruction&)>;

Which code(Code code) {
  return [code](const Instruction& i) { return i.code == code; };
}
Which piece(Piece piece) {
  return [piece](const Instruction& i) {
    return i.code == Code::compute && i.update == Update::none && i.piece == piece;
  };
}
Which move(Code code, Move::Kind kind) {
  return [code, kind](const Instruction& i) { return i.code == code && i.move.kind == kind; };
}

// Where an instruction stands that is run.
struct Place {
  Segment* segment = nullptr;
  std::size_t at = 0;
  Instruction& operator*() const { return segment->code[at]; }
  Instruction* operator->() const { return &segment->code[at]; }
  void drop() const {
    segment->code.erase(segment->code.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void put(const Instruction& i, std::size_t before) const {
    segment->code.insert(segment->code.begin() + static_cast<std::ptrdiff_t>(before), i);
  }
};

Place first(Programs& programs, const Which& which) {
  for (Program& program : programs) {
    for (const SegmentRun& run : program.timeline) {
      Segment& segment = program.segments[static_cast<std::size_t>(run.segment)];
      for (std::size_t n = 0; n < segment.code.size(); ++n) {
        if (which(segment.code[n])) return {&segment, n};
      }
    }
  }
  FAIL("there is no such instruction");
  return {};
}

// The code of the refusal once an instruction was changed.
std::string code_after(const Setup& setup, const Which& which,
                       const std::function<void(const Place&)>& change) {
  Programs programs = programs_of(setup);
  REQUIRE(prove(programs).proved());
  change(first(programs, which));
  return refused(programs).code;
}

void drop(const Place& place) {
  place.drop();
}
// It is left out, and what it lets go of is let go of.
void idle(const Place& place) {
  Instruction nothing;
  nothing.code = Code::begin_sum;
  nothing.release = place->release;
  *place = nothing;
}
void twice(const Place& place) {
  place.put(Instruction(*place), place.at);
}

}  // namespace

TEST_CASE("Mixes of all forms are proved") {
  for (const NamedMix& mix : all_mixes()) {
    DYNAMIC_SECTION(mix.name) {
      const Proof proof = prove(programs_of(mix.setup));
      INFO(proof.text());
      CHECK(proof.proved());
      CHECK(proof.rules >= proof.runs);
      CHECK_FALSE(proof.lemmas.empty());
      CHECK(proof.notes.empty() == (mix.name.find("hook") == std::string::npos));
    }
  }
}

TEST_CASE("What a proof counts") {
  const Proof proof = prove(programs_of(small({pp(2, "1f1b", {1, 1}), dp(2)}, 1)));
  REQUIRE(proof.proved());
  CHECK(proof.stages == 2);
  CHECK(proof.microbatches == 4);
  CHECK(proof.parameters == 21);
  CHECK(proof.text().starts_with("proved: 2 stages, "));
  const auto cut = [&](const std::string& kind) {
    const auto found = std::find_if(proof.lemmas.begin(), proof.lemmas.end(),
                                    [&](const Lemma& lemma) { return lemma.kind == kind; });
    REQUIRE(found != proof.lemmas.end());
    return found->cut;
  };
  CHECK(cut("linear") == std::vector<std::string>{"batch"});
}

TEST_CASE("A reduction that is missing is named, with what would mend it") {
  Programs programs = programs_of(small({tp(2)}));
  const Place start = first(programs, move(Code::start, Move::Kind::all_reduce));
  const std::string label = start->label;
  start->code = Code::copy;
  const Place wait = first(programs, move(Code::wait, Move::Kind::all_reduce));
  wait.drop();
  const Refusal refusal = refused(programs);
  CHECK(refusal.code == "prove.place");
  CHECK(refusal.stage == 0);
  CHECK(refusal.microbatch == 0);
  REQUIRE(refusal.axes.size() == 1);
  CHECK(refusal.axes[0].axis == "tp");
  CHECK(refusal.axes[0].needed == "R");
  CHECK(refusal.axes[0].found == "P");
  CHECK(refusal.mend == "all-reduce over tp");
  CHECK(refusal.message.find(label) != std::string::npos);
  CHECK(refusal.problem().stage == Stage::plan);
}

TEST_CASE("Sums of a step") {
  const Setup setup = small({dp(2)});
  CHECK(code_after(setup, code(Code::begin_sum), drop) == "prove.begin");
  CHECK(code_after(setup, code(Code::settle), drop) == "prove.unwritten");
  CHECK(code_after(setup, piece(Piece::wgrad), drop) == "prove.gradient");
  CHECK(code_after(setup, piece(Piece::wgrad), twice) == "prove.twice");
  CHECK(code_after(setup, code(Code::seed), drop) == "prove.missing");
  // The reduction begins before the last gradient is there.
  const Refusal early = [&] {
    Programs programs = programs_of(setup);
    const Place start = first(programs, move(Code::start, Move::Kind::all_reduce));
    const Instruction moved = *start;
    start.drop();
    start.put(moved, 1);
    return refused(programs);
  }();
  CHECK((early.code == "prove.unwritten" || early.code == "prove.underway"));
}

TEST_CASE("What is left out of a gradient, and what is in it twice, is said") {
  Programs programs = programs_of(small({dp(2)}));
  const Place wgrad = first(programs, piece(Piece::wgrad));
  const std::string op = wgrad->label;
  wgrad.drop();
  const Refusal refusal = refused(programs);
  REQUIRE(refusal.missing.size() == 1);
  CHECK(refusal.missing[0].find(op) != std::string::npos);
  CHECK(refusal.missing[0].find("microbatch 0") != std::string::npos);
  CHECK(refusal.twice.empty());
}

TEST_CASE("Transfers are awaited, by their own numbers, before what they bring is read") {
  const Setup setup = small({tp(2)});
  const Which wait = move(Code::wait, Move::Kind::all_reduce);
  CHECK(code_after(setup, wait, drop) == "prove.missing");
  CHECK(code_after(setup, wait, twice) == "prove.wait");
  CHECK(code_after(setup, wait, [](const Place& place) { ++place->pending; }) == "prove.wait");
  CHECK(code_after(small({dp(2, 1 << 12, false)}), wait, drop) == "prove.underway");
}

TEST_CASE("A bucket's gradients are summed by its reduction") {
  const auto maximum = [](const Place& place) { place->move.reduction = Reduction::max; };
  CHECK(code_after(small({dp(2)}), move(Code::start, Move::Kind::all_reduce), maximum) ==
        "prove.place");
  CHECK(code_after(small({zero(2, 2)}), move(Code::start, Move::Kind::reduce_scatter), maximum) ==
        "prove.place");
}

TEST_CASE("Releases") {
  const Setup setup = small({});
  const Which releases = [](const Instruction& i) {
    return i.code == Code::compute && !i.release.empty();
  };
  CHECK(code_after(setup, releases, [](const Place& place) { place->release.clear(); }) ==
        "prove.leak");
  CHECK(code_after(setup, releases, [](const Place& place) {
          place.segment->code[place.at - 1].release = place->release;
          place->release.clear();
        }) == "prove.released");
}

TEST_CASE("The totals count every loss and every element of every gradient once") {
  const Setup setup = small({dp(2), tp(2)});
  const Which totals = code(Code::totals);
  CHECK(code_after(setup, totals, drop) == "prove.order");
  CHECK(code_after(setup, totals, twice) == "prove.totals");
  CHECK(code_after(setup, totals, [](const Place& place) {
          place->inputs.pop_back();
          place->contributing.pop_back();
        }) == "prove.totals");
  CHECK(code_after(setup, totals, [](const Place& place) { place->contributing.back().clear(); }) ==
        "prove.totals");
  // The loss is whole on tp: its first rank gives it, or counts it.
  Programs programs = programs_of(setup);
  first(programs, code(Code::add))->contributing[0].clear();
  CHECK(prove(programs).proved());
  first(programs, totals)->contributing[0].clear();
  CHECK(refused(programs).code == "prove.totals");
  CHECK(code_after(setup, code(Code::add), idle) == "prove.loss");
}

TEST_CASE("Each copy of each parameter is updated once") {
  const Which update = [](const Instruction& i) { return i.update == Update::apply; };
  CHECK(code_after(small({dp(2)}), update, drop) == "prove.update");
  CHECK(code_after(small({dp(2)}), update, twice) == "prove.update");
  const Which wait = move(Code::wait, Move::Kind::all_gather);
  const Setup sharded = small({zero(2, 1)});
  CHECK(code_after(sharded, wait, drop) == "prove.underway");  // in the next step
  Programs programs = programs_of(sharded);
  first(programs, move(Code::start, Move::Kind::all_gather)).drop();
  first(programs, wait).drop();
  CHECK(refused(programs).code == "prove.gather");
}

TEST_CASE("An update that a step leaves to the next one stands before what reads its parameters") {
  const Which update = [](const Instruction& i) { return i.update == Update::apply; };
  const Which gradients = [](const Instruction& i) {
    return i.code == Code::copy && i.phase == std::string_view("gradients");
  };
  const Which parameters = [](const Instruction& i) {
    return i.code == Code::copy && i.phase == std::string_view("optimizer");
  };
  const auto late = [](const Place& place) {
    place.segment->code.push_back(*place);
    place.drop();
  };
  for (const int stage : {1, 2, 3}) {
    INFO("stage " << stage);
    const Setup setup = small({zero_on_host(2, stage, "optimizer", true)});
    CHECK(code_after(setup, update, drop) == "prove.value");
    CHECK(code_after(setup, update, twice) == "prove.update");
    CHECK(code_after(setup, update, late) == "prove.value");
    CHECK(code_after(setup, gradients, drop) == "prove.begin");
    CHECK(code_after(setup, parameters, drop) == "prove.value");
    const Which wait = move(Code::wait, Move::Kind::all_gather);
    CHECK(code_after(setup, wait, drop) == "prove.underway");
    if (stage == 3) continue;  // its gathers are of one step
    CHECK(code_after(setup, wait, [](const Place& place) { place->again = false; }) ==
          "prove.wait");
  }
}

TEST_CASE("An update that needs no totals may come before them") {
  Setup setup = small({zero_on_host(2, 2, "optimizer", true)});
  setup.may_leave_out = false;
  setup.optimizer_options = {{"lr", 1e-3}};
  Programs programs = programs_of(setup);
  CHECK(prove(programs).proved());
  programs[0].update_needs_totals = true;
  CHECK(refused(programs).code == "prove.order");
}

TEST_CASE("Parameters that are gathered are read between the gather and the release") {
  const Setup setup = small({zero(2, 3)});
  const Which wait = move(Code::wait, Move::Kind::all_gather);
  CHECK(code_after(setup, wait, drop) == "prove.underway");
  Programs programs = programs_of(setup);
  first(programs, move(Code::start, Move::Kind::all_gather)).drop();
  first(programs, wait).drop();
  CHECK(refused(programs).code == "prove.gather");
}

TEST_CASE("Stages that wait for each other") {
  Programs programs = programs_of(small({pp(2, "1f1b", {1, 1})}));
  Programs other = programs;
  first(other, move(Code::start, Move::Kind::send))->move.tag += 5;
  CHECK(refused(other).code == "prove.deadlock");
  other = programs;
  first(other, move(Code::start, Move::Kind::send)).drop();
  CHECK(refused(other).code == "prove.deadlock");
  // The last stage takes its microbatches in another order than the first one sends them.
  other = programs;
  const auto is_of = [&](const SegmentRun& run, int microbatch) {
    return run.microbatch == microbatch;
  };
  for (SegmentRun& run : other[1].timeline) {
    if (is_of(run, 0) || is_of(run, 1)) run.microbatch = 1 - run.microbatch;
  }
  const Refusal order = refused(other);
  CHECK(order.code == "prove.order");
  CHECK(order.message.find("of those that stage 0 sends to stage 1") != std::string::npos);
  const Refusal strict = refused(programs, {true});
  CHECK(strict.code == "prove.deadlock");
  CHECK(strict.message.find("stage 0 waits in") != std::string::npos);
  CHECK(strict.message.find("stage 1 waits in") != std::string::npos);
}

TEST_CASE("A transfer may cross from one step into the next") {
  Programs programs = programs_of(small({zero(2, 1)}));
  std::vector<Instruction> waits;
  for (Segment& segment : programs[0].segments) {
    if (segment.kind != SegmentKind::forward) continue;
    std::erase_if(segment.code, [&](const Instruction& i) {
      const bool gathers = i.code == Code::wait && i.bucket >= 0 &&
                           i.pending == programs[0].buckets[i.bucket].flat.gather;
      if (gathers) waits.push_back(i);
      return gathers;
    });
  }
  REQUIRE_FALSE(waits.empty());
  for (const Instruction& wait : waits) CHECK(wait.again);
  Programs once = programs_of(small({zero(2, 1)}));
  const int gather = once[0].buckets[static_cast<std::size_t>(waits[0].bucket)].flat.gather;
  first(once, [&](const Instruction& i) {
    return i.code == Code::wait && i.pending == gather;
  })->again = false;
  CHECK(refused(once).code == "prove.wait");
  CHECK(refused(programs).code == "prove.underway");
  for (Segment& segment : programs[0].segments) {
    if (segment.kind == SegmentKind::begin)
      segment.code.insert(segment.code.begin(), waits.begin(), waits.end());
  }
  const Proof proof = prove(programs);
  INFO(proof.text());
  CHECK(proof.proved());
}

TEST_CASE("A refusal names the pass that brought it about") {
  Setup setup = small({dp(2)});
  setup.plan.push_back(does("breaks", {}, [](Draft& draft) {
    draft.add_pass({"nothing", [](Program&) {}});
    draft.add_pass({"one gradient less", [](Program& program) {
                      for (Segment& segment : program.segments)
                        std::erase_if(segment.code, piece(Piece::wgrad));
                    }});
  }));
  const Proof proof = prove_plan(*experiment(setup).plan);
  REQUIRE(proof.refusals.size() == 1);
  CHECK(proof.refusals[0].code == "prove.gradient");
  CHECK(proof.refusals[0].by.find("one gradient less") != std::string::npos);
  Problems problems;
  check_proved(*experiment(setup).plan, problems);
  REQUIRE(problems.list().size() == 1);
  CHECK(problems.list()[0].code == "prove.gradient");
}
