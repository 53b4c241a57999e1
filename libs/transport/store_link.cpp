// Finds the processes' meeting place in the launcher's environment, and passes their messages
// through a TCPStore there. A thread of each process shows the others that it is alive.
#include "meshwright/store_link.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "meshwright/engine/hash.h"
#include "meshwright/error.h"
#include "meshwright/threads.h"
#include "transport/launched.h"

namespace mw {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t most_bytes_of_value = std::size_t{4} << 20;  // the store refuses 8 MiB
constexpr milliseconds beat{500};
using Pause = std::chrono::duration<double, std::milli>;
constexpr Pause shortest_pause{0.05}, longest_pause{5};
constexpr milliseconds farewell_if_badly{3000};

std::string text_of(const char* text) {
  return text == nullptr ? "" : text;
}

std::optional<std::uint16_t> port_of(const std::string& text) {
  char* end = nullptr;
  const long port = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || port < 1 || port > 65535) return std::nullopt;
  return static_cast<std::uint16_t>(port);
}

// A port that follows from the job: the same in all its processes, and most likely another one for
// another job.
std::uint16_t port_by(const std::string& job) {
  constexpr std::uint16_t first = 20000, count = 10000;
  Fnv1a<std::uint32_t> hash;
  hash.add(job.data(), job.size());
  return static_cast<std::uint16_t>(first + hash.value() % count);
}

// The first host of Slurm's list: "node[3-5,7],login" -> "node3".
std::string first_host(const std::string& list) {
  const std::size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const std::size_t end = list.find_first_of("-,]", open);
  return list.substr(0, open) + list.substr(open + 1, end - open - 1);
}

// The number in a text: 0 if it is empty, -1 if it is no number.
int number(const std::string& text) {
  char* end = nullptr;
  const long value = text.empty() ? 0 : std::strtol(text.c_str(), &end, 10);
  if (end != nullptr && *end != '\0') return -1;
  return static_cast<int>(std::clamp(value, -1L, 1L << 30));
}

}  // namespace

Rendezvous rendezvous() {
  return rendezvous([](const char* name) -> const char* { return std::getenv(name); });
}

Rendezvous rendezvous(const std::function<const char*(const char*)>& variable) {
  const auto launch = launched(variable);
  if (!launch) {
    throw Error(Stage::environment, "launch.alone", "",
                "no launcher has started this process as one of several",
                "start it by torchrun, srun or mpirun");
  }
  const auto value = [&](const char* name) { return text_of(variable(name)); };
  const auto first_of = [&](std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (std::string text = value(name); !text.empty()) return text;
    return std::string();
  };
  Rendezvous at;
  at.by = launch->by;
  at.processes = launch->processes;
  at.process = launch->process;
  const std::string local =
      first_of({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
                "MPI_LOCALRANKID", "SLURM_LOCALID"});
  at.local = number(local);
  if (at.local < 0 || at.local >= at.processes) {
    throw Error(Stage::environment, "launch.address", "",
                fmt::format("{} says that this process has the number {} on its machine, of {} "
                            "processes in all",
                            launch->by, local, at.processes),
                "numbers of processes count from 0: unset LOCAL_RANK, which torchrun sets, where "
                "something else has set it");
  }
  at.hosted = value("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (const std::string attempt = value("TORCHELASTIC_RESTART_COUNT"); !attempt.empty())
    at.attempt = attempt;
  at.host = value("MASTER_ADDR");
  std::string job = first_of({"SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  job += "." + value("SLURM_STEP_ID");
  if (at.host.empty() && launch->by == "srun")
    at.host = first_host(first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}));
  const std::string here = value("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (at.host.empty() && launch->by == "mpirun" && number(here) == launch->processes)
    at.host = "127.0.0.1";
  if (at.host.empty()) {
    throw Error(
        Stage::environment, "launch.address", "",
        fmt::format("{} has started {} processes and says of no machine that it is the first "
                    "one's",
                    launch->by, launch->processes),
        "give all of them MASTER_ADDR, the name of process 0's machine, for example "
        "mpirun -x MASTER_ADDR=node1 …");
  }
  const std::string port = value("MASTER_PORT");
  const auto given = port_of(port);
  if (!port.empty() && !given) {
    throw Error(Stage::environment, "launch.address", "",
                fmt::format("MASTER_PORT is \"{}\", which is no port", port),
                "a number from 1 to 65535");
  }
  at.port = given ? *given : port_by(job);
  return at;
}

struct StoreLink::State {
  c10::intrusive_ptr<c10d::Store> words, pulse;
  milliseconds timeout{}, patience{};
  std::vector<std::uint64_t> sent, taken;  // number of messages so far, by process
  std::deque<std::string> own;             // messages to this process itself
  // What is known of a process: its pulse at the last look, and how many looks in a row have found
  // the same pulse. Looks are counted, not seconds: a process that was stopped itself must not take
  // the others for lost.
  struct Life {
    std::int64_t beats = -1, still = 0;
    bool ended = false;
  };
  mutable std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::vector<Life> lives;
  bool store_gone = false;
  bool stop = false;
  std::jthread beating;

  void run(int self);
};

namespace {

// A socket that listens on the loopback address alone, if the processes meet there; -1: they meet
// elsewhere, or no socket is to be had. The store by itself would listen on all addresses.
int listening_on_loopback(const Rendezvous& at) {
  if (at.host != "127.0.0.1" && at.host != "localhost") return -1;
  const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listening < 0) return -1;
  const int on = 1;
  ::setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(at.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(listening, SOMAXCONN) == 0)
    return listening;
  ::close(listening);
  return -1;
}

c10::intrusive_ptr<c10d::Store> connect_to(const Rendezvous& at, bool serves,
                                           milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (const int listening = serves ? listening_on_loopback(at) : -1; listening >= 0)
    options.masterListenFd = listening;
  try {
    return c10::make_intrusive<c10d::TCPStore>(at.host, options);
  } catch (const c10::Error& error) {
    throw Error(Stage::environment, "launch.join", "",
                fmt::format("process {} of {} cannot {} {}:{}: {}", at.process, at.processes,
                            serves ? "open a store at" : "reach the store at", at.host, at.port,
                            error.what_without_backtrace()),
                "MASTER_ADDR and MASTER_PORT say where process 0 is: another port, where this one "
                "is taken");
  }
}

c10::intrusive_ptr<c10d::Store> under(c10::intrusive_ptr<c10d::Store> store, const Rendezvous& at,
                                      const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("meshwright/{}/{}", at.attempt, prefix),
                                                std::move(store));
}

std::string piece_key(int from, int to, std::uint64_t number, std::size_t piece) {
  return fmt::format("{}-{}/{}/{}", from, to, number, piece);
}

}  // namespace

StoreLink::StoreLink(Rendezvous at, Milliseconds timeout, Milliseconds patience)
    : at_(std::move(at)), state_(std::make_unique<State>()) {
  State& s = *state_;
  s.timeout = timeout;
  s.patience = patience;
  const auto count = static_cast<std::size_t>(at_.processes);
  s.sent.assign(count, 0);
  s.taken.assign(count, 0);
  s.lives.resize(count);
  s.words = under(connect_to(at_, at_.process == 0 && !at_.hosted, timeout), at_, "words");
  s.pulse = under(connect_to(at_, false, timeout), at_, "pulse");
  s.pulse->add(std::to_string(at_.process), 1);
  s.beating = start_thread([this] { state_->run(at_.process); });
}

void StoreLink::State::run(int self) {
  std::unique_lock lock(mutex);
  while (!stop) {
    lock.unlock();
    std::vector<Life> seen(lives.size());
    bool gone = false;
    try {
      pulse->add(std::to_string(self), 1);
      for (std::size_t p = 0; p < seen.size(); ++p) {
        seen[p].beats = pulse->add(std::to_string(p), 0);
        seen[p].ended = pulse->add(fmt::format("end/{}", p), 0) > 0;
      }
    } catch (const std::exception&) {
      gone = true;
    }
    lock.lock();
    for (std::size_t p = 0; p < seen.size() && !gone; ++p) {
      Life& life = lives[p];
      life.ended = seen[p].ended;
      // A process that has not come yet has no pulse, and does not count as lost.
      life.still = seen[p].beats != life.beats || seen[p].beats == 0 ? 0 : life.still + 1;
      life.beats = seen[p].beats;
    }
    store_gone = gone;
    if (gone) return;
    changed.wait_for(lock, beat, [&] { return stop; });
  }
}

StoreLink::~StoreLink() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->beating.join();
}

bool StoreLink::lost(int process) const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const State::Life& life = s.lives.at(static_cast<std::size_t>(process));
  return s.store_gone || life.ended || life.still * beat > s.patience;
}

void StoreLink::post(int to, std::string bytes) {
  State& s = *state_;
  if (to == at_.process) {
    s.own.push_back(std::move(bytes));
    return;
  }
  const std::uint64_t number = s.sent.at(static_cast<std::size_t>(to))++;
  const std::size_t pieces = bytes.size() / most_bytes_of_value + 1;
  try {
    // The first piece, which says how many there are, is written last: the reader waits for it.
    for (std::size_t piece = pieces; piece-- > 0;) {
      const std::string head = piece == 0 ? std::to_string(pieces) + "\n" : "";
      s.words->set(piece_key(at_.process, to, number, piece),
                   head + bytes.substr(piece * most_bytes_of_value, most_bytes_of_value));
    }
  } catch (const c10::Error&) {
    // The store is gone, and with it whoever was to read the message: take() reports that.
  }
}

std::optional<std::string> StoreLink::take(int from, Milliseconds timeout) {
  State& s = *state_;
  if (from == at_.process) {
    if (s.own.empty()) return std::nullopt;
    std::string bytes = std::move(s.own.front());
    s.own.pop_front();
    return bytes;
  }
  std::uint64_t& number = s.taken.at(static_cast<std::size_t>(from));
  const auto key = [&](std::size_t piece) { return piece_key(from, at_.process, number, piece); };
  const auto deadline = Clock::now() + timeout;
  const auto gone = [&](const std::string& why) {
    throw Error(Stage::run, "process.lost", "", fmt::format("process {} {}", from, why));
  };
  try {
    // Polls: the store's own wait says on stderr that it took long.
    Pause pause = shortest_pause;
    for (bool once_more = true; !s.words->check({key(0)});) {
      // A process posts its last messages before it is seen to have ended: look once more.
      if (lost(from)) {
        if (!std::exchange(once_more, false)) gone("is gone");
        continue;
      }
      if (Clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest_pause);
    }
    std::string bytes = s.words->get_to_str(key(0));
    const std::size_t line = bytes.find('\n');
    const auto pieces = static_cast<std::size_t>(std::strtoull(bytes.c_str(), nullptr, 10));
    bytes.erase(0, line + 1);
    for (std::size_t piece = 1; piece < pieces; ++piece) bytes += s.words->get_to_str(key(piece));
    for (std::size_t piece = 0; piece < pieces; ++piece) s.words->deleteKey(key(piece));
    ++number;
    return bytes;
  } catch (const c10::Error& error) {
    gone(fmt::format("cannot be reached, as the store at {}:{} is gone: {}", at_.host, at_.port,
                     error.what_without_backtrace()));
  }
  return std::nullopt;
}

void StoreLink::end(bool well) noexcept {
  State& s = *state_;
  try {
    s.pulse->add(fmt::format("end/{}", at_.process), 1);
    if (at_.process != 0 || at_.hosted) return;
    const auto deadline = Clock::now() + (well ? s.timeout : farewell_if_badly);
    for (int p = 1; p < at_.processes; ++p) {
      while (!lost(p) && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(20));
    }
  } catch (const std::exception&) {
    // The store is gone: there is nobody to wait for.
  }
}

c10::intrusive_ptr<c10d::Store> StoreLink::store(const std::string& prefix) const {
  return under(connect_to(at_, false, state_->timeout), at_, prefix);
}

}  // namespace mw
