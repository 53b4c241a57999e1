// The account of a step, as a run file has it: where the seconds of its ranks went, beside what the
// machine takes for the same work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "record/run_reader.h"

namespace mw {

// A part of a step, or a row of one, over the ranks.
struct AccountLine {
  std::string part, name, shape;
  std::int64_t calls = 0;  // of the rank with most
  // Seconds of a rank: on average, of the one with most and of the one with least.
  double seconds = 0, most = 0, least = 0;
  int slowest = -1;  // the rank with most
  // On average: what the machine takes for it, NaN: nobody measured that; done and moved.
  double limit = 0, flops = 0, bytes = 0;
  double above() const { return seconds - limit; }  // the limit
  Json to_json() const;
};

struct Account {
  std::int64_t step = -1;
  double seconds = 0;  // of /steps
  int ranks = 0;
  // Parts in the order in which they are told, and their rows, those that take most first.
  std::vector<AccountLine> parts, rows;
  std::vector<AccountLine> beside;  // no part of the step: of a mean step
  AccountLine whole;                // all parts of a rank together
  // The least that a step can take: the work of the rank with most of it, or of all ranks over as
  // many as have a core at once. `products`: of that, the products.
  double limit = 0, products = 0;
  // Bytes a second of a rank: through memory, alone and beside the others, and in a cache.
  double memory_rate = not_known, shared_rate = not_known, cache_rate = not_known;

  const AccountLine* part(const std::string& name) const;  // null: it took nothing
  Json to_json() const;
};

// Names of parts for people: "memory-bound ops" of "memory".
std::string account_part_text(const std::string& part);

// That of the step nearest to the median one, of those of which one was taken. Empty: of none.
std::optional<Account> read_account(RunReader& reader);

}  // namespace mw
