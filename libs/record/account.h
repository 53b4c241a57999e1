// The account of a step, as a run file has it: where the seconds of the step's ranks went, beside
// the time that the machine needs for the same work alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "record/run_reader.h"

namespace mw {

// A part of a step, or one row of such a part, summed up over the ranks.
struct AccountLine {
  std::string part, name, shape;
  std::int64_t calls = 0;    // calls of the rank with the most
  std::int64_t kernels = 0;  // kernels that the rank with the most started
  // Seconds of a rank: the mean over the ranks, of the slowest rank and of the fastest one.
  double seconds = 0, most = 0, least = 0;
  int slowest = -1;  // the rank with the most seconds
  // Means: seconds that the work takes alone (NaN: not measured), flops done, bytes moved.
  double limit = 0, flops = 0, bytes = 0;
  double above() const { return seconds - limit; }  // seconds above the limit
  Json to_json() const;
};

struct Account {
  std::int64_t step = -1;
  double seconds = 0;  // the step's seconds in /steps
  int ranks = 0;
  // The parts in the order in which reports list them, and the rows of all parts, those that take
  // most first.
  std::vector<AccountLine> parts, rows;
  std::vector<AccountLine> beside;  // time outside of steps (observers), for a mean step
  AccountLine whole;                // all parts together, over the ranks
  // The fewest seconds that a step can take: those of the rank with the most work, or the sum over
  // all ranks divided by how many have a core at once. `products`: seconds of matrix products in
  // it.
  double limit = 0, products = 0;
  // Bytes a second of a rank: in memory when alone, in memory beside other ranks, in a cache.
  double memory_rate = not_known, shared_rate = not_known, cache_rate = not_known;

  const AccountLine* part(const std::string& name) const;  // null: it took no time
  Json to_json() const;
};

// The name of a part for people: "memory-bound ops" for "memory".
std::string account_part_text(const std::string& part);

// The account of the step nearest to the median step, among the steps that have one. Empty: no step
// has one.
std::optional<Account> read_account(RunReader& reader);

}  // namespace mw
