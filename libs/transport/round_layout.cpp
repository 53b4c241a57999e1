// Lays out how the data of a round goes to other processes: the streams, their order, and which
// process sums up each part. Both ends of a stream cut it into the same pieces; each end needs only
// the calls of its own members for that.
#include <algorithm>
#include <cstring>

#include "transport/round.h"

namespace mw::transport {
namespace {

// bytes of a piece; MPI counts them in an int
constexpr std::int64_t most_of_a_piece = std::int64_t{8} << 20;
// Bytes of a block within a machine: its parts stay in a core's cache.
constexpr std::int64_t block_near = 128 << 10;
// Bytes of a block between machines: they fill a network while one is summed up.
constexpr std::int64_t block_far = 1 << 20;
// Blocks that may be sent before the first one is summed up.
constexpr std::size_t blocks_ahead = 4;

void add(Stream& stream, std::byte* at, std::int64_t bytes, std::span<std::byte* const> more = {}) {
  for (std::int64_t from = 0; from < bytes; from += most_of_a_piece) {
    Piece piece{at + from, std::min(most_of_a_piece, bytes - from), {}};
    for (std::byte* also : more) piece.more.push_back(also + from);
    stream.pieces.push_back(std::move(piece));
  }
}

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

bool has_member(const comm::Run::Buffers& buffers, const std::vector<int>& members) {
  return std::any_of(members.begin(), members.end(),
                     [&](int m) { return buffers.has(static_cast<std::size_t>(m)); });
}

}  // namespace

void Round::lay_out(Scratch& scratch) {
  call_ = arrival(own[0]).call;
  item_ = static_cast<std::int64_t>(c10::elementSize(call_.dtype));
  for (const int process : members->processes()) {
    if (process == members->process) continue;
    Peer& peer = peers.emplace_back();
    peer.process = process;
    peer.members = members->of(process);
  }
  std::vector<const comm::Call*> calls(members->ranks.size(), nullptr);
  for (const int m : own) calls[static_cast<std::size_t>(m)] = &arrival(m).call;
  std::vector<comm::Run> runs;
  comm::lay_out(calls, runs);
  for (const comm::Run& run : runs) run.in.count > 1 ? add_sum(run) : add_copy(run);
  const bool sums = block_bytes_ > 0;
  if (!owned_.empty()) await_parts(scratch);
  for (auto& peer : peers) {
    peer.out[plain].allowed = sums ? 0 : peer.out[plain].pieces.size();
    peer.out[parts].allowed = std::min(peer.out[parts].pieces.size(), blocks_ahead * own.size());
    peer.in[plain].allowed = peer.in[plain].pieces.size();
  }
  credit_ = blocks_ahead;
  std::uint32_t expected = gathering;
  state_.compare_exchange_strong(expected, running, std::memory_order_seq_cst);
}

std::vector<std::byte*> Round::outputs(const comm::Run& run) const {
  std::vector<std::byte*> list;
  for (const int m : own) {
    if (run.out.has(static_cast<std::size_t>(m)))
      list.push_back(arrival(m).out + run.out.begin * item_);
  }
  return list;
}

void Round::add_copy(const comm::Run& run) {
  const int from = members->process_of[run.in.first];
  const std::int64_t bytes = run.elements * item_;
  const std::vector<std::byte*> outs = outputs(run);
  if (from != members->process) {
    if (!outs.empty()) add(peer_of(from)->in[plain], outs[0], bytes, std::span(outs).subspan(1));
    return;
  }
  std::byte* const at = arrivals[run.in.first].in + run.in.begin * item_;
  for (std::byte* const out : outs) copy_bytes(out, at, bytes);
  for (auto& peer : peers) {
    if (has_member(run.out, peer.members)) add(peer.out[plain], at, bytes);
  }
}

// The process of the one member that gets a sum computes it; where several members get it, each
// process sums up one part.
void Round::add_sum(const comm::Run& run) {
  block_bytes_ = far_ ? block_far : block_near;
  const std::int64_t most = block_bytes_ / item_;
  const std::vector<int> owners =
      run.out.count > 1 ? members->processes() : std::vector{members->process_of[run.out.first]};
  const auto n = static_cast<std::int64_t>(owners.size());
  const std::int64_t each = n == 1 ? run.elements : ((run.elements + n - 1) / n + 15) / 16 * 16;
  for (std::int64_t j = 0; j < n; ++j) {
    const auto end = std::min(run.elements, (j + 1) * each);
    for (std::int64_t at = j * each; at < end; at += most) {
      Block block{owners[static_cast<std::size_t>(j)], run};
      block.run.in.begin += at;
      block.run.out.begin += at;
      block.run.elements = std::min(most, end - at);
      add_block(block);
    }
  }
}

void Round::add_block(const Block& block) {
  const std::int64_t bytes = block.run.elements * item_;
  const std::vector<std::byte*> outs = outputs(block.run);
  if (block.owner == members->process) {
    owned_.push_back(block);
    for (auto& peer : peers) {
      if (has_member(block.run.out, peer.members)) add(peer.out[plain], outs[0], bytes);
    }
    return;
  }
  Peer& owner = *peer_of(block.owner);
  for (const int m : own) add(owner.out[parts], arrival(m).in + block.run.in.begin * item_, bytes);
  if (!outs.empty()) add(owner.in[plain], outs[0], bytes, std::span(outs).subspan(1));
}

void Round::await_parts(Scratch& scratch) {
  int contributors = 0;
  for (const int process : members->process_of)
    contributor_.push_back(process == members->process ? -1 : contributors++);
  const auto blocks = std::min(blocks_ahead, owned_.size());
  scratch_ = scratch.take(blocks * static_cast<std::size_t>(contributors * block_bytes_));
  for (auto& peer : peers) {
    Stream& in = peer.in[parts];
    for (std::size_t b = 0; b < owned_.size(); ++b) {
      for (const int m : peer.members)
        add(in, part_of(b, contributor_[static_cast<std::size_t>(m)]),
            owned_[b].run.elements * item_);
    }
    in.allowed = std::min(in.pieces.size(), blocks_ahead * peer.members.size());
  }
}

std::byte* Round::part_of(std::size_t block, int contributor) const {
  const auto away = members->ranks.size() - own.size();
  const auto slot = block % blocks_ahead * away + static_cast<std::size_t>(contributor);
  return const_cast<std::byte*>(scratch_.data()) + static_cast<std::int64_t>(slot) * block_bytes_;
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
    // The memory of the summed block's parts is free for a later block.
    for (auto& other : peers) {
      other.out[plain].allowed = std::min(other.out[plain].pieces.size(), summed_);
      other.in[parts].allowed =
          std::min(other.in[parts].pieces.size(), (summed_ + blocks_ahead) * other.members.size());
    }
  }
}

void Round::sum(const Block& block, std::size_t number) {
  std::vector<const std::byte*> in;
  for (std::size_t i = 0; i < members->ranks.size(); ++i) {
    in.push_back(contributor_[i] < 0 ? arrivals[i].in + block.run.in.begin * item_
                                     : part_of(number, contributor_[i]));
  }
  comm::reduce(call_.dtype, call_.combine, in, outputs(block.run), 0, block.run.elements);
}

int Round::take_credit() {
  const auto now = std::min(owned_.size(), summed_ + blocks_ahead);
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

}  // namespace mw::transport
