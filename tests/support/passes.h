// Directives of a script, as entries of a plan, and mixes on which each has something to do.
#pragma once

#include <string>
#include <vector>

#include "support/mixes.h"

namespace mw::test {

// What mw.directives { … } returns; an entry such as { "budget", filter, 2 } is a list, one with
// named keys has the others under "$value".
inline StrategyChoice directives(const Json& list) {
  const Json pass = {{"name", "directives"}, {"directives", list}};
  return strategy("directives",
                  {{strategy_key, {{"name", "directives"}, {"passes", Json::array({pass})}}}});
}

inline Json directive(const Json& unnamed, Json named) {
  named[unnamed_key] = unnamed;
  return named;
}

struct DirectedMix {
  NamedMix mix;
  Json directives;
};

// Each directive on mixes of several forms.
inline std::vector<DirectedMix> directed_mixes() {
  using namespace mixes;  // NOLINT: short names
  const std::int64_t small = 1 << 12;
  const Json gathers = {{"move", "all-gather"}, {"code", "start"}, {"optional", true}};
  const auto issue = [&](int ahead) {
    return directive({"issue", gathers}, {{"layers_ahead", ahead}});
  };
  const auto reduce = [](const Json& named) {
    return directive({"reduce", {{"bucket", "*"}}}, named);
  };
  const Json every = {{"code", "start"}, {"axis", {"dp", "zero", "tp", "ep", "cp"}}};
  const Json exchanges = {{"code", "start"}, {"axis", "ep"}},
             sums = {{"code", "start"}, {"phase", "gradients"}};
  std::vector<DirectedMix> all = {
      {mix("one stream, dp 2, tp 2", {dp(2, small), tp(2)}, 2), {{"stream", every, "one"}}},
      {deep(mix("streams, zero 3, tp 2", {zero(2, 3), tp(2)}, 2)),
       {{"stream", {{"axis", "zero"}}, "storage"}, {"stream", {{"axis", "tp"}}, "model"}}},
      {experts(mix("streams, ep 2", {dp(4, small), ep(2)}, 1)),
       {{"stream", sums, "background"}, {"stream", exchanges, "exchange"}}},
      {experts(mix("exchanges before sums, ep 2", {dp(4, small), ep(2)}, 1)),
       {directive({"order", exchanges}, {{"before", sums}})}},
      {experts(
           mix("sums after exchanges, one stream, ep 2, tp 2", {dp(2, small), tp(2), ep(2)}, 2)),
       {directive({"order", sums}, {{"after", exchanges}}),
        {"stream", {{"axis", {"dp", "ep"}}}, "one"}}},
      {deep(mix("nothing ahead, zero 3", {zero(4, 3, 1, 2)}, 1)), {issue(0)}},
      {deep(mix("two layers ahead, zero 3", {zero(4, 3)}, 1)), {issue(2)}},
      {deep(mix("a budget, zero 3 with replicas", {zero(4, 3, 2, 3)}, 2)),
       {{"budget", gathers, 1}}},
      {deep(mix("a budget of two, pp 2, zero 3", {pp(2, "1f1b", {2, 2}), zero(2, 3, 1, 3)}, 2)),
       {{"budget", gathers, 2}}},
      {deep(
           mix("reductions by chunk, pp 2", {pp(2, "interleaved", {1, 1, 1, 1}), dp(2, small)}, 2)),
       {reduce({{"after", "chunk"}})}},
      {mix("reductions after the step, zero 1", {zero(2, 1)}, 2), {reduce({{"after", "step"}})}},
      {mix("reductions with gradients, dp 2", {dp(2, small, false)}, 2),
       {reduce({{"after", "gradients"}})}},
      {mix("reductions in each microbatch, dp 2, tp 2", {dp(2, small), tp(2)}, 2),
       {reduce({{"each", true}})}},
      {deep(mix("by chunk on a stream, pp 2, zb-h1", {pp(2, "zb-h1", {2, 2}), dp(2, small)}, 2)),
       {reduce({{"after", "chunk"}}), {"stream", sums, "background"}}},
      {mix("a hook on a stream", {hooked("bf16", 2)}, 2),
       {{"stream", {{"code", "hook_start"}}, "sums"}}},
      {experts(mix("pairs, zb-h1, ep 2, streams", {pairs("zb-h1", {1, 1}), dp(2), ep(2)}, 1)),
       {{"stream", exchanges, "exchange"}}},
  };
  return all;
}

inline Setup directed(const DirectedMix& one) {
  Setup setup = one.mix.setup;
  setup.plan.push_back(directives(one.directives));
  return setup;
}

}  // namespace mw::test
