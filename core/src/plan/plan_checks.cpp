// Keeps the checks of plans, and which plans they have found right.
#include "meshwright/engine/plan_checks.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace mw {
namespace {

struct PlanChecks {
  std::vector<PlanCheck> list;
  std::mutex mutex;
  std::set<std::string> right;  // hashes
};

PlanChecks& plan_checks() {
  static PlanChecks checks;
  return checks;
}

}  // namespace

void add_plan_check(PlanCheck check) {
  plan_checks().list.push_back(std::move(check));
}

void check_plan(const Plan& plan, Problems& problems) {
  PlanChecks& checks = plan_checks();
  if (checks.list.empty() || plan.programs.empty()) return;
  const std::string hash = plan.hash();
  {
    const std::lock_guard lock(checks.mutex);
    if (checks.right.count(hash) > 0) return;
  }
  Problems found;
  for (const PlanCheck& check : checks.list) check(plan, found);
  problems.add(found);
  if (!found.empty()) return;
  const std::lock_guard lock(checks.mutex);
  checks.right.insert(hash);
}

}  // namespace mw
