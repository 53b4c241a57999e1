// Reads the machine that a script's cluster and stack describe, and holds plans against it.
#include "predict/cluster_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

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
      if (i.code != Code::compute || i.update != Update::none || i.piece != Piece::forward)
        continue;
      const Op& op = rank.program().graph->ops()[i.op];
      if (op.op_class() == OpClass::loss)
        here += static_cast<double>(rank.dims(i.op).count(op.inputs[0].dims));
    }
    all = std::max(all, here);
  }
  return all;
}

// Communicators of a rank: one for each axis, and that of all ranks.
int groups(const Mesh& mesh) {
  const auto own = std::count_if(mesh.axes().begin(), mesh.axes().end(),
                                 [&](const Axis& axis) { return mesh.ways(axis.atoms) > 1; });
  return own > 0 ? static_cast<int>(own) + 1 : 0;
}

}  // namespace

std::string ClusterMachine::name() const {
  const auto named = [](const std::string& name, const std::string& changed) {
    return changed.empty() ? name : fmt::format("{} (changed: {})", name, changed);
  };
  return fmt::format("{}: {} of {} {}, stack {}", named(cluster_.name, cluster_.changed),
                     plural(cluster_.nodes, "node"), cluster_.node.devices, cluster_.device.name,
                     named(stack_.name, stack_.changed));
}

std::int64_t FlashScratch::of(const LibraryCall& call, int element) const {
  const std::string_view name = call.name;
  if (!name.starts_with("attention")) return 0;
  const auto& s = call.sizes;  // batch, heads, queries, keys, head_dim, value_dim, sight
  // Another width for values: operands are copied, filled up to the wider.
  const std::int64_t wide = std::max(s[4], s[5]), filled = wide > s[5] ? 1 : s[4] < s[5] ? 2 : 0;
  const std::int64_t copies = filled * s[0] * s[1] * std::max(s[2], s[3]) * wide * element;
  if (name != "attention backward") return copies;
  return copies + 4 * s[0] * s[1] * s[2] * (wide + 1);  // and the sum of each row
}

std::unique_ptr<RankMachine> ClusterMachine::of_rank(const RankView& view, int, int) const {
  return std::make_unique<OnCluster>(view, cluster_, stack_);
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
  const auto parameters =
      static_cast<double>(memory[Category::parameters]) / bytes_of(program.dtype);
  allocated += add("gradients", stack_.second_gradients * parameters);
  allocated += add("loss", stack_.logit_memory * logits(rank));
  add(reserve_name, allocated * stack_.reserve / (1 - stack_.reserve));
  add("communicators", static_cast<double>(cluster_.device.communicator) * groups(program.mesh));
  add("context", static_cast<double>(cluster_.device.context));
  return all;
}

Basis ClusterMachine::basis() const {
  // A device's name, and the bytes that it holds, change no time.
  static constexpr std::string_view timeless[] = {"device.memory", "device.name", "device.context",
                                                  "device.communicator", "device.workspace"};
  const bool shipped =
      stack_.changed.empty() && cluster_.slow.empty() &&
      std::ranges::none_of(cluster_.changed_keys(), [](std::string_view key) {
        return key.starts_with("device.") && std::ranges::find(timeless, key) == std::end(timeless);
      });
  return cluster_.device.fitted && stack_.fitted && shipped ? Basis::fitted : Basis::beyond;
}

double ClusterMachine::stragglers(int ranks) const {
  if (ranks < 2) return 1;
  return 1 + cluster_.device.straggle * std::sqrt(2 * std::log(static_cast<double>(ranks)));
}

std::unique_ptr<ClusterMachine> read_machine(const Json& cluster, const Json& stack,
                                             Problems& problems) {
  Problems found;
  // Keys alone, as --set cluster.nodes=8 makes them where the script names no cluster.
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
  if (found.empty() && software.flash > 0 &&
      hardware.device.flash.at(static_cast<std::size_t>(software.flash)) <= 0) {
    found.add(Stage::options, "cluster.value", "cluster.device.flash",
              fmt::format("cluster.device.flash: says nothing of generation {}, which the stack "
                          "{} has",
                          software.flash, software.name),
              "give its share of the peak: flash = { 0.35, 0.45, 0.6 }");
  }
  problems.add(found);
  if (!found.empty()) return nullptr;
  return std::make_unique<ClusterMachine>(std::move(hardware), std::move(software));
}

void check_placed(const Plan& plan, const ClusterMachine& machine, Problems& problems) {
  const Cluster& cluster = machine.cluster();
  if (plan.ranks() > cluster.devices()) {
    const auto nodes = (plan.ranks() + cluster.node.devices - 1) / cluster.node.devices;
    problems.add(Stage::plan, "cluster.room", "cluster.nodes",
                 fmt::format("cluster.nodes: {} ranks, and {} devices in {}", plan.ranks(),
                             cluster.devices(), plural(cluster.nodes, "node")),
                 fmt::format("nodes = {} or more, or a plan of fewer ranks", nodes));
  }
  if (machine.stack().product_bits == 8 && cluster.device.peak8 <= 0) {
    problems.add(Stage::plan, "cluster.rate", "cluster.device.peak8",
                 fmt::format("cluster.device.peak8: is missing, and the stack {} multiplies in fp8",
                             machine.stack().name),
                 "give its dense operations a second, or name another stack");
  }
  const Dtype dtype = plan.programs.front().dtype;
  if (cluster.device.lacks.contains(dtype)) {
    // Another of the same width that it has.
    const Dtype other = dtype == Dtype::bf16 ? Dtype::fp16 : Dtype::bf16;
    const bool has_other = bytes_of(dtype) == 2 && !cluster.device.lacks.contains(other);
    problems.add(
        Stage::plan, "cluster.rate", "precision",
        fmt::format("precision: {} on devices that have no units for it ({}, "
                    "cluster.device.lacks)",
                    name_of(dtype), cluster.device.name),
        fmt::format("nearest: precision = \"{}\"", name_of(has_other ? other : Dtype::fp32)));
  } else if (cluster.device.peak(dtype) <= 0) {
    const int bits = 8 * bytes_of(dtype);
    problems.add(Stage::plan, "cluster.rate", fmt::format("cluster.device.peak{}", bits),
                 fmt::format("cluster.device.peak{}: is missing, and the plan computes in {}", bits,
                             name_of(dtype)),
                 "give its dense operations a second, or plan in another precision");
  }
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
