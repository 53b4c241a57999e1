// What the system lets this process use of its machine: the control groups that limit it, which
// containers and job schedulers set, and the processors on which it may run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mw {

// The folder that the system's counts and limits are read from: "/", or what the environment
// variable MESHWRIGHT_SYSTEM_ROOT names, so that tests can bring counts of their own.
std::filesystem::path system_root();

// The folder of a control group, whose files hold its limits and counts.
struct ControlGroup {
  std::filesystem::path folder;
  bool first_version = false;
};

// Lists the groups of a controller ("memory", "cpu") that this process is in, in both versions, as
// a machine may have both: each before those around it, up to where their tree is mounted. Inside a
// container its own group is often mounted as the outermost, under a path that is not there, so
// not all of these folders exist.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = system_root());

// The numbers of the processors on which this process may run, by its affinity (taskset, a batch
// system, a cpuset). They are read once, before any thread has been given fewer. Empty: the system
// does not say.
const std::vector<int>& allowed_processors();

// How many cores this process may use at once: so many as it has processors, or fewer where a
// control group limits its CPU time. One that gets 1.5 seconds of a core each second has two: each
// may work for three quarters of the time. At least 1.
int allowed_cores(const std::filesystem::path& root = system_root());

}  // namespace mw
