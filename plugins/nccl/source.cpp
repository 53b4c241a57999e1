// Makes NCCL's communicators, watches them and the other processes, and takes all down together.
#include "source.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "group_backend.h"
#include "meshwright/error.h"

namespace nccl {
namespace {

constexpr std::chrono::milliseconds look_every{200};

// One GPU of one machine.
std::string device_name(int device) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("GPU {} of {}", device, host.data());
}

}  // namespace

Source::Source(mw::StoreLink& link, const std::string& run,
               const std::vector<std::vector<int>>& ranks, std::chrono::milliseconds timeout)
    : link_(link), run_(run), timeout_(timeout), process_of_(mw::comm::process_of_ranks(ranks)) {
  const mw::comm::Beyond beyond;  // nobody knows what ranks of other processes wait for
  threads_ = mw::comm::thread_source(static_cast<int>(process_of_.size()), timeout, &beyond);
  news_ = link_.store(run_);
  devices_ = link_.store(run_ + "/devices");
  watching_ = std::thread([this] { watch(); });
}

Source::~Source() {
  NamedGroups groups;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    groups.swap(groups_);
  }
  changed_.notify_all();
  watching_.join();
  for (const auto& [name, group] : groups) {
    try {
      if (stopped_)
        group->abort();
      else
        group->shutdown();
    } catch (const std::exception&) {
      // Its communicator has failed before.
    }
  }
}

bool Source::is_here(const std::vector<int>& group, int index) const {
  const auto process_of = [&](int rank) { return process_of_.at(static_cast<std::size_t>(rank)); };
  const int own = process_of(group.at(static_cast<std::size_t>(index)));
  return std::all_of(group.begin(), group.end(), [&](int rank) { return process_of(rank) == own; });
}

c10::intrusive_ptr<c10d::Backend> Source::backend(const std::string& axis,
                                                  const std::vector<int>& group, int index) {
  if (is_here(group, index)) return threads_->backend(axis, group, index);
  return c10::make_intrusive<GroupBackend>(*this, axis, group, index, timeout_);
}

c10::intrusive_ptr<c10d::Backend> Source::backend_on(const std::string& stream,
                                                     const std::string& axis,
                                                     const std::vector<int>& group, int index) {
  if (is_here(group, index)) return threads_->backend_on(stream, axis, group, index);
  const int rank = group.at(static_cast<std::size_t>(index));
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(c10::cuda::current_device()));
  const std::lock_guard lock(mutex_);
  auto line = lines_.find({rank, stream});
  if (line == lines_.end()) {
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    line = lines_.try_emplace({rank, stream}, guard.getStreamFromGlobalPool(device, true)).first;
  }
  return c10::make_intrusive<GroupBackend>(*this, axis, group, index, timeout_,
                                           std::pair{stream, std::optional(line->second)});
}

GroupPtr Source::join(const std::string& name, int index, int size, int /*device*/) {
  check();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout_;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(link_.store(run_ + "/" + name), index,
                                                           size, std::move(options));
  const std::lock_guard lock(mutex_);
  groups_.emplace_back(name, group);
  return group;
}

void Source::check_devices(const std::string& axis, const std::vector<int>& group, int rank,
                           int device) {
  std::map<std::string, int> taken;
  const std::lock_guard lock(devices_mutex_);
  devices_->set(std::to_string(rank), device_name(device));
  for (const int member : group) {
    const std::string key = std::to_string(member);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (!devices_->check({key})) {
      check();
      if (std::chrono::steady_clock::now() > deadline) {
        throw mw::WaitedInVain(
            mw::Stage::run, "collective.timeout", "",
            fmt::format("rank {} waited for {} s for rank {} to join axis '{}'", rank,
                        std::chrono::duration<double>(timeout_).count(), member, axis));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const std::string name = devices_->get_to_str(key);
    const auto [there, fresh] = taken.emplace(name, member);
    if (fresh) continue;
    throw mw::Error(
        mw::Stage::run, "device.shared", "device",
        fmt::format("ranks {} and {} of axis '{}' are both on {}, and NCCL connects no two "
                    "ranks of one GPU",
                    there->second, member, axis, name),
        "one rank on each GPU, or all ranks that share one in one process");
  }
}

void Source::check() const {
  const std::lock_guard lock(mutex_);
  if (stopped_) throw mw::Aborted(*stopped_);
}

void Source::abort(int rank, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    try {
      news_->set("stopped", reason);
    } catch (const std::exception&) {
      // The store is gone: the others see that themselves.
    }
  }
  threads_->abort(rank, reason);
  stop(reason);
}

void Source::ended(int rank) {
  threads_->ended(rank);
}

void Source::stop(const std::string& reason) {
  NamedGroups groups;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = reason;
    groups = groups_;
  }
  for (const auto& [name, group] : groups) {
    try {
      group->abort();
    } catch (const std::exception&) {
      // It has failed already.
    }
  }
}

// A rank of this process, for the threads' own source, which asks for one.
void Source::fail(const std::string& reason) {
  const auto own = std::find(process_of_.begin(), process_of_.end(), link_.at().process);
  threads_->abort(static_cast<int>(own - process_of_.begin()), reason);
  stop(reason);
}

void Source::watch() {
  std::unique_lock lock(mutex_);
  while (!over_ && !stopped_) {
    const NamedGroups groups = groups_;
    lock.unlock();
    std::string reason;
    try {
      if (news_->check({"stopped"})) reason = news_->get_to_str("stopped");
      for (const auto& [name, group] : groups) {
        if (reason.empty() && group->getError() != c10d::ErrorType::SUCCESS)
          reason = fmt::format("NCCL has failed or timed out in {}", name);
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
