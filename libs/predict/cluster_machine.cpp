// Reads the machine that a script's cluster and stack describe, and checks plans against it.
#include "predict/cluster_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "meshwright/engine/connections.h"
#include "meshwright/engine/text.h"
#include "predict/on_cluster.h"

namespace mw {
namespace {

// Elements of a microbatch's logits on the rank; none where another stage has the loss.
double logits(const RankView& rank) {
  double all = 0;
  for (const Segment& segment : rank.program().segments) {
    double here = 0;
    for (const Instruction& i : segment.code) {
      if (!i.runs_op() || i.piece != Piece::forward) continue;
      const Op& op = rank.program().graph->ops()[i.op];
      if (op.op_class() == OpClass::loss)
        here += static_cast<double>(rank.dims(i.op).count(op.inputs[0].dims));
    }
    all = std::max(all, here);
  }
  return all;
}

}  // namespace

std::string ClusterMachine::name() const {
  const auto named = [](const std::string& name, const std::string& changed) {
    return changed.empty() ? name : fmt::format("{} (changed: {})", name, changed);
  };
  std::vector<std::string> kinds;
  int left = cluster_.nodes;
  const auto add = [&](int nodes, const std::string& device) {
    kinds.push_back(
        fmt::format("{} of {} {}", plural(nodes, "node"), cluster_.node.devices, device));
  };
  for (const Cluster& kind : cluster_.kinds) {
    add(kind.nodes, kind.device.name);
    left -= kind.nodes;
  }
  if (left > 0) add(left, cluster_.device.name);
  return fmt::format("{}: {}, stack {}", named(cluster_.name, cluster_.changed),
                     join(kinds, " and "), named(stack_.name, stack_.changed));
}

double ClusterMachine::peak(int ranks, Dtype dtype, int) const {
  return parts_.sum(ranks, [&](const ClusterParts::Part& part) {
    return part.cluster.device.peak(dtype) * part.by.compute;  // a slow device counts as described
  });
}

std::int64_t ClusterMachine::memory() const {
  std::int64_t least = parts_.all().front().cluster.device.memory;
  for (const auto& part : parts_.all()) least = std::min(least, part.cluster.device.memory);
  return least;
}

std::int64_t ClusterMachine::most_memory() const {
  std::int64_t most = 0;
  for (const auto& part : parts_.all()) most = std::max(most, part.cluster.device.memory);
  return most;
}

DeviceRoom ClusterMachine::device_of(int rank) const {
  const DeviceType& device = parts_.part_of(rank).cluster.device;
  return {cluster_.kinds.empty() || !uneven() ? "" : device.name, device.memory};
}

HostMemory ClusterMachine::host() const {
  std::int64_t least = 0;  // least of the capacities that are known
  for (const auto& part : parts_.all()) {
    const std::int64_t own = part.cluster.host_capacity;
    if (own > 0) least = least > 0 ? std::min(least, own) : own;
  }
  return {least, cluster_.node.devices};
}

std::int64_t ClusterMachine::kept_by_libraries() const {
  std::int64_t most = 0;
  for (const auto& part : parts_.all()) most = std::max(most, part.cluster.device.workspace);
  return most;
}

std::unique_ptr<RankMachine> ClusterMachine::of_rank(const RankView& view, int, int) const {
  return std::make_unique<OnCluster>(view, parts_, stack_);
}

std::vector<NamedBytes> ClusterMachine::beside_program(const RankView& rank,
                                                       const MemoryForecast& memory) const {
  std::vector<NamedBytes> all;
  auto allocated = static_cast<double>(memory.peak);
  const auto add = [&](const char* name, double bytes) {
    if (bytes >= 1) all.push_back({name, static_cast<std::int64_t>(bytes)});
    return bytes;
  };
  const Program& program = rank.program();
  const int number = program.mesh.rank(rank.at());
  const DeviceType& device = parts_.part_of(number).cluster.device;
  const auto parameters =
      static_cast<double>(memory[Category::parameters]) / bytes_of(program.dtype);
  allocated += add("gradients", stack_.second_gradients * parameters);
  allocated += add("loss", stack_.logit_memory * logits(rank));
  add(reserve_name, allocated * stack_.reserve / (1 - stack_.reserve));
  if (device.communicator > 0) {
    const auto count = static_cast<double>(connections_of({&program}, number).size());
    add("communicators", static_cast<double>(device.communicator) * count);
  }
  add("context", static_cast<double>(device.context));
  return all;
}

Basis ClusterMachine::basis() const {
  // Keys on which no time depends: a device's name, and the bytes that it holds.
  static constexpr std::string_view timeless[] = {"device.memory", "device.name", "device.context",
                                                  "device.communicator", "device.workspace"};
  const bool shipped =
      stack_.changed.empty() &&
      std::ranges::none_of(cluster_.changed_keys(), [](std::string_view key) {
        return key.starts_with("device.") && std::ranges::find(timeless, key) == std::end(timeless);
      });
  const bool fitted = parts_.all().front().cluster.device.fitted;
  return fitted && stack_.fitted && shipped ? Basis::fitted : Basis::beyond;
}

Basis ClusterMachine::beside_basis() const {
  const bool shipped = stack_.changed.empty() && !cluster_.changes("device.context") &&
                       !cluster_.changes("device.communicator") && cluster_.kinds.empty();
  return cluster_.device.fitted && stack_.fitted && shipped ? Basis::fitted : Basis::beyond;
}

double ClusterMachine::stragglers(int ranks) const {
  if (ranks < 2) return 1;
  double most = 0;
  for (const auto& part : parts_.all()) most = std::max(most, part.cluster.device.straggle);
  return 1 + most * std::sqrt(2 * std::log(static_cast<double>(ranks)));
}

namespace {

// Checks that every device has a rate for the stack's flash attention.
void check_flash(const Cluster& hardware, const Stack& software, Problems& problems) {
  const ClusterParts parts(hardware);
  for (const auto& part : parts.all()) {
    if (part.cluster.device.flash.at(static_cast<std::size_t>(software.flash)) > 0) continue;
    problems.add(Stage::options, "cluster.value", part.key + ".flash",
                 fmt::format("{}.flash: says nothing of generation {}, which the stack {} has",
                             part.key, software.flash, software.name),
                 "give its share of the peak: flash = { 0.35, 0.45, 0.6 }");
  }
}

}  // namespace

std::unique_ptr<ClusterMachine> read_machine(const Json& cluster, const Json& stack,
                                             Problems& problems) {
  Problems found;
  // The table has changed keys alone, as --set cluster.nodes=8 makes them where the script names no
  // cluster.
  if (cluster.is_object() && !cluster.contains("device") && !cluster.contains("node")) {
    problems.add(Stage::options, "cluster.missing", "cluster",
                 fmt::format("cluster: {} describes no hardware", lua_text(cluster)),
                 "name the cluster that this changes: cluster = mw.cluster(\"selene\", { nodes = 8 "
                 "}), or --cluster selene");
    return nullptr;
  }
  Cluster hardware = read_cluster(cluster, "cluster", found);
  Stack software;
  software.name = "plain";
  software.whole_rows = true;
  if (!stack.is_null()) software = read_stack(stack, "stack", found);
  if (found.empty() && software.flash > 0) check_flash(hardware, software, found);
  problems.add(found);
  if (!found.empty()) return nullptr;
  return std::make_unique<ClusterMachine>(std::move(hardware), std::move(software));
}

namespace {

// A hint that names the most similar precision for which the devices have units.
std::string nearest_dtype(Dtype dtype, const DeviceType& device) {
  const bool half = bytes_of(dtype) == 2;
  const Dtype like_half[] = {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64};
  const Dtype like_whole[] = {Dtype::fp32, Dtype::fp64, Dtype::bf16, Dtype::fp16};
  for (const Dtype other : half ? like_half : like_whole) {
    if (other != dtype && !device.lacks.contains(other))
      return fmt::format("nearest: precision = \"{}\"", name_of(other));
  }
  return "the description lacks every precision: leave some out of `lacks`";
}

// Checks that the part's devices have a rate for what the plan computes in.
void check_rates(const Plan& plan, const ClusterMachine& machine, const ClusterParts::Part& part,
                 Problems& problems) {
  const DeviceType& device = part.cluster.device;
  if (machine.stack().product_bits == 8 && device.peak8 <= 0) {
    problems.add(Stage::plan, "cluster.rate", part.key + ".peak8",
                 fmt::format("{}.peak8: is missing, and the stack {} multiplies in fp8", part.key,
                             machine.stack().name),
                 "give its dense operations a second, or name another stack");
  }
  const Dtype dtype = plan.programs.front().dtype;
  if (device.lacks.contains(dtype)) {
    problems.add(Stage::plan, "cluster.rate", "precision",
                 fmt::format("precision: {} on devices that have no units for it ({}, {}.lacks)",
                             name_of(dtype), device.name, part.key),
                 nearest_dtype(dtype, device));
  } else if (device.peak(dtype) <= 0) {
    const int bits = 8 * bytes_of(dtype);
    problems.add(Stage::plan, "cluster.rate", fmt::format("{}.peak{}", part.key, bits),
                 fmt::format("{}.peak{}: is missing, and the plan computes in {}", part.key, bits,
                             name_of(dtype)),
                 "give its dense operations a second, or plan in another precision");
  }
}

}  // namespace

void check_placed(const Plan& plan, const ClusterMachine& machine, Problems& problems) {
  const Cluster& cluster = machine.cluster();
  if (plan.ranks() > cluster.devices()) {
    const auto nodes = (plan.ranks() + cluster.node.devices - 1) / cluster.node.devices;
    problems.add(Stage::plan, "cluster.room", "cluster.nodes",
                 fmt::format("cluster.nodes: {} ranks, and {} devices in {}", plan.ranks(),
                             cluster.devices(), plural(cluster.nodes, "node")),
                 fmt::format("nodes = {} or more, or a plan of fewer ranks", nodes));
  }
  for (const int part : machine.parts().among(0, plan.ranks()))
    check_rates(plan, machine, machine.parts().all()[static_cast<std::size_t>(part)], problems);
  bool offloads = false;
  for (const Program& program : plan.programs) {
    for (const Slot& slot : program.slots) offloads = offloads || slot.memory == Memory::host;
  }
  if (offloads && cluster.host_link <= 0) {
    problems.add(
        Stage::plan, "cluster.host", "cluster.host",
        "cluster.host: is missing, and the plan keeps tensors in host memory",
        "host = { link = 25e9, bandwidth = 20e9, capacity = \"2TiB\" }: bytes a second of each "
        "device, bytes of a node");
  }
}

}  // namespace mw
