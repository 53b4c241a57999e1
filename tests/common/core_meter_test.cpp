// What else used the cores, by counts that the test writes in the form of /proc and /sys.
#include <catch2/catch.hpp>

#include <cmath>
#include <fstream>

#include "common/core_meter.h"
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
  system.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2300000\n");
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
