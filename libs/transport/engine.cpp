// The engine's thread: its loop, and the tasks that other threads of the process give it.
#include "transport/engine.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <future>

#include "meshwright/error.h"
#include "meshwright/threads.h"

namespace mw::transport {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {
// After a failure a process waits this long for process 0 to say what went wrong: what started the
// processes ends all of them as soon as one has failed.
constexpr auto for_the_first = 5s;
// After a failure, the time in which this process' own messages must get out.
constexpr auto to_send = 1s;
}  // namespace

Engine::Engine(const std::function<std::unique_ptr<Link>()>& join) {
  std::promise<void> joined;
  // The engine's thread inherits this mask: it is to handle no signals.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = start_thread([&] {
      run(join, [&](const std::exception_ptr& error) {
        if (error) {
          joined.set_exception(error);
        } else {
          joined.set_value();
        }
      });
    });
    pthread_setname_np(thread_.native_handle(), "processes");
    joined.get_future().get();
    link_->watch([this](int p) { task([this, p] { lost(p, "it ended without a word"); }); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    end(false);
    if (thread_.joinable()) thread_.join();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Engine::~Engine() {
  end(false);
}

void Engine::run(const std::function<std::unique_ptr<Link>()>& join,
                 const std::function<void(std::exception_ptr)>& joined) {
  try {
    link_ = join();
    const auto n = static_cast<std::size_t>(link_->processes());
    gone_.assign(n, 0);
    left_.assign(n, 0);
    left_[static_cast<std::size_t>(link_->process())] = 1;
    inbox_.resize(n);
    silent_.resize(n);
    receiver_.message = [this](int from, std::string_view bytes) { heard(from, bytes); };
    receiver_.traffic = [this](std::uint32_t handle) -> Traffic* {
      const auto found = by_handle_.find(handle);
      return found == by_handle_.end() ? nullptr : found->second;
    };
    receiver_.came = [this](Traffic& traffic, Traffic::Peer& peer, StreamKind kind) {
      came(static_cast<Round&>(traffic), peer, kind);
    };
    receiver_.spoiled = [](Traffic& traffic, const Problem& problem) {
      static_cast<Round&>(traffic).fail(problem, Cause::itself);
    };
    receiver_.lost = [this](int process, const std::string& why) { lost(process, why); };
  } catch (...) {
    joined(std::current_exception());
    return;
  }
  joined(nullptr);
  loop();
}

void Engine::task(std::function<void()> work) {
  {
    const std::lock_guard guard(tasks_lock_);
    tasks_.push_back(std::move(work));
  }
  link_->bell().ring();
}

bool Engine::run_tasks() {
  std::vector<std::function<void()>> now;
  {
    const std::lock_guard guard(tasks_lock_);
    now.swap(tasks_);
  }
  for (auto& one : now) one();
  return !now.empty();
}

void Engine::loop() {
  auto& bell = link_->bell();
  auto idle_since = Clock::now();
  for (;;) {
    const auto seen = bell.seen();
    bool moved = run_tasks();
    moved |= link_->receive(receiver_);
    moved |= sweep();
    moved |= pump();
    moved |= sweep();
    if (!queries_.empty()) check_queries();
    if (moved) {
      idle_since = Clock::now();
      continue;
    }
    if (ending_ && finished(Clock::now())) break;
    bell.prepare();
    if (bell.seen() != seen) {
      bell.cancel();
      continue;
    }
    bell.sleep(seen, patience(idle_since));
  }
  // Only after a good end: MPI_Finalize waits for all processes, dead ones too, and would hang.
  if (well_ && all_clean_ && std::count(gone_.begin(), gone_.end(), 1) == 0) link_->finalize();
}

bool Engine::pump() {
  std::vector<Traffic*> all;
  for (const auto& round : running_) all.push_back(round.get());
  return link_->pump(all, receiver_);
}

std::chrono::nanoseconds Engine::patience(Clock::time_point idle_since) const {
  if (ending_ || !queries_.empty()) return 2ms;
  if (!link_->is_polled()) return 10s;  // other processes ring when they have something
  // A polled link is asked seldom while nothing is under way, and else the less often the longer
  // nothing moves.
  const bool awaited =
      takers_.load() > 0 || std::any_of(running_.begin(), running_.end(),
                                        [](const auto& round) { return round->is_far(); });
  if (!awaited) return 5ms;
  const auto idle = Clock::now() - idle_since;
  return std::clamp<std::chrono::nanoseconds>(idle / 8, 20us, 1ms);
}

bool Engine::sweep() {
  bool moved = false;
  for (std::size_t i = 0; i < running_.size();) {
    auto& round = running_[i];
    const bool failed = round->state() == Round::failed;
    if (!failed && !round->complete()) {
      ++i;
      continue;
    }
    by_handle_.erase(round->handle);
    by_id_.erase(round->id);
    if (!failed) {
      round->finish(scratch_);
    } else if (link_->in_flight(*round)) {
      kept_.push_back(round);
      clean_ = false;
    }
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  return moved;
}

std::uint32_t Engine::begin(Host* host) {
  std::promise<std::uint32_t> number;
  task([&] {
    host_ = host;
    const auto run = ++run_;
    std::erase_if(early_, [&](const auto& one) { return one.second.front().run < run; });
    const auto known = heard_.find(run);
    if (known != heard_.end()) {
      for (const auto& [rank, reason] : known->second.failed) host->rank_failed(rank, reason);
      for (const int rank : known->second.ended) host->rank_ended(rank);
    }
    heard_.erase(heard_.begin(), heard_.upper_bound(run));
    for (int p = 0; p < processes(); ++p) {
      if (is_off(p) && p != process()) lost(p, "before this run began");
    }
    number.set_value(run);
  });
  return number.get_future().get();
}

void Engine::leave() {
  std::promise<void> left;
  task([&] {
    fail_all("The run has ended.");
    sweep();
    host_ = nullptr;
    left.set_value();
  });
  left.get_future().wait();
}

void Engine::submit(std::shared_ptr<Round> round) {
  task([this, round = std::move(round)] { start(round); });
}

void Engine::drop(std::shared_ptr<Round> round, const Problem& problem) {
  std::promise<void> dropped;
  task([&] {
    round->fail(problem, Cause::earlier);
    sweep();
    dropped.set_value();
  });
  dropped.get_future().wait();
}

void Engine::late(std::shared_ptr<Round> round, double seconds) {
  task([this, round = std::move(round), seconds] { ask(round, seconds); });
}

void Engine::failed(int rank, const std::string& reason) {
  task([this, rank, reason] {
    send_all(pack(Message::aborted, run_, rank, reason));
    rank_failed(run_, rank, reason);
  });
}

void Engine::ended(int rank) {
  task([this, rank] {
    send_all(pack(Message::ended, run_, rank));
    rank_ended(run_, rank);
  });
}

std::string Engine::posted(const std::string& bytes) {
  return pack(Message::posted, bytes);
}

void Engine::post(int to, std::string bytes) {
  if (to == process()) {
    const std::lock_guard guard(inbox_lock_);
    inbox_[static_cast<std::size_t>(to)].push_back(std::move(bytes));
    return;
  }
  task([this, to, message = posted(bytes)]() mutable { link_->send(to, std::move(message)); });
}

std::optional<std::string> Engine::take(int from, std::chrono::milliseconds timeout) {
  ++takers_;
  link_->bell().ring();  // a link that is polled is asked more often from now on
  std::unique_lock lock(inbox_lock_);
  auto& messages = inbox_[static_cast<std::size_t>(from)];
  const auto& silent = silent_[static_cast<std::size_t>(from)];
  comm::WaitLimit left(timeout);
  do {
    inbox_news_.wait_until(lock, left.next(), [&] { return !messages.empty() || !silent.empty(); });
  } while (messages.empty() && silent.empty() && !left.over());
  --takers_;
  if (messages.empty()) {
    if (silent.empty()) return std::nullopt;
    throw Error(Stage::run, "process.lost", "", silent);
  }
  auto bytes = std::move(messages.front());
  messages.pop_front();
  return bytes;
}

void Engine::end(bool well) noexcept {
  if (over_ || !link_) return;
  over_ = true;
  task([this, well] {
    ending_ = true;
    well_ = well;
    ending_since_ = Clock::now();
    if (link_->outlasts_runs()) send_all(pack(Message::goodbye, clean_ && kept_.empty()));
    all_clean_ = all_clean_ && clean_;
  });
  thread_.join();
  link_->watch(nullptr);
}

bool Engine::finished(Clock::time_point now) {
  const auto all_left = [&] {
    for (int p = 0; p < processes(); ++p) {
      if (!is_off(p)) return false;
    }
    return true;
  };
  if (!link_->outlasts_runs()) return true;
  const auto since = now - ending_since_;
  if (well_) return all_left() && link_->all_sent();
  const bool first_heard = process() == 0 || is_off(0);
  if (!first_heard && since < for_the_first) return false;
  return link_->all_sent() || since > to_send;
}

}  // namespace mw::transport
