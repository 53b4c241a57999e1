// The faults that `meshwright chaos` knows. A rank makes some of them happen to itself: the command
// tells it to by a file in a folder that the run's processes share with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mw::chaos {

// What a run is to make of a fault.
enum class Fate : std::uint8_t {
  ends,    // the run ends, says why, and goes on from its checkpoint
  passes,  // the run goes on, and nothing has to be said
  told,    // the run says so, and goes on or ends
  unseen   // nothing can see it: the training goes on with other numbers
};

struct FaultKind {
  const char* name;
  const char* about;
  Fate fate;
  bool in_rank;  // a rank makes it happen, at a collective: the run needs two ranks
  bool several;  // it needs several processes
};
const std::vector<FaultKind>& fault_kinds();
const FaultKind* kind_of(const std::string& name);  // null: none has the name

struct Order {
  std::int64_t id = 0;  // from 1, counted by the command
  std::string kind;
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

// A pipe of the folder. Rank 0 writes a line into it when it begins ("start") and after each step
// (the step's number and its loss as a hexadecimal number).
inline constexpr const char* steps_pipe = "steps";
// Eight bytes: seconds by which the wall clock of the run's processes is off.
inline constexpr const char* clock_file = "clock";
inline constexpr const char* clock_variable = "MESHWRIGHT_CLOCK_OFFSET";

}  // namespace mw::chaos
