#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "comm/local_world.h"
#include "meshwright/world.h"

namespace mw {
namespace {

// The first error of a run; a cause outweighs its consequences, which may be seen earlier.
class FirstError {
 public:
  void offer(int rank, std::exception_ptr error, bool primary) {
    const std::lock_guard guard(lock_);
    if (error_ && (primary_ || !primary)) return;
    rank_ = rank;
    error_ = std::move(error);
    primary_ = primary;
  }

  void rethrow() const {
    if (!error_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      auto problems = error.problems();
      for (auto& problem : problems) problem.message = prefixed(problem.message);
      throw Error(std::move(problems));
    } catch (const std::exception& error) {
      Problem problem = problem_of(error);
      problem.message = prefixed(problem.message);
      throw Error({std::move(problem)});
    } catch (...) {
      throw Error(Stage::run, prefixed("unknown exception"));
    }
  }

 private:
  std::string prefixed(const std::string& text) const {
    return fmt::format("On rank {}: {}", rank_, text);
  }

  std::mutex lock_;
  int rank_ = 0;
  bool primary_ = false;
  std::exception_ptr error_;
};

void run_one(comm::LocalWorld& world, int rank, int threads,
             const std::function<void(RankContext&)>& body, FirstError& first) {
  // OpenMP keeps the number for each thread, but ATen gives a thread that first asks for it the
  // value last set anywhere in the process: ask first, then set (and see run_ranks).
  at::get_num_threads();
  at::set_num_threads(threads);
  RankContext context{rank, world.ranks(), &world};
  const auto failed = [&](const std::string& reason, bool primary) {
    first.offer(rank, std::current_exception(), primary);
    world.abort(rank, reason);
  };
  try {
    body(context);
    world.ended(rank);
  } catch (const Aborted& error) {
    failed(error.what(), false);
  } catch (const std::exception& error) {
    failed(error.what(), true);
  } catch (...) {
    failed("unknown exception", true);
  }
}

}  // namespace

void run_ranks(int ranks, const std::function<void(RankContext&)>& body,
               const RankOptions& options) {
  if (ranks < 1) throw Error(Stage::run, fmt::format("There cannot be {} ranks.", ranks));
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : std::max(1, cores / ranks);
  const int threads_before = at::get_num_threads();
  comm::LocalWorld world(ranks, options.timeout);
  FirstError first;
  std::vector<std::thread> running;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      running.emplace_back([&, rank] { run_one(world, rank, threads, body, first); });
      pthread_setname_np(running.back().native_handle(), fmt::format("rank {}", rank).c_str());
    }
  } catch (const std::exception& error) {  // the system gave no thread
    const auto rank = static_cast<int>(running.size());
    first.offer(rank, std::current_exception(), true);
    world.abort(rank, error.what());
  }
  for (auto& thread : running) thread.join();
  at::set_num_threads(threads_before);
  first.rethrow();
}

}  // namespace mw
