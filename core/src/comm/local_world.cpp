// The ranks of one process: makes their groups, passes on a rank's failure to all, and tells
// where each was when one is missed.
#include "comm/local_world.h"

#include <fmt/format.h>
#include <utility>

#include "comm/local_backend.h"

namespace mw::comm {

LocalWorld::LocalWorld(int ranks, std::chrono::milliseconds timeout) : timeout_(timeout) {
  for (int i = 0; i < ranks; ++i) status_.push_back(std::make_unique<Status>());
}

LocalWorld::~LocalWorld() = default;

c10::intrusive_ptr<c10d::Backend> LocalWorld::backend(const std::string& axis,
                                                      const std::vector<int>& group, int index) {
  for (const int rank : group) {
    if (rank >= 0 && rank < ranks()) continue;
    throw Error(
        Stage::run, "collective.rank", "",
        fmt::format("Axis '{}' names rank {}, but there are {} ranks.", axis, rank, ranks()));
  }
  if (index < 0 || index >= static_cast<int>(group.size())) {
    throw Error(Stage::run, "collective.rank", "",
                fmt::format("Axis '{}' has no index {}: its group has {} ranks.", axis, index,
                            group.size()));
  }
  const std::lock_guard guard(lock_);
  auto& hub = groups_[{axis, group}];
  if (!hub) hub = std::make_shared<LocalGroup>(*this, axis, group);
  return c10::make_intrusive<LocalBackend>(*this, hub, index);
}

void LocalWorld::abort(int rank, const std::string& reason) {
  std::string message;
  {
    const std::lock_guard guard(lock_);
    if (aborted_) return;
    abort_message_ = message = fmt::format("Stopped because rank {} failed: {}", rank, reason);
    aborted_ = true;
  }
  std::vector<std::shared_ptr<LocalGroup>> groups;
  {
    const std::lock_guard guard(lock_);
    for (auto& [key, group] : groups_) groups.push_back(group);
  }
  for (auto& group : groups) group->fail_open(message, "");
}

void LocalWorld::ended(int rank) {
  status_[static_cast<std::size_t>(rank)]->ended = true;
  std::vector<std::shared_ptr<LocalGroup>> groups;
  {
    const std::lock_guard guard(lock_);
    for (auto& [key, group] : groups_) groups.push_back(group);
  }
  for (auto& group : groups) group->fail_ended(rank);
}

bool LocalWorld::has_ended(int rank) const {
  return status_[static_cast<std::size_t>(rank)]->ended;
}

void LocalWorld::check_aborted() const {
  if (aborted_) throw Aborted(abort_message_);
}

void LocalWorld::begins_to_wait(int rank, std::shared_ptr<Round> round) {
  auto& status = *status_[static_cast<std::size_t>(rank)];
  const std::lock_guard guard(status.lock);
  status.now = std::move(round);
}

void LocalWorld::ends_waiting(int rank, bool completed) {
  auto& status = *status_[static_cast<std::size_t>(rank)];
  const std::lock_guard guard(status.lock);
  // Where a rank failed stays on record: another that fails at the same moment asks for it.
  if (completed) status.last = std::exchange(status.now, nullptr);
}

std::string LocalWorld::whereabouts(int rank) const {
  const auto& status = *status_[static_cast<std::size_t>(rank)];
  std::shared_ptr<Round> now, last;
  {
    const std::lock_guard guard(status.lock);
    now = status.now;
    last = status.last;
  }
  // Only what cannot change any more is read of a round that others may still join.
  std::string text = last ? fmt::format("last completed {} on axis '{}' ({})", last->describe(),
                                        last->axis(), last->name())
                          : "has completed no collective";
  if (now) text += fmt::format(" and now waits on axis '{}' ({})", now->axis(), now->name());
  return text;
}

}  // namespace mw::comm
