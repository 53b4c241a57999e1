// The engine's work on rounds and on messages of other processes: arrivals, failures, and the
// search for missing ranks.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/error.h"
#include "transport/engine.h"

namespace mw {
namespace comm {

// Messages leave out a call's device, which is a CPU.
template <class Pack>
void members(Pack& pack, Call& call) {
  pack(call.op, call.dtype, call.elements, call.combine, call.root, call.in_splits, call.out_splits,
       call.label, call.phase);
}
template <class Pack>
void members(Pack& pack, IdleRank& idle) {
  pack(idle.rank, idle.text);
}

}  // namespace comm

namespace transport {

template <class Pack>
void members(Pack& pack, Whereabouts& one) {
  pack(one.rank, one.here, one.text);
}

using comm::Call;
using Clock = std::chrono::steady_clock;

// How long other processes have to say where their ranks are.
static constexpr auto for_answers = std::chrono::seconds(1);

void Engine::send_all(const std::string& bytes) {
  for (int p = 0; p < processes(); ++p) {
    if (p != process()) link_->send(p, bytes);
  }
}

void Engine::start(const std::shared_ptr<Round>& round) {
  if (round->state() == Round::failed) return;
  const auto why =
      host_ == nullptr ? std::optional<std::string>("the run has ended") : host_->stopped();
  if (why) {
    round->fail(comm::aborted_run(*why), Cause::earlier);
    return;
  }
  round->handle = ++next_handle_;
  round->lay_out(scratch_);
  by_handle_[round->handle] = round.get();
  by_id_[round->id] = round.get();
  running_.push_back(round);
  std::vector<Call> calls;
  for (const int m : round->own) calls.push_back(round->arrival(m).call);
  const std::string arrival = pack(Message::arrive, run_, round->id, round->handle, calls);
  for (const auto& peer : round->peers) link_->send(peer.process, arrival);
  const auto known = early_.find(round->id);
  if (known != early_.end()) {
    const auto list = std::move(known->second);
    early_.erase(known);
    for (const auto& one : list) arrived(*round, one);
  }
  check_ended(*round);
}

void Engine::arrived(Round& round, const EarlyArrival& arrival) {
  auto* peer = round.peer_of(arrival.process);
  if (peer != nullptr && arrival.calls.size() == peer->members.size()) {
    round.arrived(*peer, arrival.handle, arrival.calls);
  }
}

void Engine::came(Round& round, Round::Peer& peer, StreamKind kind) {
  round.came(peer, kind);
  if (const int more = round.take_credit(); more > 0) {
    for (const auto& other : round.peers) {
      link_->send(other.process, pack(Message::credit, other.handle, more));
    }
  }
}

void Engine::check_ended(Round& round) {
  for (const auto& peer : round.peers) {
    if (peer.arrived) continue;
    for (const int rank : round.members->ranks_of(peer.process)) {
      if (!host_->has_ended(rank)) continue;
      round.fail(comm::ended_rank(round.members->axis, round.name, round.describe(), rank,
                                  round.members->ranks_of(process()), ""),
                 Cause::itself);
      return;
    }
  }
}

std::string Engine::title_of(int process) const {
  std::string name = link_->name_of(process);
  name.at(0) = 'P';  // "Process 2 …"
  return name;
}

void Engine::fail_all(const std::string& message) {
  for (auto& round : running_) {
    round->fail(comm::aborted_run(message), Cause::earlier);
  }
}

void Engine::rank_failed(std::uint32_t run, int rank, const std::string& reason) {
  if (run > run_) heard_[run].failed.emplace_back(rank, reason);
  if (run != run_ || host_ == nullptr) return;
  host_->rank_failed(rank, reason);
  fail_all(comm::stopped_by(rank, reason));
}

void Engine::rank_ended(std::uint32_t run, int rank) {
  if (run > run_) heard_[run].ended.push_back(rank);
  if (run != run_ || host_ == nullptr) return;
  host_->rank_ended(rank);
  for (auto& round : running_) {
    if (round->state() == Round::running) check_ended(*round);
  }
}

void Engine::lost(int which, const std::string& why, bool dead) {
  const auto p = static_cast<std::size_t>(which);
  // Messages that the process sent before it was lost are still to be read.
  while (link_->receive_last(which, receiver_)) {
  }
  const bool left = left_[p] != 0;
  const auto name = link_->name_of(which);
  const auto text =
      left ? fmt::format("{} has ended", name) : fmt::format("{} died: {}", name, why);
  if (!left) gone_[p] = 1;
  if (dead) link_->forget(which);  // a process that said goodbye waits for ours
  {
    const std::lock_guard guard(inbox_lock_);
    if (silent_[p].empty()) silent_[p] = title_of(which) + text.substr(name.size()) + ".";
  }
  inbox_news_.notify_all();
  for (auto& [number, query] : queries_) std::erase(query.asked, which);
  if (host_ == nullptr) return;
  const auto ranks = host_->ranks_of(which);
  // A process that said goodbye has reported the end of its ranks, or an earlier failure.
  const bool ended =
      (left || !link_->outlasts_runs()) &&
      std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return host_->has_ended(rank); });
  if (ranks.empty() || ended) return;
  rank_failed(run_, ranks[0], fmt::format("{}, which carried {}", text, comm::list_ranks(ranks)));
}

void Engine::heard(int from, std::string_view bytes) {
  try {
    understand(from, bytes);
  } catch (const Error& error) {
    lost(from, fmt::format("what it sends cannot be read: {}", error.what()));
  }
}

void Engine::understand(int from, std::string_view bytes) {
  Unpacker message(bytes);
  const auto next = [&message]<class T>(T value) {
    message(value);
    return value;
  };
  switch (next(Message{})) {
    case Message::arrive:
      return hear_arrival(from, message);
    case Message::credit: {
      Traffic* const round = receiver_.traffic(next(std::uint32_t{}));
      Traffic::Peer* const peer = round == nullptr ? nullptr : round->peer_of(from);
      if (peer != nullptr) static_cast<Round*>(round)->credited(*peer, next(int{}));
      return;
    }
    case Message::aborted: {
      const auto run = next(std::uint32_t{});
      const auto rank = next(int{});
      return rank_failed(run, rank, next(std::string()));
    }
    case Message::ended: {
      const auto run = next(std::uint32_t{});
      return rank_ended(run, next(int{}));
    }
    case Message::query:
      return answer(from, message);
    case Message::answer:
      return hear_answer(from, message);
    case Message::posted: {
      const std::lock_guard guard(inbox_lock_);
      inbox_[static_cast<std::size_t>(from)].push_back(next(std::string()));
      inbox_news_.notify_all();
      return;
    }
    case Message::goodbye:
      all_clean_ = next(bool{}) && all_clean_;
      left_[static_cast<std::size_t>(from)] = 1;
      return lost(from, "", false);
  }
}

void Engine::answer(int from, Unpacker& message) {
  if (host_ == nullptr && !link_->outlasts_runs()) return;
  std::uint32_t query = 0;
  std::uint64_t round = 0;
  std::vector<int> ranks;
  message(query, round, ranks);
  std::vector<Whereabouts> where;
  std::vector<comm::IdleRank> idle;
  if (host_ != nullptr) {
    where = host_->where(round, ranks);
    idle = host_->idle();
  }
  link_->send(from, pack(Message::answer, query, where, idle));
}

void Engine::hear_arrival(int from, Unpacker& message) {
  EarlyArrival arrival;
  std::uint64_t id = 0;
  arrival.process = from;
  message(arrival.run, id, arrival.handle, arrival.calls);
  if (arrival.run < run_) return;
  const auto found = by_id_.find(id);
  if (found != by_id_.end()) {
    arrived(*found->second, arrival);
  } else {
    early_[id].push_back(std::move(arrival));
  }
}

void Engine::ask(const std::shared_ptr<Round>& round, double seconds) {
  if (round->state() == Round::done || round->state() == Round::failed || host_ == nullptr) return;
  Query query;
  query.round = round;
  query.seconds = seconds;
  const auto& members = *round->members;
  std::vector<int> asked;
  for (std::size_t i = 0; i < members.ranks.size(); ++i) {
    const int p = members.process_of[i];
    if (p == process() || std::find(asked.begin(), asked.end(), p) != asked.end()) continue;
    const auto* peer = round->peer_of(p);
    const auto early = early_.find(round->id);
    const bool there = (peer != nullptr && peer->arrived) ||
                       (early != early_.end() &&
                        std::any_of(early->second.begin(), early->second.end(),
                                    [&](const EarlyArrival& e) { return e.process == p; }));
    if (there) {
      query.waiting.push_back(members.ranks[i]);
      continue;
    }
    asked.push_back(p);
    const auto ranks = members.ranks_of(p);
    if (is_off(p)) {
      query.missing.insert(query.missing.end(), ranks.begin(), ranks.end());
      continue;
    }
    query.about[p] = ranks;
  }
  query.take(host_->where(round->id, members.ranks_of(process())));
  if (asked.empty() && query.missing.empty()) {
    // All members have arrived, their bytes are under way: the round gets the same time again.
    if (std::find(late_once_.begin(), late_once_.end(), round->id) == late_once_.end()) {
      late_once_.push_back(round->id);
      return;
    }
    round->fail({Stage::run, "collective.timeout", "",
                 fmt::format("{} on axis '{}' ({}): all ranks have come, but their numbers are not "
                             "through after twice {:.3g} s.",
                             round->describe(), members.axis, round->name, seconds),
                 "Look at the network between the machines, or raise the timeout."},
                Cause::absence);
    return;
  }
  ask_all(std::move(query));
}

void Engine::ask_all(Query query) {
  const auto number = ++next_query_;
  query.until = Clock::now() + for_answers;
  query.idle = host_->idle();
  for (int p = 0; p < processes(); ++p) {
    if (p == process() || is_off(p)) continue;
    const auto round = query.round ? query.round->id : 0;
    link_->send(p, pack(Message::query, number, round, query.about[p]));
    query.asked.push_back(p);
  }
  queries_.emplace(number, std::move(query));
}

std::string Engine::held_up_by(const std::vector<int>& missing) {
  auto words = std::make_shared<std::promise<std::string>>();
  auto found = words->get_future();
  task([this, missing, words] {
    if (host_ == nullptr) return words->set_value("");
    Query query;
    query.missing = missing;
    query.words = words;
    ask_all(std::move(query));
  });
  // Not without a limit: an engine that is ending may not answer.
  return found.wait_for(2 * for_answers) == std::future_status::ready ? found.get() : "";
}

// Names the processes that have not answered, but for those with ranks of the round, which the
// caller names.
std::string Engine::held_up_by(const Query& query) const {
  constexpr int most_named = 4;  // a lost machine may have run many
  std::string text;
  int silent = 0;
  for (const int p : query.asked) {
    const auto ranks = host_ == nullptr ? std::vector<int>{} : host_->ranks_of(p);
    const auto about = query.about.find(p);
    if (ranks.empty() || (about != query.about.end() && !about->second.empty())) continue;
    if (++silent > most_named) continue;
    text += fmt::format(" {}, which carries {}, does not answer.", title_of(p),
                        comm::list_ranks(ranks));
  }
  if (silent > most_named)
    text += fmt::format(" Further processes that do not answer: {}.", silent - most_named);
  return text + comm::held_up_by(query.missing, query.idle);
}

void Engine::Query::take(const std::vector<Whereabouts>& where) {
  for (const Whereabouts& one : where) {
    (one.here ? waiting : missing).push_back(one.rank);
    if (!one.here) text += fmt::format(" Rank {} {}.", one.rank, one.text);
  }
}

void Engine::hear_answer(int from, Unpacker& message) {
  std::uint32_t number = 0;
  std::vector<Whereabouts> where;
  std::vector<comm::IdleRank> idle;
  message(number, where, idle);
  const auto found = queries_.find(number);
  if (found == queries_.end()) return;
  auto& query = found->second;
  query.take(where);
  query.idle.insert(query.idle.end(), idle.begin(), idle.end());
  std::erase(query.asked, from);
}

void Engine::check_queries() {
  for (auto query = queries_.begin(); query != queries_.end();) {
    auto& one = query->second;
    if (!one.asked.empty() && Clock::now() < one.until) {
      ++query;
      continue;
    }
    conclude(one);
    query = queries_.erase(query);
  }
}

void Engine::conclude(Query& query) {
  std::sort(query.idle.begin(), query.idle.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  if (query.words) return query.words->set_value(held_up_by(query));
  auto& round = *query.round;
  for (const int p : query.asked) {
    const auto& ranks = query.about[p];
    if (ranks.empty()) continue;
    query.missing.insert(query.missing.end(), ranks.begin(), ranks.end());
    query.text += fmt::format(" {} does not answer.", title_of(p));
  }
  // nobody was reported as missing: take those not reported as waiting
  if (query.missing.empty()) {
    query.missing = round.members->ranks;
    std::erase_if(query.missing, [&](int rank) {
      return std::find(query.waiting.begin(), query.waiting.end(), rank) != query.waiting.end();
    });
    if (query.missing.empty()) return;
  }
  std::sort(query.missing.begin(), query.missing.end());
  std::sort(query.waiting.begin(), query.waiting.end());
  const auto problem =
      comm::lateness(round.members->axis, round.name, round.describe(), query.seconds,
                     query.missing, query.waiting, held_up_by(query) + query.text);
  round.fail(problem, Cause::absence);
}

}  // namespace transport
}  // namespace mw
