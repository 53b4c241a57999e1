// How much memory there is: the machine's, or what its control groups leave of it.
#include "predict/device.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "support/temporary_folder.h"

using mw::machine_memory;
namespace fs = std::filesystem;

namespace {

// A file system of its own, with 8 GiB.
struct Root : TemporaryFolder {
  Root() { write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1 kB\n"); }
};

constexpr std::int64_t GiB = std::int64_t{1} << 30;

}  // namespace

TEST_CASE("Without control groups it is the machine's") {
  const Root root;
  CHECK(machine_memory(root.path()) == 8 * GiB);
  const auto physical = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  CHECK(machine_memory() <= physical);
  CHECK(machine_memory() > physical / 1000);
}

TEST_CASE("The lowest limit of the process' group and of those around it counts") {
  const Root root;
  root.write("proc/self/cgroup", "0::/jobs/one\n");
  root.write("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  CHECK(machine_memory(root.path()) == 8 * GiB);
  root.write("sys/fs/cgroup/jobs/memory.max", "4294967296\n");
  CHECK(machine_memory(root.path()) == 4 * GiB);
  root.write("sys/fs/cgroup/jobs/one/memory.max", "1073741824\n");
  CHECK(machine_memory(root.path()) == 1 * GiB);
}

TEST_CASE("A container's own group lies where groups are mounted, under no path") {
  const Root root;
  root.write("proc/self/cgroup", "0::/../../docker/abc\n");
  root.write("sys/fs/cgroup/memory.max", "2147483648\n");
  CHECK(machine_memory(root.path()) == 2 * GiB);
}

TEST_CASE("Control groups of version 1, and both") {
  const Root root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n");
  root.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(machine_memory(root.path()) == 8 * GiB);
  root.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3221225472\n");
  CHECK(machine_memory(root.path()) == 3 * GiB);
  root.write("sys/fs/cgroup/unified/memory.max", "1073741824\n");
  CHECK(machine_memory(root.path()) == 1 * GiB);
}

TEST_CASE("A limit above the machine's, or no number, is none") {
  const Root root;
  root.write("proc/self/cgroup", "0::/a\nnonsense\n");
  for (const char* text : {"99999999999999", "", "-", "0", "18446744073709551615"}) {
    root.write("sys/fs/cgroup/a/memory.max", text);
    CHECK(machine_memory(root.path()) == 8 * GiB);
  }
}
