// Transfers between stages: messages from one stage to another, and the rounds of collectives that
// several stages take part in.
#pragma once

#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "prove/state.h"

namespace mw::proving {

class Mail {
 public:
  // Sending stage, receiving stage, tag, microbatch.
  using Key = std::tuple<int, int, int, int>;
  struct Letter {
    std::optional<Post> sent;
    std::optional<Where> expected;  // where the receiver begins its receive
    bool taken = false;
    // sent_as: the message's number among all messages from the sender to the receiver.
    // expected_as: its number among all receives of the receiver from the sender. NCCL has no tags:
    // it matches the first send with the first receive, and so on.
    int sent_as = -1, expected_as = -1;
    bool in_order() const { return !sent || !expected || sent_as == expected_as; }
  };
  // One round of a collective.
  struct Round {
    std::map<int, Post> posts;  // by stage: what it contributes
  };
  struct Rounds {
    std::vector<Round> list;
    std::map<int, int> begun;  // by stage: number of rounds that it has begun
  };
  // A message, or the round of a collective.
  struct Transfer {
    Key key = {-1, -1, -1, -1};
    RankSet ranks;
    int round = -1;
    friend auto operator<=>(const Transfer&, const Transfer&) = default;
    friend bool operator==(const Transfer&, const Transfer&) = default;
  };

  // `strict`: a stage's transfers are made one after the other, in the order in which it begins
  // them (ProveOptions::strict).
  Mail(int stages, bool strict) : strict_(strict), lines_(stages) {}

  std::map<Key, Letter> letters;
  std::map<std::pair<int, int>, int> sent, expected;  // message counts, by (from, to) stages
  std::map<RankSet, Rounds> rounds;

  // The stage begins its next round of the collective over these ranks. Returns the round's number.
  int arrive(const RankSet& ranks, int stage, Post post);
  // The stage begins a transfer.
  void begin(int stage, const Transfer& transfer);
  // Whether the order of transfers lets this one be over; always true where not `strict`.
  bool is_over(const Transfer& transfer) const { return !strict_ || over_.count(transfer) > 0; }

 private:
  std::vector<int> stages_of(const Transfer& transfer) const;
  void advance();

  const bool strict_;
  std::vector<std::deque<Transfer>> lines_;  // by stage: transfers begun and not over
  std::set<Transfer> over_;
};

}  // namespace mw::proving
