// The c10d::Backend of a rank that is a thread, in one group, and the c10d::Work that its calls
// return. A call returns at once. Several calls may be under way, in one group or several, and may
// be waited for in any order. Tensors must be contiguous, and unchanged by the caller until wait().
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <optional>

#include "comm/local_world.h"
#include "meshwright/backend.h"

namespace mw::comm {

class LocalWork final : public c10d::Work {
 public:
  LocalWork(LocalWorld& world, std::shared_ptr<LocalGroup> group, LocalGroup::Seat seat,
            int global_rank, std::vector<at::Tensor> tensors, std::vector<at::Tensor> results,
            c10d::OpType type, std::chrono::milliseconds timeout);
  ~LocalWork() override;

  bool isCompleted() override;  // also carries out work: only calls of members advance a round
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
  bool settled_ = false;  // whether wait() has ended
};

class LocalBackend final : public CheckedBackend {
 public:
  // `line`: a program's stream, which the rank's groups on that stream share; null: none.
  LocalBackend(LocalWorld& world, std::shared_ptr<LocalGroup> group, int index,
               std::shared_ptr<StreamLine> line = nullptr);

  const std::string getBackendName() const override { return "threads"; }
  void abort() override;

 protected:
  WorkPtr issue(Issue issue) override;
  WorkPtr issue_pair(Issue issue, int peer, int tag) override;

 private:
  Arrival new_arrival(Issue& issue);
  WorkPtr seated(LocalGroup::Seat seat, Issue issue) const;
  LocalGroup::Seat in_line(LocalGroup::Seat seat) const;

  LocalWorld& world_;
  std::shared_ptr<LocalGroup> group_;
  const std::shared_ptr<StreamLine> line_;  // null: the group is on no stream of a program
  // The device stream for rounds of device tensors, if there is no `line_`.
  std::optional<c10::Stream> stream_;
};

}  // namespace mw::comm
