// The mixes whose programs are mutated.
#include "prove/mutants.h"

namespace mw::test {
namespace {

using namespace mixes;  // NOLINT: short names

NamedMix gpt(NamedMix made) {
  made.setup.make_gpt();
  return made;
}

NamedMix tied(NamedMix made) {
  made.setup.options["tied"] = true;
  return made;
}

NamedMix recomputed(NamedMix made, RecomputePolicy::Kind kind) {
  made.setup.recompute.kind = kind;
  return made;
}

NamedMix with_muon(NamedMix made) {
  made.setup.optimizer = "muon";
  made.setup.optimizer_options = Json{{"lr", 1e-3}};
  return made;
}

NamedMix with(NamedMix made, const std::string& key, const Json& value) {
  made.setup.options[key] = value;
  return made;
}

// Sizes that two and three ways do not divide, but for heads.
NamedMix odd(NamedMix made) {
  made.setup.options.update(
      {{"hidden", 12}, {"heads", 6}, {"kv_heads", 6}, {"ffn", 23}, {"vocab", 29}});
  made.setup.sequence = 9;
  return made;
}

NamedMix narrow(NamedMix made, bool fp32_sums) {
  made.setup.precision = Precision::bf16;
  made.setup.fp32_sums = fp32_sums;
  made.setup.fp32_gradients = !fp32_sums;
  return made;
}

StrategyChoice each(int ways, bool overlap) {
  return strategy("dp",
                  {{"ways", ways}, {"bucket", 1 << 12}, {"overlap", overlap}, {"reduce", "each"}});
}

void add_pipelines(std::vector<NamedMix>& all) {
  all.push_back(mix("pp 2, gpipe", {pp(2, "gpipe", {1, 1})}, 2));
  all.push_back(mix("pp 2, zb-h2", {pp(2, "zb-h2", {1, 1})}, 2));
  all.push_back(deep(mix("pp 2, looped-bfs", {pp(2, "looped-bfs", {1, 1, 1, 1})}, 2)));
  all.push_back(deep(mix("pp 2, dualpipev", {pp(2, "dualpipev", {1, 1, 1, 1})}, 1)));
  all.push_back(mix("pp 3, 1f1b, uneven", {pp(3, "1f1b", {0, 2, 0})}, 2));
  all.push_back(tied(gpt(mix("gpt, tied, pp 2, 1f1b", {pp(2, "1f1b", {1, 1})}, 2))));
  all.push_back(tied(gpt(mix("gpt, tied, pp 2, zb-h1, dp 2", {pp(2, "zb-h1", {1, 1}), dp(2)}, 1))));
  all.push_back(tied(mix("tied, pp 2, 1f1b, zero 2", {pp(2, "1f1b", {1, 1}), zero(2, 2)}, 1)));
  all.push_back(tied(mix("tied, pp 2, tp 2", {pp(2, "1f1b", {1, 1}), tp(2)}, 4)));
  all.push_back(mix("pp 2, tp 2 with sp", {pp(2, "1f1b", {1, 1}), tp(2), sp()}, 4));
  all.push_back(mix("pp 2, ring 2", {pp(2, "1f1b", {1, 1}), sp(2, "ring")}, 4));
  all.push_back(deep(mix("pp 2, interleaved, zero 2 by chunk",
                         {pp(2, "interleaved", {1, 1, 1, 1}), zero_by_chunk(2, 2)}, 1)));
  all.push_back(deep(mix("pp 2, zbv, zero 3", {pp(2, "zbv", {1, 1, 1, 1}), zero(2, 3)}, 1)));
  all.push_back(deep(mix("pp 2, v-min, zero 2", {pp(2, "v-min", {1, 1, 1, 1}), zero(2, 2)}, 1)));
  all.push_back(recomputed(mix("pp 2, 1f1b, recompute", {pp(2, "1f1b", {1, 1})}, 2),
                           RecomputePolicy::Kind::full));
  all.push_back(mix("delayed wgrads", {delayed_wgrads(), tp(2)}, 4));
}

void add_forms(std::vector<NamedMix>& all) {
  all.push_back(mix("dp 2, reduced each", {each(2, true)}, 1));
  all.push_back(mix("dp 2, reduced each, not overlapped, tp 2", {each(2, false), tp(2)}, 2));
  all.push_back(mix("zero 1 with replicas", {zero(4, 1, 2)}, 1));
  all.push_back(mix("zero 2 with replicas", {zero(4, 2, 2)}, 1));
  all.push_back(mix("zero 3, kept", {zero(2, 3, 1, 1, true)}, 2));
  all.push_back(mix("zero 2 over the sequence", {zero_over_sequence(2, 2), sp(2, "ring")}, 2));
  all.push_back(mix("dp 2, zero 2", {dp(2), zero(2, 2)}, 1));
  all.push_back(mix("zero 1, tp 2", {zero(2, 1), tp(2)}, 2));
  all.push_back(mix("dp 2, tp 2 with sp", {dp(2), tp(2), sp()}, 2));
  all.push_back(mix("tp 2, ulysses 2", {tp(2), sp(2, "ulysses")}));
  all.push_back(mix("zero 3, gathered keys", {zero(2, 3), sp(2, "allgather")}));
  all.push_back(mix("ring 4", {sp(4, "ring")}));
  all.push_back(odd(mix("odd sizes, dp 2", {dp(2)}, 1)));
  all.push_back(odd(mix("odd sizes, dp 3", {dp(3)})));
  all.back().setup.batch = 9;
  all.push_back(odd(mix("odd sizes, tp 2 with sp", {tp(2), sp()})));
  all.push_back(odd(mix("odd sizes, ring 2", {sp(2, "ring")})));
  all.push_back(odd(mix("odd sizes, zero 3, tp 3", {zero(2, 3), tp(3)})));
  all.push_back(mix("microbatches of 2, 1 and 1", {dp(2, 1 << 12)}));
  all.back().setup.sizes = {2, 1, 1};
  all.push_back(gpt(mix("gpt, tp 2", {tp(2)})));
  all.push_back(tied(gpt(mix("gpt, tied, zero 2, tp 2", {zero(2, 2), tp(2)}, 2))));
}

void add_rest(std::vector<NamedMix>& all) {
  all.push_back(experts(mix("ep 2 in zero 2", {zero(2, 2), ep(2)}, 2)));
  all.push_back(experts(mix("ep 2 in zero 3", {zero(4, 3), ep(2)})));
  all.push_back(experts(mix("experts, pp 2, ep 2", {pp(2, "1f1b", {1, 1}), dp(2), ep(2)}, 2)));
  all.push_back(
      with(experts(mix("ep 2, balanced by a bias", {dp(2), ep(2)}, 2)), "balance", "bias"));
  all.push_back(experts(mix("ep 2, gathered tokens",
                            {dp(2), strategy("ep", {{"ways", 2}, {"dispatch", "allgather"}})})));
  all.push_back(
      recomputed(experts(mix("ep 2, recompute", {dp(2), ep(2)}, 2)), RecomputePolicy::Kind::full));
  all.push_back(recomputed(mix("dp 2, recompute", {dp(2)}, 2), RecomputePolicy::Kind::full));
  all.push_back(recomputed(mix("tp 2, recompute", {tp(2)}, 4), RecomputePolicy::Kind::selective));
  all.push_back(with_muon(mix("muon, dp 2", {dp(2)}, 2)));
  all.push_back(with_muon(mix("muon, zero 3, tp 2", {zero(2, 3), tp(2)}, 2)));
  all.push_back(narrow(mix("bf16, dp 2", {dp(2)}, 2), true));
  all.push_back(narrow(mix("bf16, zero 2, tp 2", {zero(2, 2), tp(2)}, 2), true));
  all.push_back(narrow(mix("bf16, fp32 gradients, zero 3", {zero(2, 3)}, 2), false));
  all.push_back(mix("one rank", {}, 4));
}

}  // namespace

std::vector<NamedMix> mutation_mixes() {
  std::vector<NamedMix> all = all_mixes();
  add_pipelines(all);
  add_forms(all);
  add_rest(all);
  for (NamedMix& each : all) {
    each.setup.threads = 1;  // a process that is copied has no threads of kernels
    if (each.setup.optimizer != "adamw") continue;
    // A step must show in the next one's loss, and rounding must not become more than it is.
    each.setup.optimizer_options = {{"lr", 1e-2}, {"clip", 0.5}, {"eps", 1e-4}};
  }
  return all;
}

}  // namespace mw::test
