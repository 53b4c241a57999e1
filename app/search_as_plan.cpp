// Reads a plan that a search found, and keeps account of what was read of it.
#include "app/search_as_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/text.h"

namespace mw {

std::vector<std::string> ReadTable::unread() const {
  std::vector<std::string> list;
  for (const auto& [key, value] : table_.items())
    if (!read_.contains(key) && !key.starts_with('$'))  // where it stands in the script
      list.push_back(fmt::format("{} = {}", key, lua_text(value)));
  return list;
}

PlanEntries::PlanEntries(const Json& found) {
  for (const Json& entry : found.at("entries")) {
    const std::string name = entry.at("plugin");
    // Megatron's sequence parallelism has no ranks of its own; context parallelism has.
    Json options = entry;
    options.erase("plugin");
    by_name_.emplace(name == "sp" && entry.contains("ways") ? "cp" : name, options);
  }
}

const ReadTable& PlanEntries::of(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? none_ : found->second;
}

void PlanEntries::add_unread(std::vector<std::string>& cannot) const {
  static const std::set<std::string> known = {"dp", "zero", "tp", "sp", "cp", "pp", "ep"};
  for (const auto& [name, options] : by_name_) {
    if (!known.contains(name)) {
      cannot.push_back("the strategy " + name);
      continue;
    }
    options.has("ways");
    for (const std::string& one : options.unread())
      cannot.push_back(fmt::format("{} {{ {} }}", name == "cp" ? "sp" : name, one));
  }
}

Translation::Translation(const Json& json, const SearchedFor& request)
    : found(json), searched(request), plan(json) {
  if (found.contains("layers")) layers = found.at("layers").get<std::vector<int>>();
  plan.of("pp").has("chunks");  // `layers` has as many
}

int Translation::chunks() const {
  return std::max(1, static_cast<int>(layers.size()) / stages());
}

bool Translation::even() const {
  return std::all_of(layers.begin(), layers.end(), [&](int n) { return n == layers.front(); });
}

int Translation::expert_tp() const {
  const int tp = plan.ways("tp"), ep = plan.ways("ep");
  const int others = plan.data() * plan.ways("cp");
  const ReadTable& options = plan.of("ep");
  int borrowed = others % ep == 0 ? 1 : ep % others == 0 ? ep / others : 0;
  if (options.has("borrow"))
    borrowed = options.get("borrow", Json()) == Json::array({"tp"}) ? ep : 0;
  return borrowed > 0 && tp % borrowed == 0 ? tp / borrowed : 0;
}

void Translation::add_common() {
  const ReadTable& zero = plan.of("zero");
  if (zero.text("reduce", "each") == "chunk")
    cannot.emplace_back("zero { reduce = \"chunk\" }: gradients are reduced by chunk");
  // Both shard over the ranks of the context as well, wherever there are any.
  if (plan.has("zero") && plan.has("cp") && !zero.get("sequence", false))
    cannot.emplace_back(
        "zero { sequence = false }: state is sharded over the ranks of the context too");
  zero.has("sequence");
  plan.of("ep").has("imbalance");  // predictions alone have it
  if (found.at("offload") != "none") cannot.push_back("offload = " + lua_text(found.at("offload")));
  plan.add_unread(cannot);
}

}  // namespace mw
