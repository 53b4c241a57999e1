// How much of its time a run on many devices makes progress: failures, checkpoints, restarts and
// slow devices, in closed form and by simulation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

// The run whose goodput is asked for. Times are in seconds.
struct GoodputRequest {
  double step = 0;  // seconds of a step where nothing fails
  double devices = 1;
  double mtbf = 0;        // mean time between failures of one device; any stops the run
  double checkpoint = 0;  // seconds for which training stops at each checkpoint
  double restart = 0;     // seconds from a failure to the first step after it
  double interval = 0;    // seconds between checkpoints; 0: the best interval
  double days = 30;       // days to simulate, or more until enough failures have come
  std::uint64_t seed = 1;
  // Slow devices: mean time between slow spells of one device (0: none), how long a spell lasts,
  // and a step's time with a slow device over its time without.
  double slow_mtbf = 0, slow_seconds = 0, slowdown = 1;
  // Causes of failures. `mtbf`: mean time between failures of that cause, of one device; `restart`:
  // as above. Where there are causes, `mtbf` and `restart` above are those of all causes together.
  struct Cause {
    std::string name;
    double mtbf = 0, restart = 0;
  };
  std::vector<Cause> causes;
};

// Shares of the whole time; together they are 1.
struct GoodputShares {
  double useful = 0;  // steps that are kept, at full speed
  double repeated = 0, checkpoints = 0, restarts = 0, slow = 0;
};

struct Goodput {
  double failure_seconds = 0;  // mean time between failures of the run
  // Best intervals between checkpoints (Young 1974; Daly 2006, equation 37).
  double young = 0, daly = 0;
  double best = 0;      // the best of the simulated intervals
  double interval = 0;  // the interval that the members below are for, a whole number of steps
  std::int64_t interval_steps = 0;
  // Useful share by Daly's expected time (equation 20), with slow devices on average.
  double closed_form = 0;
  GoodputShares simulated;
  std::int64_t failures = 0;  // failures in the simulation
  // The failures of one cause, and the share of the time that they cost in repeated work and
  // restarts.
  struct OfCause {
    std::int64_t failures = 0;
    double lost = 0;
  };
  std::vector<OfCause> causes;
};

// The best interval between checkpoints by Young's formula, and by Daly's.
double young_interval(double checkpoint, double failure_seconds);
double daly_interval(double checkpoint, double failure_seconds);
// The useful share of the time with checkpoints `interval` seconds apart, in closed form.
double expected_goodput(const GoodputRequest& request, double interval);
GoodputShares simulate_goodput(const GoodputRequest& request, std::int64_t interval_steps,
                               std::int64_t* failures = nullptr,
                               std::vector<Goodput::OfCause>* causes = nullptr);

Goodput goodput(const GoodputRequest& request);

// Reads a script's table; problems have their keys under `path`.
GoodputRequest read_goodput(const Json& table, const std::string& path, Problems& problems);
Json to_json(const Goodput& goodput, const GoodputRequest& request);
std::string text_of(const Goodput& goodput, const GoodputRequest& request);

}  // namespace mw
