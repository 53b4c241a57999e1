// Prices plans whose steps were measured by changed shares of their device, node and stack.
#include "predict/step_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/text.h"
#include "predict/cluster_machine.h"
#include "predict/prediction.h"

namespace mw {
namespace {

constexpr double step_error = 0.02;   // of a measured step, as the fit weighs it
constexpr double share_change = 0.2;  // of a share's logarithm, between one software and another

// A share, where it stands in the descriptions, and where a prediction reads it.
struct Knob {
  const char *part, *key;  // part "": the stack
  double low, high;
  double& (*in)(Cluster&, Stack&);
  const char* what;
};

constexpr Knob knobs[] = {
    {"device", "gemm", 0.1, 1, [](Cluster& c, Stack&) -> double& { return c.device.gemm; },
     "what large products reach of the peak"},
    {"device", "bandwidth_share", 0.1, 1,
     [](Cluster& c, Stack&) -> double& { return c.device.bandwidth_share; },
     "what streams reach of the memory's bandwidth"},
    {"node", "curve_share", 0.3, 1.1,
     [](Cluster& c, Stack&) -> double& { return c.node.curve_share; },
     "what collectives keep within a step of what they reach alone"},
    {"network", "share", 0.1, 1.1, [](Cluster& c, Stack&) -> double& { return c.network.share; },
     "what collectives reach of the NICs"},
    {"", "host", 0.05, 20, [](Cluster&, Stack& s) -> double& { return s.host; },
     "what the host takes to launch an op, over the device's launch"},
    {"", "data_share", 0.1, 1, [](Cluster&, Stack& s) -> double& { return s.data_share; },
     "what collectives of data axes get of the NICs"},
};

std::string key_of(const Knob& knob) {
  return *knob.part == '\0' ? std::string("stack.") + knob.key
                            : fmt::format("{}.{}", knob.part, knob.key);
}

}  // namespace

FittedSteps fit_steps(Description& cluster, Description& stack,
                      const std::vector<MeasuredPlan>& steps, Problems& problems) {
  Cluster hardware = read_cluster(cluster.table, "cluster", problems);
  Stack software = read_stack(stack.table, "stack", problems);
  FittedSteps fitted;
  std::vector<const Knob*> used;
  const bool several = std::ranges::any_of(steps, [](const auto& step) { return step.nodes > 1; });
  for (const Knob& knob : knobs) {
    const bool of_network = std::string(knob.part) == "network";
    // Logs tell of the network alone, and better.
    if (of_network && (!several || cluster.sources.contains("network.share"))) continue;
    const double value = knob.in(hardware, software);
    if (value <= 0) continue;
    fitted.shares.push_back(
        {key_of(knob), value, std::min(knob.low, value), std::max(knob.high, value)});
    used.push_back(&knob);
  }
  std::vector<double> measured, start;
  for (const MeasuredPlan& step : steps) measured.push_back(step.seconds);
  for (const Share& share : fitted.shares) start.push_back(share.value);
  const PredictRows predicted = [&](const std::vector<double>& values) {
    for (std::size_t k = 0; k < used.size(); ++k) used[k]->in(hardware, software) = values[k];
    std::vector<double> seconds;
    for (const MeasuredPlan& step : steps) {
      throw_if_stopped();
      Cluster own = hardware;
      own.nodes = step.nodes;
      seconds.push_back(predict(*step.plan, ClusterMachine(own, software), 1).step_seconds);
    }
    return seconds;
  };
  fitted.before = predicted(start);
  fitted.fit = fit_shares(fitted.shares, measured, predicted, step_error, share_change);
  for (std::size_t k = 0; k < used.size(); ++k) {
    const Knob& knob = *used[k];
    const bool of_stack = *knob.part == '\0';
    Description& own = of_stack ? stack : cluster;
    const std::string key = of_stack ? knob.key : key_of(knob);
    if (!fitted.fit.told[k]) {
      own.unknown.push_back(fmt::format("no measured step changes with {} ({}): it stays {}",
                                        key_of(knob), knob.what, format_number(rounded(start[k]))));
      continue;
    }
    // As a ratio: a device that is held to less power reads as less than its table says.
    Json& table = of_stack ? own.table : own.table[knob.part];
    table[knob.key] = rounded(table.contains(knob.key)
                                  ? table[knob.key].get<double>() * fitted.fit.values[k] / start[k]
                                  : fitted.fit.values[k]);
    own.sources[key] =
        fmt::format("fitted to {}; it was {}", plural(std::ssize(steps), "measured step"),
                    format_number(rounded(start[k])));
  }
  cluster.table["device"]["fitted"] = stack.table["fitted"] = true;
  return fitted;
}

}  // namespace mw
