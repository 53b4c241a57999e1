// Clusters with round numbers for the predictor's tests.
#pragma once

#include "predict/cluster_machine.h"

namespace mw::test {

// A device for each rank, whose times can be worked out by hand: products at 1e11 a second without
// tiles, memory and links at 1e10 bytes a second.
inline Cluster round_cluster(int devices = 1 << 14) {
  Cluster c;
  c.name = "round";
  c.device.name = "device";
  c.device.peak16 = c.device.peak32 = c.device.peak64 = 1e11;
  c.device.memory = 16LL << 30;
  c.device.bandwidth = 1e10;
  c.device.bandwidth_share = c.device.gemm = 1;
  c.device.kernel = 1e-6;
  c.device.flash = {0, 1, 1, 1};
  c.device.smooth = 4.5;
  c.node.devices = devices;
  c.node.bandwidth = 1e10;
  c.node.share = 1;
  c.node.latency = 1e-5;
  return c;
}

// A cluster of two nodes of four devices as a script describes one.
inline Json cluster_table() {
  return {{"name", "mine"},
          {"nodes", 2},
          {"device",
           {{"name", "device"},
            {"peak16", 1e14},
            {"memory", "16GiB"},
            {"bandwidth", 1e12},
            {"bandwidth_share", 0.8},
            {"gemm", 0.8}}},
          {"node", {{"devices", 4}, {"bandwidth", 1e11}}},
          {"network", {{"nic", 1e10}}}};
}

// "code key" of the first problem of such a table.
inline std::string cluster_refusal(const Json& table) {
  Problems problems;
  read_cluster(table, "cluster", problems);
  if (problems.empty()) return "nothing is refused";
  return problems.list().front().code + " " + problems.list().front().key;
}

inline Stack round_stack() {
  Stack s;
  s.name = "round";
  s.flash = 1;
  return s;
}

inline ClusterMachine round_machine() {
  return {round_cluster(), round_stack()};
}

}  // namespace mw::test
