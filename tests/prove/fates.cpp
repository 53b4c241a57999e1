// Proves and runs mutants in child processes: a mutant may end its process, or never come back.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "prove/mutants.h"
#include "prove/prove.h"
#include "prove/runs.h"

namespace mw::test {
namespace {

// Seconds that ranks wait for one that does not come, and that a process may be silent.
struct Patience {
  double rank = 1, process = 8;
};
constexpr Patience usual{}, long_patience{40, 120};

// Words of a child, one a line.
void say(int to, const Json& word) {
  const std::string line = json_text(word) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = write(to, line.data() + done, line.size() - done);
    if (n <= 0) _exit(3);
    done += static_cast<std::size_t>(n);
  }
}

void try_one(const Subject& subject, const Mutation& mutation, const Order& order,
             const std::string& overlooked, const Patience& patience, int to, std::size_t n) {
  Stages stages = subject.stages();
  mutation.apply(stages);
  say(to, {{"n", n}});
  const double began = seconds_now();
  const Proof proof = prove(stages);
  Json word = {{"n", n}, {"prove", seconds_now() - began}};
  const bool refused = !proof.proved() && proof.refusals.front().code != overlooked;
  word["refused"] = refused;
  if (!proof.proved()) {
    word["code"] = proof.refusals.front().code;
    word["said"] = proof.text();
  }
  say(to, word);
  if (refused ? order.run_refused : order.run_accepted)
    say(to, {{"n", n}, {"differs", subject.differs(stages, patience.rank)}});
}

void hear(const Json& word, std::vector<Fate>& fates, std::size_t& at) {
  at = word.at("n").get<std::size_t>();
  Fate& fate = fates[at];
  if (word.contains("refused")) {
    fate.refused = word["refused"].get<bool>();
    fate.code = word.value("code", "");
    fate.said = word.value("said", "");
    fate.prove_seconds = word["prove"].get<double>();
  }
  if (word.contains("differs")) {
    fate.ran = true;
    fate.why = word["differs"].get<std::string>();
    fate.equal = fate.why.empty();
  }
}

class Batch {
 public:
  Batch(const Subject& subject, const std::vector<Mutation>& mutations,
        const std::vector<Order>& orders, std::string overlooked)
      : subject_(subject),
        mutations_(mutations),
        orders_(orders),
        overlooked_(std::move(overlooked)),
        fates_(orders.size()) {}

  std::vector<Fate> all() {
    for (std::size_t n = 0; n < orders_.size();) n = some(n, orders_.size(), usual);
    if (!overlooked_.empty()) return std::move(fates_);
    // A loaded machine may have been too slow for one that is said to be right.
    for (std::size_t n = 0; n < orders_.size(); ++n) {
      if (fates_[n].refused || fates_[n].equal || !orders_[n].run_accepted) continue;
      fates_[n] = {};
      some(n, n + 1, long_patience);
    }
    return std::move(fates_);
  }

 private:
  // From `n` on until all are tried or one ends the process; the next one after.
  std::size_t some(std::size_t n, std::size_t end, const Patience& patience) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL})
        std::signal(signal, SIG_DFL);  // not the test program's, which tells of it
      if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(3);  // what the dying say
      // libtorch makes its pool of threads anew at its first use after a fork. If several ranks
      // come to that at once, one of them finds no pool and aborts.
      at::set_num_threads(at::get_num_threads());
      try {
        for (std::size_t k = n; k < end; ++k)
          try_one(subject_, mutations_[orders_[k].mutation], orders_[k], overlooked_, patience,
                  ends[1], k);
        _exit(0);
      } catch (const std::exception&) {
        _exit(4);  // the prover threw
      }
    }
    close(ends[1]);
    std::size_t at = n;
    const bool hung = !listen(ends[0], patience, at);
    close(ends[0]);
    if (hung) kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (!hung && WIFEXITED(status) && WEXITSTATUS(status) == 0) return end;
    fates_[at].died = true;
    fates_[at].ran = fates_[at].prove_seconds > 0;
    fates_[at].why = hung ? "it hung" : fmt::format("its process ended with status {}", status);
    return at + 1;
  }

  // Whether the child came to its end, by itself.
  bool listen(int from, const Patience& patience, std::size_t& at) {
    std::string heard;
    while (true) {
      pollfd waits{from, POLLIN, 0};
      if (poll(&waits, 1, static_cast<int>(1e3 * patience.process)) == 0) return false;
      char bytes[4096];
      const ssize_t count = read(from, bytes, sizeof bytes);
      if (count <= 0) return true;
      heard.append(bytes, static_cast<std::size_t>(count));
      for (std::size_t line; (line = heard.find('\n')) != std::string::npos;) {
        hear(Json::parse(heard.substr(0, line)), fates_, at);
        heard.erase(0, line + 1);
      }
    }
  }

  const Subject& subject_;
  const std::vector<Mutation>& mutations_;
  const std::vector<Order>& orders_;
  const std::string overlooked_;
  std::vector<Fate> fates_;
};

}  // namespace

std::vector<Fate> fates(const Subject& subject, const std::vector<Mutation>& mutations,
                        const std::vector<Order>& orders, const std::string& overlooked) {
  return Batch(subject, mutations, orders, overlooked).all();
}

void add(Table& table, const Mutation& mutation, const Fate& fate) {
  Count& count = table[mutation.kind];
  ++count.mutants;
  count.refused += fate.refused;
  count.harmless += !fate.refused && fate.equal;
  count.missed += !fate.refused && !fate.equal;
  count.tried += fate.refused && fate.ran;
  count.false_alarms += fate.refused && fate.equal;
}

std::string text_of(const Table& table) {
  std::string text = fmt::format("{:<14}{:>9}{:>9}{:>10}{:>8}{:>11}{:>7}\n", "kind", "mutants",
                                 "refused", "harmless", "missed", "of refused", "equal");
  Count sum;
  const auto row = [&](const std::string& kind, const Count& c) {
    text += fmt::format("{:<14}{:>9}{:>9}{:>10}{:>8}{:>11}{:>7}\n", kind, c.mutants, c.refused,
                        c.harmless, c.missed, c.tried, c.false_alarms);
  };
  for (const auto& [kind, count] : table) {
    row(kind, count);
    sum.mutants += count.mutants;
    sum.refused += count.refused;
    sum.harmless += count.harmless;
    sum.missed += count.missed;
    sum.tried += count.tried;
    sum.false_alarms += count.false_alarms;
  }
  row("all", sum);
  return text;
}

}  // namespace mw::test
