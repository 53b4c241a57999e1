// What a round moves: which bytes go to which process, in what order, and who sums up which part.
// Both ends of a stream cut it alike, from what their own members called and nothing else.
#include <algorithm>
#include <cstring>

#include "round.h"

namespace mpi {
namespace {

using mw::Collective;

constexpr std::int64_t most_of_a_piece = std::int64_t{8} << 20;  // far below an int's range
constexpr std::int64_t block_here = 128 << 10;  // parts of a sum that stay in a core's cache
constexpr std::int64_t block_far = 1 << 20;     // enough to fill a network while one is summed up
constexpr std::size_t blocks_ahead = 4;         // that may be sent before the first is summed up

void add(Stream& stream, std::byte* at, std::int64_t bytes,
         const std::vector<std::byte*>& more = {}) {
  for (std::int64_t from = 0; from < bytes; from += most_of_a_piece) {
    Piece piece{at + from, std::min(most_of_a_piece, bytes - from), {}};
    for (std::byte* also : more) piece.more.push_back(also + from);
    stream.pieces.push_back(std::move(piece));
  }
}

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

std::int64_t sum_before(const std::vector<std::int64_t>& list, int index) {
  std::int64_t sum = 0;
  for (int i = 0; i < index; ++i) sum += list[static_cast<std::size_t>(i)];
  return sum;
}

}  // namespace

std::size_t Round::window() const {
  return blocks_ahead;
}

void Round::lay_out(Scratch& scratch) {
  call_ = arrivals[static_cast<std::size_t>(own[0])].call;
  item_ = static_cast<std::int64_t>(c10::elementSize(call_.dtype));
  std::vector<int> processes;
  for (const int process : members->process_of) {
    if (std::find(processes.begin(), processes.end(), process) == processes.end())
      processes.push_back(process);
  }
  for (const int process : processes) {
    if (process == members->process) continue;
    Peer peer;
    peer.process = process;
    peer.members = members->of(process);
    peers.push_back(std::move(peer));
  }
  if (call_.op == Collective::all_reduce || call_.op == Collective::reduce_scatter) {
    add_sums();
    if (!owned_.empty() && !peers.empty()) {
      const auto away = members->ranks.size() - own.size();
      const auto blocks = std::min(window(), owned_.size());
      scratch_ = scratch.take(blocks * away * static_cast<std::size_t>(block_bytes_));
      for (auto& peer : peers) {
        for (std::size_t b = 0; b < owned_.size(); ++b) {
          for (const int m : peer.members) {
            peer.in[parts].pieces.push_back({part_of(b, contributor_[static_cast<std::size_t>(m)]),
                                             owned_[b].count * item_,
                                             {}});
          }
        }
      }
    }
  } else {
    add_copies();
    local_copies();
  }
  for (auto& peer : peers) {
    if (call_.op != Collective::all_reduce) peer.out[plain].allowed = peer.out[plain].pieces.size();
    peer.out[parts].allowed = std::min(peer.out[parts].pieces.size(), window() * own.size());
  }
  credit_ = window();
  std::uint32_t expected = gathering;
  state_.compare_exchange_strong(expected, running, std::memory_order_seq_cst);
}

std::byte* Round::part_of(std::size_t block, int contributor) const {
  const auto away = members->ranks.size() - own.size();
  const auto slot = block % window() * away + static_cast<std::size_t>(contributor);
  return const_cast<std::byte*>(scratch_.data()) + static_cast<std::int64_t>(slot) * block_bytes_;
}

void Round::add_sums() {
  block_bytes_ = far_ ? block_far : block_here;
  const std::int64_t most = block_bytes_ / item_;
  contributor_.assign(members->ranks.size(), -1);
  int contributors = 0;
  for (std::size_t i = 0; i < members->ranks.size(); ++i) {
    if (members->process_of[i] != members->process) contributor_[i] = contributors++;
  }
  std::vector<Block> blocks;
  const auto cut = [&](int owner, std::int64_t in, std::int64_t count, std::int64_t out,
                       int target) {
    for (std::int64_t at = 0; at < count; at += most) {
      blocks.push_back({owner, in + at, std::min(most, count - at), out + at, target});
    }
  };
  if (call_.op == Collective::all_reduce) {
    // Each process sums up one part of the numbers.
    std::vector<int> owners;
    for (const int process : members->process_of) {
      if (std::find(owners.begin(), owners.end(), process) == owners.end())
        owners.push_back(process);
    }
    const auto n = static_cast<std::int64_t>(owners.size());
    const std::int64_t each = ((call_.elements + n - 1) / n + 15) / 16 * 16;
    for (std::int64_t j = 0; j < n; ++j) {
      const auto from = std::min(call_.elements, j * each);
      cut(owners[static_cast<std::size_t>(j)], from, std::min(each, call_.elements - from), from,
          -1);
    }
  } else {
    for (std::size_t i = 0; i < members->ranks.size(); ++i) {
      cut(members->process_of[i], static_cast<std::int64_t>(i) * call_.elements, call_.elements, 0,
          static_cast<int>(i));
    }
  }
  const bool to_all = call_.op == Collective::all_reduce;
  std::vector<std::byte*> outs;
  for (const int m : own) outs.push_back(arrivals[static_cast<std::size_t>(m)].out);
  for (const Block& block : blocks) {
    const std::int64_t bytes = block.count * item_;
    if (block.owner == members->process) {
      owned_.push_back(block);
      if (!to_all) continue;
      for (auto& peer : peers) add(peer.out[plain], outs[0] + block.out * item_, bytes);
      continue;
    }
    Peer& owner = *peer_of(block.owner);
    for (const int m : own) {
      add(owner.out[parts], arrivals[static_cast<std::size_t>(m)].in + block.in * item_, bytes);
    }
    if (!to_all) continue;
    std::vector<std::byte*> more;
    for (std::size_t m = 1; m < outs.size(); ++m) more.push_back(outs[m] + block.out * item_);
    add(owner.in[plain], outs[0] + block.out * item_, bytes, more);
  }
}

void Round::add_copies() {
  const auto arrival = [&](int m) -> Arrival& { return arrivals[static_cast<std::size_t>(m)]; };
  const std::int64_t bytes = call_.elements * item_;
  const auto others_at =
      [&](std::int64_t offset) {  // the outputs of all members here but the first
        std::vector<std::byte*> list;
        for (std::size_t m = 1; m < own.size(); ++m) list.push_back(arrival(own[m]).out + offset);
        return list;
      };
  for (auto& peer : peers) {
    switch (call_.op) {
      case Collective::all_gather:
        for (const int m : own) add(peer.out[plain], arrival(m).in, bytes);
        for (const int m : peer.members) {
          add(peer.in[plain], arrival(own[0]).out + m * bytes, bytes, others_at(m * bytes));
        }
        break;
      case Collective::broadcast: {
        const int root = members->process_of[static_cast<std::size_t>(call_.root)];
        if (root == members->process) add(peer.out[plain], arrival(call_.root).in, bytes);
        if (root == peer.process) add(peer.in[plain], arrival(own[0]).out, bytes, others_at(0));
        break;
      }
      case Collective::all_to_all:
        for (const int m : own) {
          const auto& splits = arrival(m).call.in_splits;
          for (const int to : peer.members) {
            add(peer.out[plain], arrival(m).in + sum_before(splits, to) * bytes,
                splits[static_cast<std::size_t>(to)] * bytes);
          }
        }
        for (const int from : peer.members) {
          for (const int m : own) {
            const auto& splits = arrival(m).call.out_splits;
            add(peer.in[plain], arrival(m).out + sum_before(splits, from) * bytes,
                splits[static_cast<std::size_t>(from)] * bytes);
          }
        }
        break;
      case Collective::send:
        add(peer.out[plain], arrival(own[0]).in, bytes);
        break;
      case Collective::recv:
        add(peer.in[plain], arrival(own[0]).out, bytes);
        break;
      default:
        break;
    }
  }
}

void Round::local_copies() {
  const std::int64_t bytes = call_.elements * item_;
  for (const int from : own) {
    const auto& giver = arrivals[static_cast<std::size_t>(from)];
    for (const int to : own) {
      const auto& taker = arrivals[static_cast<std::size_t>(to)];
      if (call_.op == Collective::all_gather) {
        copy_bytes(taker.out + from * bytes, giver.in, bytes);
      } else if (call_.op == Collective::broadcast && from == call_.root) {
        copy_bytes(taker.out, giver.in, bytes);
      } else if (call_.op == Collective::send || call_.op == Collective::recv) {
        // A pair of this process in a group of several: the first member sends to the second.
        if (from == 0 && to == 1) copy_bytes(taker.out, giver.in, bytes);
      } else if (call_.op == Collective::all_to_all) {
        copy_bytes(taker.out + sum_before(taker.call.out_splits, from) * bytes,
                   giver.in + sum_before(giver.call.in_splits, to) * bytes,
                   giver.call.in_splits[static_cast<std::size_t>(to)] * bytes);
      }
    }
  }
}

void Round::came(Peer& peer, StreamKind kind) {
  Stream& stream = peer.in[kind];
  const Piece& piece = stream.pieces[stream.done++];
  stream.offset = 0;
  for (std::byte* also : piece.more) copy_bytes(also, piece.at, piece.bytes);
  if (kind != parts) return;
  while (summed_ < owned_.size() && std::all_of(peers.begin(), peers.end(), [&](const Peer& p) {
           return p.in[parts].done >= (summed_ + 1) * p.members.size();
         })) {
    sum(owned_[summed_], summed_);
    ++summed_;
    if (call_.op != Collective::all_reduce) continue;
    for (auto& other : peers) other.out[plain].allowed = summed_;
  }
}

void Round::sum(const Block& block, std::size_t number) {
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
  for (std::size_t i = 0; i < members->ranks.size(); ++i) {
    in.push_back(contributor_[i] < 0 ? arrivals[i].in + block.in * item_
                                     : part_of(number, contributor_[i]));
  }
  for (const int m : own) {
    if (block.target >= 0 && block.target != m) continue;
    out.push_back(arrivals[static_cast<std::size_t>(m)].out + block.out * item_);
  }
  mw::comm::reduce(call_.dtype, call_.combine, in, out, 0, block.count);
}

int Round::take_credit() {
  const auto now = std::min(owned_.size(), summed_ + window());
  if (now <= credit_) return 0;
  const auto more = static_cast<int>(now - credit_);
  credit_ = now;
  return more;
}

void Round::credited(Peer& peer, std::int64_t blocks) {
  auto& out = peer.out[parts];
  out.allowed =
      std::min(out.pieces.size(), out.allowed + static_cast<std::size_t>(blocks) * own.size());
}

std::size_t Round::receivable(const Peer& peer, StreamKind kind) const {
  const auto all = peer.in[kind].pieces.size();
  return kind == plain ? all : std::min(all, (summed_ + window()) * peer.members.size());
}

}  // namespace mpi
