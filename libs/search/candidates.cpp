// Enumerates the candidates of a search, and has each priced by the closed form.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "search/price.h"
#include "search/software.h"
#include "search/uneven.h"

namespace mw {
namespace {

// Most stages that a search tries: orders of more stages take seconds to make.
constexpr int most_stages = 128;
// The largest microbatch that is tried where the user names none. A choice: larger ones leave few
// microbatches to fill a pipeline with, and matrix products reach their full rate long before.
constexpr std::int64_t most_microbatch = 64;

class Enumeration {
 public:
  // `one`: the enumeration ends with the first possible candidate.
  Enumeration(const SearchRequest& request, const SearchSpace& space, PartTerms& terms,
              bool one = false)
      : one_(one),
        request_(request),
        space_(space),
        terms_(terms),
        stages_(request),
        together_(request, space),
        batch_(request.base->request.batch),
        layers_(request.base->graph->layers) {
    const ClusterParts& parts = request.machine->parts();
    for (const int part : stages_.parts())
      clusters_.push_back(&parts.all()[static_cast<std::size_t>(part)].cluster);
  }

  PricedCandidates run() {
    try {
      for (std::size_t i = 0; i < space_.inner.size(); ++i) {
        inner(static_cast<int>(i));
        if (enough()) break;
        report(i + 1);
      }
    } catch (const Stopped&) {
      found_.interrupted = true;
    }
    return std::move(found_);
  }

 private:
  bool enough() const { return one_ && !found_.all.empty(); }

  void report(std::size_t done) {
    if (!request_.progress || seconds_now() - told_ < 1) return;
    told_ = seconds_now();
    request_.progress(fmt::format("search: {} candidates priced, {} of {} ways to split a layer",
                                  found_.all.size(), done, space_.inner.size()));
  }

  void inner(int i) {
    const InnerSide& side = space_.inner[i];
    if (request_.ranks % side.ranks != 0) return;
    for (const int stages : divisors(request_.ranks / side.ranks)) {
      if (stages > 1 && space_.stages.empty()) break;
      if (stages > most_stages || stages > layers_) {
        found_.passed.insert(stages > layers_
                                 ? fmt::format("{} layers make {} stages at most", layers_, layers_)
                                 : fmt::format("more than {} stages are not tried", most_stages));
        break;
      }
      const int ways = request_.ranks / side.ranks / stages;
      if (ways % side.lent != 0 || (ways > 1 && space_.data.empty())) continue;
      found_.formed = true;
      if (batch_ % ways != 0) continue;
      found_.divides = true;
      SearchCandidate candidate;
      candidate.inner = i;
      candidate.stages = stages;
      candidate.split.ways = ways;
      if (enough()) return;
      if (ways == 1) {
        split(candidate);
        continue;
      }
      for (std::size_t d = 0; d < space_.data.size(); ++d) {
        candidate.data = static_cast<std::int16_t>(d);
        for (const int groups : groups_of(space_.data[d], ways / side.lent)) {
          candidate.split.groups = groups;
          split(candidate);
          if (enough()) return;
        }
      }
    }
  }

  // Numbers of groups of the data ranks that are tried. `times`: the data ranks over those that
  // experts borrow.
  static std::vector<int> groups_of(const DataSide& side, int times) {
    std::vector<int> list = {1};
    if (side.groups.empty()) return list;
    for (const int groups : divisors(times)) {
      if (groups > 1 && groups < times) list.push_back(groups);
    }
    return list;
  }

  void split(SearchCandidate candidate) {
    throw_if_stopped();
    const std::int64_t own = batch_ / candidate.split.ways;
    const std::vector<std::int64_t> sizes = sizes_of(own);
    if (sizes.empty()) {
      found_.unsized.insert(own);
      return;
    }
    found_.sized = true;
    terms_of_.resize(terms_.size());
    for (std::size_t part = 0; part < terms_.size(); ++part)
      terms_of_[part].data = terms_.of(part).data(candidate.inner, candidate.data, candidate.split);
    const auto policies = static_cast<int>(space_.policies.size());
    for (const std::int64_t size : sizes) {
      candidate.microbatch = size;
      if (terms_of_.front().data == nullptr) {
        found_.refused += policies;
        continue;
      }
      bool possible = false;
      for (int policy = 0; policy < policies; ++policy) {
        if (space_.policies[static_cast<std::size_t>(policy)].later) continue;
        candidate.policy = static_cast<std::int16_t>(policy);
        possible = price(candidate, own / size) || possible;
      }
      if (enough()) return;
      if (!possible) break;  // a model that refuses this size refuses larger ones
    }
  }

  std::vector<std::int64_t> sizes_of(std::int64_t own) const {
    std::vector<std::int64_t> list;
    if (request_.microbatches.empty()) {
      for (std::int64_t size = 1; size <= std::min(own, most_microbatch); size *= 2)
        if (own % size == 0) list.push_back(size);
    } else {
      for (const std::int64_t size : request_.microbatches)
        if (own % size == 0) list.push_back(size);
    }
    return list;
  }

  // Prices the candidate under each schedule. Whether the model allows it.
  bool price(SearchCandidate& candidate, std::int64_t microbatches) {
    const bool staged = candidate.stages > 1;
    if (!staged) candidate.stages_side = -1;
    if (!staged && !together_(candidate)) return true;  // left out: the software cannot run it
    const SentTerms* sent = staged ? terms_.first().sent(candidate.inner) : nullptr;
    for (std::size_t part = 0; part < terms_of_.size(); ++part) {
      CandidateTerms& of = terms_of_[part];
      of.work = terms_.of(part).work(candidate.inner, candidate.policy, candidate.microbatch);
      of.order = nullptr;
      of.sent = sent;
      of.chunks = 1;
      if (of.work == nullptr || (staged && sent == nullptr)) {
        ++found_.refused;
        return false;
      }
    }
    if (!staged) price_on_parts(candidate);
    for (std::size_t s = 0; staged && s < space_.stages.size(); ++s) {
      const int chunks = space_.stages[s].chunks;
      if (chunks * candidate.stages > layers_) {
        pass_over(chunks * candidate.stages);
        continue;
      }
      const OrderTerms* order =
          terms_.first().order(static_cast<int>(s), candidate.stages, microbatches,
                               candidate.policy, *terms_of_.front().work);
      if (order == nullptr) {
        ++found_.refused;
        continue;
      }
      candidate.stages_side = static_cast<std::int16_t>(s);
      if (!together_(candidate)) continue;
      for (CandidateTerms& of : terms_of_) {
        of.order = order;
        of.chunks = chunks;
      }
      price_on_parts(candidate);
    }
    return true;
  }

  void price_on_parts(SearchCandidate candidate) {
    times_.clear();
    for (std::size_t part = 0; part < terms_of_.size(); ++part) {
      const double bubble = price_time(request_, *clusters_[part], terms_of_[part], candidate);
      times_.push_back({candidate.seconds - bubble, bubble});
    }
    if (times_.size() > 1)
      candidate.seconds = stages_.seconds(candidate.stages, terms_of_.front().chunks, times_);
    price_memory(request_, terms_of_.front(), candidate);
    found_.all.push_back(candidate);
  }

  // Counts a candidate that has more chunks, on all stages together, than the model has layers.
  void pass_over(std::int64_t layers) {
    if (found_.shallow++ == 0 || layers < found_.least_layers) found_.least_layers = layers;
  }

  const bool one_;
  const SearchRequest& request_;
  const SearchSpace& space_;
  PartTerms& terms_;
  UnevenStages stages_;
  std::vector<const Cluster*> clusters_;   // clusters of the parts that the ranks lie on
  std::vector<CandidateTerms> terms_of_;   // the candidate's terms on each part
  std::vector<UnevenStages::Time> times_;  // the candidate's times on each part
  const GoesTogether together_;
  const std::int64_t batch_;
  const int layers_;
  PricedCandidates found_;
  double told_ = seconds_now();
};

}  // namespace

PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  PartTerms& terms) {
  const double begun = cpu_seconds_now(), before = terms.spent();
  PricedCandidates found = Enumeration(request, space, terms).run();
  found.pricing_seconds = cpu_seconds_now() - begun - (terms.spent() - before);
  return found;
}

bool any_candidate(const SearchRequest& request) {
  const SearchSpace space = search_space(request);
  PartTerms terms(request, space);
  const PricedCandidates found = Enumeration(request, space, terms, /*one=*/true).run();
  if (found.interrupted) throw Stopped("interrupted");
  return !found.all.empty();
}

}  // namespace mw
