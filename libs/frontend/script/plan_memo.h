// Keeps the models and plans that several experiments of a sweep have in common, so that each is
// made once.
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

// A key is a text of all that a model or a plan is made of. What a script's function has a part in
// gets no key, as the function may return anything. Not thread-safe.
class PlanMemo {
 public:
  using Models = std::shared_ptr<const Model>;
  using Plans = std::shared_ptr<const Plan>;

  // The model or plan under this key, or else what `make` returns, which is kept unless it is null.
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
  std::list<std::string> order_;  // keys of the plans, the one last asked for first
  std::size_t size_ = 0;          // slots and instructions of all plans
};

// Adds a problem where the plan does not have `expected` ranks. Its hint is the nearest plan that
// has: one strategy in another number of ways, as far as the planner takes it; strategies that
// split the data are tried first.
void check_ranks(std::int64_t expected, const Plan& plan, Problems& problems);

}  // namespace mw
