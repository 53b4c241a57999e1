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
  double others = unknown;     // number of this process' cores that others used on average
  double throttled = unknown;  // cores that a limit of its control groups kept from this process
  double clock = unknown;      // mean clock rate of the cores in Hz, at the end of the stretch
};

class CoreMeter {
 public:
  // Reads for the first time. `now`: by seconds_now(); `own`: CPU seconds that the run has used.
  CoreMeter(std::filesystem::path root, double now, double own);

  // The use of the cores since the last call. The system counts in hundredths of a second, so a
  // stretch shorter than `window` is measured together with the time right before it. All numbers
  // are NaN where this gives less than `least`.
  CoreUse take(double now, double own);

  static constexpr double window = 0.5, least = 0.2;  // seconds

 private:
  struct Reading {
    double now = 0, own = 0;
    double all = CoreUse::unknown, throttled = CoreUse::unknown;  // core-seconds so far
  };
  Reading read(double now, double own) const;
  double clock() const;

  std::filesystem::path root_;
  std::vector<std::filesystem::path> limits_;  // files of control groups that count throttling
  std::deque<Reading> readings_;
  CoreUse last_;
};

// Whether others used so many of `cores` cores that times measured meanwhile mean little. False
// where `others` is NaN (not known).
bool are_busy(double others, int cores);

// Waits for `seconds`, and returns how many cores other programs used meanwhile. NaN: not known.
double others_cores_during(double seconds);

}  // namespace mw
