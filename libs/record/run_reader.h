// Reads a run file (schema meshwright.run/1) back.
//
// A run may be going on: the file under its path is complete at any moment (run_writer.h), and what
// is read is as of the moment it was opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "record/hdf5_file.h"
#include "record/probe.h"
#include "record/rows.h"
#include "record/table.h"

namespace mw {

// What a run file says of its run at once. Texts are empty and objects null where it says nothing.
struct RunHead {
  std::string status, reason, created, host, name, hash, plan_hash;
  // That of its repeats, which differ in the seed alone. Empty in files of earlier versions.
  std::string hash_without_seed;
  std::string process;  // which writes it: run_path.h
  std::int64_t seed = 0;
  Json versions, plan;  // the plan: Plan::description
  // What people call the plan.
  std::string mix() const;
};

// A metric of the user's: a value for each of series_steps().
struct Series {
  std::string name;
  std::vector<double> values;
};

class RunReader {
 public:
  // Throws Error (options) if there is no such file or it is no run file.
  explicit RunReader(const std::filesystem::path& path, Probe probe = Probe::yes);

  std::string plan();  // JSON
  RunHead head();
  std::string script();
  // Null where the file has none: the whole resolved experiment; what its plan predicted; what the
  // result says beside the tables.
  Json experiment() { return json("experiment"); }
  Json predicted() { return json("predicted"); }
  Json result() { return json("result"); }
  // No rows where there is no such table.
  Table table(const char* name, std::uint64_t at = 0);
  // The rows of one step, of a table that lies in the order of steps.
  Table table_of_step(const char* name, std::int64_t step);
  std::uint64_t rows(const char* name) { return file_.has(name) ? file_.length(name) : 0; }
  std::vector<std::int64_t> traced_steps();  // that have every op and transfer
  std::vector<std::int64_t> series_steps();
  std::vector<Series> series();
  std::vector<StepRow> steps();
  // One step's actions, in the order in which ranks wrote them; empty if there are none.
  std::vector<ActionRow> actions(std::int64_t step);
  std::vector<ActionRow> predicted_actions();  // empty in run files that lack the table

 private:
  Json json(const char* name);
  std::uint64_t first_of(std::int64_t step);  // row of /actions with at least this step

  std::filesystem::path path_;
  Hdf5File file_;
};

// The rows of a run file that a run takes over from the one that it goes on from.
struct EarlierRows {
  std::vector<StepRow> steps;  // in order, each once
  std::vector<std::int64_t> series_steps;
  std::vector<Series> series;
  std::vector<char> bandwidths;  // packed rows of /bandwidth, which are of no step
  double seconds = 0;            // from when that file was made to its last event
  // The run file with the other tables, which may be larger than the memory. A run takes over their
  // rows of steps before `before`. The file stays open while another file takes its place. Null:
  // there is no run file.
  std::unique_ptr<Hdf5File> file;
  std::int64_t before = 0;
  std::string unread;  // why nothing of the run file is taken over, although it is the run's
};

// Those of steps before `step`. Nothing, where there is no run file or it belongs to none of these
// experiments (hashes), nor to a run that went on from a checkpoint of one of them.
EarlierRows read_earlier(const std::filesystem::path& path, std::int64_t step,
                         const std::vector<std::string>& hashes);

// From now on plugins get the times of works that they ask of run files (meshwright/run_file.h).
void provide_measured_times();

}  // namespace mw
