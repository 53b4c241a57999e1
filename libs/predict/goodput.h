// How much of its time a run on many devices makes progress: failures, checkpoints, restarts and
// slow devices, in closed form and by simulation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

// Times in seconds.
struct GoodputRequest {
  double step = 0;  // that a step takes where nothing fails
  double devices = 1;
  double mtbf = 0;        // mean time between failures of one device; any stops the run
  double checkpoint = 0;  // for which training stops at each checkpoint
  double restart = 0;     // from a failure to the first step after it
  double interval = 0;    // between checkpoints; 0: the best
  double days = 30;       // that are simulated, at least; short runs are repeated
  std::uint64_t seed = 1;
  // Slow devices: mean time between them for one device (0: none), how long one stays, and what a
  // step then takes over what it takes else.
  double slow_mtbf = 0, slow_seconds = 0, slowdown = 1;
  // Causes of failures. `mtbf`: mean time between failures of that cause, of one device; `restart`:
  // as above. Where there are causes, `mtbf` and `restart` above are those of all causes together.
  struct Cause {
    std::string name;
    double mtbf = 0, restart = 0;
  };
  std::vector<Cause> causes;
};

// Shares of the whole time; with `useful` they are 1.
struct GoodputShares {
  double useful = 0;  // steps that are kept, at full speed
  double repeated = 0, checkpoints = 0, restarts = 0, slow = 0;
};

struct Goodput {
  double failure_seconds = 0;  // mean time between failures of the run
  double young = 0, daly = 0;  // intervals (Young 1974; Daly 2006, equation 37)
  double best = 0;             // the best that was simulated
  double interval = 0;         // what the following is of, a whole number of steps
  std::int64_t interval_steps = 0;
  double closed_form = 0;  // useful, by Daly's expected time (equation 20); slow devices in average
  GoodputShares simulated;
  std::int64_t failures = 0;  // simulated
  // What each cause brings about: its failures, and the share of the time that they cost, by work
  // that is repeated and by restarts.
  struct OfCause {
    std::int64_t failures = 0;
    double lost = 0;
  };
  std::vector<OfCause> causes;
};

// Young's interval, and Daly's.
double young_interval(double checkpoint, double failure_seconds);
double daly_interval(double checkpoint, double failure_seconds);
// Useful share with checkpoints so far apart, in closed form.
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
