// Runs a function on each rank in a thread of its own, and of the errors that follow one rank's
// failure rethrows the one nearest to the cause.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/cpu.h"
#include "base/interrupt.h"
#include "comm/local_round.h"
#include "comm/local_world.h"
#include "meshwright/world.h"

namespace mw {
namespace {

// How near to the cause an error is: a nearer one replaces one that was seen earlier.
enum class Nearness : std::uint8_t { consequence, waited_in_vain, cause };

// The first error of a run among the nearest to its cause.
class FirstError {
 public:
  void offer(int rank, std::exception_ptr error, Nearness nearness) {
    const std::lock_guard guard(lock_);
    if (error_ && nearness_ >= nearness) return;
    rank_ = rank;
    error_ = std::move(error);
    nearness_ = nearness;
  }

  void rethrow() const {
    if (!error_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const Stopped&) {
      throw;
    } catch (const Error& error) {
      auto problems = error.problems();
      for (auto& problem : problems) {
        problem.message = prefixed(problem.message);
        if (problem.stage == Stage::script) problem.stage = Stage::run;
      }
      throw RankFailed(rank_, std::move(problems));
    } catch (const c10::Error& error) {
      throw RankFailed(
          rank_, {{Stage::run, "run.exception", "", prefixed(error.what_without_backtrace())}});
    } catch (const std::exception& error) {
      Problem problem = problem_of(error);
      problem.message = prefixed(problem.message);
      throw RankFailed(rank_, {std::move(problem)});
    } catch (...) {
      throw RankFailed(rank_, {{Stage::run, "run.exception", "", prefixed("unknown exception")}});
    }
  }

 private:
  std::string prefixed(const std::string& text) const {
    return fmt::format("On rank {}: {}", rank_, text);
  }

  std::mutex lock_;
  int rank_ = 0;
  Nearness nearness_ = Nearness::consequence;
  std::exception_ptr error_;
};

void run_one(comm::LocalWorld& world, int rank, int threads,
             const std::function<void(RankContext&)>& body, FirstError& first) {
  // OpenMP keeps the number for each thread, but ATen gives a thread that first asks for it the
  // value last set anywhere in the process: ask first, then set (and see run_ranks).
  at::get_num_threads();
  at::set_num_threads(threads);
  RankContext context{rank, world.ranks(), &world};
  const auto failed = [&](const std::string& reason, Nearness nearness) {
    first.offer(rank, std::current_exception(), nearness);
    world.abort(rank, reason);
  };
  try {
    body(context);
    world.ended(rank);
  } catch (const Aborted& error) {
    failed(error.what(), Nearness::consequence);
  } catch (const WaitedInVain& error) {
    failed(error.what(), Nearness::waited_in_vain);
  } catch (const std::exception& error) {
    failed(error.what(), Nearness::cause);
  } catch (...) {
    failed("unknown exception", Nearness::cause);
  }
}

}  // namespace

void run_ranks(int ranks, const std::function<void(RankContext&)>& body,
               const RankOptions& options) {
  if (ranks < 1)
    throw Error(Stage::run, "collective.rank", "", fmt::format("There cannot be {} ranks.", ranks));
  const int threads = threads_of_rank(ranks, options.threads);
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
    first.offer(rank, std::current_exception(), Nearness::cause);
    world.abort(rank, error.what());
  }
  for (auto& thread : running) thread.join();
  at::set_num_threads(threads_before);
  first.rethrow();
}

}  // namespace mw
