// Processes of a run as threads of one test: between them nothing passes but the bytes of messages
// and what ranks send by collectives, so that what needs a common address space fails here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/local_world.h"
#include "launch/processes.h"
#include "meshwright/carrier.h"
#include "support/problems.h"

namespace mw::test {

// What they share: the letters under way, and the world of each run's ranks.
class Post {
 public:
  explicit Post(int processes) : gone_(static_cast<std::size_t>(processes), false) {}
  int processes() const { return static_cast<int>(gone_.size()); }

  void put(int from, int to, std::string bytes) {
    const std::lock_guard lock(mutex_);
    letters_[{from, to}].push_back(std::move(bytes));
    changed_.notify_all();
  }
  std::optional<std::string> take(int from, int to, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto& letters = letters_[{from, to}];
    const auto at = static_cast<std::size_t>(from);
    changed_.wait_for(lock, timeout, [&] { return !letters.empty() || gone_[at]; });
    if (letters.empty() && gone_[at])
      throw Error(Stage::run, "process.lost", "", "process " + std::to_string(from) + " is gone");
    if (letters.empty()) return std::nullopt;
    std::string bytes = std::move(letters.front());
    letters.pop_front();
    return bytes;
  }
  // A process dies: its ranks are missed at once.
  void lose(int process) {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(process)] = true;
    for (auto& [run, world] : worlds_)
      world->abort(run.second.at(static_cast<std::size_t>(process)).front(), "its process is gone");
    changed_.notify_all();
  }
  // The same one for every process that comes to its n-th run.
  std::shared_ptr<comm::LocalWorld> world(int number, const std::vector<std::vector<int>>& ranks,
                                          std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    auto& world = worlds_[{number, ranks}];
    int count = 0;
    for (const auto& each : ranks) count += static_cast<int>(each.size());
    if (!world) world = std::make_shared<comm::LocalWorld>(count, timeout);
    return world;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::string>> letters_;
  std::map<std::pair<int, std::vector<std::vector<int>>>, std::shared_ptr<comm::LocalWorld>>
      worlds_;
  std::vector<bool> gone_;
};

class MemorySource : public CommunicatorSource {
 public:
  explicit MemorySource(std::shared_ptr<comm::LocalWorld> world) : world_(std::move(world)) {}
  const char* name() const override { return "memory"; }
  int ranks() const override { return world_->ranks(); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override {
    return world_->backend(connection, index);
  }
  void abort(int rank, const std::string& reason) override { world_->abort(rank, reason); }
  void ended(int rank) override { world_->ended(rank); }

 private:
  std::shared_ptr<comm::LocalWorld> world_;
};

class MemoryCarrier : public Carrier {
 public:
  MemoryCarrier(std::shared_ptr<Post> post, int process)
      : post_(std::move(post)), process_(process) {}
  int processes() const override { return post_->processes(); }
  int process() const override { return process_; }
  std::unique_ptr<CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                              const Platform&,
                                              std::chrono::milliseconds timeout) override {
    return std::make_unique<MemorySource>(post_->world(runs_++, ranks, timeout));
  }
  void post(int to, std::string bytes) override { post_->put(process_, to, std::move(bytes)); }
  std::optional<std::string> take(int from, std::chrono::milliseconds timeout) override {
    return post_->take(from, process_, timeout);
  }
  void end(bool) noexcept override {}

 private:
  std::shared_ptr<Post> post_;
  const int process_;
  int runs_ = 0;
};

// An assertion in a process' body: Catch2's are for one thread, so what is wrong ends the process.
inline void demand(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Runs `body` as each of so many processes; what each throws, as codes ("none"). `hosts` are where
// they run; empty: all here.
inline std::vector<std::string> in_processes(
    int count, const std::function<void(JoinedProcesses&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(60),
    std::shared_ptr<Post> post = nullptr, const std::vector<HostId>& hosts = {}) {
  if (!post) post = std::make_shared<Post>(count);
  std::vector<std::string> ends(static_cast<std::size_t>(count), "none");
  std::vector<std::thread> threads;
  for (int p = 0; p < count; ++p) {
    threads.emplace_back([&, p] {
      std::string& end = ends[static_cast<std::size_t>(p)];
      try {
        JoinedProcesses processes(
            std::make_unique<MemoryCarrier>(post, p), timeout,
            hosts.empty() ? own_host() : hosts.at(static_cast<std::size_t>(p)));
        body(processes);
      } catch (const Error& error) {
        end = codes(error.problems());
      } catch (const std::exception& error) {
        end = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

}  // namespace mw::test
