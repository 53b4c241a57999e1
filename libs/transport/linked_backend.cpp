// Hands a rank's calls to its process's rounds, and waits for them.
#include "transport/linked_backend.h"

#include <fmt/format.h>

#include "meshwright/error.h"

namespace mw::transport {

using Clock = std::chrono::steady_clock;

LinkedWork::LinkedWork(LinkedSource& source, std::shared_ptr<Round> round, int rank,
                       std::vector<at::Tensor> tensors, std::vector<at::Tensor> results,
                       c10d::OpType type, std::chrono::milliseconds timeout)
    : Work(rank, type),
      source_(source),
      round_(std::move(round)),
      rank_(rank),
      tensors_(std::move(tensors)),
      results_(std::move(results)),
      timeout_(timeout) {}

LinkedWork::~LinkedWork() {
  if (settled_) return;
  if (round_->state() == Round::done) return;
  source_.engine().drop(round_,
                        comm::dropped_collective(round_->members->axis, rank_, round_->name));
}

bool LinkedWork::isCompleted() {
  return round_->is_over();
}

std::exception_ptr LinkedWork::exception() const {
  if (round_->state() != Round::failed) return nullptr;
  try {
    round_->throw_failure();
  } catch (...) {
    return std::current_exception();
  }
}

bool LinkedWork::wait(std::chrono::milliseconds timeout) {
  if (settled_) {
    if (round_->state() == Round::failed) round_->throw_failure();
    return true;
  }
  const auto limit = timeout.count() > 0 ? timeout : timeout_;
  source_.begins_to_wait(rank_, round_);
  while (!round_->is_over()) {
    comm::WaitLimit patience(limit);
    do {
      round_->wait_until(patience.next());
    } while (!round_->is_over() && !patience.over());
    if (round_->is_over()) break;
    source_.engine().late(round_, std::chrono::duration<double>(limit).count());
    round_->wait_until(Clock::now() + std::chrono::seconds(2));
  }
  const auto state = round_->state();
  source_.ends_waiting(rank_, state == Round::done);
  if (state == Round::failed) {
    // When drop() returns, the engine has let go of the failed round's tensors.
    source_.engine().drop(round_, {});
    settled_ = true;
    tensors_.clear();
    round_->throw_failure();
  }
  settled_ = true;
  tensors_.clear();
  return true;
}

LinkedBackend::LinkedBackend(LinkedSource& source, Group& group, int index)
    : CheckedBackend(group.members->axis, group.members->ranks, index, source.timeout()),
      source_(source),
      group_(group) {}

void LinkedBackend::abort() {
  source_.abort(global_rank(), fmt::format("abort() was called on axis '{}'", axis()));
}

Arrival LinkedBackend::arrival_of(Issue& issue) const {
  if (!issue.call.device.is_cpu()) {
    throw Error(Stage::run, "collective.type", "",
                fmt::format("{} sends only tensors in host memory, and this tensor is on {}.",
                            source_.name(), issue.call.device.str()),
                "Use device = \"cpu\", or the communicator of that device.");
  }
  Arrival arrival;
  if (issue.in.defined()) arrival.in = static_cast<std::byte*>(issue.in.data_ptr());
  if (issue.out.defined()) arrival.out = static_cast<std::byte*>(issue.out.data_ptr());
  arrival.call = std::move(issue.call);
  arrival.tensors = issue.tensors;
  return arrival;
}

LinkedBackend::WorkPtr LinkedBackend::seated(std::shared_ptr<Round> round, Issue issue) {
  return c10::make_intrusive<LinkedWork>(source_, std::move(round), global_rank(),
                                         std::move(issue.tensors), std::move(issue.results),
                                         issue.type, issue.timeout);
}

LinkedBackend::WorkPtr LinkedBackend::issue(Issue issue) {
  auto arrival = arrival_of(issue);
  return seated(source_.join(group_, rank_, std::move(arrival)), std::move(issue));
}

LinkedBackend::WorkPtr LinkedBackend::issue_pair(Issue issue, int peer, int tag) {
  auto arrival = arrival_of(issue);
  return seated(source_.join_pair(group_, rank_, peer, tag, std::move(arrival)), std::move(issue));
}

}  // namespace mw::transport
