// Reads the cluster, stack, tokens and price of an experiment, and checks the plan against the
// cluster.
#include "script/priced_for.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "meshwright/engine/text.h"
#include "predict/cluster_machine.h"

namespace mw {

namespace {

Json given(const Values& values, const char* key) {
  return values.has(key) ? without_hidden(values.at(key)) : Json();
}

// Reads a number of tokens: 1.4e12, "1.4T" or "1.4 t". Returns nothing for anything else.
std::optional<double> tokens_of(const Json& given) {
  if (given.is_number()) return given.get<double>();
  if (!given.is_string()) return std::nullopt;
  const auto text = given.get<std::string>();
  double count = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), count);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  if (wrong != std::errc()) return std::nullopt;
  if (unit.size() > 1) return std::nullopt;
  for (const auto& [name, times] : {std::pair{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}}) {
    if (!unit.empty() && std::toupper(static_cast<unsigned char>(unit[0])) == name)
      return count * times;
  }
  if (unit.empty()) return count;
  return std::nullopt;
}

void read_tokens(const Values& values, RunRequest& asked, Problems& problems) {
  const Json tokens = given(values, "tokens"), price = given(values, "price");
  if (tokens.is_null() && !price.is_null()) {
    problems.add(Stage::options, "option.needs", "price",
                 "price is of the device hours that tokens take, and no tokens are given",
                 "tokens = \"1T\", or leave price out");
  }
  if (tokens.is_null()) return;
  if (given(values, "cluster").is_null()) {
    problems.add(Stage::options, "option.needs", "tokens",
                 "tokens are of a training on a cluster, and none is named",
                 "cluster = mw.cluster(\"dgx-h100\"), or leave tokens out");
    return;
  }
  const std::optional<double> count = tokens_of(tokens);
  if (!count || !std::isfinite(*count) || *count < 1) {
    problems.add(Stage::options, "option.value", "tokens",
                 fmt::format("tokens: got {}", describe(tokens)),
                 "a number, or one with K, M, B or T: \"300B\"");
    return;
  }
  asked.tokens = *count;
  if (!price.is_null()) asked.price = price.get<double>();
}

// Reads the machine that a cluster and a stack describe. A sweep asks for the same one for each of
// its cells, several times: a copy of the last one is then as good as reading it again.
std::unique_ptr<ClusterMachine> read_once(const Json& cluster, const Json& stack,
                                          Problems& problems) {
  struct Last {
    Json cluster, stack;
    std::unique_ptr<ClusterMachine> machine;
  };
  static thread_local Last last;
  if (last.machine == nullptr || last.cluster != cluster || last.stack != stack) {
    auto machine = read_machine(cluster, stack, problems);
    if (machine == nullptr) return nullptr;
    last = {cluster, stack, std::move(machine)};
  }
  return std::make_unique<ClusterMachine>(*last.machine);
}

}  // namespace

std::unique_ptr<Machine> cluster_of(const Values& values) {
  const Json cluster = given(values, "cluster");
  Problems problems;
  return cluster.is_null() ? nullptr : read_once(cluster, given(values, "stack"), problems);
}

MemoryLimit memory_limit(const Values& values, std::int64_t limit) {
  const std::shared_ptr<const Machine> machine = cluster_of(values);
  if (!machine || machine->memory_together()) return {limit, false};
  return {limit > 0 ? std::min(limit, machine->most_memory()) : machine->most_memory(), true};
}

void make_for_cluster(const Values& values, PlanRequest& request) {
  const std::shared_ptr<const Machine> machine = cluster_of(values);
  if (!machine || machine->memory_together() || machine->scratch() == nullptr) return;
  request.scratch = {machine, machine->scratch()};
  request.kept_by_libraries = machine->kept_by_libraries();
}

void read_priced_for(const Values& values, const Plan* plan, RunRequest& asked,
                     Problems& problems) {
  read_tokens(values, asked, problems);
  const Json cluster = asked.cluster = given(values, "cluster");
  const Json stack = asked.stack = given(values, "stack");
  if (cluster.is_null()) {
    if (stack.is_null()) return;
    problems.add(Stage::options, "option.conflict", "stack",
                 "stack is given, and no cluster: this machine runs this project's own",
                 "cluster = mw.cluster(\"selene\"), or leave stack out");
    return;
  }
  const auto machine = read_once(cluster, stack, problems);
  if (machine && plan != nullptr) check_placed(*plan, *machine, problems);
}

std::unique_ptr<Machine> machine_of(const RunRequest& asked) {
  if (asked.cluster.is_null()) return nullptr;
  Problems problems;
  auto machine = read_once(asked.cluster, asked.stack, problems);
  problems.throw_if_any();
  return machine;
}

}  // namespace mw
