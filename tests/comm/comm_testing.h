// What the tests of the comm floor share.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "meshwright/world.h"
#include "support/problems.h"

namespace mw::testing {

// A communicator over all ranks, on axis "world".
inline std::unique_ptr<Communicator> world_communicator(RankContext& context,
                                                        Ledger* ledger = nullptr) {
  std::vector<int> group(static_cast<std::size_t>(context.ranks));
  std::iota(group.begin(), group.end(), 0);
  return make_communicator(*context.source, "world", group, context.rank, ledger);
}

// The codes of what run_ranks() throws; "none" if it does not.
template <class Body>
std::string code_of(int ranks, const RankOptions& options, Body body) {
  return test::thrown([&] { run_ranks(ranks, body, options); });
}

// Its text, where the test is about what that tells; "" if it does not throw.
template <class Body>
std::string error_of(int ranks, const RankOptions& options, Body body) {
  try {
    run_ranks(ranks, body, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline RankOptions impatient() {
  RankOptions options;
  options.timeout = std::chrono::milliseconds(500);
  return options;
}

}  // namespace mw::testing
