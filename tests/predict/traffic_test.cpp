// Predicted bytes of each axis, beside what the forms are known to send.
#include <catch2/catch.hpp>

#include "predict/prediction.h"
#include "predict/step_counts.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

Traffic traffic(const Setup& setup, int rank = 0) {
  const Experiment e = experiment(setup);
  return predict_rank(*e.plan, rank).communication;
}

constexpr auto reduce = Collective::all_reduce;

}  // namespace

TEST_CASE("dp all-reduces every gradient once") {
  for (int ways : {2, 4}) {
    Setup setup = llama({dp(ways, 1 << 30)}, 1);
    const Experiment e = experiment(setup);
    const Traffic t = predict_rank(*e.plan, 0).communication;
    const CommunicationUse use = t.at({"dp", "all-reduce", "gradients"});
    CHECK(use.calls == 1);
    // 2 (n - 1) / n of the parameters, 4 bytes each, whatever the number of microbatches.
    CHECK(use.bytes == 2 * (ways - 1) * 4 * e.plan->graph->parameter_count() / ways);
    CHECK(t.count({"dp", "all-reduce", "forward"}) == 0);
    CHECK(t.count({"dp", "all-reduce", "backward"}) == 0);
    CHECK(t.at({"dp", "all-reduce", "report"}).bytes == wire_bytes(reduce, 24, ways));
  }
}

TEST_CASE(
    "Gradients in shards are sent in every microbatch, or whenever a chunk has had its turn") {
  // Four microbatches; two chunks of an interleaved pipeline take turns after two.
  const auto [schedule, times] =
      GENERATE(table<std::string, int>({{"", 4}, {"1f1b", 4}, {"zb-h1", 4}, {"interleaved", 2}}));
  const int stage = GENERATE(2, 3);
  const auto sent = [&, &schedule = schedule](const StrategyChoice& zero) {
    Setup setup = llama({zero}, 1);
    setup.options["layers"] = 4;
    if (!schedule.empty()) {
      const bool chunks = schedule == "interleaved";
      setup.plan.insert(setup.plan.begin(),
                        pp(2, schedule, chunks ? std::vector{1, 1, 1, 1} : std::vector{2, 2}));
    }
    return traffic(setup).at({"zero", "reduce-scatter", "gradients"}).bytes;
  };
  CHECK(sent(zero(2, stage)) == times * sent(zero_by_chunk(2, stage)));
}

TEST_CASE("Smaller buckets send the same bytes in more calls") {
  const CommunicationUse one =
      traffic(llama({dp(2, 1 << 30)})).at({"dp", "all-reduce", "gradients"});
  const CommunicationUse many = traffic(llama({dp(2, 4096)})).at({"dp", "all-reduce", "gradients"});
  CHECK(many.calls > one.calls);
  CHECK(many.bytes == one.bytes);
}

TEST_CASE("tp all-reduces twice a layer each way, after the embedding, and in the cross-entropy") {
  const int ways = 4, layers = 3, microbatches = 2;
  const std::int64_t tokens = 4 * 32;  // of a microbatch
  const Traffic t = traffic(llama({tp(ways)}, 4));
  const std::int64_t stream = wire_bytes(reduce, tokens * 64 * 4, ways);
  const CommunicationUse forward = t.at({"tp", "all-reduce", "forward"});
  CHECK(forward.calls == microbatches * (2 * layers + 1 + 2));
  CHECK(forward.bytes ==
        microbatches * ((2 * layers + 1) * stream + wire_bytes(reduce, tokens * 4, ways) +
                        wire_bytes(reduce, 2 * tokens * 4, ways)));
  // Backward: before each of a layer's two blocks, and before the head.
  const CommunicationUse backward = t.at({"tp", "all-reduce", "backward"});
  CHECK(backward.calls == microbatches * (2 * layers + 1));
  CHECK(backward.bytes == microbatches * (2 * layers + 1) * stream);
  CHECK(t.count({"tp", "all-reduce", "gradients"}) == 0);
}

TEST_CASE("dp and tp: each on its own axis, the loss on the world") {
  const Traffic t = traffic(llama({dp(2, 1 << 30), tp(4)}), 6);
  const Experiment e = experiment(llama({dp(2, 1 << 30), tp(4)}));
  const std::int64_t held = predict_rank(*e.plan, 6).memory[Category::gradients];
  CHECK(t.at({"dp", "all-reduce", "gradients"}).bytes == held);  // 2 (2 - 1) / 2 of it
  CHECK(t.at({"world", "all-reduce", "report"}).bytes == wire_bytes(reduce, 24, 8));
  CHECK(t.at({"tp", "all-reduce", "forward"}).calls == 9);
  CHECK(t.size() == 4);
}

TEST_CASE("One rank sends nothing") {
  CHECK(traffic(llama({})).empty());
  CHECK(traffic(gpt({})).empty());
}

TEST_CASE("What a plan tells of a row is the most that any of its ranks sends") {
  const auto [name, plan, sequence, classes] =
      GENERATE(table<std::string, std::vector<StrategyChoice>, int, int>({
          {"stages of sequence parts", {pp(2, "1f1b", {2, 1}), tp(4), sp()}, 13, 3},
          {"shards of uneven parts", {zero(3, 3), tp(4)}, 16, 3},
          {"Ulysses", {dp(3), sp(4, "ulysses")}, 14, 2},
          // All parts but the last are of two tokens: the rank before that one sends on most.
          {"a ring with one smaller part", {sp(16, "ring"), dp(2)}, 31, 8},
          {"a ring with few larger parts", {sp(16, "ring")}, 19, 8},
      }));
  Setup setup = llama(plan);
  setup.options["ffn"] = 97;
  setup.options["vocab"] = 127;
  setup.sequence = sequence;
  setup.batch = 6;
  const Experiment e = experiment(setup);
  DYNAMIC_SECTION(name) {
    Traffic most, least;
    for (int rank = 0; rank < e.plan->ranks(); ++rank) {
      const Traffic sent = predict_rank(*e.plan, rank).communication;
      take_most(most, sent);
      for (const auto& [key, use] : sent) {
        const auto known = least.try_emplace(key, use).first;
        known->second.bytes = std::min(known->second.bytes, use.bytes);
      }
    }
    bool uneven = false;
    for (const auto& [key, use] : most) uneven = uneven || least.at(key).bytes < use.bytes;
    CHECK(uneven);
    const Prediction p = predict(*e.plan, SharedCores(round_device(2)));
    REQUIRE(p.communication.size() == most.size());
    for (const CommunicationForecast& row : p.communication) {
      INFO(row.key.axis << " " << row.key.op << " " << row.key.phase);
      CHECK(row.bytes == most.at(row.key).bytes);
      CHECK(row.calls == most.at(row.key).calls);
    }
    for (const Program& program : e.plan->programs)
      CHECK(rank_classes(program).size() <= static_cast<std::size_t>(classes));
  }
}
