// Keeps the processes of a run together: the first process collects and judges the words of all
// others, which take its verdict.
#include "launch/processes.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "common/process.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

using Word = Processes::Word;
using Sort = Word::Sort;

constexpr int clock_rounds = 5;
// How long a process waits for the first one to print before it ends.
constexpr Processes::Milliseconds grace{10'000};

struct Refusal {
  bool stopped = false;
  std::vector<Problem> problems;
};
template <class Pack>
void members(Pack& pack, Refusal& refusal) {
  pack(refusal.stopped, refusal.problems);
}

struct Greeting {
  std::string version;
  HostId host;
};
template <class Pack>
void members(Pack& pack, Greeting& greeting) {
  pack(greeting.version, greeting.host.name, greeting.host.boot, greeting.host.token);
}

// Compares two tokens in a time that does not depend on how much of them is equal.
bool same_token(const std::string& one, const std::string& other) {
  unsigned differ = one.size() == other.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i)
    differ |= static_cast<unsigned char>(one[i] ^ other[i]);
  return differ == 0;
}

Refusal refusal_of(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const Error& known) {
    return {known.problems().front().code == "run.stopped", known.problems()};
  } catch (const std::exception& other) {
    return {false, {problem_of(other)}};
  } catch (...) {
    return {false, {{Stage::run, "run.exception", "", "unknown exception"}}};
  }
}

std::string seconds_text(Processes::Milliseconds time) {
  return fmt::format("{:.3g} s", static_cast<double>(time.count()) / 1e3);
}

}  // namespace

HostId own_host() {
  const char* token = std::getenv(token_variable);
  HostId host{host_name(), "", token == nullptr ? "" : token};
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host.boot;
  return host;
}

std::string new_token() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    throw Error(Stage::environment, "process.token", "",
                "the system gives no random bytes for a token");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

bool same_machine(const HostId& one, const HostId& other) {
  if (!one.boot.empty() && !other.boot.empty()) return one.boot == other.boot;
  return one.name == other.name;
}

JoinedProcesses::JoinedProcesses(std::unique_ptr<Carrier> carrier, Milliseconds timeout, HostId own)
    : carrier_(std::move(carrier)),
      count_(carrier_->processes()),
      index_(carrier_->process()),
      timeout_(timeout),
      hosts_(static_cast<std::size_t>(count_)),
      kept_(static_cast<std::size_t>(count_)),
      left_(static_cast<std::size_t>(count_), false) {
  try {
    greet(own);
    measure_clock();
  } catch (...) {
    carrier_->end(false);
    ended_ = true;
    throw;
  }
}

JoinedProcesses::~JoinedProcesses() {
  if (!ended_) carrier_->end(false);
}

std::string JoinedProcesses::name_of(int process) const {
  const std::string& host = hosts_[static_cast<std::size_t>(process)].name;
  return fmt::format("process {}{}", process, host.empty() ? "" : " on " + host);
}

int JoinedProcesses::on_this_host() const {
  const HostId& own = hosts_[static_cast<std::size_t>(index_)];
  return static_cast<int>(std::count_if(
      hosts_.begin(), hosts_.end(), [&](const HostId& host) { return same_machine(host, own); }));
}

int JoinedProcesses::before_on_this_host() const {
  const HostId& own = hosts_[static_cast<std::size_t>(index_)];
  return static_cast<int>(
      std::count_if(hosts_.begin(), hosts_.begin() + index_,
                    [&](const HostId& host) { return same_machine(host, own); }));
}

void JoinedProcesses::send(int to, const Word& word) {
  std::string bytes = pack(word.sort, word.what, word.bytes);
  // Each part begins with a byte: "1" for the last part of a word, "+" for the others.
  const std::size_t parts = (bytes.size() + Carrier::most_bytes - 2) / (Carrier::most_bytes - 1);
  if (parts <= 1) {
    carrier_->post(to, "1" + std::move(bytes));
    return;
  }
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t size = Carrier::most_bytes - 1;
    carrier_->post(to, (part + 1 == parts ? "1" : "+") + bytes.substr(part * size, size));
  }
}

Word JoinedProcesses::receive_whole(int from, const std::string& what, Milliseconds timeout) {
  std::string bytes;
  for (bool whole = false; !whole;) {
    std::optional<std::string> part = carrier_->take(from, timeout);
    if (!part) {
      throw WaitedInVain(Stage::run, "process.silent", "",
                         fmt::format("{} waited {} for {}, which has said nothing: {}",
                                     name_of(index_), seconds_text(timeout), name_of(from), what),
                         "look at what that process does; raise the timeout if it is only slow");
    }
    if (part->empty()) {
      throw Error(Stage::run, "process.message", "",
                  fmt::format("{} has sent a message without a byte", name_of(from)),
                  "all processes must be of one build");
    }
    whole = part->front() == '1';
    bytes.append(*part, 1);
    timeout = std::max(timeout, timeout_);  // wait longer: the other parts are on their way
  }
  Word word;
  Unpacker unpacker(bytes);
  unpacker(word.sort, word.what, word.bytes);
  return word;
}

void JoinedProcesses::check_there(int process) {
  try {
    Word word = receive_whole(process, "", Milliseconds(0));
    kept_[static_cast<std::size_t>(process)].push_back(std::move(word));
  } catch (const WaitedInVain&) {  // no word has come, and the process is there
  }
}

Word JoinedProcesses::receive(int from, const std::string& what, Milliseconds timeout) {
  auto& kept = kept_[static_cast<std::size_t>(from)];
  if (kept.empty()) return receive_whole(from, what, timeout);
  Word word = std::move(kept.front());
  kept.pop_front();
  return word;
}

std::string JoinedProcesses::expect(int from, const std::string& what, Milliseconds timeout) {
  Word word = receive(from, what, timeout);
  switch (word.sort) {
    case Sort::word:
      if (word.what == what) return std::move(word.bytes);
      throw Error(
          Stage::run, "process.apart", "",
          fmt::format("{} is at {}, {} at {}", name_of(from), word.what, name_of(index_), what),
          "a script must call the same verbs, with the same tables, in every process");
    case Sort::ranks_over:
      kept_[static_cast<std::size_t>(from)].push_front(std::move(word));
      throw Aborted(fmt::format("Stopped because the ranks of {} have ended.", name_of(from)));
    case Sort::refused: {
      left_[static_cast<std::size_t>(from)] = true;
      auto refusal = unpack<Refusal>(word.bytes);
      if (refusal.problems.empty()) {
        refusal.problems.push_back(
            {Stage::run, "process.message", "",
             fmt::format("{} has failed and does not say why", name_of(from)),
             "all processes must be of one build"});
      }
      if (!first()) over_ = true;
      for (Problem& problem : refusal.problems) {
        if (first()) problem.message = fmt::format("On {}: {}", name_of(from), problem.message);
      }
      throw ProcessFailed(refusal.stopped, std::move(refusal.problems));
    }
    case Sort::left:
    case Sort::parted:
      break;
  }
  left_[static_cast<std::size_t>(from)] = true;
  throw Error(
      Stage::run, "process.apart", "",
      fmt::format("{} has come to its end, {} is at {}", name_of(from), name_of(index_), what),
      "a script must call the same verbs, with the same tables, in every process");
}

void JoinedProcesses::send_refusal(bool stopped, const std::vector<Problem>& problems) {
  over_ = true;
  for (int p = 1; p < count_; ++p) {
    if (!left_[static_cast<std::size_t>(p)])
      send(p, {Sort::refused, "", pack(Refusal{stopped, problems})});
  }
}

void JoinedProcesses::refuse(std::vector<Problem> problems, bool stopped) {
  send_refusal(stopped, problems);
  throw ProcessFailed(stopped, std::move(problems));
}

template <class Call>
auto JoinedProcesses::agreed(Call&& call) {
  if (over_) {
    throw ProcessFailed(false, {{Stage::run, "process.over", "",
                                 "the processes have parted after an earlier failure",
                                 "what fails in one process ends the run in all"}});
  }
  try {
    return call();
  } catch (...) {
    if (first() && !over_) {
      Refusal refusal = refusal_of(std::current_exception());
      refuse(std::move(refusal.problems), refusal.stopped);
    }
    over_ = true;
    throw;
  }
}

std::vector<std::string> JoinedProcesses::gather(const std::string& what,
                                                 const std::string& bytes) {
  return agreed([&] {
    std::vector<std::string> all;
    if (!first()) {
      send(0, {Sort::word, what, bytes});
      return all;
    }
    all.push_back(bytes);
    for (int p = 1; p < count_; ++p) all.push_back(expect(p, what, timeout_));
    return all;
  });
}

std::vector<std::string> JoinedProcesses::all_gather(const std::string& what,
                                                     const std::string& bytes) {
  const std::vector<std::string> all = gather(what, bytes);
  return unpack<std::vector<std::string>>(broadcast(what, first() ? pack(all) : ""));
}

std::string JoinedProcesses::broadcast(const std::string& what, const std::string& bytes) {
  return agreed([&] {
    if (!first()) return expect(0, what, timeout_);
    for (int p = 1; p < count_; ++p) send(p, {Sort::word, what, bytes});
    return bytes;
  });
}

void JoinedProcesses::greet(const HostId& own) {
  constexpr const char* what = "the greeting";
  const std::string library = carrier_->library_version();
  const std::string version = library.empty() ? version_line() : version_line() + ", " + library;
  std::vector<std::string> all = gather(what, pack(Greeting{version, own}));
  for (std::size_t p = 0; p < all.size(); ++p) {  // in the first process
    auto greeting = unpack<Greeting>(all[p]);
    if (!same_token(greeting.host.token, own.token)) {
      refuse({{Stage::environment, "process.token", "",
               fmt::format("{} has not the token of this run", name_of(static_cast<int>(p))),
               fmt::format("it belongs to another run, or the launcher has not given {} to all of "
                           "them alike",
                           token_variable)}},
             false);
    }
    greeting.host.token.clear();  // no other process learns it
    all[p] = pack(greeting);
  }
  all = unpack<std::vector<std::string>>(broadcast(what, first() ? pack(all) : ""));
  std::vector<Greeting> greetings;
  for (const std::string& each : all) greetings.push_back(unpack<Greeting>(each));
  for (std::size_t p = 0; p < greetings.size(); ++p) hosts_[p] = greetings[p].host;
  for (std::size_t p = 1; p < greetings.size(); ++p) {
    const Greeting &one = greetings[p], &other = greetings[0];
    if (one.version == other.version) continue;
    throw Error(Stage::environment, "process.version", "",
                fmt::format("{} runs {}, {} runs {}", name_of(static_cast<int>(p)), one.version,
                            name_of(0), other.version),
                "install the same build, and the same libraries, on all hosts");
  }
}

// Measures the offset of the first process' clock. Its reading lies between a question and the
// answer; the narrowest bounds of some rounds are kept. If they allow 0, the offset is 0, as
// processes of one machine share a clock.
void JoinedProcesses::measure_clock() {
  constexpr const char* what = "the clock";
  double least = -std::numeric_limits<double>::infinity(), most = -least;
  for (int p = 1; p < count_; ++p) {
    for (int round = 0; round < clock_rounds; ++round) {
      if (first()) {
        expect(p, what, timeout_);
        send(p, {Sort::word, what, pack(seconds_now())});
      } else if (p == index_) {
        const double asked = seconds_now();
        send(0, {Sort::word, what, ""});
        const auto there = unpack<double>(expect(0, what, timeout_));
        least = std::max(least, there - seconds_now());
        most = std::min(most, there - asked);
      }
    }
  }
  if (!first() && (least > 0 || most < 0)) clock_offset_ = (least + most) / 2;
}

int JoinedProcesses::leave(std::exception_ptr own, int code,
                           const std::function<int(std::exception_ptr)>& print) noexcept {
  const bool failed = own != nullptr;
  try {
    code = first() ? leave_first(std::move(own), code, print) : leave_other(own, print);
  } catch (const std::exception&) {
    if (code == 0) code = exit_code_of(Stage::run);
  }
  over_ = true;
  if (!ended_) carrier_->end(!failed && code == 0);
  ended_ = true;
  return code;
}

int JoinedProcesses::leave_first(std::exception_ptr own, int code,
                                 const std::function<int(std::exception_ptr)>& print) {
  if (!over_ && own == nullptr) {  // all others must have come to their end too
    try {
      for (int p = 1; p < count_; ++p) {
        if (left_[static_cast<std::size_t>(p)]) continue;
        const Word word = receive(p, "its end", timeout_);
        if (word.sort == Sort::left) {
          left_[static_cast<std::size_t>(p)] = true;
          continue;
        }
        kept_[static_cast<std::size_t>(p)].push_front(word);
        expect(p, "its end", timeout_);
      }
    } catch (...) {
      own = std::current_exception();
    }
  }
  if (own != nullptr) {
    if (!over_) {
      const Refusal refusal = refusal_of(own);
      send_refusal(refusal.stopped, refusal.problems);
    }
    code = print(own);
  }
  for (int p = 1; p < count_; ++p) send(p, {Sort::parted, "", pack(code)});
  return code;
}

int JoinedProcesses::leave_other(const std::exception_ptr& own,
                                 const std::function<int(std::exception_ptr)>& print) {
  const bool told = over_;
  if (!told) {
    send(0, own == nullptr ? Word{Sort::left, "", ""}
                           : Word{Sort::refused, "", pack(refusal_of(own))});
  }
  // The first process may print, write or plot for as long as it likes. If it is gone, the carrier
  // throws.
  const Milliseconds patience = told || own != nullptr
                                    ? std::max(grace, timeout_ / 10)
                                    : std::max<Milliseconds>(timeout_, patience_for_first);
  try {
    for (;;) {
      const Word word = receive(0, "its end", patience);
      if (word.sort == Sort::parted) return unpack<int>(word.bytes);
    }
  } catch (...) {  // the first process is gone: this one prints the error
    return print(own != nullptr ? own : std::current_exception());
  }
}

}  // namespace mw
