// The c10d::Backend of one rank in a group whose ranks live in several processes, and the
// c10d::Work that its calls return.
#pragma once

#include <memory>
#include <vector>

#include "meshwright/backend.h"
#include "transport/source.h"

namespace mw::transport {

class LinkedWork final : public c10d::Work {
 public:
  LinkedWork(LinkedSource& source, std::shared_ptr<Round> round, int rank,
             std::vector<at::Tensor> tensors, std::vector<at::Tensor> results, c10d::OpType type,
             std::chrono::milliseconds timeout);
  ~LinkedWork() override;

  bool isCompleted() override;
  bool isSuccess() const override { return round_->state() == Round::done; }
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return results_; }

 private:
  LinkedSource& source_;
  std::shared_ptr<Round> round_;
  int rank_;
  std::vector<at::Tensor> tensors_, results_;
  std::chrono::milliseconds timeout_;
  bool settled_ = false;  // wait() has ended, well or by an error
};

class LinkedBackend final : public comm::CheckedBackend {
 public:
  LinkedBackend(LinkedSource& source, Group& group, int index);

  const std::string getBackendName() const override { return source_.name(); }
  void abort() override;

 protected:
  WorkPtr issue(Issue issue) override;
  WorkPtr issue_pair(Issue issue, int peer, int tag) override;

 private:
  Arrival arrival_of(Issue& issue) const;
  WorkPtr seated(std::shared_ptr<Round> round, Issue issue);

  LinkedSource& source_;
  Group& group_;
};

}  // namespace mw::transport
