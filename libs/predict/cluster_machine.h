// A described cluster as a machine: each rank has a device of its own, in the order of the ranks,
// and transfers run beside compute as the software stack allows.
#pragma once

#include "meshwright/engine/plan.h"
#include "meshwright/engine/scratch.h"
#include "predict/cluster_parts.h"
#include "predict/machine.h"
#include "predict/stack.h"

namespace mw {

// What kernels allocate under a software stack: ops take buffers for all their rows where the
// stack's kernels do (Stack::whole_rows). `machine` is the machine whose kernels these are, or
// null.
class FlashScratch final : public DeviceScratch {
 public:
  explicit FlashScratch(bool whole_rows, const Machine* machine = nullptr)
      : whole_rows_(whole_rows), machine_(machine) {}
  const Machine* machine() const { return machine_; }
  std::int64_t workspace(const Cost& cost) const override {
    return whole_rows_ || !cost.workspace ? DeviceScratch::workspace(cost) : *cost.workspace;
  }

 private:
  bool whole_rows_;
  const Machine* machine_;
};

class ClusterMachine final : public Machine {
 public:
  ClusterMachine(Cluster cluster, Stack stack)
      : cluster_(std::move(cluster)),
        stack_(std::move(stack)),
        parts_(cluster_),
        kernels_(stack_.whole_rows, this) {}
  // `kernels_` of a copied machine points to the copy.
  ClusterMachine(const ClusterMachine& other) : ClusterMachine(other.cluster_, other.stack_) {}
  ClusterMachine& operator=(const ClusterMachine& other) {
    cluster_ = other.cluster_;
    stack_ = other.stack_;
    parts_ = other.parts_;
    kernels_ = FlashScratch(stack_.whole_rows, this);
    return *this;
  }

  std::string name() const override;
  // Basis::fitted if the device and the stack are fitted, and no key was changed on which times
  // depend.
  Basis basis() const override;
  std::int64_t room() const override { return cluster_.devices(); }
  std::unique_ptr<RankMachine> of_rank(const RankView& view, int ranks, int threads) const override;
  bool overlaps() const override { return true; }
  bool uneven() const override { return parts_.uneven(); }
  std::vector<std::vector<RankClass>> by_device(
      const Program& program, const std::vector<RankClass>& classes) const override {
    return uneven() ? parts_.split(program, classes) : Machine::by_device(program, classes);
  }
  bool stages_wait() const override { return stack_.stages_wait; }
  int threads_of(int, int) const override { return 1; }
  double peak(int ranks, Dtype dtype, int) const override;
  double stragglers(int ranks) const override;
  std::int64_t memory() const override;
  std::int64_t most_memory() const override;
  DeviceRoom device_of(int rank) const override;
  bool memory_together() const override { return false; }
  HostMemory host() const override;
  std::vector<std::string> cannot_run(const PlanRequest& request) const override {
    return stack_.runs.lacks(request);
  }
  const DeviceScratch* scratch() const override { return &kernels_; }
  std::int64_t kept_by_libraries() const override;
  // The entries "gradients", "loss", "reserve", "communicators" and "context", as far as the stack
  // and the device have them.
  std::vector<NamedBytes> beside_program(const RankView& rank,
                                         const MemoryForecast& memory) const override;
  // Basis::fitted if the device and the stack are fitted, and no key of either was changed on which
  // beside_program() depends.
  Basis beside_basis() const override;

  const Cluster& cluster() const { return cluster_; }
  const ClusterParts& parts() const { return parts_; }
  const Stack& stack() const { return stack_; }

 private:
  Cluster cluster_;
  Stack stack_;
  ClusterParts parts_;
  FlashScratch kernels_;
};

// The machine that a script's `cluster` and `stack` describe (a null stack: this project's own).
// Null, with problems, if a description is wrong.
std::unique_ptr<ClusterMachine> read_machine(const Json& cluster, const Json& stack,
                                             Problems& problems);
// Adds a problem for each thing that the plan needs and the cluster lacks: devices, a rate for the
// plan's numbers, a link to the host.
void check_placed(const Plan& plan, const ClusterMachine& machine, Problems& problems);

}  // namespace mw
