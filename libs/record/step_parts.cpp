// Finds what takes the time of a traced step: computation, communication that nothing hides, waits
// for other stages and for copies, and the rest.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "record/columns.h"
#include "record/run_facts.h"

namespace mw {
namespace {

using Stretch = std::pair<double, double>;  // start and end

// When each rank received from another stage.
std::map<int, std::vector<Stretch>> receives_of(RunReader& reader, std::int64_t step) {
  std::map<int, std::vector<Stretch>> receives;
  for (const ActionRow& action : reader.actions(step))
    if (action.action.starts_with("receive"))
      receives[action.rank].emplace_back(action.start, action.end);
  return receives;
}

bool within(const std::vector<Stretch>& stretches, const Stretch& one) {
  constexpr double slack = 1e-6;  // seconds between two readings of the clock
  return std::any_of(stretches.begin(), stretches.end(), [&](const Stretch& s) {
    return one.first >= s.first - slack && one.second <= s.second + slack;
  });
}

}  // namespace

std::map<int, StepParts> read_step_parts(RunReader& reader, const StepRow& step) {
  const Table rows = reader.table_of_step("trace", step.step);
  const auto kinds = rows.texts("kind"), axes = rows.texts("axis"), names = rows.texts("name");
  const auto ranks = rows.integers("rank"), stages = rows.integers("stage");
  const auto starts = rows.numbers("start"), ends = rows.numbers("end");
  // A transfer that is awaited at once stands in the trace twice: as a transfer, and as an op.
  std::set<std::tuple<std::int64_t, double, double>> transfers;
  for (std::size_t row = 0; row < rows.rows; ++row)
    if (kinds[row] == "transfer") transfers.emplace(ranks[row], starts[row], ends[row]);
  const auto receives = receives_of(reader, step.step);
  const bool staged = std::set<std::int64_t>(stages.begin(), stages.end()).size() > 1;
  std::map<int, std::set<std::int64_t>> ranks_of;
  std::map<int, StepParts> parts;
  for (std::size_t row = 0; row < rows.rows; ++row) {
    if (kinds[row] == "transfer") continue;
    const int stage = static_cast<int>(stages[row]);
    ranks_of[stage].insert(ranks[row]);
    const auto received = receives.find(static_cast<int>(ranks[row]));
    const bool sent =
        !axes[row].empty() || transfers.contains({ranks[row], starts[row], ends[row]});
    // All ranks meet at "totals": the time that it takes is the wait for the slowest stage.
    const char* what =
        staged && names[row] == "totals" ? "bubble"
        : kinds[row] == "op"             ? (sent ? "exposed communication" : "compute")
        : !sent                          ? "exposed host copies"
        : received != receives.end() && within(received->second, {starts[row], ends[row]})
            ? "bubble"
            : "exposed communication";
    parts[stage][what] += ends[row] - starts[row];
  }
  for (auto& [stage, of] : parts) {
    double rest = step.seconds;
    for (auto& [what, seconds] : of) {
      seconds /= static_cast<double>(ranks_of[stage].size());
      rest -= seconds;
    }
    if (rest > 0) of["other"] = rest;
  }
  return parts;
}

StepParts mean_parts(const std::map<int, StepParts>& stages) {
  StepParts mean;
  for (const auto& [stage, parts] : stages)
    for (const auto& [what, seconds] : parts)
      mean[what] += seconds / static_cast<double>(stages.size());
  return mean;
}

}  // namespace mw
