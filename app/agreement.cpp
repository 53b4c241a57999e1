// Compares experiments over processes by their hashes, and looks for the key at fault if they
// differ.
#include "app/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "meshwright/engine/json_text.h"
#include "meshwright/engine/pack.h"
#include "meshwright/options.h"

namespace mw {
namespace {

// "mw.train on dp(4)"
std::string words_for(const std::string& verb) {
  return "mw." + verb;
}

struct Given {  // an experiment, as one process reads it
  std::string hash, resolved;
};
template <class Pack>
void members(Pack& pack, Given& given) {
  pack(given.hash, given.resolved);
}

Problem difference_of(const Processes& processes, int process, const std::string& verb,
                      const Given& first, const Given& given) {
  const Difference d = first_difference(Json::parse(first.resolved), Json::parse(given.resolved));
  const std::string what =
      d.key.empty() ? "data or weights differ"
                    : fmt::format("{} is {} there and {} on {}", d.key, json_text(d.other),
                                  json_text(d.one), processes.name_of(0));
  return {Stage::run, "process.apart", d.key,
          fmt::format("{} on {} is not that of {}: {}", words_for(verb), processes.name_of(process),
                      processes.name_of(0), what),
          "a script must give the same tables in every process: no time of day, no random numbers "
          "of the machine's own, the same files on each host"};
}

}  // namespace

Difference first_difference(const Json& one, const Json& other, const std::string& key) {
  if (one == other) return {};
  if (one.is_object() && other.is_object()) {
    for (const auto& [name, value] : one.items()) {
      const Json beside = other.contains(name) ? other[name] : Json();
      if (value != beside) return first_difference(value, beside, key_in(key, name));
    }
    for (const auto& [name, value] : other.items())
      if (!one.contains(name)) return {key_in(key, name), Json(), value};
  }
  if (one.is_array() && other.is_array()) {
    for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      if (one[i] != other[i])
        return first_difference(one[i], other[i], fmt::format("{}[{}]", key, i + 1));
    }
  }
  return {key, one, other};
}

void agree_on(Processes& processes, const std::string& verb, std::vector<Experiment>& experiments) {
  std::vector<Given> own;
  for (Experiment& experiment : experiments) {
    experiment.processes = &processes;
    own.push_back({experiment.hash, json_text(experiment.resolved)});
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(experiment.timeout * 1e3));
    processes.set_timeout(std::max(processes.timeout(), timeout));
  }
  const std::string what = words_for(verb);
  const std::vector<std::string> all = processes.gather(what, pack(own));
  for (std::size_t p = 1; p < all.size(); ++p) {
    const auto given = unpack<std::vector<Given>>(all[p]);
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (i < given.size() && given[i].hash == own[i].hash) continue;
      processes.refuse({difference_of(processes, static_cast<int>(p), verb, own[i],
                                      i < given.size() ? given[i] : Given{"", "{}"})});
    }
  }
  processes.broadcast(what, "");
}

Json result_of_first(Processes& processes, const std::string& verb, const Json& result) {
  std::string bytes;
  if (processes.first()) Json::to_cbor(result, bytes);
  bytes = processes.broadcast("the result of " + words_for(verb), bytes);
  return Json::from_cbor(bytes);
}

}  // namespace mw
