// Turns a rank's calls of collectives into arrivals at the rounds of its group.
#include "comm/local_backend.h"

#include <fmt/format.h>

#include "comm/streams.h"
#include "meshwright/error.h"

namespace mw::comm {
namespace {

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

}  // namespace

LocalBackend::LocalBackend(LocalWorld& world, std::shared_ptr<LocalGroup> group, int index,
                           std::shared_ptr<StreamLine> line)
    : CheckedBackend(group->axis(), group->ranks(), index, world.timeout()),
      world_(world),
      group_(std::move(group)),
      line_(std::move(line)) {}

void LocalBackend::abort() {
  world_.abort(global_rank(), fmt::format("abort() was called on axis '{}'", axis()));
}

Arrival LocalBackend::new_arrival(Issue& issue) {
  Arrival arrival;
  if (!issue.call.device.is_cpu()) {
    std::optional<c10::Stream>& stream = line_ ? line_->stream : stream_;
    if (!stream) stream = new_stream(issue.call.device, /*urgent=*/true);
    arrival.stream = stream;
    if (line_) arrival.after = line_->last;
    arrival.ready.emplace(record_event(current_stream(issue.call.device)));
  }
  arrival.call = std::move(issue.call);
  if (issue.in.defined()) arrival.in = bytes_of(issue.in);
  if (issue.out.defined()) arrival.out = bytes_of(issue.out);
  return arrival;
}

LocalBackend::WorkPtr LocalBackend::seated(LocalGroup::Seat seat, Issue issue) const {
  return c10::make_intrusive<LocalWork>(world_, group_, std::move(seat), global_rank(),
                                        std::move(issue.tensors), std::move(issue.results),
                                        issue.type, issue.timeout);
}

// Notes the round as the last one of the rank's stream, behind which the next one is queued.
LocalGroup::Seat LocalBackend::in_line(LocalGroup::Seat seat) const {
  if (line_) line_->last = seat.round;
  return seat;
}

LocalBackend::WorkPtr LocalBackend::issue(Issue issue) {
  LocalGroup::Seat seat =
      in_line(group_->join(rank_, new_arrival(issue)));  // before the issue is moved on
  return seated(std::move(seat), std::move(issue));
}

LocalBackend::WorkPtr LocalBackend::issue_pair(Issue issue, int peer, int tag) {
  LocalGroup::Seat seat = in_line(group_->join_pair(rank_, peer, tag, new_arrival(issue)));
  return seated(std::move(seat), std::move(issue));
}

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
  WaitLimit patience(limit);
  auto state = round.wait(patience.next());
  while (state == Round::open && !patience.over()) state = round.wait(patience.next());
  while (state == Round::open) {
    group_->fail_late(round, std::chrono::duration<double>(limit).count());
    state = round.wait(Clock::now() + std::chrono::milliseconds(1));
  }
  world_.ends_waiting(global_rank_, state == Round::done);
  if (state == Round::failed) {
    round.leave(seat_.index);  // waits until no thread uses the buffers any more
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
