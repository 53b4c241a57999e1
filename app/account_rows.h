// Turns the instruction times of a traced step into the rows of its account: where the seconds of
// each rank went, and what the machine takes for the same work alone.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "app/alone.h"
#include "meshwright/engine/footprint.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/run.h"
#include "record/rows.h"

namespace mw {

class AccountRows {
 public:
  // All rows are of the report's rank. The arguments outlive this. `copies_known`: whether ranks
  // are threads whose copies are timed, so that waits and copies are told apart.
  AccountRows(const Plan& plan, const RankReport& report, const AloneTimes& alone,
              bool copies_known);

  std::vector<AccountRow> rows(std::int64_t step);

 private:
  using Key = std::tuple<std::string, std::string, std::string>;  // part, name, shape
  const Instruction& at(const InstructionTime& time);
  void take(const InstructionTime& time, double share);
  void take_product(const Instruction& i, const RankView& view, double seconds);
  void take_sent(const Instruction& i, const RankView& view, const InstructionParts& parts);
  void take_rest(const Instruction& i, const RankView& view, double seconds);
  void take_beside();
  // Adds a call and its seconds to the row of the key, which is made if it is missing.
  AccountRow& add(const Key& key, double seconds);
  void add_memory(const std::string& name, double seconds, double bytes);

  const Program& program_;
  const RankReport& report_;
  const AloneTimes& alone_;
  const bool copies_known_;
  const RankViews views_;
  std::map<Key, AccountRow> rows_;
  std::map<const Instruction*, std::vector<Instruction>> rings_;
  std::map<int, std::string> names_;  // names of transfers that were begun, by pending
  Footprint footprint_;
  std::set<int> begun_;       // slots of sums to which something was added in the step
  std::int64_t kernels_ = 0;  // kernels of the instruction that no row has yet
  std::int64_t engine_kernels_ = 0;
};

}  // namespace mw
