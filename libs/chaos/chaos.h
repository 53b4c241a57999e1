// Faults on purpose: a training is disturbed again and again, by a seed, and what it makes of each
// fault is noted.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chaos/disturbed_run.h"
#include "chaos/order.h"
#include "meshwright/json.h"

namespace mw::chaos {

struct Wishes {
  Start start;
  std::vector<std::string> kinds;  // names; empty: all that apply
  double minutes = 0;              // no further fault after that; 0: no limit
  std::int64_t faults = 0;         // so many at most; 0: no limit
  double every = 5;                // seconds from one to the next, half as many to one and a half
  std::uint64_t seed = 1;
};

// What became of a fault.
struct Record {
  std::int64_t number = 0;
  std::string kind, where;    // where: "rank 2, all-reduce on dp for 'embedding' (gradients)"
  std::int64_t step = -1;     // the training's next one
  double at = 0;              // seconds since the command began
  bool met = false;           // it came about
  bool must_be_told = false;  // the run has something to say of it
  bool told = false;
  std::string said;  // what the run said, its first sentence
  bool parted =
      false;  // losses were others after it, which no run can see; the training was given up
  bool ended = false;
  std::int64_t starts = 0;  // of the command, until it went on
  std::int64_t from = -1;   // the step that it went on from; -1: it never ended
  double seconds = 0;       // until a step was done that had not been done before
  // The processes of the ranks after it, and the bytes that they hold together.
  std::vector<pid_t> processes;
  std::int64_t resident = 0;
  // How much more that is than when they had settled; none: they have not yet.
  std::optional<std::int64_t> grown;
  std::string wrong;  // what should not have happened; empty: nothing
  Json to_json() const;
};

struct Outcome {
  std::vector<Record> records;
  std::int64_t ranks = 0, steps = 0;  // of the training
  std::int64_t rounds = 0;            // that came to their end, with all losses right
  std::int64_t weighed = 0;           // looks that were compared with a start's first one
  std::int64_t grown = 0;             // bytes, at most, by which a start's processes have grown
  std::vector<std::string> wrong;     // that belongs to no fault
  bool interrupted = false;
  bool good() const;
  // Why nothing is known of what the training makes of faults; empty: a fault has come about.
  std::string why_untried() const;
  Json to_json() const;
  std::string text() const;  // the table
};

// Who hears of what happens.
struct Listener {
  std::function<void(const std::string&)> say;
  // How far the training without faults is.
  std::function<void(std::int64_t done, std::int64_t steps, double loss)> progress;
  std::function<void(const Record&)> heard;  // of each fault
};

// Trains once without faults, then with them, in `folder`, which is there and empty. Throws Error
// (script, "chaos.script") if the script does not train once, or not well; Error (script,
// "usage.value") for kinds that do not apply to it.
Outcome disturb(const Wishes& wishes, const std::filesystem::path& folder,
                const Listener& listener);

}  // namespace mw::chaos
