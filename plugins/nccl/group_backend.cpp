// Hands checked calls to NCCL, and follows each until its rank waits for it.
#include "group_backend.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <utility>

#include "meshwright/error.h"

namespace nccl {
namespace {

c10d::ReduceOp reduce_op(mw::comm::Combine combine) {
  using mw::comm::Combine;
  switch (combine) {
    case Combine::sum:
      return c10d::ReduceOp::SUM;
    case Combine::average:
      return c10d::ReduceOp::AVG;
    case Combine::product:
      return c10d::ReduceOp::PRODUCT;
    case Combine::min:
      return c10d::ReduceOp::MIN;
    case Combine::max:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

// A collective of NCCL's under way. wait() makes the rank's stream wait for it, not the host.
class Followed final : public c10d::Work {
 public:
  Followed(NcclSource& source, c10::intrusive_ptr<c10d::Work> work, std::string call, int rank,
           std::vector<at::Tensor> kept, std::vector<at::Tensor> results, c10d::OpType type)
      : Work(rank, type),
        source_(source),
        work_(std::move(work)),
        call_(std::move(call)),
        kept_(std::move(kept)),
        results_(std::move(results)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    source_.called(call_, [&] { work_->wait(timeout); });
    return true;
  }

 private:
  NcclSource& source_;
  c10::intrusive_ptr<c10d::Work> work_;
  const std::string call_;
  const std::vector<at::Tensor> kept_, results_;
};

}  // namespace

GroupBackend::GroupBackend(NcclSource& source, const mw::Connection& group, int index)
    : CheckedBackend(group.axis, group.ranks, index, source.timeout()),
      source_(source),
      device_(c10::impl::VirtualGuardImpl(source.library().type()).getDevice()),
      line_(source.line_of(group, index, device_)),
      nccl_(source.join(group, index, device_)) {
  if (group.pair && source.library().connects_pairs()) connect_pair();
}

// Makes the first transfer of a pair, in which NCCL connects sender and receiver, and for which
// both callers wait. In a program one of the two might come to it only after the other has sent it
// more.
void GroupBackend::connect_pair() {
  std::vector<at::Tensor> one{at::zeros({1}, at::TensorOptions().device(device_))};
  source_.called("the first transfer of a pair", [&] {
    (getRank() == 0 ? nccl_->send(one, 1, 0) : nccl_->recv(one, 0, 0))->wait(kNoTimeout);
  });
}

// Calls NCCL so that the transfer goes behind all that the rank's stream has queued and all that
// was begun on the program's stream.
template <class Call>
GroupBackend::WorkPtr GroupBackend::in_line(const Call& call) {
  if (!line_) return call();
  const c10::impl::VirtualGuardImpl device(line_->device_type());
  c10::Event now(line_->device_type());
  now.record(device.getStream(line_->device()));
  now.block(*line_);
  const c10::StreamGuard guard(*line_);
  WorkPtr work = call();
  work->wait(kNoTimeout);  // the stream waits for the transfer, not the host
  return work;
}

GroupBackend::WorkPtr GroupBackend::followed(WorkPtr work, Issue issue) {
  return c10::make_intrusive<Followed>(
      source_, std::move(work), fmt::format("{} on '{}'", issue.call.describe(), axis()),
      global_rank(), std::move(issue.tensors), std::move(issue.results), issue.type);
}

GroupBackend::WorkPtr GroupBackend::issue(Issue issue) {
  if (issue.call.op == mw::Collective::barrier) {
    // NCCL's own barrier guesses a device.
    issue.tensors = {at::zeros({1}, at::TensorOptions().device(device_))};
  }
  WorkPtr work = in_line([&] { return called(issue); });
  return followed(std::move(work), std::move(issue));
}

GroupBackend::WorkPtr GroupBackend::called(const Issue& given) {
  using mw::Collective;
  Issue issue = given;
  c10d::Backend& nccl = *nccl_;
  const mw::comm::Call& call = issue.call;
  WorkPtr work;
  switch (call.op) {
    case Collective::all_reduce: {
      c10d::AllreduceOptions options;
      options.reduceOp = reduce_op(call.combine);
      std::vector<at::Tensor> tensors{issue.out};
      work = nccl.allreduce(tensors, options);
      break;
    }
    case Collective::all_gather:
      work = nccl._allgather_base(issue.out, issue.in, {});
      break;
    case Collective::reduce_scatter: {
      c10d::ReduceScatterOptions options;
      options.reduceOp = reduce_op(call.combine);
      work = nccl._reduce_scatter_base(issue.out, issue.in, options);
      break;
    }
    case Collective::all_to_all: {
      std::vector<std::int64_t> out_splits = call.out_splits, in_splits = call.in_splits;
      work = nccl.alltoall_base(issue.out, issue.in, out_splits, in_splits, {});
      break;
    }
    case Collective::broadcast: {
      c10d::BroadcastOptions options;
      options.rootRank = call.root;
      std::vector<at::Tensor> tensors{issue.out};
      work = nccl.broadcast(tensors, options);
      break;
    }
    case Collective::barrier:
      work = nccl.allreduce(issue.tensors, {});
      break;
    case Collective::send:
    case Collective::recv:
      throw std::logic_error("sends and recvs come in pairs");
  }
  return work;
}

// NCCL has no tags: both ranks of a pair issue its transfers in one order.
GroupBackend::WorkPtr GroupBackend::issue_pair(Issue issue, int peer, int tag) {
  const bool sends = issue.call.op == mw::Collective::send;
  std::vector<at::Tensor> tensors{sends ? issue.in : issue.out};
  WorkPtr work = in_line(
      [&] { return sends ? nccl_->send(tensors, peer, tag) : nccl_->recv(tensors, peer, tag); });
  return followed(std::move(work), std::move(issue));
}

}  // namespace nccl
