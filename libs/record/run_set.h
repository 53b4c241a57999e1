// Which runs a FILE of the command line means: a run file, the folder of a run, of a sweep, or any
// folder of these.
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
  std::string name;  // the experiment's or the cell's, else of the file; never empty
  std::string hash;  // of the experiment; empty if the file does not say
  // done, failed, interrupted, running; killed: it says running, and its process is gone;
  // unreadable. Of cells of a sweep also queued, skipped, refused.
  std::string status, reason;
  std::string created;  // "2026-11-22T13:00:00Z"; empty: not known
  std::int64_t seed = 0;
  std::string sweep;                                        // its name; empty: of none
  std::vector<std::pair<std::string, std::string>> values;  // what the sweep set, by key
  std::filesystem::path path;                               // the run file; empty if there is none
  std::filesystem::path folder;                             // of the run, if it has one of its own
  bool readable() const { return !path.empty() && status != "unreadable"; }
  bool ended() const { return status != "running" && status != "queued"; }
};

struct RunSet {
  std::vector<RunEntry> runs;  // cells in the sweep's order, else by path
};

// What each of `given` stands for, in that order; a run that two of them mean comes once. Throws
// Error (options) for those that are not there, all at once, and if there is no run at all.
RunSet find_runs(const std::vector<std::filesystem::path>& given);
// The one run that `given` stands for. Throws Error (options) if it is several, or cannot be read.
RunEntry find_run(const std::filesystem::path& given);
// "runs", where scripts log by custom. Throws Error (options) if it is not there.
std::filesystem::path default_runs();

// As find_runs has it, of one file. Never throws for what the file holds.
RunEntry read_entry(const std::filesystem::path& file, Probe probe = Probe::yes);

}  // namespace mw
