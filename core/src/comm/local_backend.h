// The c10d::Backend of one thread rank in one group, and the c10d::Work that its calls return.
// A call returns at once; several may be under way on one group and on several, and may be waited
// for in any order. Tensors are contiguous, and left alone by the caller until wait().
#pragma once

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/local_world.h"

namespace mw::comm {

class LocalWork final : public c10d::Work {
 public:
  LocalWork(LocalWorld& world, std::shared_ptr<LocalGroup> group, LocalGroup::Seat seat,
            int global_rank, std::vector<at::Tensor> tensors, std::vector<at::Tensor> results,
            c10d::OpType type, std::chrono::milliseconds timeout);
  ~LocalWork() override;

  bool isCompleted() override;  // helps: a round makes progress only in its members' calls
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;

 private:
  void release();

  LocalWorld& world_;
  std::shared_ptr<LocalGroup> group_;
  LocalGroup::Seat seat_;
  int global_rank_;
  std::vector<at::Tensor> tensors_, results_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  bool settled_ = false;  // waited for, or given up
};

class LocalBackend final : public c10d::Backend {
 public:
  LocalBackend(LocalWorld& world, std::shared_ptr<LocalGroup> group, int index);

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  const std::string getBackendName() const override { return "threads"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override;

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& out_splits, std::vector<std::int64_t>& in_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  Call new_call(Collective op, const at::Tensor& tensor, std::int64_t elements) const;
  Arrival new_arrival(Call call, const at::Tensor* in, at::Tensor* out);
  WorkPtr issue(Arrival arrival, std::vector<at::Tensor> tensors, std::vector<at::Tensor> results,
                c10d::OpType type, std::chrono::milliseconds timeout);
  WorkPtr issue_pair(Collective op, std::vector<at::Tensor>& tensors, int peer, int tag);
  void check(bool fits, Collective op, const std::string& what) const;
  void check_tensor(Collective op, const at::Tensor& tensor) const;
  at::Tensor& only_tensor(Collective op, std::vector<at::Tensor>& tensors) const;
  void check_pair(Collective op, const at::Tensor& input, const at::Tensor& output) const;

  LocalWorld& world_;
  std::shared_ptr<LocalGroup> group_;
  int global_rank_;
  std::chrono::milliseconds timeout_;
  // Of device tensors: this group's rounds go beside what the rank computes.
  std::optional<c10::Stream> stream_;
};

}  // namespace mw::comm
