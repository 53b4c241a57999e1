// Says which imbalance between experts' ranks a prediction supposes, and which one a run had.
#include "predict/imbalance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "meshwright/engine/mix.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr double alike = 0.005;  // a difference of shares that is not worth a note

// The strategy whose option gives the imbalance; null: no strategy's.
const StrategyChoice* said_by(const Plan& plan) {
  if (plan.imbalance.option.empty()) return nullptr;
  const auto& all = plan.request.strategies;
  const auto found = std::find_if(all.begin(), all.end(), [&](const StrategyChoice& choice) {
    return choice.path == plan.imbalance.place;
  });
  return found == all.end() ? nullptr : &*found;
}

double supposed(const Plan& plan) {
  return plan.imbalance.factor;
}

}  // namespace

std::string entry_for_rows(const Plan& plan, double rows_share) {
  const StrategyChoice* choice = said_by(plan);
  if (choice == nullptr || rows_share <= 1 + alike) return "";
  Json entry = choice->written.is_object() ? choice->written : choice->options;
  entry["plugin"] = choice->name;
  double needed = std::ceil(100 * rows_share * supposed(plan) - 1e-9) / 100;
  if (plan.imbalance.most > 0) needed = std::min(needed, plan.imbalance.most);
  entry[plan.imbalance.option] =
      needed == std::floor(needed) ? Json(static_cast<std::int64_t>(needed)) : Json(needed);
  return entry_text(entry);
}

std::string supposed_choices(const Plan& plan) {
  if (supposed(plan) == 1) return "that experts are chosen evenly";
  return fmt::format("an imbalance of {} between experts' ranks", supposed(plan));
}

std::string supposed_rows(const Plan& plan) {
  const StrategyChoice* choice = said_by(plan);
  if (choice == nullptr) return "";
  return fmt::format("{} ({}: {} = N, the fullest rank's rows over the mean)",
                     supposed_choices(plan), choice->name, plan.imbalance.option);
}

std::string rows_note(const Plan& plan, double most_rows_share) {
  if (most_rows_share <= 0) return "";
  const std::string entry = entry_for_rows(plan, most_rows_share);
  if (!entry.empty()) {
    return fmt::format(
        "predictions assume {}; the fullest rank had {:.2f} times as many rows: {} would predict "
        "about its memory, and bytes as if every rank had so many rows",
        supposed_choices(plan), most_rows_share, entry);
  }
  if (most_rows_share >= 1 - alike) return "";
  return fmt::format(
      "predictions assume {}, and that experts take as many rows as they may: the fullest rank "
      "had {:.2f} times as many rows",
      supposed_choices(plan), most_rows_share);
}

}  // namespace mw
