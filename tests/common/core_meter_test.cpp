// What else used the cores, by counts that the test writes in the form of /proc and /sys.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "common/core_meter.h"
#include "meshwright/engine/control_groups.h"
#include "support/temporary_folder.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

struct FakeSystem {
  // Hundredths of a second that all cores have worked.
  void worked(int user, int steal = 0) const {
    write("proc/stat", "cpu  " + std::to_string(user) + " 0 0 9999 7 0 0 " + std::to_string(steal) +
                           " 0 0\ncpu0 1 2 3\n");
  }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((folder.path() / file).parent_path());
    std::ofstream(folder.path() / file) << text;
  }
  TemporaryFolder folder;
};

TEST_CASE("Others' cores are what all cores worked less what the run used") {
  const FakeSystem system;
  system.worked(1000);
  CoreMeter meter(system.folder.path(), 10, 5);
  system.worked(1150, 30);  // 1.8 s of cores in 1 s, of which 1.2 s are the run's
  const CoreUse use = meter.take(11, 6.2);
  CHECK(use.others == Approx(0.6));
  CHECK(std::isnan(use.throttled));
  CHECK(std::isnan(use.clock));
  system.worked(1260, 30);  // the run's own alone, and the counts' last hundredth is late
  CHECK(meter.take(12, 7.31).others == 0);
}

TEST_CASE("Short steps are measured with those before them") {
  const FakeSystem system;
  system.worked(100);
  system.write("sys/devices/system/cpu/cpu" + std::to_string(allowed_processors().front()) +
                   "/cpufreq/scaling_cur_freq",
               "2300000\n");
  CoreMeter meter(system.folder.path(), 0, 0);
  system.worked(110);
  CHECK(std::isnan(meter.take(0.1, 0.1).others));  // too short to count hundredths
  system.worked(150);
  CHECK(meter.take(0.3, 0.2).others == Approx(1.0));
  CHECK(meter.take(0.32, 0.2).others == Approx(1.0));  // read a moment ago
  system.worked(170);
  CHECK(meter.take(0.5, 0.4).others == Approx(0.6));
  system.worked(210);
  const CoreUse late = meter.take(0.8, 0.7);  // since 0.3
  CHECK(late.others == Approx(0.1 / 0.5));
  CHECK(late.clock == Approx(2.3e9));
}

TEST_CASE("Throttling counts in both versions of control groups") {
  const FakeSystem system;
  system.worked(100);
  system.write("proc/self/cgroup", "0::/job/step\n4:cpu,cpuacct:/job\n");
  system.write("sys/fs/cgroup/job/step/cpu.stat",
               "usage_usec 5\nnr_throttled 1\nthrottled_usec 0\n");
  system.write("sys/fs/cgroup/cpu/job/cpu.stat", "nr_throttled 1\nthrottled_time 0\n");
  CoreMeter meter(system.folder.path(), 0, 0);
  system.write("sys/fs/cgroup/job/step/cpu.stat", "usage_usec 5\nthrottled_usec 300000\n");
  system.write("sys/fs/cgroup/cpu/job/cpu.stat", "nr_throttled 9\nthrottled_time 100000000\n");
  CHECK(meter.take(1, 0).throttled == Approx(0.4));
}

TEST_CASE("Cores are those that affinity and control groups leave") {
  const FakeSystem system;
  const auto processors = static_cast<int>(allowed_processors().size());
  REQUIRE(processors > 0);
  CHECK(allowed_cores(system.folder.path()) == processors);
  system.write("proc/self/cgroup", "0::/job/step\n4:cpu,cpuacct:/job\n");
  system.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  CHECK(allowed_cores(system.folder.path()) == processors);
  system.write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");  // of a group around
  CHECK(allowed_cores(system.folder.path()) == 1);
  system.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  CHECK(allowed_cores(system.folder.path()) == std::min(2, processors));
  system.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  system.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  CHECK(allowed_cores(system.folder.path()) == std::min(2, processors));
  system.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "80000\n");
  CHECK(allowed_cores(system.folder.path()) == 1);
}

TEST_CASE("Others count on the processors on which this process may run") {
  const FakeSystem system;
  const auto stat = [&](int ours, int elsewhere) {
    int all = elsewhere;
    std::string lines;
    for (const int processor : allowed_processors()) {
      lines += "cpu" + std::to_string(processor) + " " + std::to_string(ours) + " 0 0 9 0 0 0 0\n";
      all += ours;
    }
    lines += "cpu9999 " + std::to_string(elsewhere) + " 0 0 9 0 0 0 0\n";
    system.write("proc/stat", "cpu  " + std::to_string(all) + " 0 0 9 0 0 0 0\n" + lines);
  };
  stat(100, 100);
  CoreMeter meter(system.folder.path(), 0, 0);
  stat(150, 200);  // half a core of each of ours in 1 s, and a core elsewhere
  const auto cores = static_cast<double>(allowed_processors().size());
  CHECK(meter.take(1, 0).others == Approx(0.5 * cores));
}

TEST_CASE("Where nobody says, nothing is known") {
  const FakeSystem system;
  CoreMeter nothing(system.folder.path(), 0, 0);
  CHECK(std::isnan(nothing.take(1, 1).others));
  system.write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\n");  // a sandbox
  CoreMeter zeros(system.folder.path(), 0, 0);
  CHECK(std::isnan(zeros.take(1, 1).others));
}

}  // namespace
}  // namespace mw
