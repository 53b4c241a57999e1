// Mixes of all forms, small and in float64 unless they say otherwise: they run on simulated devices
// and are proved.
#pragma once

#include <string>
#include <vector>

#include "support/setup.h"

namespace mw::test {

struct NamedMix {
  std::string name;
  Setup setup;
};

namespace mixes {

inline StrategyChoice hooked(const std::string& hook, int ways) {
  Json with = {{"kind", hook}};
  if (hook == "powersgd") with["rank"] = 2;
  return strategy("dp", {{"ways", ways}, {"bucket", 1 << 13}, {"hook", with}});
}

inline NamedMix mix(const std::string& name, std::vector<StrategyChoice> plan,
                    std::int64_t microbatch = 0) {
  NamedMix made{name, {}};
  made.setup.plan = std::move(plan);
  made.setup.options = {{"layers", 2},   {"hidden", 16}, {"heads", 4},
                        {"kv_heads", 4}, {"ffn", 24},    {"vocab", 31}};
  made.setup.batch = 8;
  made.setup.microbatch = microbatch;
  return made;
}

inline NamedMix deep(NamedMix made) {
  made.setup.options["layers"] = 4;
  return made;
}

inline NamedMix experts(NamedMix made) {
  made.setup.make_moe();
  return made;
}

inline NamedMix offloaded(NamedMix made) {
  made.setup.offload.kind = OffloadPolicy::Kind::full;
  return made;
}

// Two stages whose schedule joins works, so that braids run. `layers` of each virtual stage.
inline Json options_of_pairs(const std::string& schedule, const std::vector<int>& layers) {
  return {{"ways", 2},
          {"schedule", {{"kind", schedule}, {"pair", true}}},
          {"chunks", layers.size() / 2},
          {"layout", layers}};
}
inline StrategyChoice pairs(const std::string& schedule, const std::vector<int>& layers) {
  return strategy("pp", options_of_pairs(schedule, layers));
}

}  // namespace mixes

inline std::vector<NamedMix> all_mixes() {
  using namespace mixes;  // NOLINT: short names
  const std::int64_t small = 1 << 12;
  std::vector<NamedMix> mixes = {
      mix("dp 2, overlapped", {dp(2, small)}, 2),
      mix("dp 4, not overlapped", {dp(4, small, false)}),
      mix("tp 2", {tp(2)}),
      mix("tp 4, overlapped", {tp(4, true)}),
      mix("tp 2 with sequence parallelism", {tp(2), sp()}),
      mix("zero 1", {zero(2, 1)}, 2),
      mix("zero 2", {zero(4, 2)}, 1),
      mix("zero 3", {zero(4, 3)}, 1),
      mix("zero 3, nothing ahead", {zero(2, 3, 1, 0)}),
      mix("zero 3 with replicas", {zero(4, 3, 2)}),
      mix("zero 1, optimizer in host memory", {zero(2, 1, 1, 1, false, small, "optimizer")}),
      mix("zero 3, parameters in host memory", {zero(2, 3, 1, 1, false, small, "parameters")}, 2),
      mix("zero 1, optimizer brought to the device", {zero_on_device(2, 1, "optimizer")}),
      mix("zero 3, parameters and optimizer brought to the device",
          {zero_on_device(2, 3, "parameters")}, 2),
      mix("pp 2, 1f1b", {pp(2, "1f1b", {1, 1})}, 2),
      mix("pp 2, zb-h1", {pp(2, "zb-h1", {1, 1})}, 2),
      deep(mix("pp 2, zbv", {pp(2, "zbv", {1, 1, 1, 1})}, 2)),
      deep(mix("pp 2, v-half", {pp(2, "v-half", {1, 1, 1, 1})}, 2)),
      deep(mix("pp 2, interleaved", {pp(2, "interleaved", {1, 1, 1, 1})}, 2)),
      deep(mix("pairs, dualpipev, zero 3", {pairs("dualpipev", {1, 1, 1, 1}), zero(2, 3)}, 1)),
      mix("pairs, 1f1b, tp 2", {pairs("1f1b", {1, 1}), tp(2)}, 2),
      experts(mix("pairs, zb-h1, ep 2", {pairs("zb-h1", {1, 1}), dp(2), ep(2)}, 1)),
      mix("ring", {sp(2, "ring")}),
      mix("ulysses", {sp(2, "ulysses")}),
      mix("gathered keys", {sp(2, "allgather")}),
      experts(mix("ep 2", {dp(2), ep(2)})),
      experts(mix("ep 2 with tp", {dp(2), tp(2), ep(2)})),
      mix("bf16 hook", {hooked("bf16", 2)}, 2),
      mix("powersgd hook", {hooked("powersgd", 4)}),
      offloaded(mix("offload, dp 2", {dp(2)}, 2)),
      mix("slices of ffn, heads and the head, zero 2",
          {zero(2, 2), coshard("ffn", 3), coshard("heads", 2),
           coshard("seq", 4, {"head", "ce_max", "ce_stats", "ce_loss"})},
          2),
      mix("slices that are kept, pp 2, zb-h1, tp 2",
          {pp(2, "zb-h1", {1, 1}), tp(2), coshard("ffn", 2, {}, false),
           coshard("heads", 2, {}, false)},
          2),
      offloaded(deep(mix("offload, pp 2, 1f1b", {pp(2, "1f1b", {2, 2})}, 2))),
      mix("pp 2, zb-h1, zero 3, tp 2", {pp(2, "zb-h1", {1, 1}), zero(2, 3), tp(2)}, 2),
      mix("dp 2, ring 2, tp 2", {dp(2), sp(2, "ring"), tp(2)}),
      offloaded(mix("offload, zero 3, parameters in host memory, ring 2",
                    {zero(2, 3, 1, 1, false, small, "parameters"), sp(2, "ring")})),
  };
  NamedMix beside = mix("zero 2, optimizer in host memory, updated beside the backward",
                        {zero_on_host(2, 2, "optimizer", true)}, 2);
  beside.setup.may_leave_out = false;
  beside.setup.optimizer_options = {{"lr", 1e-3}};
  mixes.push_back(beside);
  NamedMix muon = mix("muon, zero 2", {zero(2, 2)});
  muon.setup.optimizer = "muon";
  muon.setup.optimizer_options = Json{{"lr", 1e-3}};
  mixes.push_back(muon);
  NamedMix recompute = mix("recompute, zero 3, tp 2", {zero(2, 3), tp(2)}, 2);
  recompute.setup.recompute.kind = RecomputePolicy::Kind::full;
  mixes.push_back(recompute);
  return mixes;
}

}  // namespace mw::test
