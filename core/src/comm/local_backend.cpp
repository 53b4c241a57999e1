// Joins what a rank calls to the round in which the group's thread ranks meet.
#include "comm/local_backend.h"

#include <fmt/format.h>

#include "comm/streams.h"

namespace mw::comm {
namespace {

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

}  // namespace

LocalBackend::LocalBackend(LocalWorld& world, std::shared_ptr<LocalGroup> group, int index)
    : CheckedBackend(group->axis(), group->ranks(), index, world.timeout()),
      world_(world),
      group_(std::move(group)) {}

void LocalBackend::abort() {
  world_.abort(global_rank(), fmt::format("abort() was called on axis '{}'", axis()));
}

Arrival LocalBackend::new_arrival(Issue& issue) {
  Arrival arrival;
  if (!issue.call.device.is_cpu()) {
    if (!stream_) stream_ = new_stream(issue.call.device, /*urgent=*/true);
    arrival.stream = stream_;
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

LocalBackend::WorkPtr LocalBackend::issue(Issue issue) {
  LocalGroup::Seat seat = group_->join(rank_, new_arrival(issue));  // before the issue is moved on
  return seated(std::move(seat), std::move(issue));
}

LocalBackend::WorkPtr LocalBackend::issue_pair(Issue issue, int peer, int tag) {
  LocalGroup::Seat seat = group_->join_pair(rank_, peer, tag, new_arrival(issue));
  return seated(std::move(seat), std::move(issue));
}

}  // namespace mw::comm
