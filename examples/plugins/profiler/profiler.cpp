// A profiler: what each rank does in a few steps, as a file in Chrome's trace format, which
// https://ui.perfetto.dev and chrome://tracing show. The format: Google, "Trace Event Format", 2016.
#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "meshwright/engine/host.h"
#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/observer.h"
#include "meshwright/plugin.h"

namespace {

// Watches one rank: each op of the graph between its operands, which are shown just before its
// forward, and its results.
class Ops final : public mw::Watcher {
 public:
  void reads(const mw::Instruction& i, int, int, const at::Tensor&) override {
    if (op_ == i.op) return;  // another of its operands
    op_ = i.op;
    began_ = mw::seconds_now();
  }
  void computed(const mw::Instruction& i, int, int microbatch, const at::Tensor&) override {
    if (i.piece != mw::Piece::forward || op_ != i.op) return;
    events.push_back({{"name", i.label},
                      {"microbatch", microbatch},
                      {"began", began_},
                      {"ended", mw::seconds_now()}});
    op_ = -1;
  }
  void gradients(mw::RankRun&) override {}

  std::vector<mw::Json> events;

 private:
  int op_ = -1;
  double began_ = 0;
};

class Profiler final : public mw::RunObserver {
 public:
  static mw::Options options() {
    return mw::Options()
        .text("path", "the file to write; each further process adds its first rank to the name")
        .fallback("profile.json")
        .positional("path")
        .integer("first", "the first step that is profiled")
        .at_least(0)
        .fallback(1)
        .integer("steps", "how many steps are profiled")
        .at_least(1)
        .fallback(3)
        .boolean("ops", "whether each op's forward has a line of its own")
        .fallback(false);
  }
  explicit Profiler(const mw::Values& values)
      : path_(values.text("path")),
        first_(values.integer("first")),
        steps_(values.integer("steps")),
        ops_(values.flag("ops")) {}

  // Each rank calls these in a thread of its own.
  void begin(mw::RankRun& rank) override {
    const std::lock_guard lock(mutex_);
    if (++under_way_ == 1 && !std::ofstream(path_, std::ios::app)) refuse(path_);
    Ops& ops = watchers_[rank.rank()];
    if (ops_) rank.watch(&ops);
  }

  void step(mw::RankRun& rank, mw::StepEnd& end) override {
    const std::lock_guard lock(mutex_);
    Ops& ops = watchers_.at(rank.rank());
    if (end.step >= first_ && end.step < first_ + steps_) {
      const double began = end.outcome.began;
      for (const mw::RunTime& run : end.outcome.runs) {
        const mw::Segment& segment = rank.program().segments[static_cast<std::size_t>(run.segment)];
        add(rank.rank(), end.step, segment.name, run.microbatch, began + run.start,
            began + run.end);
      }
      for (const mw::Json& op : ops.events)
        add(rank.rank(), end.step, op["name"], op["microbatch"], op["began"], op["ended"]);
    }
    ops.events.clear();
  }

  void finish(mw::RankRun& rank) override {
    const std::lock_guard lock(mutex_);
    if (ops_) rank.unwatch(&watchers_.at(rank.rank()));
    if (--under_way_ == 0) write();
  }

  void failed(const mw::RankFailed&) override { write(); }

 private:
  void add(int rank, std::int64_t step, const std::string& name, int microbatch, double began,
           double ended) {
    events_.push_back({{"name", name},
                       {"ph", "X"},
                       {"pid", 0},
                       {"tid", rank},
                       {"ts", 1e6 * began},
                       {"dur", 1e6 * (ended - began)},
                       {"args", {{"step", step}, {"microbatch", microbatch}}}});
  }

  void write() const {
    const int first = watchers_.empty() ? 0 : watchers_.begin()->first;
    const std::string path = first == 0 ? path_ : path_ + ".rank" + std::to_string(first);
    std::ofstream file(path);
    file << mw::Json{{"traceEvents", events_}, {"displayTimeUnit", "ms"}};
    if (!file.flush()) refuse(path);
  }

  [[noreturn]] static void refuse(const std::string& path) {
    throw mw::Error(mw::Stage::run, "file.access", "path", "cannot write " + path,
                    "name a file in a folder that is there, on a disk with room");
  }

  const std::string path_;
  const std::int64_t first_, steps_;
  const bool ops_;
  std::mutex mutex_;
  std::map<int, Ops> watchers_;  // by rank
  int under_way_ = 0;            // ranks that have begun and not finished
  mw::Json events_ = mw::Json::array();
};

}  // namespace

MESHWRIGHT_PLUGIN("profiler", "1.0.0", "what ranks do in some steps, in Chrome's trace format",
                  mw::observer<Profiler>())
