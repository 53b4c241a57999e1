// What other processes say: launchers by the environment, processes of a run by their messages, the
// one that starts a script again by an option.
#include <deque>
#include <map>
#include <memory>

#include "fuzz/readers.h"
#include "launch/processes.h"
#include "launch/restarts.h"
#include "meshwright/carrier.h"
#include "meshwright/engine/text.h"
#include "meshwright/store_link.h"
#include "transport/launched.h"

namespace mw::fuzz {
namespace {

// A line each: NAME=VALUE.
void read_environment(Bytes input) {
  std::string text = text_of(input);
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string line = take_line(text);
    const std::size_t end = std::min(line.find('='), line.size());
    variables[line.substr(0, end)] = line.substr(std::min(end + 1, line.size()));
  }
  const auto variable = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  try {
    launched(variable);
  } catch (const Error&) {  // two launchers, that differ
  }
  const Rendezvous at = rendezvous(variable);
  must(at.process >= 0 && at.process < at.processes && at.local >= 0, "a process has no number");
  must(!at.host.empty() && at.port > 0, "there is no place to meet");
}

// The other process, which says what the input has, and then nothing.
class Stranger final : public Carrier {
 public:
  Stranger(std::deque<std::string> messages, int process)
      : messages_(std::move(messages)), process_(process) {}
  int processes() const override { return 2; }
  int process() const override { return process_; }
  std::unique_ptr<CommunicatorSource> connect(const std::vector<std::vector<int>>&, const Platform&,
                                              std::chrono::milliseconds) override {
    return nullptr;
  }
  void post(int, std::string) override {}
  std::optional<std::string> take(int, std::chrono::milliseconds) override {
    if (messages_.empty()) return std::nullopt;
    std::string message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  void end(bool) noexcept override {}

 private:
  std::deque<std::string> messages_;
  const int process_;
};

// The first byte: which of both this process is. Then messages, each behind its length in two
// bytes.
void read_messages(Bytes input) {
  if (input.empty()) return;
  const int process = input[0] % 2;
  std::deque<std::string> messages;
  for (Bytes rest = input.subspan(1); rest.size() >= 2;) {
    const std::size_t size =
        std::min<std::size_t>(rest[0] + std::size_t{256} * rest[1], rest.size() - 2);
    messages.push_back(text_of(rest.subspan(2, size)));
    rest = rest.subspan(2 + size);
  }
  JoinedProcesses processes(std::make_unique<Stranger>(std::move(messages), process),
                            std::chrono::milliseconds(0), {"here", "boot"});
  const auto leave = [&](std::exception_ptr own) {
    processes.leave(std::move(own), 0, [](const std::exception_ptr&) { return 1; });
  };
  try {
    processes.all_gather("word", "own");
    processes.broadcast("more", "own");
  } catch (const Error& error) {
    for (const Problem& problem : error.problems()) json_text(json_of(problem));
    leave(std::current_exception());
    throw;
  }
  leave(nullptr);
}

void read_attempt(Bytes input) {
  Attempt(text_of(input)).text();
}

const AddReader registered_environment({"launch", read_environment, 4000});
const AddReader registered_messages({"messages", read_messages, 4000});
const AddReader registered_attempts({"attempts", read_attempt, 4000});

}  // namespace
}  // namespace mw::fuzz
