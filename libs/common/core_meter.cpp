// Reads the CPU time of the whole machine, the throttling of control groups and the cores' clock
// from /proc and /sys, and takes off what the run itself used.
#include "common/core_meter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "common/control_groups.h"
#include "meshwright/engine/host.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Reading takes some microseconds for each core, so steps that are shorter share a reading.
constexpr double between_readings = 0.05;
constexpr int most_clocks = 16;

// Seconds that all cores have worked since the machine was started, those that the hypervisor gave
// to other guests included; NaN: not known, as where a sandbox shows zeros.
double worked_by_all(const fs::path& root) {
  std::ifstream stat(root / "proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft = 0, steal = 0;
  if (!(stat >> word >> user >> nice >> system >> idle >> waiting >> irq >> soft)) return NAN;
  if (!(stat >> steal)) steal = 0;
  const double ticks = user + nice + system + irq + soft + steal;
  return ticks > 0 ? ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) : NAN;
}

// Seconds of cores that the group's limit has kept from it: microseconds in version 2 of control
// groups, nanoseconds in version 1. 0: it has no limit.
double throttled_in(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  double count = 0;
  while (stream >> word >> count) {
    if (word == "throttled_usec") return 1e-6 * count;
    if (word == "throttled_time") return 1e-9 * count;
  }
  return 0;
}

}  // namespace

fs::path system_root() {
  const char* named = std::getenv("MESHWRIGHT_SYSTEM_ROOT");
  return named != nullptr && *named != '\0' ? named : "/";
}

CoreMeter::CoreMeter(fs::path root, double now, double own) : root_(std::move(root)) {
  for (const ControlGroup& of : control_groups("cpu", root_)) {
    for (fs::path group = of.group;; group = group.parent_path()) {
      std::error_code error;
      if (const fs::path file = of.mounted / group / "cpu.stat"; fs::exists(file, error))
        limits_.push_back(file);
      if (group.empty()) break;
    }
  }
  readings_.push_back(read(now, own));
}

CoreMeter::Reading CoreMeter::read(double now, double own) const {
  double throttled = limits_.empty() ? CoreUse::unknown : 0;
  for (const fs::path& file : limits_) throttled += throttled_in(file);
  return {now, own, worked_by_all(root_), throttled};
}

double CoreMeter::clock() const {
  double sum = 0;
  int found = 0;
  const int cores = core_count(), apart = std::max(1, cores / most_clocks);
  for (int core = 0; core < cores; core += apart) {
    double kilohertz = 0;
    std::ifstream file(root_ /
                       fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", core));
    if (!(file >> kilohertz) || kilohertz <= 0) continue;
    sum += 1e3 * kilohertz;
    ++found;
  }
  return found > 0 ? sum / found : CoreUse::unknown;
}

CoreUse CoreMeter::take(double now, double own) {
  if (now - readings_.back().now < between_readings) return last_;
  readings_.push_back(read(now, own));
  // The latest reading that is a window ago; where there is none, the first one.
  while (readings_.size() > 2 && now - readings_[1].now >= window) readings_.pop_front();
  const Reading &from = readings_.front(), &to = readings_.back();
  last_ = {};
  const double seconds = to.now - from.now;
  if (seconds < least) return last_;
  const double others = (to.all - from.all - (to.own - from.own)) / seconds;
  if (!std::isnan(others)) last_.others = std::max(0.0, others);
  if (const double held = (to.throttled - from.throttled) / seconds; !std::isnan(held))
    last_.throttled = std::max(0.0, held);
  last_.clock = clock();
  return last_;
}

bool are_busy(double others, int cores) {
  // A share of the cores. Counting in hundredths of a second errs by a third of it in half a second
  // on two cores.
  constexpr double quiet = 0.1;
  return others > quiet * cores;
}

double others_cores_during(double seconds) {
  CoreMeter meter(system_root(), seconds_now(), cpu_seconds_now());
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return meter.take(seconds_now(), cpu_seconds_now()).others;
}

}  // namespace mw
