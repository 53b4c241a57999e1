// The thread of a process that talks to the others: it starts rounds whose members are here, moves
// their bytes, passes on failures, and sleeps when there is nothing to do. Rank threads hand it
// rounds and wait for those alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "meshwright/backend.h"
#include "meshwright/engine/pack.h"
#include "meshwright/process_link.h"
#include "transport/round.h"

namespace mw::transport {

// What ended a run: the first rank that failed, and why.
struct Failure {
  int rank = 0;
  std::string reason;
};

// What is known of a rank when one is missed.
struct Whereabouts {
  int rank = 0;
  bool here = false;  // in the round in question
  std::string text;   // "last completed … and now waits …"
};

// The ranks of the run that is under way; called by the engine's thread.
class Host {
 public:
  virtual ~Host() = default;
  virtual void rank_failed(int rank, const std::string& reason) = 0;
  virtual void rank_ended(int rank) = 0;
  virtual bool has_ended(int rank) const = 0;
  virtual std::vector<int> ranks_of(int process) const = 0;
  // Why no rank goes on, if none does.
  virtual std::optional<std::string> stopped() const = 0;
  virtual std::vector<Whereabouts> where(std::uint64_t round, const std::vector<int>& ranks) = 0;
  // Ranks of this process that run and wait for no other one.
  virtual std::vector<comm::IdleRank> idle() = 0;
};

// What a message between engines is, its first byte.
enum class Message : std::uint8_t {
  arrive,   // all of this process's members of a round are there, and what they called
  credit,   // more blocks of a round may be sent
  aborted,  // a rank cannot go on
  ended,    // a rank makes no further calls
  query,    // where are these ranks?
  answer,
  posted,   // Carrier::post
  goodbye,  // this process will send nothing more
};

class Engine {
 public:
  // Joins the processes by its own thread; throws what `join` does.
  explicit Engine(const std::function<std::unique_ptr<Link>()>& join);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int processes() const { return link_->processes(); }
  int process() const { return link_->process(); }
  bool together(int a, int b) const { return link_->together(a, b); }
  Link& link() const { return *link_; }

  // One host at a time; the number of a run is the same in all processes.
  std::uint32_t begin(Host* host);
  void leave();  // no more calls of the host once it has returned

  void submit(std::shared_ptr<Round> round);  // whose members here have all arrived
  // A member gives up without having waited: the round fails; nobody touches its memory afterwards.
  void drop(std::shared_ptr<Round> round, const Problem& problem);
  // A member has waited for `seconds`: asks the missing ones' processes, then fails the round.
  void late(std::shared_ptr<Round> round, double seconds);
  // What there is to say of the ranks at which all waiting ends (comm::held_up_by), of all
  // processes, which are asked for it; takes a second where one does not answer. Not called by the
  // engine's thread.
  std::string held_up_by(const std::vector<int>& missing);
  void failed(int rank, const std::string& reason);  // for all other processes
  void ended(int rank);

  void post(int to, std::string bytes);
  std::optional<std::string> take(int from, std::chrono::milliseconds timeout);
  static std::string posted(const std::string& bytes);  // the message that post() sends
  void end(bool well) noexcept;

 private:
  struct Early {  // an arrival at a round that is not under way here yet
    std::uint32_t run = 0, handle = 0;
    int process = 0;
    std::vector<comm::Call> calls;
  };
  // All other processes are asked about a round that is late, or, without one, about ranks that
  // hold up others.
  struct Query {
    std::shared_ptr<Round> round;
    double seconds = 0;
    std::vector<int> missing, waiting, asked;  // ranks, ranks, processes that have not answered
    std::map<int, std::vector<int>> about;     // by process: ranks of the round
    std::vector<comm::IdleRank> idle;          // of all who have answered
    std::string text;                          // of the missing ranks
    std::shared_ptr<std::promise<std::string>> words;  // without a round: held_up_by()
    std::chrono::steady_clock::time_point until;

    void take(const std::vector<Whereabouts>& where);  // what a process says of its ranks
  };
  struct Heard {  // of a run that has not begun here
    std::vector<std::pair<int, std::string>> failed;
    std::vector<int> ended;
  };

  void run(const std::function<std::unique_ptr<Link>()>& join,
           const std::function<void(std::exception_ptr)>& joined);
  void loop();
  void task(std::function<void()> work);
  bool run_tasks();
  bool sweep();  // ends rounds that are through
  bool finished(std::chrono::steady_clock::time_point now);
  std::chrono::nanoseconds patience(std::chrono::steady_clock::time_point idle_since) const;

  void start(const std::shared_ptr<Round>& round);
  void came(Round& round, Round::Peer& peer, StreamKind kind);
  bool pump();
  void arrived(Round& round, const Early& arrival);
  void ask(const std::shared_ptr<Round>& round, double seconds);
  void ask_all(Query query);
  std::string held_up_by(const Query& query) const;
  void conclude(Query& query);
  void check_queries();
  void check_ended(Round& round);
  void lost(int process, const std::string& why, bool dead = true);
  void heard(int from, std::string_view bytes);
  void understand(int from, std::string_view bytes);
  void hear_arrival(int from, Unpacker& message);
  void answer(int from, Unpacker& message);
  void hear_answer(int from, Unpacker& message);
  void rank_failed(std::uint32_t run, int rank, const std::string& reason);
  void rank_ended(std::uint32_t run, int rank);
  void send_all(const std::string& bytes);
  void fail_all(const std::string& message);
  std::string title_of(int process) const;  // for the beginning of a sentence

  std::unique_ptr<Link> link_;
  std::jthread thread_;
  Link::Receiver receiver_;

  // What only the engine's thread touches.
  Host* host_ = nullptr;
  std::uint32_t run_ = 0, next_handle_ = 0, next_query_ = 0;
  std::vector<std::shared_ptr<Round>> running_;
  std::vector<std::shared_ptr<Round>> kept_;  // failed, and the link still has their memory
  std::unordered_map<std::uint32_t, Round*> by_handle_;
  std::unordered_map<std::uint64_t, Round*> by_id_;
  std::unordered_map<std::uint64_t, std::vector<Early>> early_;
  std::map<std::uint32_t, Heard> heard_;
  std::map<std::uint32_t, Query> queries_;
  std::vector<std::uint64_t> late_once_;
  Scratch scratch_;
  bool is_off(int process) const {
    const auto p = static_cast<std::size_t>(process);
    return gone_[p] != 0 || left_[p] != 0;
  }
  std::vector<char> gone_, left_;  // by process: died; said goodbye
  bool clean_ = true, all_clean_ = true;
  bool ending_ = false, well_ = false;
  std::chrono::steady_clock::time_point ending_since_;

  std::mutex tasks_lock_;
  std::vector<std::function<void()>> tasks_;

  std::mutex inbox_lock_;
  std::condition_variable inbox_news_;
  std::vector<std::deque<std::string>> inbox_;
  std::vector<std::string> silent_;  // by process: why nothing more comes from it
  std::atomic<int> takers_{0};
  bool over_ = false;
};

}  // namespace mw::transport
