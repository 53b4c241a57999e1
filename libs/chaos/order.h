// The faults that `meshwright chaos` knows. A rank makes some of them happen to itself: the command
// tells it to by a file in a folder that the run's processes share with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/data.h"

namespace mw::chaos {

// What a run is to make of a fault.
enum class Fate : std::uint8_t {
  ends,    // the run ends, says why, and goes on from its checkpoint
  passes,  // the run goes on, and nothing has to be said
  told,    // the run says so, and goes on or ends
  unseen   // nothing can see it: the training goes on with other numbers
};

// How a fault is made.
enum class Way : std::uint8_t {
  // A rank does it to itself, at a collective:
  throws_error,
  sleeps_once,
  sleeps_often,
  loses_call,
  makes_nan,
  flips_gradient,
  // The command does it from outside:
  kills_rank,
  kills_launcher,
  stops_one,  // SIGSTOP, and SIGCONT later
  stops_all,
  turns_clock,
  fills_disk,
  closes_folder,
  flips_checkpoint,
  flips_run_file,
  flips_data
};

// What a run must name when it tells of a fault.
enum class Named : std::uint8_t { nothing, rank, file };

// A kind of fault, and what it needs.
struct FaultKind {
  const char* name;
  const char* about;
  Fate fate;
  Way way;
  Named named = Named::nothing;
  bool several = false;        // the run must have several processes
  bool longer = false;         // it lasts longer than ranks wait for each other, else less long
  bool may_be_silent = false;  // whatever its fate, the run need not tell of it
  int checkpoints = 1;         // so many must be there before it is made
  bool in_rank() const { return way <= Way::flips_gradient; }   // the run must have two ranks
  bool needs_data() const { return way == Way::flips_data; }    // a copy of the files of the data
  bool needs_clock() const { return way == Way::turns_clock; }  // the library of clocks
};
const std::vector<FaultKind>& fault_kinds();
const FaultKind* kind_of(const std::string& name);  // null: none has the name

struct Order {
  std::int64_t id = 0;  // from 1, counted by the command
  const FaultKind* kind = nullptr;
  int rank = 0;
  double seconds = 0;      // how long it lasts: delay, slow, lost
  std::uint64_t draw = 0;  // decides which element and which bit
};
// An order that a rank has taken, and the call that the rank made then.
struct Taken {
  std::int64_t id = 0;
  std::int64_t step = -1;  // -1: its process has done none yet
  int rank = 0;
  std::string call;  // "all-reduce on dp for 'embedding' (gradients)"
};

// Files of the folder are replaced as a whole, so nobody reads half of one.
void give_order(const std::filesystem::path& folder, const Order& order);
void withdraw_order(const std::filesystem::path& folder);
std::optional<Order> order_in(const std::filesystem::path& folder);
void note_taken(const std::filesystem::path& folder, const Taken& taken);
std::optional<Taken> taken_in(const std::filesystem::path& folder);  // the last one

// The files from which the run takes its tokens, absolute, as its source lists them. Rank 0 notes
// them when it begins; none before.
void note_files(const std::filesystem::path& folder, const std::vector<SourceFile>& files);
std::vector<SourceFile> files_in(const std::filesystem::path& folder);

// A pipe of the folder. Rank 0 writes a line into it when it begins ("start" and how many steps the
// run is to have) and after each step (the step's number and its loss as a hexadecimal number).
inline constexpr const char* steps_pipe = "steps";
// Eight bytes: seconds by which the wall clock of the run's processes is off.
inline constexpr const char* clock_file = "clock";
inline constexpr const char* clock_variable = "MESHWRIGHT_CLOCK_OFFSET";

}  // namespace mw::chaos
