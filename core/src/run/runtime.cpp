// Starts the ranks that are here, brings what ranks know together over all processes, and settles
// with the other processes how a run has ended.
#include "meshwright/engine/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/rank_threads.h"
#include "meshwright/backend.h"
#include "meshwright/engine/away.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/text.h"
#include "run/meeting.h"

namespace mw {
namespace {

using Word = Processes::Word;
using Sort = Word::Sort;
using comm::Nearness;
using comm::RanksEnd;

constexpr const char* begin_word = "the start of a run";
constexpr const char* ranks_word = "what ranks tell each other";
// How long processes may take to say how their ranks ended, once the ranks of one have failed.
constexpr std::chrono::milliseconds grace{15'000};

// Consecutive ranks in words: "ranks 4 to 7".
std::string span_of(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  return fmt::format("ranks {} to {}", ranks.front(), ranks.back());
}

// The nearest numbers of processes below and above that divide `ranks`.
std::string nearest_processes(int ranks, int processes) {
  int below = std::min(processes, ranks), above = processes;
  while (ranks % below != 0) --below;
  while (above < ranks && ranks % above != 0) ++above;
  std::string text = fmt::format("start {}", plural(below, "process"));
  if (above <= ranks && above != below) text += fmt::format(" or {}", above);
  return text;
}

BetweenRanks& between_ranks() {
  static BetweenRanks between;
  return between;
}

std::unique_ptr<CommunicatorSource> disturbed(std::unique_ptr<CommunicatorSource> source) {
  return between_ranks() ? between_ranks()(std::move(source)) : std::move(source);
}

}  // namespace

void comm::stand_between_ranks(BetweenRanks between) {
  between_ranks() = std::move(between);
}

std::vector<std::vector<int>> ranks_of_processes(int ranks, int processes, const std::string& mix) {
  if (processes > ranks || ranks % processes != 0) {
    const std::string plan = mix.empty() ? "the plan" : fmt::format("the plan {}", mix);
    throw Error(Stage::plan, "launch.ranks", "plan",
                fmt::format("plan: {} has {}, and {} were started{}", plan, plural(ranks, "rank"),
                            plural(processes, "process"),
                            processes > ranks ? ": some would have none"
                                              : ", which cannot carry as many each"),
                fmt::format("{}, or change the plan: its number of ranks must be a multiple of {}",
                            nearest_processes(ranks, processes), processes));
  }
  std::vector<std::vector<int>> all(static_cast<std::size_t>(processes));
  for (int rank = 0; rank < ranks; ++rank)
    all[static_cast<std::size_t>(rank / (ranks / processes))].push_back(rank);
  return all;
}

class RankRuntime::Meeting : public mw::Meeting<std::string> {
  using mw::Meeting<std::string>::Meeting;
};

RankRuntime::RankRuntime(int ranks, Processes* processes, const std::string& mix)
    : ranks_(ranks), processes_(ranks == 1 ? nullptr : processes) {
  if (processes_ != nullptr) {
    ranks_of_ = ranks_of_processes(ranks, processes_->count(), mix);
    here_ = ranks_of_[static_cast<std::size_t>(processes_->index())];
  } else {
    here_.resize(static_cast<std::size_t>(ranks));
    std::iota(here_.begin(), here_.end(), 0);
  }
}

RankRuntime::~RankRuntime() = default;

int RankRuntime::threads(int asked) const {
  const int copies = processes_ == nullptr ? 1 : processes_->on_this_host();
  return threads_of_rank(static_cast<int>(here_.size()) * copies, asked);
}

double RankRuntime::shared_clock(double seconds) const {
  return processes_ == nullptr ? seconds : seconds + processes_->clock_offset();
}

void RankRuntime::run(const Body& body, const RankOptions& options, const Platform& platform,
                      const std::string& agreed) {
  // a new one, as an earlier run may have failed in its own
  meeting_ = std::make_unique<Meeting>(here_.size());
  const auto guarded = [&](RankContext& context) {
    try {
      body(context);
    } catch (...) {
      meeting_->fail(place_of(context.rank));
      throw;
    }
  };
  const auto run_on = [&](CommunicatorSource& source) {
    const int threads = this->threads(options.threads);
    const int copies = processes_ == nullptr ? 1 : processes_->on_this_host();
    const int at_once = std::max(1, core_count() / (copies * threads));
    comm::Cores cores(at_once);
    // On accelerators ranks mostly wait for their devices, and hold no core.
    const bool in_turns =
        platform.type() == at::kCPU && here_.size() > static_cast<std::size_t>(at_once);
    return comm::run_rank_threads(source, here_, threads, guarded,
                                  comm::patience_of(options.timeout), in_turns ? &cores : nullptr);
  };
  if (processes_ == nullptr) {
    const auto source = disturbed(comm::thread_source(ranks_, options.timeout));
    return run_on(*source).rethrow();
  }
  timeout_ = options.timeout;
  agree(agreed);
  RanksEnd end;
  try {
    const auto source =
        disturbed(processes_->carrier().connect(ranks_of_, platform, options.timeout));
    end = run_on(*source);
  } catch (...) {
    end = comm::end_by_exception(here_.front());
  }
  end.time = shared_clock(end.time);
  settle(std::move(end));
}

// Refuses the run if another process is about to run something else.
void RankRuntime::agree(const std::string& agreed) {
  const std::vector<std::string> all = processes_->gather(begin_word, agreed);
  for (std::size_t p = 1; p < all.size(); ++p) {
    if (all[p] == agreed) continue;
    processes_->refuse(
        {{Stage::run, "process.apart", "",
          fmt::format("{} would run {}, {} would run {}", processes_->name_of(static_cast<int>(p)),
                      all[p], processes_->name_of(0), agreed),
          "a script must give the same tables in every process"}});
  }
  processes_->broadcast(begin_word, "");
}

// The first process learns how the ranks of all processes ended, and tells them the outcome.
void RankRuntime::settle(RanksEnd end) {
  const auto over = [](const RanksEnd& how) { return Word{Sort::ranks_over, "", pack(how)}; };
  const int count = processes_->count();
  if (!processes_->first()) {
    processes_->send(0, over(end));
    try {
      end = await_end(0, timeout_, false);
    } catch (const Error& error) {  // the first process is gone
      end = told_by(end, 0, error);
    }
    return end.rethrow();
  }
  // Wakes ranks of other processes that wait for a word of the first process.
  for (int p = 1; p < count; ++p) processes_->send(p, over(end));
  std::vector<std::pair<int, Error>> lost;
  std::vector<RankPlace> places = places_of(0, &end);
  for (int p = 1; p < count; ++p) {
    const bool failed = end.state != RanksEnd::State::well || !lost.empty();
    try {
      const RanksEnd other = await_end(p, failed ? std::min(grace, timeout_) : timeout_, true);
      for (RankPlace& place : places_of(p, &other)) places.push_back(std::move(place));
      if (other.nearer_than(end)) end = other;
    } catch (const Error& error) {
      lost.emplace_back(p, error);
      for (RankPlace& place : places_of(p, nullptr)) places.push_back(std::move(place));
    }
  }
  if (end.state == RanksEnd::State::failed && end.nearness == Nearness::consequence && lost.empty())
    lost = gone_since();
  for (const auto& [p, error] : lost) end = told_by(std::move(end), p, error);
  end.places = std::move(places);
  for (int p = 1; p < count; ++p) processes_->send(p, over(end));
  end.rethrow();
}

// Processes that died after they had said how their ranks ended. That is a cause where no other
// process has named one.
std::vector<std::pair<int, Error>> RankRuntime::gone_since() {
  std::vector<std::pair<int, Error>> gone;
  for (int p = 1; p < processes_->count(); ++p) {
    try {
      processes_->check_there(p);
    } catch (const Error& error) {
      gone.emplace_back(p, error);
    }
  }
  return gone;
}

// Where the ranks of a process ended, as it said in `end`; null: the process is gone. A process
// whose ranks all went well lists no places.
std::vector<RankPlace> RankRuntime::places_of(int process, const RanksEnd* end) const {
  if (end != nullptr && !end->places.empty()) return end->places;
  std::vector<RankPlace> places;
  for (const int rank : ranks_of_[static_cast<std::size_t>(process)]) {
    RankPlace& place = places.emplace_back();
    place.rank = rank;
    if (end != nullptr) place.state = RankPlace::State::ended;
  }
  return places;
}

// The next word of a process about its ranks' end, past all other words. The first process sends
// two: how its own ranks ended, then the outcome of all. `once`: the first of the two is returned.
RanksEnd RankRuntime::await_end(int process, std::chrono::milliseconds timeout, bool once) {
  for (int ends = once ? 1 : 2;;) {
    const Word word = processes_->receive(process, "the end of its ranks", timeout);
    if (word.sort == Sort::refused || word.sort == Sort::left || word.sort == Sort::parted) {
      throw Error(Stage::run, "process.lost", "",
                  fmt::format("{} has left while its ranks ran", processes_->name_of(process)));
    }
    if (word.sort != Sort::ranks_over || --ends > 0) continue;
    return unpack<RanksEnd>(word.bytes);
  }
}

// The end of the run with a lost process as its cause, unless a rank has named a cause already.
RanksEnd RankRuntime::told_by(RanksEnd end, int process, const Error& error) const {
  if (end.state != RanksEnd::State::well && end.nearness == Nearness::cause) return end;
  const std::vector<int>& ranks = ranks_of_[static_cast<std::size_t>(process)];
  Problem problem = error.problems().front();
  if (problem.message.ends_with('.')) problem.message.pop_back();
  problem.message = fmt::format("{} ({})", problem.message, span_of(ranks));
  if (end.state != RanksEnd::State::well && end.nearness == Nearness::waited_in_vain)
    problem.message += fmt::format("; rank {}: {}", end.rank, end.problems.front().message);
  return {RanksEnd::State::failed, Nearness::cause, ranks.front(), end.time, {problem}};
}

std::vector<std::string> RankRuntime::gather_processes(std::string bytes) {
  if (processes_ == nullptr) return {std::move(bytes)};
  const CoreRelease away;
  if (!processes_->first()) {
    processes_->send(0, {Sort::word, ranks_word, std::move(bytes)});
    return {};
  }
  std::vector<std::string> all = {std::move(bytes)};
  for (int p = 1; p < processes_->count(); ++p)
    all.push_back(processes_->expect(p, ranks_word, timeout_));
  return all;
}

std::string RankRuntime::broadcast_processes(const std::string& bytes) {
  if (processes_ == nullptr) return bytes;
  const CoreRelease away;
  if (!processes_->first()) return processes_->expect(0, ranks_word, timeout_);
  for (int p = 1; p < processes_->count(); ++p)
    processes_->send(p, {Sort::word, ranks_word, bytes});
  return bytes;
}

BytesOfRanks RankRuntime::collect(std::vector<std::string> own) {
  if (processes_ == nullptr) return own;
  BytesOfRanks all;
  for (const std::string& each : gather_processes(pack(own))) {
    for (std::string& bytes : unpack<BytesOfRanks>(each)) all.push_back(std::move(bytes));
  }
  return all;
}

std::size_t RankRuntime::place_of(int rank) const {
  return static_cast<std::size_t>(rank - here_.front());
}

BytesOfRanks RankRuntime::gather(int rank, std::string bytes) {
  std::vector<std::string> own = meeting_->gather(place_of(rank), std::move(bytes));
  return rank == here_.front() ? collect(std::move(own)) : BytesOfRanks();
}

BytesOfRanks RankRuntime::all_gather(int rank, std::string bytes) {
  const BytesOfRanks all = gather(rank, std::move(bytes));
  return unpack<BytesOfRanks>(broadcast(rank, rank == 0 ? pack(all) : ""));
}

std::string RankRuntime::broadcast(int rank, const std::string& bytes) {
  const bool carries = rank == here_.front();
  return meeting_->broadcast(place_of(rank), carries ? broadcast_processes(bytes) : "");
}

void RankRuntime::barrier(int rank) {
  all_gather(rank, "");
}

}  // namespace mw
