#include "plan/microbatch_fit.h"

#include <fmt/format.h>

#include "base/json_text.h"
#include "sizes/memory.h"

namespace mw {
namespace {

std::string text_of(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// Sizes that `own` sequences can be parted into evenly, the largest first.
std::vector<std::int64_t> sizes_of(std::int64_t own) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t count = 1; count <= own; ++count) {
    const std::int64_t size = (own + count - 1) / count;
    if (sizes.empty() || size < sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

// As many as microbatches of `size` make, the larger ones first.
std::vector<std::int64_t> even_parts(std::int64_t own, std::int64_t size) {
  const std::int64_t count = (own + size - 1) / size;
  std::vector<std::int64_t> parts;
  for (std::int64_t m = 0; m < count; ++m) parts.push_back(own / count + (m < own % count ? 1 : 0));
  return parts;
}

}  // namespace

std::shared_ptr<const Plan> fit_microbatch(const PlanRequest& request, std::int64_t limit,
                                           Problems& problems) {
  std::int64_t least = 0;
  const auto peak = [&](const Plan& plan) {
    return highest_peak(plan.programs, request.optimizer_bytes);
  };
  // What another limit refuses (a schedule's, recompute's) does not fit either.
  const auto fits = [&](const std::vector<std::int64_t>& parts) {
    PlanRequest tried = request;
    tried.microbatch = 0;
    tried.sizes = parts;
    Problems none;
    auto plan = make_plan(tried, none);
    if (plan == nullptr) return plan;
    const std::int64_t held = peak(*plan);
    if (least == 0 || held < least) least = held;
    return held <= limit ? plan : nullptr;
  };

  PlanRequest smallest = request;
  smallest.microbatch = 1;
  smallest.sizes.clear();
  const auto last = make_plan(smallest, problems);
  if (last == nullptr) return nullptr;
  const std::int64_t own = request.batch / last->batch_ways;
  const std::vector<std::int64_t> sizes = sizes_of(own);
  std::shared_ptr<const Plan> found;
  std::size_t from = 0, to = sizes.size();  // what a rank holds grows with the size
  while (from < to) {
    const std::size_t middle = (from + to) / 2;
    if (auto plan = fits(even_parts(own, sizes[middle]))) {
      found = std::move(plan);
      to = middle;
    } else {
      from = middle + 1;
    }
  }
  if (found == nullptr) {
    problems.add(Stage::plan,
                 fmt::format("microbatch.fit: with microbatches of one sequence a rank still holds "
                             "{}, above the {} asked for",
                             text_of(least), text_of(limit)),
                 "more recompute, more ways of a form that shards, or a higher limit");
    return nullptr;
  }
  PlanRequest chosen = found->request;
  chosen.notes.push_back(
      fmt::format("microbatches of {}, the largest with which a rank fits {}: {} "
                  "predicted",
                  found->microbatch, text_of(limit), text_of(peak(*found))));
  return make_plan(chosen, problems);
}

}  // namespace mw
