// Host memory of a cluster's nodes: what ranks that share a node keep there, against what it has.
#include <algorithm>
#include <catch2/catch.hpp>

#include "clusters.h"
#include "meshwright/engine/rank_view.h"
#include "predict/prediction.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

ClusterMachine nodes_of(int devices, std::int64_t capacity = 0) {
  Cluster c = round_cluster(devices);
  c.nodes = 1 << 10;
  c.network.nic = 1e10;
  c.host_link = c.host_bandwidth = 1e10;
  c.host_capacity = capacity;
  return {c, round_stack()};
}

std::vector<std::int64_t> host_of_ranks(const Plan& plan) {
  std::vector<std::int64_t> bytes;
  for (int rank = 0; rank < plan.ranks(); ++rank)
    bytes.push_back(predict_rank(plan, rank).memory[Category::host]);
  return bytes;
}

}  // namespace

TEST_CASE("A node's host memory holds what its ranks keep there") {
  Setup sharded = llama({zero(4, 3, 1, 1, false, 1 << 12, "parameters")});
  Setup staged = llama({pp(2, "1f1b", {1, 2}), tp(2)}, 1);
  staged.offload.kind = OffloadPolicy::Kind::full;
  for (const Setup& setup : {sharded, staged}) {
    const Experiment e = experiment(setup);
    const std::vector<std::int64_t> ranks = host_of_ranks(*e.plan);
    REQUIRE(*std::max_element(ranks.begin(), ranks.end()) > 0);
    for (const int devices : {1, 2, 4, 8}) {
      std::int64_t most = 0;
      for (std::size_t first = 0; first < ranks.size();
           first += static_cast<std::size_t>(devices)) {
        std::int64_t node = 0;
        for (std::size_t r = first;
             r < std::min(ranks.size(), first + static_cast<std::size_t>(devices)); ++r)
          node += ranks[r];
        most = std::max(most, node);
      }
      const Prediction p = mw::predict(*e.plan, nodes_of(devices));
      CHECK(p.host_needed == most);
      CHECK(p.fits);  // what the node has is not known
      CHECK(p.to_json().value("host_needed", std::int64_t{0}) == most);
      CHECK(!p.to_json().contains("host_limit"));
    }
  }
}

TEST_CASE("A plan fits only where the hosts hold what it keeps there") {
  const Experiment e = experiment(llama({zero(2, 3, 1, 1, false, 1 << 12, "parameters")}));
  const std::int64_t needed = mw::predict(*e.plan, nodes_of(2)).host_needed;
  const Prediction fits = mw::predict(*e.plan, nodes_of(2, needed));
  CHECK(fits.fits);
  CHECK(fits.to_json()["host_limit"] == needed);
  const Prediction lacks = mw::predict(*e.plan, nodes_of(2, needed - 1));
  CHECK(!lacks.fits);
  CHECK(lacks.timed());
  CHECK_THAT(print(*e.plan, lacks),
             Catch::Contains("does not fit: ") && Catch::Contains("in the host memory of a node"));
  // A rank to a node has half.
  CHECK(mw::predict(*e.plan, nodes_of(1, needed / 2)).fits);
}

TEST_CASE("Without a machine nothing is said of times and of what fits") {
  const Experiment e = experiment(llama({tp(2)}));
  Prediction p = mw::predict(*e.plan, nodes_of(2));
  const std::int64_t peak = p.fullest().memory.peak;
  p.forget_machine("nobody knows");
  const Json json = p.to_json();
  for (const char* key :
       {"step_seconds", "mfu", "priced_for", "memory_limit", "fits", "peak_flops"})
    CHECK(!json.contains(key));
  CHECK(json["peak_bytes"] == peak);
  CHECK(!json["communication"][0].contains("seconds"));
  const std::string text = print(*e.plan, p);
  CHECK_THAT(text, Catch::Contains("no time is predicted: nobody knows"));
  CHECK_THAT(text, !Catch::Contains("tokens/s"));
}
