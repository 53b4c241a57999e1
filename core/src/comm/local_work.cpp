// The handle that a collective returns: waiting for it helps with the round's work and turns a
// failure into the rank's error.
#include "comm/local_backend.h"
#include "comm/streams.h"
#include "meshwright/error.h"

namespace mw::comm {

LocalWork::LocalWork(LocalWorld& world, std::shared_ptr<LocalGroup> group, LocalGroup::Seat seat,
                     int global_rank, std::vector<at::Tensor> tensors,
                     std::vector<at::Tensor> results, c10d::OpType type,
                     std::chrono::milliseconds timeout)
    : Work(global_rank, type),
      world_(world),
      group_(std::move(group)),
      seat_(std::move(seat)),
      global_rank_(global_rank),
      tensors_(std::move(tensors)),
      results_(std::move(results)),
      device_(tensors_.empty() ? at::Device(at::kCPU) : tensors_[0].device()),
      timeout_(timeout) {}

LocalWork::~LocalWork() {
  if (!settled_) seat_.round->leave(seat_.index);
}

void LocalWork::release() {
  settled_ = true;
  tensors_.clear();
}

bool LocalWork::isCompleted() {
  if (seat_.round->state() == Round::ready) seat_.round->wait(Clock::now());
  const auto state = seat_.round->state();
  return state == Round::done || state == Round::failed;
}

bool LocalWork::isSuccess() const {
  return seat_.round->state() == Round::done;
}

std::exception_ptr LocalWork::exception() const {
  if (seat_.round->state() != Round::failed) return nullptr;
  try {
    seat_.round->throw_failure();
  } catch (...) {
    return std::current_exception();
  }
}

bool LocalWork::wait(std::chrono::milliseconds timeout) {
  if (settled_) {
    if (seat_.round->state() == Round::failed) seat_.round->throw_failure();
    return true;
  }
  auto& round = *seat_.round;
  world_.begins_to_wait(global_rank_, seat_.round);
  const auto limit = timeout.count() > 0 ? timeout : timeout_;
  const auto deadline = Clock::now() + limit;
  auto state = round.wait(deadline);
  while (state == Round::open) {
    group_->fail_late(round, std::chrono::duration<double>(limit).count());
    state = round.wait(Clock::now() + std::chrono::milliseconds(1));
  }
  world_.ends_waiting(global_rank_, state == Round::done);
  if (state == Round::failed) {
    round.leave(seat_.index);  // buffers stay until no thread touches them
    synchronize();
    release();
    round.throw_failure();
  }
  synchronize();
  release();
  return true;
}

void LocalWork::synchronize() {
  if (!device_.is_cpu()) seat_.round->block_stream(current_stream(device_), seat_.index);
}

std::vector<at::Tensor> LocalWork::result() {
  return results_;
}

}  // namespace mw::comm
