// Enumerates the mixes of a search. No strategy is known by name: each is asked which axes it needs
// and what they split, and its options and lighter variants are what else there is to choose.
#include "search/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "meshwright/engine/text.h"
#include "predict/lighter.h"
#include "search/software.h"

namespace mw {
namespace {

// The fewest tokens of a sequence on a rank: a choice, as shorter parts are hardly worth their
// transfers, and searches stay small.
constexpr std::int64_t least_tokens = 4096;
// The numbers of chunks that are tried for a schedule that takes any number. A choice: beyond 8 the
// transfers grow and the bubble hardly shrinks.
const std::vector<int> some_chunks = {2, 3, 4, 6, 8};

// A strategy on the plugin path with a set of options.
struct Form {
  std::string name;
  Json options = Json::object();  // options other than the ways
};

struct Forms {
  std::vector<Form> model, sequence, experts, beside, data, layers;
};

Json entry_of(const Form& form, int ways) {
  Json entry = {{"plugin", form.name}};
  if (ways > 0) entry["ways"] = ways;
  entry.update(form.options);
  return entry;
}

// The form, and its variants with one change: each switch turned, and each other value of its first
// choice.
std::vector<Form> with_options(const SearchRequest& request, const Form& plain) {
  std::vector<Form> forms = {plain};
  bool chosen = false;
  for (const Option& option : request.options_of(plain.name).list()) {
    std::vector<Json> values;
    if (option.type == OptionType::boolean && option.fallback) {
      values.emplace_back(!option.fallback->get<bool>());
    } else if (option.type == OptionType::choice && !chosen) {
      chosen = true;
      // A choice without a default that is left out is taken to mean its first value.
      for (std::size_t i = option.fallback ? 0 : 1; i < option.choices.size(); ++i)
        if (!option.fallback || *option.fallback != option.choices[i])
          values.emplace_back(option.choices[i]);
    }
    for (const Json& value : values) {
      Form form = plain;
      form.options[option.name] = value;
      if (strategy_of(request.source, entry_of(form, 2))) forms.push_back(std::move(form));
    }
  }
  return forms;
}

// Variants of the form with one option changed from which, the strategy says, to change it back
// would hold less: a variant that holds more may send less.
std::vector<Form> heavier(const SearchRequest& request, const Form& plain) {
  std::vector<Form> forms;
  const auto now = strategy_of(request.source, entry_of(plain, 2));
  if (!now) return forms;
  for (const Option& option : request.options_of(plain.name).list()) {
    std::vector<Json> values;
    if (option.type == OptionType::boolean) values = {true, false};
    if (option.type == OptionType::choice)
      values.assign(option.choices.begin(), option.choices.end());
    for (const Json& value : values) {
      Form form = plain;
      form.options[option.name] = value;
      const auto made = strategy_of(request.source, entry_of(form, 2));
      if (!made || made->options == now->options) continue;
      const std::vector<Lighter> variants = lighter_of(*made);
      const auto leads_back = [&](const Lighter& variant) {
        Json options = made->options;
        options.update(variant.options);
        return options == now->options;
      };
      if (std::any_of(variants.begin(), variants.end(), leads_back)) forms.push_back(form);
    }
  }
  return forms;
}

// The form, its lighter variants of as many ranks, and the heavier variants of those that keep all
// on devices.
std::vector<Form> with_lighter(const SearchRequest& request, const Form& plain) {
  std::vector<Form> forms = {plain};
  std::vector<Form> on_devices = {plain};
  std::vector<Json> known;            // resolved options of the forms so far
  constexpr std::size_t enough = 16;  // bounds a plugin that names ever more variants
  for (std::size_t f = 0; f < forms.size() && forms.size() < enough; ++f) {
    const auto made = strategy_of(request.source, entry_of(forms[f], 2));
    if (!made) continue;
    known.push_back(made->options);
    for (const Lighter& variant : lighter_of(*made)) {
      if (variant.options.contains("ways")) continue;
      Form form = forms[f];
      form.options.update(variant.options);
      const auto other = strategy_of(request.source, entry_of(form, 2));
      if (!other || std::find(known.begin(), known.end(), other->options) != known.end()) continue;
      known.push_back(other->options);
      const bool same = std::any_of(on_devices.begin(), on_devices.end(), [&](const Form& one) {
        return one.options == forms[f].options;
      });
      if (!variant.drastic && same) on_devices.push_back(form);
      forms.push_back(std::move(form));
    }
  }
  for (const Form& form : on_devices) {
    for (Form& more : heavier(request, form)) forms.push_back(std::move(more));
  }
  return forms;
}

// The option by which the strategy parts the data ranks into groups: a number with which it asks
// for one more axis of theirs, which borrows from the first. Empty: there is none.
std::string groups_of(const SearchRequest& request, const Form& form) {
  const Json entry = entry_of(form, 4);
  const auto plain = strategy_of(request.source, entry);
  if (!plain) return "";
  for (const Option& option : request.options_of(form.name).list()) {
    if (option.type != OptionType::integer || option.name == "ways") continue;
    Json more = entry;
    more[option.name] = 2;
    const auto made = strategy_of(request.source, more);
    if (!made || made->axes.size() != plain->axes.size() + 1) continue;
    const AxisRequest& last = made->axes.back();
    if (last.role == Role::data && !last.borrow.empty() && last.ways == 2) return option.name;
  }
  return "";
}

bool takes_schedule(const SearchRequest& request, const std::string& strategy) {
  const auto& options = request.options_of(strategy).list();
  return std::any_of(options.begin(), options.end(),
                     [](const Option& one) { return one.name == "schedule"; });
}

// The schedules that the strategy's stages may have; none if it takes no schedule.
std::vector<std::string> schedules_of(const SearchRequest& request, const std::string& strategy) {
  return takes_schedule(request, strategy) ? request.schedules : std::vector<std::string>{};
}

void sort_in(const SearchRequest& request, const std::string& name, Forms& forms) {
  const Form plain{name};
  if (const auto alone = strategy_of(request.source, entry_of(plain, 0));
      alone && alone->axes.empty())
    forms.beside.push_back(plain);
  auto made = strategy_of(request.source, entry_of(plain, 2));
  // A strategy that needs a schedule is asked with the first one that it takes.
  for (const std::string& schedule : schedules_of(request, name)) {
    if (made) break;
    const int fixed = request.chunks_of(schedule);
    made = strategy_of(
        request.source,
        {{"plugin", name}, {"ways", 2}, {"schedule", schedule}, {"chunks", fixed > 0 ? fixed : 2}});
  }
  if (!made || made->axes.empty()) return;
  const AxisRequest& axis = made->axes.front();
  const auto add = [](std::vector<Form>& all, std::vector<Form> more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  if (!axis.borrow.empty()) {
    if (axis.role == Role::experts) add(forms.experts, with_options(request, plain));
    return;
  }
  if (axis.role == Role::data) add(forms.data, with_lighter(request, plain));
  if (axis.role == Role::layers) forms.layers.push_back(plain);
  if (axis.role == Role::model) add(forms.model, with_options(request, plain));
  if (axis.role == Role::sequence) add(forms.sequence, with_options(request, plain));
}

// The sides that split layers, one for each schedule; a schedule that takes any number of chunks
// has a side for each of a few numbers.
std::vector<StagesSide> stages_of(const SearchRequest& request, const std::vector<Form>& layers) {
  std::vector<StagesSide> sides;
  for (const Form& form : layers) {
    if (!takes_schedule(request, form.name)) sides.push_back({form.name, "", 1});
    for (const std::string& schedule : schedules_of(request, form.name)) {
      const int fixed = request.chunks_of(schedule);
      for (const int chunks : fixed > 0 ? std::vector<int>{fixed} : some_chunks)
        sides.push_back({form.name, schedule, chunks});
    }
  }
  return sides;
}

void add_inner(const SearchRequest& request, const Forms& forms, SearchSpace& space) {
  const int node = std::max(1, request.machine->cluster().node.devices);
  const std::int64_t sequence = request.base->request.sequence;
  const Graph& graph = *request.base->graph;
  bool passes_node = false;
  for (const int s : divisors(request.ranks)) {
    if (s > 1 && forms.sequence.empty()) break;
    if (sequence / s < least_tokens && s > 1) {
      space.passed.push_back(
          fmt::format("{} over {} ranks would leave each {} of {} tokens, and "
                      "fewer than {} are not tried",
                      forms.sequence.front().name, s, sequence / s, sequence, least_tokens));
      break;
    }
    for (const int t : divisors(request.ranks / s)) {
      if (t > 1 && forms.model.empty()) break;
      if (t > 2 * node) {
        passes_node = true;
        break;
      }
      for (const Form& cut : s > 1 ? forms.sequence : std::vector<Form>{{}}) {
        for (const Form& model : t > 1 ? forms.model : std::vector<Form>{{}}) {
          InnerSide side;
          side.ranks = s * t;
          if (s > 1) side.entries.push_back(entry_of(cut, s));
          if (t > 1) side.entries.push_back(entry_of(model, t));
          space.inner.push_back(side);
          for (const Form& beside : t > 1 ? forms.beside : std::vector<Form>{}) {
            InnerSide more = side;
            more.entries.push_back(entry_of(beside, 0));
            space.inner.push_back(more);
          }
        }
      }
    }
  }
  if (passes_node) {
    space.passed.push_back(fmt::format("{} over more than {} ranks, two nodes, is not tried",
                                       forms.model.front().name, 2 * node));
  }
  const std::size_t plain = space.inner.size();
  for (std::size_t i = 0; i < plain; ++i) space.inner[i].plain = static_cast<int>(i);
  if (graph.dims().count("experts") == 0) return;
  for (std::size_t i = 0; i < plain; ++i) {
    for (const int e : divisors(request.ranks / space.inner[i].ranks)) {
      if (e > graph.size("experts")) break;
      for (const Form& experts : e > 1 ? forms.experts : std::vector<Form>{}) {
        InnerSide side = space.inner[i];
        side.lent = e;
        side.entries.push_back(entry_of(experts, e));
        space.inner.push_back(std::move(side));
      }
    }
  }
}

void add_policies(const SearchRequest& request, SearchSpace& space) {
  const auto fits = [](const RecomputeChoice& choice) {
    return choice.policy.kind == RecomputePolicy::Kind::fit;
  };
  const bool all_fit = std::ranges::all_of(request.recompute, fits);
  for (const RecomputeChoice& recompute : request.recompute) {
    int place = 0;
    for (const OffloadChoice& offload : request.offload)
      space.policies.push_back({recompute, offload, place++, fits(recompute) && !all_fit});
  }
}

}  // namespace

bool SearchPolicy::same_for_all_sizes() const {
  using Of = RecomputePolicy::Kind;
  const Of kind = recompute.policy.kind;
  const OffloadPolicy& away = offload.policy;
  return (kind == Of::none || kind == Of::selective || kind == Of::full || kind == Of::ops) &&
         (away.kind == OffloadPolicy::Kind::none || away.kind == OffloadPolicy::Kind::full) &&
         away.least <= 1;
}

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

SearchSpace search_space(const SearchRequest& request) {
  Forms forms;
  for (const std::string& name : request.strategies) sort_in(request, name, forms);
  SearchSpace space;
  for (const Form& form : forms.data)
    space.data.push_back({form.name, form.options, groups_of(request, form)});
  space.stages = stages_of(request, forms.layers);
  add_inner(request, forms, space);
  add_policies(request, space);
  leave_out(request, space);
  return space;
}

Json entries_of(const StagesSide* stages, int stages_ways, const DataSide* data, DataWays split,
                const InnerSide& inner) {
  Json entries = Json::array();
  if (stages != nullptr && stages_ways > 1) {
    Json entry = {{"plugin", stages->name}, {"ways", stages_ways}};
    if (!stages->schedule.empty()) entry["schedule"] = stages->schedule;
    if (stages->chunks > 1) entry["chunks"] = stages->chunks;
    entries.push_back(std::move(entry));
  }
  if (data != nullptr && split.ways > 1) {
    entries.push_back(entry_of({data->name, data->options}, split.ways));
    if (split.groups > 1) entries.back()[data->groups] = split.groups;
  }
  for (const Json& entry : inner.entries) entries.push_back(entry);
  return entries;
}

}  // namespace mw
