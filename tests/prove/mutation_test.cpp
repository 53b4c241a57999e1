// Mutants of finished programs: what the prover accepts computes what one rank does.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <random>

#include "prove/mutants.h"
#include "prove/prove.h"
#include "prove/runs.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// A sample of a mix's mutations, the same on every machine. One in `try_one_of` of those that are
// refused is run, too.
std::vector<Order> sample(std::size_t mutations, std::size_t count, std::uint32_t seed,
                          int try_one_of) {
  std::mt19937 random(seed);
  std::vector<int> all(mutations);
  std::iota(all.begin(), all.end(), 0);
  std::vector<Order> orders;
  for (std::size_t n = 0; n < std::min(count, mutations); ++n) {
    std::swap(all[n], all[n + random() % (mutations - n)]);
    orders.push_back({all[n], n % try_one_of == 0});
  }
  return orders;
}

void tell(const NamedMix& mix, const Mutation& mutation, const Fate& fate) {
  std::cout << fmt::format("{} | {} | {} | {} | {} | {}\n", mix.name, mutation.kind, mutation.what,
                           fate.refused ? fate.code : "accepted",
                           !fate.ran    ? "not run"
                           : fate.equal ? "equal"
                                        : fate.why,
                           fate.refused ? fate.said.substr(0, fate.said.find('\n', 100)) : "");
}

// `all`: every fate is told, not only what is missed.
Table table_of(std::size_t each, std::uint32_t seed, int try_one_of, bool all,
               const std::string& only) {
  Table table;
  for (const NamedMix& mix : mutation_mixes()) {
    if (!only.empty() && mix.name != only) continue;
    INFO(mix.name);
    const Subject subject(mix.setup);
    const std::vector<Mutation> mutations = mutations_of(subject.stages());
    const std::vector<Order> orders = sample(mutations.size(), each, seed++, try_one_of);
    const std::vector<Fate> done = fates(subject, mutations, orders);
    for (std::size_t n = 0; n < orders.size(); ++n) {
      const Mutation& mutation = mutations[static_cast<std::size_t>(orders[n].mutation)];
      add(table, mutation, done[n]);
      const bool missed = !done[n].refused && !done[n].equal;
      if (missed || done[n].died || all) tell(mix, mutation, done[n]);
      INFO(mutation.what);
      CHECK_FALSE(missed);
    }
  }
  std::cout << text_of(table);
  return table;
}

// Rules without which the prover lets through what computes something else: of some mixes' mutants,
// those that a rule refuses are tried without that rule, until one of them is seen to differ.
std::map<std::string, bool> missed_without() {
  std::map<std::string, bool> missed;
  std::uint32_t seed = 77;
  for (const NamedMix& mix : mutation_mixes()) {
    if (++seed % 6 != 0) continue;
    const Subject subject(mix.setup);
    const std::vector<Mutation> mutations = mutations_of(subject.stages());
    std::vector<Order> orders = sample(mutations.size(), 120, seed, 1);
    for (Order& order : orders) order.run_refused = order.run_accepted = false;
    const std::vector<Fate> judged = fates(subject, mutations, orders);
    std::map<std::string, std::vector<Order>> by_rule;
    for (std::size_t n = 0; n < orders.size(); ++n) {
      if (judged[n].refused && by_rule[judged[n].code].size() < 3)
        by_rule[judged[n].code].push_back({orders[n].mutation});
    }
    for (const auto& [rule, tried] : by_rule) {
      if (missed[rule]) continue;
      for (const Fate& fate : fates(subject, mutations, tried, rule))
        missed[rule] = missed[rule] || (!fate.refused && !fate.equal);
    }
  }
  return missed;
}

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

TEST_CASE("Programs as they are made are proved, and compute what one rank does") {
  for (const NamedMix& mix : mutation_mixes()) {
    INFO(mix.name);
    const Subject subject(mix.setup);
    const Proof proof = prove(subject.stages());
    INFO(proof.text());
    CHECK(proof.proved());
    CHECK(subject.differs(subject.stages(), 60) == "");
  }
}

// It takes long: so this is no part of the normal run.
TEST_CASE("Of a few hundred mutants none that is accepted computes something else", "[matrix]") {
  table_of(7, 1, 3, false, "");
}

TEST_CASE("Of ten thousand mutants none that is accepted computes something else", "[matrix]") {
  const std::string each = setting("MESHWRIGHT_MUTANTS");
  table_of(each.empty() ? 200 : std::stoul(each), 1000, 3, !setting("MESHWRIGHT_TELL").empty(),
           setting("MESHWRIGHT_MIX"));
}

TEST_CASE("Without any one of its rules the prover misses mutants", "[matrix]") {
  const std::map<std::string, bool> missed = missed_without();
  for (const auto& [rule, shows] : missed)
    std::cout << fmt::format("without {:<20} {}\n", rule, shows ? "mutants are missed" : "-");
  // Without "prove.leak" none is: what is never let go of changes no number.
  for (const char* rule :
       {"prove.begin", "prove.contributing", "prove.gradient", "prove.group", "prove.missing",
        "prove.place", "prove.released", "prove.update", "prove.value", "prove.wait"}) {
    INFO(rule);
    CHECK((missed.count(rule) > 0 && missed.at(rule)));
  }
}
