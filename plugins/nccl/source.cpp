// Makes NCCL's communicators, watches them and the other processes, and takes all down together.
#include "source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "group_backend.h"
#include "meshwright/error.h"
#include "meshwright/member_devices.h"
#include "meshwright/threads.h"

namespace nccl {
namespace {

constexpr std::chrono::milliseconds look_every{200};

// libtorch has 32 streams of each priority for a device, and then gives them a second time. Two
// communicators of one stream would wait for each other. Some are left for ranks and for groups of
// threads.
constexpr int most_streams = 24;

mw::MemberDevice named(const mw::Platform& platform, at::Device device) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {platform.id(device),
          fmt::format("GPU {} of {}", static_cast<int>(device.index()), host.data())};
}

// The name of a communicator, unique in the run.
std::string key_of(const mw::Connection& c) {
  return fmt::format("{}/{}{}{}", c.axis, fmt::join(c.ranks, c.pair ? ">" : "-"),
                     c.stream.empty() ? "" : "/", c.stream);
}

}  // namespace

NcclSource::NcclSource(const Library& library, mw::StoreLink& link, const std::string& run,
                       const std::vector<std::vector<int>>& ranks, const mw::Platform& platform,
                       std::chrono::milliseconds timeout)
    : library_(library),
      link_(link),
      run_(run),
      platform_(platform),
      timeout_(timeout),
      process_of_(mw::comm::process_of_ranks(ranks)) {
  const mw::comm::Beyond beyond;  // nobody knows what ranks of other processes wait for
  threads_ = mw::comm::thread_source(static_cast<int>(process_of_.size()), timeout, &beyond);
  news_ = link_.store(run_);
  devices_ = link_.store(run_ + "/devices");
  watching_ = mw::start_thread([this] { watch(); });
}

NcclSource::~NcclSource() {
  Groups groups;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    groups.swap(groups_);
  }
  changed_.notify_all();
  watching_.join();
  for (const auto& [member, group] : groups) {
    try {
      if (stopped_)
        group->abort();
      else
        group->shutdown();
    } catch (const std::exception&) {
      // The group's communicator has failed before.
    }
  }
}

bool NcclSource::is_here(const std::vector<int>& group, int index) const {
  if (library_.joins_threads()) return false;
  const auto process_of = [&](int rank) { return process_of_.at(static_cast<std::size_t>(rank)); };
  const int own = process_of(group.at(static_cast<std::size_t>(index)));
  return std::all_of(group.begin(), group.end(), [&](int rank) { return process_of(rank) == own; });
}

c10::intrusive_ptr<c10d::Backend> NcclSource::backend(const mw::Connection& connection, int index) {
  if (is_here(connection.ranks, index)) return threads_->backend(connection, index);
  return c10::make_intrusive<GroupBackend>(*this, connection, index);
}

std::optional<c10::Stream> NcclSource::line_of(const mw::Connection& connection, int index,
                                               at::Device device) {
  if (connection.stream.empty()) return std::nullopt;
  const std::pair key(connection.ranks.at(static_cast<std::size_t>(index)), connection.stream);
  const std::lock_guard lock(mutex_);
  auto line = lines_.find(key);
  if (line == lines_.end()) {
    take_stream(device, /*urgent=*/true);
    line = lines_.try_emplace(key, platform_.new_stream(device, /*urgent=*/true)).first;
  }
  return line->second;
}

void NcclSource::take_stream(at::Device device, bool urgent) {
  if (++streams_[{device.index(), urgent}] <= most_streams) return;
  const std::string what =
      urgent ? fmt::format(
                   "sends to other ranks and receives from them in more than {} pairs and "
                   "streams",
                   most_streams)
             : fmt::format("takes part in more than {} groups and streams", most_streams);
  throw mw::Error(
      mw::Stage::run, "device.streams", "plan",
      fmt::format("plan: a rank {}, and libtorch has no more streams of a GPU for them", what),
      urgent ? "fewer stages that exchange values with one stage, or several ranks in each process"
             : "fewer named streams, fewer axes whose groups differ, or several ranks in each "
               "process");
}

GroupPtr NcclSource::join(const mw::Connection& group, int index, at::Device device) {
  check();
  const std::string name = key_of(group);
  {
    const std::lock_guard lock(mutex_);
    const auto known = groups_.find({name, index});
    if (known != groups_.end()) return known->second;
    take_stream(device, /*urgent=*/group.pair);
  }
  mw::meet_on_devices({*devices_, name, group.axis, group.ranks, timeout_, [this] { check(); }},
                      group.ranks.at(static_cast<std::size_t>(index)), named(platform_, device));
  const GroupPtr made =
      library_.make(link_.store(run_ + "/" + name), index, static_cast<int>(group.ranks.size()),
                    /*urgent=*/group.pair, timeout_);
  {
    const std::lock_guard lock(mutex_);
    groups_.emplace(std::pair{name, index}, made);
  }
  called("the communicator of " + name, [&] { made->eagerConnectSingleDevice(device); });
  return made;
}

void NcclSource::refuse(const std::string& what, const std::string& text) {
  throw mw::Error(mw::Stage::run, "collective.nccl", "",
                  fmt::format("{}: NCCL says: {}", what, text.substr(0, text.find('\n'))));
}

void NcclSource::check() const {
  const std::lock_guard lock(mutex_);
  if (stopped_) throw mw::Aborted(*stopped_);
}

void NcclSource::abort(int rank, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    try {
      news_->set("stopped", reason);
    } catch (const std::exception&) {
      // The store is gone, which other processes see for themselves.
    }
  }
  threads_->abort(rank, reason);
  stop(reason);
}

void NcclSource::ended(int rank) {
  threads_->ended(rank);
}

void NcclSource::stop(const std::string& reason) {
  Groups groups;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = reason;
    groups = groups_;
  }
  for (const auto& [member, group] : groups) {
    try {
      group->abort();
    } catch (const std::exception&) {
      // The communicator has failed already.
    }
  }
}

// Stops the run. The threads' source asks for a failed rank, and gets the first rank of this
// process.
void NcclSource::fail(const std::string& reason) {
  const auto own = std::find(process_of_.begin(), process_of_.end(), link_.at().process);
  threads_->abort(static_cast<int>(own - process_of_.begin()), reason);
  stop(reason);
}

void NcclSource::watch() {
  std::unique_lock lock(mutex_);
  while (!over_ && !stopped_) {
    const Groups groups = groups_;
    lock.unlock();
    std::string reason;
    try {
      if (news_->check({"stopped"})) reason = news_->get_to_str("stopped");
      for (const auto& [member, group] : groups) {
        if (reason.empty() && group->getError() != c10d::ErrorType::SUCCESS)
          reason = fmt::format("NCCL has failed or timed out in {}", member.first);
      }
      for (const int process : process_of_) {
        if (reason.empty() && process != link_.at().process && link_.lost(process))
          reason = fmt::format("process {} is gone", process);
      }
    } catch (const std::exception& error) {
      reason = fmt::format("the store of the run is gone: {}", error.what());
    }
    if (!reason.empty()) fail(reason);
    lock.lock();
    changed_.wait_for(lock, look_every, [&] { return over_ || stopped_.has_value(); });
  }
}

}  // namespace nccl
