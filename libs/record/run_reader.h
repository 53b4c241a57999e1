// Reads a run file (schema meshwright.run/1) back.
//
// A run may be going on: the file under its path is complete at any moment (run_writer.h). A reader
// sees the file as it was when it opened it.
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

// What a run file says of its run beside the tables. Texts are empty and objects null where it says
// nothing.
struct RunHead {
  std::string status, reason, created, host, name, hash, plan_hash;
  // The hash without the seed, which repeats of the run share. Empty in files of earlier versions.
  std::string hash_without_seed;
  std::string process;  // the writing process (process_mark() in run_path.h)
  std::int64_t seed = 0;
  Json versions, plan;  // plan: Plan::description
  // The plan's name for people.
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

  std::string plan();  // the plan as JSON
  RunHead head();
  std::string script();
  // Objects of the file, null where it has none: the whole resolved experiment; the prediction of
  // its plan; what the result has beside the tables.
  Json experiment() { return json("experiment"); }
  Json predicted() { return json("predicted"); }
  Json result() { return json("result"); }
  // The rows from `at` on; none where there is no such table.
  Table table(const char* name, std::uint64_t at = 0);
  // The rows of one step, of a table whose rows lie in the order of steps.
  Table table_of_step(const char* name, std::int64_t step);
  std::uint64_t rows(const char* name) { return file_.has(name) ? file_.length(name) : 0; }
  std::vector<std::int64_t> traced_steps();  // steps of which every op and transfer was recorded
  std::vector<std::int64_t> series_steps();
  std::vector<Series> series();
  std::vector<StepRow> steps();
  // One step's actions, in the order in which ranks wrote them; empty if there are none.
  std::vector<ActionRow> actions(std::int64_t step);
  std::vector<ActionRow> predicted_actions();  // empty in run files that lack the table

 private:
  Json json(const char* name);
  std::uint64_t first_of(std::int64_t step);  // first row of /actions with at least this step

  std::filesystem::path path_;
  Hdf5File file_;
};

// The rows of a run file that a run takes over from the one that it goes on from.
struct EarlierRows {
  std::vector<StepRow> steps;  // in order, each step once
  std::vector<std::int64_t> series_steps;
  std::vector<Series> series;
  std::vector<char> bandwidths;  // packed rows of /bandwidth, which belong to no step
  double seconds = 0;            // seconds from the file's creation to its last event
  // The run file with the other tables, which may be larger than the memory. The new run takes over
  // their rows of steps before `before`. The file stays open while another file takes its place.
  // Null: there is no run file.
  std::unique_ptr<Hdf5File> file;
  std::int64_t before = 0;
  std::string unread;  // why the run's file could not be read, so that nothing of it is taken over
};

// Reads the rows of steps before `step`. Empty where there is no run file, or where it belongs to
// none of these experiments (hashes) nor to a run that went on from a checkpoint of one of them.
EarlierRows read_earlier(const std::filesystem::path& path, std::int64_t step,
                         const std::vector<std::string>& hashes);

// Lets plugins read measured times of forward and backward from run files, from now on
// (meshwright/run_file.h).
void provide_measured_times();

}  // namespace mw
