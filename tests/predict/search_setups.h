// Searches that the tests of search share: a small model on two nodes of four devices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "clusters.h"
#include "meshwright/engine/interrupt.h"
#include "search/search.h"
#include "support/setup.h"

namespace mw::test {

// Two nodes of four devices, a slower link between them and one to each host.
inline ClusterMachine two_nodes(double node_link = 0) {
  Cluster c = round_cluster(4);
  c.nodes = 2;
  c.device.memory = 1LL << 50;
  c.device.peak16 = 1e13;
  c.device.bandwidth = 1e12;
  c.node.bandwidth = 1e11;
  c.network.nic = 1e10;
  c.network.latency = 1e-5;
  c.network.hop = 1e-6;
  c.host_link = c.host_bandwidth = 1e11;
  c.host_node_link = node_link;
  return {c, round_stack()};
}

inline Setup small() {
  Setup setup;
  setup.options = {{"layers", 8},   {"hidden", 512}, {"heads", 8},
                   {"kv_heads", 8}, {"ffn", 1408},   {"vocab", 1024}};
  setup.batch = 32;
  setup.sequence = 256;
  setup.precision = Precision::bf16;
  return setup;
}
// of 6 layers with 8 experts each, of which a token chooses 2.
inline Setup small_experts() {
  Setup setup = small();
  setup.model = "moe";
  setup.options["layers"] = 6;
  setup.options["experts"] = 8;
  setup.options["top_k"] = 2;
  return setup;
}

struct Asked {
  ClusterMachine machine = two_nodes();
  SearchRequest request;

  explicit Asked(const Setup& setup) {
    request.base = experiment(setup).plan;
    request.source.make = [](const Json& entry) { return strategy(entry.at("plugin"), entry); };
    request.source.names = [] {
      return std::vector<std::string>{"dp", "ep", "pp", "sp", "tp", "zero"};
    };
    request.machine = &machine;
    request.ranks = 8;
    request.memory = machine.memory();
    request.strategies = request.source.names();
    request.schedules = {"1f1b", "gpipe", "interleaved", "zb-h1", "zbv"};
    for (const char* name : {"none", "full"}) {
      RecomputePolicy policy;
      policy.kind =
          std::string(name) == "none" ? RecomputePolicy::Kind::none : RecomputePolicy::Kind::full;
      request.recompute.push_back({name, policy});
    }
    request.offload.push_back({"none", {}});
    request.best = 3;
    request.checked = 6;
    request.with_layers = [setup](std::int64_t layers) {
      Json options = setup.options;
      options["layers"] = layers;
      return made<Model>("model", setup.model, options);
    };
    request.options_of = [](const std::string& name) -> const Options& {
      return registry().find(Kind::strategy, name).options();
    };
    request.schedule = [](const std::string& name, const ScheduleRequest& order) {
      return scheduler(name)->make(order);
    };
    request.chunks_of = [](const std::string& name) { return scheduler(name)->fixed_chunks(); };
  }

  static std::unique_ptr<Scheduler> scheduler(const std::string& name) {
    const Registration& found = registry().find(Kind::scheduler, name);
    Problems problems;
    const Values values = found.options().read(Json::object(), "", problems);
    return make<Scheduler>(found, values);
  }
};

// A search that is stopped while it times the fifth order of works.
inline SearchOutcome stopped_search(Asked& asked) {
  int orders = 0;
  const auto make = asked.request.schedule;
  asked.request.schedule = [&](const std::string& name, const ScheduleRequest& order) {
    if (++orders == 5) request_stop();
    return make(name, order);
  };
  SearchOutcome found = search(asked.request);
  forget_stop_request();
  asked.request.schedule = make;
  return found;
}

}  // namespace mw::test
