// Makes of the times of a traced step's instructions the rows of its account, which say where the
// seconds of each rank went and what the machine takes for the same work.
#pragma once

#include <cstdint>
#include <map>
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
  // The rows are one rank's. What is given outlives this. `copies_known`: whether ranks are threads
  // that copy in their own time, so that waits and copies are told apart.
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
  // Adds to a row: seconds of a call, bytes in so many passes, what the machine takes for them.
  AccountRow& add(const Key& key, double seconds);
  void add_memory(const std::string& name, double seconds, double bytes);

  const Program& program_;
  const RankReport& report_;
  const AloneTimes& alone_;
  const bool copies_known_;
  const RankViews views_;
  std::map<Key, AccountRow> rows_;
  std::map<const Instruction*, std::vector<Instruction>> rings_;
  std::map<int, std::string> names_;  // of transfers, by pending
  Footprint footprint_;
};

}  // namespace mw
