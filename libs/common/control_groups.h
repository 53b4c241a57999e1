// The control groups that limit this process' memory: what containers and job schedulers set.
#pragma once

#include <filesystem>
#include <vector>

namespace mw {

// A group, and where the tree that it belongs to is mounted. Inside a container its own group is
// often mounted as the outermost, under a path that is not there.
struct MemoryGroup {
  std::filesystem::path mounted;  // of version 1 the tree of its controller "memory"
  std::filesystem::path group;    // relative to it
  bool first_version = false;
};

// Lists the groups of both versions, as a machine may have both; the outermost where the system
// names none. `root`: of the file system, for tests.
std::vector<MemoryGroup> memory_groups(const std::filesystem::path& root = "/");

}  // namespace mw
