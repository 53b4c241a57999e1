// Searches the largest microbatches with which every rank stays within a limit of memory.
#include "predict/fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/plan.h"

namespace mw {
namespace {

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
    last = plan_if_possible(tried);
  }
  if (last == nullptr) {
    problems.add(of_one);
    return nullptr;
  }
  const std::int64_t own = request.batch / last->batch_ways;
  tried.microbatch = 0;
  Variants variants{limit, last->work};
  std::int64_t left_out = 0;
  // Sizes are tried one after the other, not by bisection: a pipeline may hold more with smaller
  // microbatches, as more are under way. Sizes that another limit (a schedule's, recompute's)
  // refuses do not fit either.
  for (std::int64_t size : even_sizes(own, 1)) {
    if (variants.found) break;
    if (variants.too_long() || own / size > most_parts) {
      left_out = size;
      break;
    }
    tried.sizes = even_parts(own, size);
    if (auto plan = variants.plan(tried))
      variants.keep({{plan, {}}, plan->request, {}, highest_peak(*plan)});
  }
  const auto& found = variants.found;
  if (!found && left_out > 0) {
    problems.add(Stage::plan, "microbatch.fit", "microbatch",
                 fmt::format("microbatch.fit: no microbatch of more than {} sequences keeps a rank "
                             "within {}, and to try all smaller ones of {} takes too long",
                             left_out, memory_text(limit), own),
                 "name the microbatch, or make the batch smaller");
    return nullptr;
  }
  if (!found) {
    const auto& lowest = variants.lowest;
    problems.add(Stage::plan, "microbatch.fit", "microbatch",
                 fmt::format("microbatch.fit: a rank holds {} at least, with microbatches of {}; "
                             "that is above the {} asked for",
                             memory_text(lowest ? lowest->need : 0),
                             lowest ? lowest->plan->microbatch : 0, memory_text(limit)),
                 "more recompute, a higher degree of a form that shards, or a higher limit");
    return nullptr;
  }
  PlanRequest chosen = found->request;
  chosen.notes.push_back(
      fmt::format("microbatches of {}, the largest with which a rank fits {}: {} "
                  "predicted",
                  found->plan->microbatch, memory_text(limit), memory_text(found->need)));
  return make_plan(chosen, problems);
}

}  // namespace mw
