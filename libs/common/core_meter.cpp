// Reads the CPU time of the whole machine, the throttling of control groups and the cores' clock
// from /proc and /sys, and takes off what the run itself used.
#include "common/core_meter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "meshwright/engine/control_groups.h"
#include "meshwright/engine/host.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Seconds. A reading takes some microseconds for each core, so shorter steps share one.
constexpr double between_readings = 0.05;
constexpr int most_clocks = 16;

// The clock ticks that a line of /proc/stat counts as work. NaN if the line lacks the numbers.
double ticks_in(std::istream& line) {
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft = 0, steal = 0;
  if (!(line >> user >> nice >> system >> idle >> waiting >> irq >> soft)) return NAN;
  if (!(line >> steal)) steal = 0;
  return user + nice + system + irq + soft + steal;
}

// Seconds that this process' processors have worked since the machine was started, steal time (the
// hypervisor's other guests) included. Where a container numbers processors otherwise: seconds of
// all processors. NaN: not known, as where a sandbox shows zeros.
double worked_by_all(const fs::path& root) {
  std::ifstream stat(root / "proc/stat");
  const std::vector<int>& allowed = allowed_processors();
  double all = NAN, ours = 0;
  std::size_t found = 0;
  for (std::string text; std::getline(stat, text) && text.starts_with("cpu");) {
    std::istringstream line(text);
    std::string name;
    line >> name;
    const double ticks = ticks_in(line);
    if (name == "cpu") all = ticks;
    int processor = -1;
    std::from_chars(name.data() + 3, name.data() + name.size(), processor);
    if (std::isnan(ticks) || !std::binary_search(allowed.begin(), allowed.end(), processor))
      continue;
    ours += ticks;
    ++found;
  }
  const double ticks = found > 0 && found == allowed.size() ? ours : all;
  return ticks > 0 ? ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) : NAN;
}

// Core-seconds that a control group's limit has kept from the group: microseconds in version 2 of
// control groups, nanoseconds in version 1. 0: the group has no limit.
double throttled_in(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  double count = 0;
  if (!stream.is_open()) return NAN;
  while (stream >> word >> count) {
    if (word == "throttled_usec") return 1e-6 * count;
    if (word == "throttled_time") return 1e-9 * count;
  }
  return 0;
}

}  // namespace

CoreMeter::CoreMeter(fs::path root, double now, double own) : root_(std::move(root)) {
  for (const ControlGroup& group : control_groups("cpu", root_)) {
    std::error_code error;
    if (const fs::path file = group.folder / "cpu.stat"; fs::exists(file, error))
      limits_.push_back(file);
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
  const std::vector<int>& processors = allowed_processors();
  const std::size_t apart = std::max<std::size_t>(1, processors.size() / most_clocks);
  for (std::size_t i = 0; i < processors.size(); i += apart) {
    double kilohertz = 0;
    std::ifstream file(root_ / fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq",
                                           processors[i]));
    if (!(file >> kilohertz) || kilohertz <= 0) continue;
    sum += 1e3 * kilohertz;
    ++found;
  }
  return found > 0 ? sum / found : CoreUse::unknown;
}

CoreUse CoreMeter::take(double now, double own) {
  if (now - readings_.back().now < between_readings) return last_;
  readings_.push_back(read(now, own));
  // Keeps the latest reading that is at least `window` old, or else the first one.
  while (readings_.size() > 2 && now - readings_[1].now >= window) readings_.pop_front();
  const Reading &from = readings_.front(), &to = readings_.back();
  last_ = {};
  const double seconds = to.now - from.now;
  if (seconds < least) return last_;
  const double others = (to.all - from.all - (to.own - from.own)) / seconds;
  // A control group may leave this process fewer cores than it has processors. The rest is for
  // others.
  const int spare = std::max(0, static_cast<int>(allowed_processors().size()) - core_count());
  if (!std::isnan(others)) last_.others = std::max(0.0, others - spare);
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
