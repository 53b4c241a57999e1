// The limits that the operating system sets for this process: its control groups, which containers
// and job schedulers set up, and the processors on which it may run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mw {

// The root folder under which the system's counts and limits are read: "/", or the value of the
// environment variable MESHWRIGHT_SYSTEM_ROOT, by which tests supply counts of their own.
std::filesystem::path system_root();

// The folder of a control group, whose files hold its limits and counts.
struct ControlGroup {
  std::filesystem::path folder;
  bool first_version = false;  // whether it is a group of cgroups version 1
};

// Lists the control groups of a controller ("memory", "cpu") that this process is in, of versions 1
// and 2, since a machine may have both. The innermost group comes first, the mount point of its
// tree last. Some of these folders may not exist: in a container, the container's own group is
// often mounted as the root, while the listed paths are those of the host.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = system_root());

// The numbers of the processors on which this process may run, by its CPU affinity (taskset, a
// batch system, a cpuset). They are read once, before any thread gets a smaller affinity. Empty:
// the system does not say.
const std::vector<int>& allowed_processors();

// How many cores this process may use at once, at least 1: the number of its processors, or fewer
// if a control group limits its CPU time. A limit is rounded up: 1.5 seconds of CPU time per second
// are two cores, each busy for three quarters of the time.
int allowed_cores(const std::filesystem::path& root = system_root());

}  // namespace mw
