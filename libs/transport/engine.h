// The engine: the one thread of a process that talks to others. It starts rounds (round.h) whose
// members here have all arrived, moves their bytes, passes on failures, and sleeps when there is
// nothing to do. Rank threads hand it rounds and wait for those alone.
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

// Where a rank is, as its process reports it when a collective is late.
struct Whereabouts {
  int rank = 0;
  bool here = false;  // the rank has joined the round in question
  std::string text;   // "last completed … and now waits …"
};

// The ranks of the run that is under way, as the engine sees them. Called by the engine's thread.
class Host {
 public:
  virtual ~Host() = default;
  virtual void rank_failed(int rank, const std::string& reason) = 0;
  virtual void rank_ended(int rank) = 0;
  virtual bool has_ended(int rank) const = 0;
  virtual std::vector<int> ranks_of(int process) const = 0;
  // The reason why the run was stopped; nullopt while it goes on.
  virtual std::optional<std::string> stopped() const = 0;
  virtual std::vector<Whereabouts> where(std::uint64_t round, const std::vector<int>& ranks) = 0;
  // Ranks of this process that have not ended and wait for no other rank.
  virtual std::vector<comm::IdleRank> idle() = 0;
};

// Kind of a message between engines; its first byte.
enum class Message : std::uint8_t {
  arrive,   // all members of a round in the sending process have arrived, with their calls
  credit,   // the receiver may send more blocks of a round
  aborted,  // a rank cannot go on
  ended,    // a rank makes no further calls
  query,    // asks where some ranks are
  answer,
  posted,   // a message of Carrier::post
  goodbye,  // this process will send nothing more
};

class Engine {
 public:
  // Starts the thread, which joins the processes by `join`. Throws what `join` throws.
  explicit Engine(const std::function<std::unique_ptr<Link>()>& join);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int processes() const { return link_->processes(); }
  int process() const { return link_->process(); }
  bool together(int a, int b) const { return link_->together(a, b); }
  Link& link() const { return *link_; }

  // Begins a run with the ranks of `host`; one run at a time. Returns the run's number, the same in
  // all processes.
  std::uint32_t begin(Host* host);
  void leave();  // ends the run; the host is not called any more after it returns

  // starts a round whose members in this process have all arrived
  void submit(std::shared_ptr<Round> round);
  // Fails a round that a member gives up unwaited. Returns when the engine has let go of its
  // memory.
  void drop(std::shared_ptr<Round> round, const Problem& problem);
  // A member has waited for `seconds`: asks other processes for the missing ranks, then fails the
  // round with their answers.
  void late(std::shared_ptr<Round> round, double seconds);
  // A text that names the ranks, of any process, at which all waiting ends (comm::held_up_by). Asks
  // all other processes; takes a second or two where one does not answer. Not to be called by the
  // engine's thread.
  std::string held_up_by(const std::vector<int>& missing);
  void failed(int rank, const std::string& reason);  // tells all processes that a rank has failed
  void ended(int rank);

  void post(int to, std::string bytes);
  std::optional<std::string> take(int from, std::chrono::milliseconds timeout);
  // the bytes of the message that post() sends
  static std::string posted(const std::string& bytes);
  void end(bool well) noexcept;

 private:
  struct
      EarlyArrival {  // an `arrive` message for a round that is not under way in this process yet
    std::uint32_t run = 0, handle = 0;
    int process = 0;
    std::vector<comm::Call> calls;
  };
  // A question to all other processes: about a round that is late, or, without a round, about ranks
  // that hold up others.
  struct Query {
    std::shared_ptr<Round> round;
    double seconds = 0;
    // Ranks that are missing, ranks that wait in the round, processes that have not answered.
    std::vector<int> missing, waiting, asked;
    // by process: the ranks of the round that it is asked about
    std::map<int, std::vector<int>> about;
    std::vector<comm::IdleRank> idle;  // idle ranks of all processes that have answered
    std::string text;                  // sentences that say where the missing ranks are
    // without a round: the result of held_up_by()
    std::shared_ptr<std::promise<std::string>> words;
    std::chrono::steady_clock::time_point until;

    // adds what a process answers about its ranks
    void take(const std::vector<Whereabouts>& where);
  };
  struct NewsOfLaterRun {  // failed and ended ranks of a run that has not begun here
    std::vector<std::pair<int, std::string>> failed;
    std::vector<int> ended;
  };

  void run(const std::function<std::unique_ptr<Link>()>& join,
           const std::function<void(std::exception_ptr)>& joined);
  void loop();
  void task(std::function<void()> work);
  bool run_tasks();
  bool sweep();  // removes rounds that are over; true if there were any
  bool finished(std::chrono::steady_clock::time_point now);
  std::chrono::nanoseconds patience(std::chrono::steady_clock::time_point idle_since) const;

  void start(const std::shared_ptr<Round>& round);
  void came(Round& round, Round::Peer& peer, StreamKind kind);
  bool pump();
  void arrived(Round& round, const EarlyArrival& arrival);
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
  std::string title_of(
      int process) const;  // a process' name with a capital letter, to begin a sentence

  std::unique_ptr<Link> link_;
  std::jthread thread_;
  Link::Receiver receiver_;

  // Touched by the engine's thread alone, down to ending_since_.
  Host* host_ = nullptr;
  std::uint32_t run_ = 0, next_handle_ = 0, next_query_ = 0;
  std::vector<std::shared_ptr<Round>> running_;
  std::vector<std::shared_ptr<Round>> kept_;  // failed rounds whose memory the link still uses
  std::unordered_map<std::uint32_t, Round*> by_handle_;
  std::unordered_map<std::uint64_t, Round*> by_id_;
  std::unordered_map<std::uint64_t, std::vector<EarlyArrival>> early_;
  std::map<std::uint32_t, NewsOfLaterRun> heard_;
  std::map<std::uint32_t, Query> queries_;
  std::vector<std::uint64_t> late_once_;
  Scratch scratch_;
  bool is_off(int process) const {
    const auto p = static_cast<std::size_t>(process);
    return gone_[p] != 0 || left_[p] != 0;
  }
  std::vector<char> gone_, left_;  // by process: whether it died; whether it said goodbye
  bool clean_ = true, all_clean_ = true;
  bool ending_ = false, well_ = false;
  std::chrono::steady_clock::time_point ending_since_;

  std::mutex tasks_lock_;
  std::vector<std::function<void()>> tasks_;

  std::mutex inbox_lock_;
  std::condition_variable inbox_news_;
  std::vector<std::deque<std::string>> inbox_;
  // by process: why no more messages come from it; empty if some may
  std::vector<std::string> silent_;
  std::atomic<int> takers_{0};
  bool over_ = false;
};

}  // namespace mw::transport
