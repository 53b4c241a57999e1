// Keeps a rank's books: allocations by category against a limit, bytes and seconds of
// communication, and what its ops computed.
#include "meshwright/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "meshwright/error.h"

namespace mw {

const char* name_of(Category category) {
  static constexpr std::array names{"parameters",  "gradients", "optimizer",
                                    "activations", "buffers",   "host"};
  return names.at(static_cast<std::size_t>(category));
}

Ledger::Scope::Scope(Ledger& ledger, Category category)
    : ledger_(ledger), before_(ledger.current_) {
  ledger_.current_ = category;
}

Ledger::Scope::~Scope() {
  ledger_.current_ = before_;
}

void Ledger::add(MemoryUse& use, std::int64_t bytes) {
  use.bytes += bytes;
  use.peak = std::max(use.peak, use.bytes);
}

void Ledger::book(const void* pointer, std::int64_t bytes) {
  freed(pointer);  // a block freed out of sight: its address is in use again
  blocks_.emplace(pointer, Block{bytes, current_});
  add(use_[static_cast<std::size_t>(current_)], bytes);
  if (current_ != Category::host) add(total_, bytes);
}

void Ledger::allocated(const void* pointer, std::int64_t bytes) {
  if (pauses_ > 0) {
    freed(pointer);  // as in book()
    return;
  }
  if (limit_ > 0 && current_ != Category::host && total_.bytes + bytes > limit_) {
    throw Error(
        Stage::run, "memory.exceeded", "memory",
        fmt::format("Rank {} is out of its memory limit: {} bytes for {} on top of {} bytes "
                    "in use go over {} bytes.",
                    rank_, bytes, name_of(current_), total_.bytes, limit_),
        limit_hint());
  }
  book(pointer, bytes);
}

void Ledger::allocated_past_limit(const void* pointer, std::int64_t bytes) {
  if (pauses_ > 0) return freed(pointer);
  book(pointer, bytes);
  if (limit_ > 0 && total_.bytes > limit_) over_limit_ = true;
}

void Ledger::freed(const void* pointer) {
  const auto found = blocks_.find(pointer);
  if (found == blocks_.end()) return;
  const auto block = found->second;
  blocks_.erase(found);
  use_[static_cast<std::size_t>(block.category)].bytes -= block.bytes;
  if (block.category != Category::host) total_.bytes -= block.bytes;
}

void Ledger::reset_peaks() {
  for (auto& use : use_) use.peak = use.bytes;
  total_.peak = total_.bytes;
}

std::string Ledger::limit_hint() const {
  return hint_ ? hint_(most_rows_share())
               : "Use smaller microbatches, more recompute or more ways of a form that shards.";
}

void Ledger::set_limit(std::int64_t bytes, int rank, LimitHint hint) {
  limit_ = bytes;
  hint_ = std::move(hint);
  rank_ = rank;
  over_limit_ = false;
}

CommunicationUse& Ledger::entry(const std::string& axis, const char* op, const char* phase) {
  return communication_[CommunicationKey{axis, op, phase}];
}

void Ledger::communicated(const std::string& axis, const char* op, const char* phase,
                          std::int64_t bytes) {
  auto& use = entry(axis, op, phase);
  ++use.calls;
  use.bytes += bytes;
}

void Ledger::waited(const std::string& axis, const char* op, const char* phase, double seconds) {
  entry(axis, op, phase).seconds += seconds;
}

void Ledger::worked(const std::string& op, const char* piece, double flops, double seconds) {
  WorkUse& use = work_[{op, piece}];
  ++use.calls;
  use.flops += flops;
  use.seconds += seconds;
}

void Ledger::clear_step(std::map<CommunicationKey, CommunicationUse> sent) {
  sent.merge(of_next_step_);
  of_next_step_.clear();
  communication_ = std::move(sent);
  work_.clear();
  rows_.clear();
  most_rows_share_ = most_rows_share();
  compared_ = {};
}

}  // namespace mw
