// What the tests of the comm floor share.
#pragma once

#include <chrono>
#include <string>

#include "meshwright/world.h"
#include "support/collectives.h"
#include "support/problems.h"

namespace mw::testing {

using test::world_communicator;

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
