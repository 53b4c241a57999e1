// What experiments of one sweep have in common is made once: models, and plans that nothing which
// differs has a part in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "meshwright/model.h"

namespace mw {

// Keys are texts that say all that a model or a plan is made of. Functions of a script may return
// anything, so what is made of one has no key. Not thread-safe.
class PlanMemo {
 public:
  using Models = std::shared_ptr<const Model>;
  using Plans = std::shared_ptr<const Plan>;

  // The one that was made under this key, or else what `make` gives; it is kept unless it is null.
  Models model(const std::string& key, const std::function<Models()>& make);
  Plans plan(const std::string& key, const std::function<Plans()>& make);

 private:
  struct Kept {
    Plans plan;
    std::size_t size = 0;
    std::list<std::string>::iterator used;
  };

  std::unordered_map<std::string, Models> models_;
  std::unordered_map<std::string, Kept> plans_;
  std::list<std::string> order_;  // of the plans: the one that was asked for last comes first
  std::size_t size_ = 0;          // slots and instructions of all plans
};

// Adds a problem where the plan has another number of ranks than `expected`, with both numbers and
// the plan nearest to it that has so many: one strategy in another number of ways, as far as the
// planner takes it; strategies that split the data are tried first.
void check_ranks(std::int64_t expected, const Plan& plan, Problems& problems);

}  // namespace mw
