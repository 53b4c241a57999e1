// Runs a function on each rank in a thread of its own. If a rank fails and others fail in
// consequence, keeps the error that is nearest to the cause.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "comm/local_world.h"
#include "comm/rank_threads.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/threads.h"
#include "meshwright/world.h"

namespace mw::comm {
namespace {

// Keeps the error that is nearest to the cause of a run's failure, and among these the first.
class FirstError {
 public:
  void offer(RanksEnd end) {
    const std::lock_guard guard(lock_);
    if (end.nearer_than(end_)) end_ = std::move(end);
  }
  const RanksEnd& end() const { return end_; }

 private:
  std::mutex lock_;
  RanksEnd end_;
};

std::mutex hang_lock;
OnHang hang_handler;

// Counts the threads that have ended, and lets another thread wait for all of them.
class Ended {
 public:
  void one() {
    const std::lock_guard guard(lock_);
    ++count_;
    changed_.notify_all();
  }
  void failed() {
    const std::lock_guard guard(lock_);
    if (!failed_at_) failed_at_ = Clock::now();
    changed_.notify_all();
  }
  // Waits until `count` threads have ended. Returns false if `patience` has passed since the first
  // failure. Calls `look` now and then.
  bool wait_for(std::size_t count, std::chrono::milliseconds patience, Cores* cores,
                const std::function<void()>& look) {
    constexpr std::chrono::milliseconds tended_every{50}, looked_every{500};
    std::unique_lock guard(lock_);
    while (count_ < count) {
      if (failed_at_ && Clock::now() >= *failed_at_ + patience) return false;
      const auto pause = cores != nullptr ? tended_every : looked_every;
      if (changed_.wait_for(guard, pause) != std::cv_status::timeout) continue;
      if (cores != nullptr) cores->tend();
      guard.unlock();
      look();
      guard.lock();
    }
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::mutex lock_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  std::optional<Clock::time_point> failed_at_;
};

std::atomic<int> ranks_that_run{0};
pid_t ranks_process = 0;  // the process that runs ranks; a child by fork() has none

// Called by exit(). If a rank's thread calls exit(), as code of a plugin may, the process would end
// with exit code 0 in the middle of a run.
void refuse_to_exit() {
  const RankCalls* const own = RankCalls::current();
  if (ranks_that_run == 0 || own == nullptr || ::getpid() != ranks_process) return;
  const RankPlace place = own->place();
  const RankFailed failed(
      place.rank,
      {{Stage::run, "run.exit", "",
        fmt::format("On rank {}: {} called exit(), which ends the process in the middle of the run",
                    place.rank, place.inside.empty() ? "code of a plugin" : place.inside + ","),
        "throw mw::Error instead: it fails the run, and says why"}});
  OnHang handler;
  {
    const std::lock_guard guard(hang_lock);
    handler = hang_handler;
  }
  if (handler) handler(failed);
  std::fprintf(stderr, "error: %s\n", failed.what());
  ::_exit(exit_code_of(Stage::run));
}

void run_one(CommunicatorSource& source, int rank, int threads,
             const std::function<void(RankContext&)>& body, FirstError& first, RankCalls& calls,
             const std::function<void()>& failing) {
  // OpenMP keeps the number of threads for each thread, but at a thread's first question ATen sets
  // it to the value last set anywhere in the process. So this asks first, then sets (see also
  // run_rank_threads).
  at::get_num_threads();
  at::set_num_threads(threads);
  calls.take_thread();
  RankContext context{rank, source.ranks(), &source};
  std::string reason;
  struct Running {
    Running() { ++ranks_that_run; }
    ~Running() { --ranks_that_run; }
  } running;
  try {
    body(context);
    calls.ends(false);
    source.ended(rank);
    return;
  } catch (const std::exception& error) {
    reason = error.what();
    first.offer(end_by_exception(rank));
  } catch (...) {
    reason = thrown_text();
    first.offer(end_by_exception(rank));
  }
  calls.ends(true);
  failing();
  source.abort(rank, reason);
}

// Calls the on_hang() handler, because only the end of the process can end a hanging thread.
void tell_of_hang(RanksEnd end, const std::vector<int>& hanging) {
  OnHang handler;
  {
    const std::lock_guard guard(hang_lock);
    handler = hang_handler;
  }
  if (!handler) return;
  end.problems.push_back(
      {Stage::run, "run.hang", "",
       fmt::format("{} {} not come back from what {} on, so that this process ends now",
                   list_ranks(hanging), hanging.size() == 1 ? "has" : "have",
                   hanging.size() == 1 ? "it is" : "they are"),
       "the table of ranks says what each did last"});
  try {
    end.rethrow();
  } catch (const RankFailed& failed) {
    handler(failed);
  } catch (const std::exception&) {  // Stopped: the user asked to stop
    handler(RankFailed(hanging.front(), end.problems, end.places));
  }
}

}  // namespace

bool RanksEnd::nearer_than(const RanksEnd& other) const {
  if (state == State::well || other.state == State::well) return state != State::well;
  return nearness != other.nearness ? nearness > other.nearness : time < other.time;
}

void RanksEnd::rethrow() const {
  if (state == State::well) return;
  if (state == State::stopped) throw Stopped(problems.front().message, problems.front().hint);
  auto told = problems;
  for (Problem& problem : told) {
    problem.message = fmt::format("On rank {}: {}", rank, problem.message);
    if (problem.stage == Stage::script) problem.stage = Stage::run;
  }
  throw RankFailed(rank, std::move(told), places);
}

RanksEnd end_by_exception(int rank) {
  RanksEnd end{RanksEnd::State::failed, Nearness::cause, rank, seconds_now()};
  try {
    throw;
  } catch (const Stopped& error) {
    end.state = RanksEnd::State::stopped;
    end.problems = error.problems();
  } catch (const Aborted& error) {
    end.nearness = Nearness::consequence;
    end.problems = error.problems();
  } catch (const WaitedInVain& error) {
    end.nearness = Nearness::waited_in_vain;
    end.problems = error.problems();
  } catch (const Error& error) {
    end.problems = error.problems();
  } catch (const std::exception& error) {
    end.problems = {problem_of(error)};
  } catch (...) {
    end.problems = {{Stage::run, "run.exception", "", "unknown exception"}};
  }
  return end;
}

OnHang on_hang(OnHang handler) {
  const std::lock_guard guard(hang_lock);
  return std::exchange(hang_handler, std::move(handler));
}

std::chrono::milliseconds patience_of(std::chrono::milliseconds timeout) {
  return std::clamp<std::chrono::milliseconds>(timeout, std::chrono::seconds(2),
                                               std::chrono::seconds(60));
}

RanksEnd run_rank_threads(CommunicatorSource& source, const std::vector<int>& here, int threads,
                          const std::function<void(RankContext&)>& body,
                          std::chrono::milliseconds patience, Cores* cores) {
  // Registered again for each run, so that it is called before exit handlers of libraries that were
  // loaded since the last run, such as that of HDF5, which closes all files.
  static_cast<void>(std::atexit(refuse_to_exit));
  ranks_process = ::getpid();
  settle_vector_math();
  const int threads_before = at::get_num_threads();
  FirstError first;
  RankRecords records(here);
  Ended ended;
  const auto failing = [&] {
    records.keep();
    ended.failed();
  };
  const auto end_now = [&] {
    RanksEnd end = first.end();
    end.places = records.kept();
    return end;
  };
  std::vector<std::jthread> running;
  try {
    for (const int rank : here) {
      RankCalls& calls = records.of(running.size());
      running.push_back(start_thread([&, rank] {
        if (cores != nullptr) cores->enter();
        run_one(source, rank, threads, body, first, calls, failing);
        if (cores != nullptr) cores->leave();
        ended.one();
      }));
      pthread_setname_np(running.back().native_handle(), fmt::format("rank {}", rank).c_str());
    }
  } catch (const std::exception& error) {  // the system starts no more threads
    const int rank = here[running.size()];
    first.offer(end_by_exception(rank));
    source.abort(rank, error.what());
  }
  // A plugin's call in a rank's thread may never return, even if no other rank waits for that rank.
  bool overdue = false;
  const auto end_overdue = [&] {
    const auto [rank, what] = overdue ? std::pair(-1, std::string()) : records.overdue();
    overdue = overdue || rank >= 0;
    if (rank < 0) return;
    first.offer({RanksEnd::State::failed,
                 Nearness::cause,
                 rank,
                 seconds_now(),
                 {{Stage::run, "plugin.timeout", "", what,
                   "mend it, or set a longer timeout (timeout = SECONDS)"}}});
    failing();
    source.abort(rank, what);
  };
  if (!ended.wait_for(running.size(), patience, cores, end_overdue))
    tell_of_hang(end_now(), records.running());
  for (auto& thread : running) thread.join();
  // Not if a thread could not be started: this call may start threads, and libtorch would wait for
  // ever for a thread that the system does not start.
  if (running.size() == here.size()) at::set_num_threads(threads_before);
  return end_now();
}

}  // namespace mw::comm

namespace mw {

void run_ranks(int ranks, const std::function<void(RankContext&)>& body,
               const RankOptions& options) {
  if (ranks < 1)
    throw Error(Stage::run, "collective.rank", "", fmt::format("There cannot be {} ranks.", ranks));
  comm::LocalWorld world(ranks, options.timeout);
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  comm::run_rank_threads(world, all, threads_of_rank(ranks, options.threads), body,
                         comm::patience_of(options.timeout))
      .rethrow();
}

}  // namespace mw
