// Models and mixes for optimizers that treat the matrices of layers whole.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/setup.h"

namespace mw::test {

// A small model of that kind, "llama", "gpt" or "moe", trained with the optimizer. Its sizes are
// odd: parts end inside matrices, and the ffn does not divide evenly.
inline Setup whole_matrix_setup(const std::string& model, const std::string& optimizer,
                                Json options) {
  Setup setup;
  setup.options = {{"layers", 2}, {"hidden", 24}, {"heads", 4}, {"ffn", 27}, {"vocab", 31}};
  if (model == "gpt") setup.make_gpt();
  if (model == "moe") {
    setup.make_moe();
    setup.options["expert_ffn"] = 20;
  }
  setup.sequence = 6;
  setup.batch = 8;
  setup.microbatch = 2;
  setup.optimizer = optimizer;
  setup.optimizer_options = std::move(options);
  return setup;
}

// Mixes that cut matrices by rows and columns, store them in shards, or do neither.
constexpr int whole_matrix_mixes = 13;
inline Mix whole_matrix_mix(int which) {
  const std::vector<Mix> mixes = {
      {"one rank", {}},
      {"dp", {dp(2)}},
      {"tp", {tp(2)}},
      {"tp 4", {tp(4)}},
      {"dp x tp", {dp(2, 1 << 12), tp(2)}},
      {"zero 1", {zero(2, 1)}},
      {"zero 1 x tp", {zero(2, 1), tp(2)}},
      {"zero 2 x tp", {zero(2, 2), tp(2)}},
      {"zero 3 x tp", {zero(2, 3), tp(2)}},
      {"zero 3, four ways, two replicas", {zero(4, 3, 2)}},
      {"zero 3, offloaded", {zero(4, 3, 1, 1, false, 1 << 12, "parameters")}},
      {"pp", {pp(2, "1f1b", {1, 1})}},
      {"pp x zero x tp", {pp(2, "zb-h1", {1, 1}), zero(2, 2), tp(2)}},
  };
  return mixes.at(static_cast<std::size_t>(which));
}

}  // namespace mw::test
