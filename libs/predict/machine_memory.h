// The memory that this process may use.
#pragma once

#include <cstdint>
#include <filesystem>

namespace mw {

// Bytes: the machine's, or less where the process' control group (versions 1 and 2, and the groups
// around it: what containers and job schedulers set) or `ulimit -v` says so. Not what is free at
// the moment, so that it is the same in every run. `root`: of the file system, for tests; limits of
// the process itself count in the true one alone.
std::int64_t machine_memory(const std::filesystem::path& root = "/");

}  // namespace mw
