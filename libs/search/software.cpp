// Leaves out of a search what the software that its stack describes cannot run.
#include "search/software.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "meshwright/engine/text.h"
#include "predict/variants.h"

namespace mw {
namespace {

// Removes values from a list that the software cannot run: `lacks` says why it cannot run a value,
// or nothing.
template <class One, class Lacks>
void keep(const char* key, std::vector<One>& list, const Lacks& lacks, const SearchRequest& request,
          std::vector<std::string>& left_out) {
  std::vector<One> kept;
  std::vector<std::string> out;
  for (One& one : list) {
    std::string why = lacks(one);
    if (why.empty()) {
      kept.push_back(std::move(one));
    } else {
      out.push_back(std::move(why));
    }
  }
  if (kept.empty() && !out.empty()) {
    throw Error(Stage::plan, "search.software", key,
                fmt::format("{}: the software of the stack {} can run no candidate: {}", key,
                            request.machine->stack().name, join(out, "; ")),
                "name what it has, another stack, or unsupported = true, which prices what the "
                "software cannot run too");
  }
  list = std::move(kept);
  left_out.insert(left_out.end(), out.begin(), out.end());
}

// The options of an entry as its strategy resolves them. Each entry is resolved once.
class Resolved {
 public:
  explicit Resolved(const SearchRequest& request) : request_(request) {}
  const Json& operator()(const Json& entry) {
    const auto [known, missing] = all_.try_emplace(entry.dump());
    if (missing) {
      const auto made =
          unless_refused([&] { return std::optional(request_.source.make(entry).options); });
      known->second = made.value_or(entry);  // what lacks options says so when it is planned
    }
    return known->second;
  }

 private:
  const SearchRequest& request_;
  std::map<std::string, Json> all_;
};

// An entry whose options are to be resolved. Its ways are an example that the strategy takes.
Json with(const std::string& name, const Json& options, int ways) {
  Json entry = {{"plugin", name}, {"ways", ways}};
  entry.update(options);
  return entry;
}

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
}

class SpaceFilter {
 public:
  SpaceFilter(const SearchRequest& request, SearchSpace& space)
      : runs_(request.machine->stack().runs), space_(space), resolved_(request) {}

  void run() {
    inner();
    data();
    for (StagesSide& side : space_.stages) {
      Json options = {{"chunks", side.chunks}};
      if (!side.schedule.empty()) options["schedule"] = side.schedule;
      side.parts = runs_.parts_of(side.name, resolved_(with(side.name, options, 2)));
    }
  }

 private:
  bool runs(const Json& entry, SoftwareRuns::Parts& parts) {
    const std::string name = entry.at("plugin");
    const Json& options = resolved_(entry);
    const std::string why = runs_.lacks_options(name, options);
    if (!why.empty()) add_once(space_.left_out, why);
    parts |= runs_.parts_of(name, options);
    return why.empty();
  }

  // A side with experts names its plain side, which is kept wherever it is kept itself: it has all
  // entries of the plain side, and more.
  void inner() {
    std::vector<InnerSide> kept;
    std::map<int, int> places;  // new places of the sides that are kept, by their old ones
    for (std::size_t i = 0; i < space_.inner.size(); ++i) {
      InnerSide& side = space_.inner[i];
      bool all = true;
      for (const Json& entry : side.entries) all = runs(entry, side.parts) && all;
      if (!all) continue;
      places[static_cast<int>(i)] = static_cast<int>(kept.size());
      kept.push_back(std::move(side));
    }
    for (InnerSide& side : kept) side.plain = places.at(side.plain);
    space_.inner = std::move(kept);
  }

  void data() {
    std::vector<DataSide> kept;
    for (DataSide& side : space_.data) {
      if (!runs(with(side.name, side.options, 4), side.parts)) continue;
      if (!side.groups.empty()) {
        Json grouped = with(side.name, side.options, 4);
        grouped[side.groups] = 2;
        SoftwareRuns::Parts parts = 0;
        if (!runs(grouped, parts)) side.groups.clear();
      }
      kept.push_back(std::move(side));
    }
    space_.data = std::move(kept);
  }

  const SoftwareRuns& runs_;
  SearchSpace& space_;
  Resolved resolved_;
};

}  // namespace

std::vector<std::string> leave_out(SearchRequest& request) {
  const SoftwareRuns& runs = request.machine->stack().runs;
  std::vector<std::string> left_out;
  if (request.unsupported || runs.everything()) return left_out;
  keep(
      "strategies", request.strategies,
      [&](const std::string& name) { return runs.lacks_strategy(name); }, request, left_out);
  keep(
      "schedules", request.schedules,
      [&](const std::string& name) { return runs.lacks_schedule(name); }, request, left_out);
  keep(
      "recompute", request.recompute,
      [&](const RecomputeChoice& one) {
        return one.policy.kind == RecomputePolicy::Kind::fit
                   ? std::string()
                   : runs.lacks_policy("recompute", kind_name(one.policy));
      },
      request, left_out);
  keep(
      "offload", request.offload,
      [&](const OffloadChoice& one) { return runs.lacks_policy("offload", kind_name(one.policy)); },
      request, left_out);
  return left_out;
}

void leave_out(const SearchRequest& request, SearchSpace& space) {
  if (request.unsupported || request.machine->stack().runs.everything()) return;
  SpaceFilter(request, space).run();
}

}  // namespace mw
