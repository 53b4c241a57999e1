// The control groups that limit this process: what containers and job schedulers set.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mw {

// A group, and where the tree that it belongs to is mounted. Inside a container its own group is
// often mounted as the outermost, under a path that is not there.
struct ControlGroup {
  std::filesystem::path mounted;  // of version 1 the tree of its controller
  std::filesystem::path group;    // relative to it
  bool first_version = false;
};

// Lists the groups of a controller ("memory", "cpu") in both versions, as a machine may have both;
// the outermost where the system names none. `root`: of the file system, for tests.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = "/");

}  // namespace mw
