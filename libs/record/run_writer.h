// Writes a run file (schema meshwright.run/1) while the run goes on.
//
// At any moment the file under the run's path is complete and closed: rows are appended to a hidden
// copy beside it, which then changes places with it in one atomic step; the next interval continues
// with the other of the two. So a run that is killed, at whatever instant, leaves a file that opens
// and lacks at most the rows since the last flush, and a reader that holds the file disturbs
// nobody. Where a file system cannot swap two names the file is appended to in place; then a kill
// within the millisecond of an append may cost the file. The copy's name cannot be guessed, and
// nothing is written through a symbolic link; a path that is one stands for the file behind it.
//
// One thread uses a writer, and no other thread calls HDF5 meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "record/rows.h"
#include "record/run_path.h"
#include "record/table.h"

namespace mw {

// Places of metrics below /series, of one run file. A name is its own place: "loss/train" is the
// dataset `train` in the group `loss`. What HDF5 or the file needs for itself is written %XX, as in
// a URL: the name "step" (the steps' own), an empty part or one of "." and "..", and, where "a" and
// "a/b" are both metrics, all of the one that came later. No two names have one place.
class SeriesNames {
 public:
  const std::string& place_of(const std::string& name);

 private:
  std::map<std::string, std::string> places_;  // by name
  std::map<std::string, bool> taken_;          // by place: true for a dataset, false for a group
};

class Hdf5File;
struct EarlierRows;

inline constexpr const char* run_schema = "meshwright.run/1";

enum class RunStatus { running, done, failed, interrupted };
const char* name_of(RunStatus status);

// The facts of a run that are known before its first step.
struct RunInfo {
  std::string script;                         // text of the script
  std::string plan;                           // the plan as JSON
  std::string name, hash, hash_without_seed;  // name and hashes of the experiment
  // `continues`: hash of the run from whose checkpoint it goes on; empty: it begins anew.
  // `started_by`: the same in all starts by one command; empty: nothing starts it again.
  std::string continues = {}, started_by = {};
  std::string experiment;            // JSON of the experiment, all keys with their defaults
  std::string machine;               // JSON of the machine; empty: not said
  std::string plan_hash, predicted;  // hash of the plan; its prediction as JSON. Empty: left out
  std::int64_t seed = 0;
  std::vector<std::pair<std::string, std::string>> versions;  // versions of meshwright, torch, ...
  std::vector<ActionRow> predicted_actions;                   // predicted actions of one step
  std::vector<SpanRow> predicted_trace;
  std::vector<SpanMemoryRow> predicted_trace_memory;
};

class RunWriter {
 public:
  struct Interval {
    std::chrono::duration<double> time{1.0};  // flush this long after the last flush,
    std::int64_t steps = 0;  // or flush after this many step rows (0: by time alone)
  };

  // Makes missing folders and the file with empty tables, status `running`. An existing run file is
  // replaced once the new one is complete. Throws Error (run).
  RunWriter(const std::filesystem::path& path, const RunInfo& info)
      : RunWriter(path, info, Interval{}) {}
  // If `earlier` is given (record/run_reader.h), the file begins with the rows of `earlier`: a
  // process that is killed while it copies them leaves the existing run file as it was.
  RunWriter(const std::filesystem::path& path, const RunInfo& info, Interval interval,
            const EarlierRows* earlier = nullptr);
  // A writer that was not finished ends as end_badly() does, with status `failed`.
  ~RunWriter();
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  // Each add() only buffers its row. The file gets a table's rows in the order they were added.
  void add(const StepRow& row);
  void add(const CommunicationRow& row);
  void add(const WorkRow& row);
  void add(const ExpertRow& row);
  void add(const ActionRow& row);
  void add(const SpanRow& row);
  void add(const SpanMemoryRow& row);
  void add(const AccountRow& row);
  void add(const BandwidthRow& row);
  void add(const EventRow& row);  // sets the row's `time`
  // One row of the user's own metrics. /series/step holds the steps; a metric that a row lacks is
  // NaN there. Names are kept as they are (SeriesNames); where that is not their place,
  // the dataset's attribute `name` has it.
  void add_series(std::int64_t step, const std::vector<std::pair<std::string, double>>& metrics);
  void set_memory(const std::vector<MemoryRow>& rows);  // replaces the rows of /memory
  // replaces the rows of /rank_memory
  void set_rank_memory(const std::vector<RankMemoryRow>& rows);

  // Sets the JSON of /result: what the run's result says beside the tables. It is written from the
  // next flush on.
  void set_result(const std::string& json);

  // Writes what is buffered if the interval has passed; true if it wrote. Costs nothing otherwise.
  bool flush_if_due();
  void flush();
  // Writes everything with this status, and the reason for it (empty: none) as the attribute
  // `reason`; nothing may be added afterwards. Called once, unless it throws.
  void finish(RunStatus status, const std::string& reason = "");
  // Finishes a run that did not end well, where the file itself may be why. What cannot be written
  // is left out, first the rows since the last flush, then the events. Status and reason need no
  // room that the file does not have already. Returns why something was left out; empty: nothing
  // was.
  std::string end_badly(RunStatus status, const std::string& reason) noexcept;

  const std::filesystem::path& path() const { return path_; }

 private:
  // Packed rows that at least one of the two files still lacks. `first` is the number of the first
  // packed row.
  struct Rows {
    const TableLayout* layout = nullptr;
    std::vector<char> packed;
    std::uint64_t first = 0, count = 0;  // count: rows so far, written ones included
    std::uint64_t written[2] = {0, 0};
  };
  struct Series {
    std::string place;           // path below /series
    std::vector<double> values;  // values from row `series_first_` of the steps on
    bool created[2] = {false, false};
  };

  std::array<Rows*, 10> all_rows();
  template <typename Row>
  void append(Rows& rows, const Row& row);
  void create(const RunInfo& info) const;
  void write(int file);
  void write_rows(Hdf5File& out, Rows& rows, int file);
  void write_series(Hdf5File& out, int file);
  void drop_written();
  void drop_rows();  // drops the buffered rows of all tables but the events
  void set_end(Hdf5File& out) const;
  void end_unbegun(const std::string& why) noexcept;
  int open_hidden();  // makes the hidden file; returns its descriptor
  void copy_to_hidden();
  void publish();
  void publish_first();  // the hidden file takes the run file's name; copy_to_hidden() comes next
  void take_over(const EarlierRows& earlier);  // writes the earlier rows to the hidden file
  void copy_tables(Hdf5File& from, std::int64_t before);

  std::filesystem::path path_, hidden_path_;
  Interval interval_;
  std::chrono::steady_clock::time_point began_, last_flush_;
  std::int64_t steps_since_flush_ = 0;
  RunStatus status_ = RunStatus::running;
  std::string reason_, result_;
  bool finished_ = false, dirty_ = false, swaps_ = true, hidden_is_broken_ = false;
  int hidden_ = 0;  // which of the two files, 0 or 1, is the hidden one now
  std::uint64_t inode_[2] = {0, 0};

  Rows steps_, communication_, work_, experts_, actions_, events_, trace_, trace_memory_, account_,
      bandwidth_;
  std::vector<char> memory_, rank_memory_;
  std::uint64_t memory_rows_ = 0, rank_memory_rows_ = 0;
  bool memory_stale_[2] = {false, false};

  std::vector<std::int64_t> series_steps_;  // rows [series_first_, series_count_)
  std::map<std::string, Series> series_;
  SeriesNames names_;
  std::uint64_t series_first_ = 0, series_count_ = 0, series_written_[2] = {0, 0};
};

}  // namespace mw
