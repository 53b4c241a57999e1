// The communicators that ranks make when a run begins: few, each known to all of its members, and
// in an order in which nobody waits in vain.
#include "meshwright/engine/connections.h"

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "support/mixes.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

std::string name_of(const Connection& one) {
  return fmt::format("{} {} {} {}", one.axis, one.stream, one.pair ? "pair" : "group",
                     fmt::join(one.ranks, ","));
}

// Makes the communicators of all ranks as NCCL would: the call of each waits until all members make
// it. Which ranks are left waiting, and for what.
std::vector<std::string> left_waiting(const std::vector<std::vector<Connection>>& lists) {
  std::vector<std::size_t> made(lists.size());
  const auto next = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return made[r] < lists[r].size() ? name_of(lists[r][made[r]]) : std::string();
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      const std::string name = next(static_cast<int>(r));
      if (name.empty()) continue;
      const std::vector<int>& members = lists[r][made[r]].ranks;
      if (!std::all_of(members.begin(), members.end(), [&](int m) { return next(m) == name; }))
        continue;
      for (const int member : members) ++made[static_cast<std::size_t>(member)];
      moved = true;
    }
  }
  std::vector<std::string> waiting;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    const std::string name = next(static_cast<int>(r));
    if (!name.empty()) waiting.push_back(fmt::format("rank {} waits in {}", r, name));
  }
  return waiting;
}

std::vector<std::vector<Connection>> lists_of(const Plan& plan) {
  std::vector<std::vector<Connection>> lists;
  for (int rank = 0; rank < plan.ranks(); ++rank)
    lists.push_back(connections_of({&plan.program_of(rank)}, rank));
  return lists;
}

}  // namespace

TEST_CASE("Ranks of every form make their communicators without waiting in vain") {
  for (const NamedMix& mix : all_mixes()) {
    INFO(mix.name);
    const Experiment e = experiment(mix.setup);
    const auto lists = lists_of(*e.plan);
    CHECK(left_waiting(lists) == std::vector<std::string>());
    for (const std::vector<Connection>& list : lists) {
      std::set<std::string> names;
      for (const Connection& one : list) CHECK(names.insert(name_of(one)).second);
    }
  }
}

TEST_CASE("A pipeline needs as many communicators for one microbatch as for 64") {
  const auto counts = [](std::int64_t microbatches) {
    Setup setup = mixes::mix("pp 8", {pp(8, "1f1b", std::vector<int>(8, 1))}, 1).setup;
    setup.options["layers"] = 8;
    setup.batch = microbatches;
    std::vector<std::size_t> of_ranks;
    for (const auto& list : lists_of(*experiment(setup).plan)) of_ranks.push_back(list.size());
    return of_ranks;
  };
  // A rank has two communicators for each neighbour and one for all ranks.
  CHECK(counts(1) == std::vector<std::size_t>{3, 5, 5, 5, 5, 5, 5, 3});
  CHECK(counts(64) == counts(1));
}

TEST_CASE("A rank of a ring has a communicator to the next rank and one from the one before") {
  const Experiment e = experiment(mixes::mix("ring", {sp(4, "ring")}).setup);
  std::vector<std::string> pairs;
  for (const Connection& one : connections_of({&e.plan->program_of(1)}, 1))
    if (one.pair) pairs.push_back(name_of(one));
  CHECK(pairs == std::vector<std::string>{"cp  pair 0,1", "cp  pair 1,2"});
}

TEST_CASE("Receives begin in the order of the sends") {
  // Between two stages of a V, activations and gradients go the same way.
  std::vector<NamedMix> all = {mixes::mix("1f1b", {pp(2, "1f1b", {1, 1})}, 1),
                               mixes::mix("zb-h2", {pp(2, "zb-h2", {1, 1})}, 1),
                               mixes::mix("the other way round", {pp_against_the_order()}, 4)};
  for (const std::string schedule : {"zbv", "dualpipev", "interleaved"})
    all.push_back(mixes::deep(mixes::mix(schedule, {pp(2, schedule, {1, 1, 1, 1})}, 1)));
  for (const std::string schedule : {"zb-h1", "dualpipev"})
    all.push_back(mixes::deep(mixes::mix(
        "pairs",
        {mixes::pairs(schedule, schedule == "zb-h1" ? std::vector{2, 2} : std::vector{1, 1, 1, 1})},
        1)));
  for (const NamedMix& mix : all) {
    const Experiment e = experiment(mix.setup);
    std::map<std::pair<int, int>, std::vector<std::pair<int, int>>> sent, received;
    for (const Program& program : e.plan->programs) {
      for (const SegmentRun& run : program.timeline) {
        for (const Instruction& i : program.segments[run.segment].code) {
          if (i.code != Code::start) continue;
          const std::pair message{i.move.tag, microbatch_of(run, i.lane)};
          if (i.move.kind == Move::Kind::send)
            sent[{program.stage, i.move.peer}].push_back(message);
          if (i.move.kind == Move::Kind::recv)
            received[{i.move.peer, program.stage}].push_back(message);
        }
      }
    }
    INFO(mix.name);
    CHECK(sent.size() == 2);
    CHECK(sent == received);
  }
}
