// Searches the largest microbatches with which every rank stays within a limit of memory.
#include "predict/fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/plan.h"

namespace mw {
namespace {

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

constexpr std::int64_t most_parts = 1 << 20;

// Splits `own` sequences into as many microbatches as microbatches of `size` would be, as evenly as
// possible, the larger ones first.
std::vector<std::int64_t> even_parts(std::int64_t own, std::int64_t size) {
  const std::int64_t count = (own + size - 1) / size;
  std::vector<std::int64_t> parts;
  for (std::int64_t m = 0; m < count; ++m) parts.push_back(own / count + (m < own % count ? 1 : 0));
  return parts;
}

}  // namespace

std::vector<std::int64_t> even_sizes(std::int64_t own, std::int64_t fewest) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t count = fewest; count <= own;) {
    sizes.push_back((own + count - 1) / count);
    if (sizes.back() == 1) break;
    count = (own + sizes.back() - 2) / (sizes.back() - 1);  // the fewest of a smaller size
  }
  return sizes;
}

std::shared_ptr<const Plan> fit_microbatch(const PlanRequest& request, std::int64_t limit,
                                           Problems& problems) {
  PlanRequest tried = request;
  tried.microbatch = 1;
  tried.sizes.clear();
  Problems of_one;
  auto last = make_plan(tried, of_one);
  if (last == nullptr) {  // perhaps microbatches of 1 are too many
    tried.microbatch = 0;
    Problems none;
    last = make_plan(tried, none);
  }
  if (last == nullptr) {
    problems.add(of_one);
    return nullptr;
  }
  const std::int64_t own = request.batch / last->batch_ways;
  tried.microbatch = 0;
  std::shared_ptr<const Plan> found;
  std::int64_t least = 0, least_size = 0, left_out = 0;
  double work = 0;
  // Sizes are tried one after the other, not by bisection: a pipeline may hold more with smaller
  // microbatches, as more are under way.
  for (std::int64_t size : even_sizes(own, 1)) {
    if (work > most_search || own / size > most_parts) {
      left_out = size;
      break;
    }
    tried.sizes = even_parts(own, size);
    // Sizes that another limit (a schedule's, recompute's) refuses do not fit either.
    Problems none;
    const auto plan = make_plan(tried, none);
    work += plan == nullptr ? last->work : plan->work;
    if (plan == nullptr) continue;
    const std::int64_t held = highest_peak(*plan);
    if (held <= limit) {
      found = plan;
      break;
    }
    if (least == 0 || held < least) {
      least = held;
      least_size = size;
    }
  }
  if (found == nullptr && left_out > 0) {
    problems.add(Stage::plan, "microbatch.fit", "microbatch",
                 fmt::format("microbatch.fit: no microbatch of more than {} sequences keeps a rank "
                             "within {}, and to try all smaller ones of {} takes too long",
                             left_out, bytes_text(limit), own),
                 "name the microbatch, or make the batch smaller");
    return nullptr;
  }
  if (found == nullptr) {
    problems.add(Stage::plan, "microbatch.fit", "microbatch",
                 fmt::format("microbatch.fit: a rank holds {} at least, with microbatches of {}; "
                             "that is above the {} asked for",
                             bytes_text(least), least_size, bytes_text(limit)),
                 "more recompute, a higher degree of a form that shards, or a higher limit");
    return nullptr;
  }
  PlanRequest chosen = found->request;
  chosen.notes.push_back(
      fmt::format("microbatches of {}, the largest with which a rank fits {}: {} "
                  "predicted",
                  found->microbatch, bytes_text(limit), bytes_text(highest_peak(*found))));
  return make_plan(chosen, problems);
}

}  // namespace mw
