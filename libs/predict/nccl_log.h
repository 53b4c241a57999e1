// Reads what nccl-tests print: which collective took how long among which devices.
#pragma once

#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/error.h"

namespace mw {

// A size that was measured: bytes of a rank's larger buffer, as Transfer::payload counts them.
struct LoggedRow {
  double bytes = 0, seconds = 0;
  int line = 0;
};

// One row a size: the mean of those that were measured several times.
std::vector<LoggedRow> means(const std::vector<LoggedRow>& rows);

// The table of one program. Collective::send stands for sendrecv_perf, where each rank sends to the
// next one round a ring.
struct LoggedTable {
  std::string file;
  int line = 0;  // of its header
  Collective op = Collective::all_reduce;
  std::string device;     // "NVIDIA H100 80GB HBM3"
  std::vector<int> node;  // of each rank, numbered in the order in which ranks name them
  std::vector<LoggedRow> rows;
  bool ended = false;  // the log has the lines that nccl-tests ends a table with

  int ranks() const { return static_cast<int>(node.size()); }
  int nodes() const;
  int most_of_node() const;             // ranks of the node that has most of them
  bool whole_nodes(int devices) const;  // every node takes part with so many ranks
  std::string place() const;            // "16 ranks on 2 nodes"
  std::string perf() const;             // "all_reduce_perf"
};

// The tables of a log, of which several may stand in one file. Each row counts out of place, or in
// place where that alone was measured. Every problem names its line.
std::vector<LoggedTable> read_nccl_log(const std::string& file, const std::string& text,
                                       Problems& problems);

// What only all logs together show: devices of several kinds, times of one size that cannot both be
// true, and a table that is given twice.
void check_together(const std::vector<LoggedTable>& tables, Problems& problems);

}  // namespace mw
