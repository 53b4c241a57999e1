// Plans candidates of a search whole.
#include "search/whole.h"

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plan.h"

namespace mw {

WholePlans::WholePlans(const SearchRequest& request, const SearchSpace& space,
                       const SearchProbes& probes, std::function<void()> planned)
    : request_(request), space_(space), probes_(probes), planned_(std::move(planned)) {}

int WholePlans::plan(const SearchCandidate& candidate) {
  if (const auto known = places_.find(candidate.key()); known != places_.end())
    return known->second;
  throw_if_stopped();
  FoundPlan found;
  found.entries =
      entries_of(candidate.stages_side < 0 ? nullptr : &space_.stages[candidate.stages_side],
                 candidate.stages, candidate.data < 0 ? nullptr : &space_.data[candidate.data],
                 candidate.split, space_.inner[candidate.inner]);
  found.plan = plan_text(found.entries);
  found.microbatch = candidate.microbatch;
  found.recompute = probes_.recompute_of(candidate.policy).written;
  found.offload = probes_.offload_of(candidate.policy).written;
  found.closed_form_seconds = candidate.seconds;
  found.closed_form_bytes = candidate.bytes;
  found.closed_form_least = candidate.least;
  found.closed_form_host_bytes = candidate.host;
  PlanRequest request = request_.base.plan->request;
  request.microbatch = candidate.microbatch;
  request.recompute = probes_.recompute_of(candidate.policy).policy;
  request.offload = probes_.offload_of(candidate.policy).policy;
  std::shared_ptr<const Plan> plan;
  Problems problems;
  try {
    request.strategies = choices_of(request_, found.entries, choices_);
    plan = make_plan(request, problems);
    if (plan) check_placed(*plan, *request_.machine, problems);
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {  // of a strategy's own
    problems.add(error);
  }
  int& place = places_[candidate.key()];
  place = -1;
  if (!plan || !problems.empty()) {
    if (!refusal_ && !problems.empty()) refusal_ = problems.list().front();
    return place;
  }
  try {
    found.predicted = predict(*plan, *request_.machine);
  } catch (const Stopped&) {
    places_.erase(candidate.key());
    throw;
  }
  found.predicted.limit_memory(request_.memory);
  found.fits = found.predicted.fits;
  if (found.fits) check_plan(*plan, problems);  // it may be recommended
  if (!problems.empty()) {
    if (!refusal_) refusal_ = problems.list().front();
    return place;
  }
  place = static_cast<int>(all_.size());
  candidates_.push_back(candidate);
  all_.push_back(std::move(found));
  if (all_.back().fits) fitting_.push_back(place);
  if (planned_) planned_();
  return place;
}

}  // namespace mw
