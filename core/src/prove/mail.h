// What goes between stages: messages from one to another, and the rounds of collectives that
// several stages take part in.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "prove/state.h"

namespace mw::proving {

class Mail {
 public:
  // From, to, tag, microbatch.
  using Key = std::tuple<int, int, int, int>;
  struct Letter {
    std::optional<Post> sent;
    std::optional<Where> expected;  // the receive
    bool taken = false;
  };
  std::map<Key, Letter> letters;

  // A round of a collective: what each stage brings.
  struct Round {
    std::map<int, Post> posts;  // by stage
  };
  struct Rounds {
    std::vector<Round> list;
    std::map<int, int> begun;  // by stage: rounds that it has come to
  };
  std::map<RankSet, Rounds> rounds;

  // The stage comes to its next round of these ranks; the round's number.
  int arrive(const RankSet& ranks, int stage, Post post) {
    Rounds& all = rounds[ranks];
    const int round = all.begun[stage]++;
    if (round >= static_cast<int>(all.list.size()))
      all.list.resize(static_cast<std::size_t>(round) + 1);
    all.list[round].posts.emplace(stage, std::move(post));
    return round;
  }
};

}  // namespace mw::proving
