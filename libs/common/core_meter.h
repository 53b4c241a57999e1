// Measures what else used the cores of this machine while a run was under way: other programs,
// other guests of its hypervisor, and limits that a container or a job scheduler sets.
#pragma once

#include <deque>
#include <filesystem>
#include <limits>
#include <vector>

namespace mw {

// How this process and others used the cores between two readings. A number is NaN where the system
// does not tell it.
struct CoreUse {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  double others = unknown;     // of this process' cores, what others had of them on average
  double throttled = unknown;  // cores that a limit of its control groups kept from this process
  double clock = unknown;      // Hz of the cores, on average, at the end of the stretch
};

class CoreMeter {
 public:
  // Reads for the first time. `now`: by seconds_now(); `own`: CPU seconds that the run has used.
  CoreMeter(std::filesystem::path root, double now, double own);

  // Says what has happened since the last call. The system counts in hundredths of a second, so a
  // stretch that is shorter than `window` is measured together with what came right before it, and
  // less than `least` altogether is not known.
  CoreUse take(double now, double own);

  static constexpr double window = 0.5, least = 0.2;  // seconds

 private:
  struct Reading {
    double now = 0, own = 0;
    double all = CoreUse::unknown, throttled = CoreUse::unknown;  // seconds of cores
  };
  Reading read(double now, double own) const;
  double clock() const;

  std::filesystem::path root_;
  std::vector<std::filesystem::path> limits_;  // files of control groups that count throttling
  std::deque<Reading> readings_;
  CoreUse last_;
};

// Whether others had so many of these cores that times measured meanwhile mean little. False where
// `others` is NaN, which stands for "not known".
bool are_busy(double others, int cores);

// Waits for so many seconds, and says how many cores other programs had meanwhile. NaN: not known.
double others_cores_during(double seconds);

}  // namespace mw
