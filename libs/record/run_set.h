// Finds the runs that a FILE of the command line means: FILE is a run file, the folder of a run,
// the folder of a sweep, or any folder that contains some of these.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/json.h"
#include "record/run_reader.h"

namespace mw {

// A run, or why it cannot be read. Folders of runs hold files that are being written, that a crash
// cut off, and that are none: each is an entry of its own, with its reason.
struct RunEntry {
  std::string name;  // name of the experiment or cell, else of the file; never empty
  std::string hash;  // hash of the experiment; empty if the file does not say
  // Status: done, failed, interrupted, running; killed (it says running, and its process is gone);
  // unreadable. Cells of a sweep also: queued, skipped, refused.
  std::string status, reason;
  std::string created;  // "2026-11-22T13:00:00Z"; empty: not known
  std::int64_t seed = 0;
  std::string sweep;                                        // name of the sweep; empty: none
  std::vector<std::pair<std::string, std::string>> values;  // values that the sweep set, by key
  std::filesystem::path path;                               // the run file; empty if there is none
  std::filesystem::path folder;  // folder of the run; empty: none of its own
  bool readable() const { return !path.empty() && status != "unreadable"; }
  bool ended() const { return status != "running" && status != "queued"; }
};

struct RunSet {
  std::vector<RunEntry> runs;  // a sweep's cells in its order, others by path
};

// The runs that each of `given` stands for, in that order; a run that two of them mean comes once.
// Throws one Error (options) for all paths that are not there, and if there is no run at all.
RunSet find_runs(const std::vector<std::filesystem::path>& given);
// The one run that `given` stands for. Throws Error (options) if it is several, or cannot be read.
RunEntry find_run(const std::filesystem::path& given);
// The folder "runs", where scripts log by custom. Throws Error (options) if it is not there.
std::filesystem::path default_runs();

// The entry of one run file, as find_runs() has it. Throws nothing for what the file holds.
RunEntry read_entry(const std::filesystem::path& file, Probe probe = Probe::yes);

}  // namespace mw
