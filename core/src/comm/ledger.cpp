// Counts a rank's allocations by category against a limit, the bytes and seconds of its
// communication, and the work of its ops.
#include "meshwright/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "meshwright/error.h"

namespace mw {

const char* name_of(Category category) {
  static constexpr std::array names{"parameters", "gradients", "optimizer", "activations",
                                    "buffers",    "scratch",   "host"};
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

void Ledger::add(Category category, std::int64_t bytes) {
  add(use_[static_cast<std::size_t>(category)], bytes);
  if (category != Category::host) add(without_scratch_, bytes);
}

void Ledger::book(const void* pointer, std::int64_t bytes) {
  freed(pointer);  // the block before at this address was freed unseen, on another thread
  Block block{bytes, current_};
  const bool host = current_ == Category::host;
  if (!host) add(total_, bytes);
  if (kernels_ > 0 && !host) {
    block.made = static_cast<int>(kernel_.size());
    kernel_.push_back({bytes, current_, pointer, false});
  } else {
    add(current_, bytes);
  }
  blocks_.emplace(pointer, block);
}

void Ledger::end_kernel() {
  MemoryUse own;
  for (const KernelEvent& event : kernel_) {
    add(own, event.bytes);
    if (event.scratch) continue;
    add(event.category, event.bytes);
    blocks_.find(event.pointer)->second.made = -1;
  }
  kernel_.clear();
  std::int64_t& peak = use_[static_cast<std::size_t>(Category::scratch)].peak;
  peak = std::max(peak, own.peak - own.bytes);
}

void Ledger::allocated(const void* pointer, std::int64_t bytes) {
  if (pauses_ > 0) {
    freed(pointer);  // the block before at this address was freed unseen, as in book()
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
  if (block.category != Category::host) total_.bytes -= block.bytes;
  if (block.made < 0) return add(block.category, -block.bytes);
  kernel_[static_cast<std::size_t>(block.made)].scratch = true;
  kernel_.push_back({-block.bytes, block.category, nullptr, true});
}

void Ledger::reset_peaks() {
  for (auto& use : use_) use.peak = use.bytes;
  total_.peak = total_.bytes;
  without_scratch_.peak = without_scratch_.bytes;
}

std::string Ledger::limit_hint() const {
  return hint_
             ? hint_(most_rows_share())
             : "Use smaller microbatches, more recompute or a higher degree of a form that shards.";
}

void Ledger::set_limit(std::int64_t bytes, int rank, LimitHint hint) {
  limit_ = bytes;
  hint_ = std::move(hint);
  rank_ = rank;
  over_limit_ = false;
}

namespace {

template <class Book, class Key>
Ledger::Entry place_of(Book& book, Key key) {
  for (std::size_t place = 0; place < book.size(); ++place) {
    if (book[place].key == key) return place;
  }
  book.push_back({std::move(key)});
  return book.size() - 1;
}

template <class Key, class Use, class Book>
std::map<Key, Use> used(const Book& book) {
  std::map<Key, Use> uses;
  for (const auto& [key, use, next] : book) {
    if (use.calls > 0 || use.seconds > 0) uses[key] = use;
  }
  return uses;
}

}  // namespace

Ledger::Entry Ledger::communication_entry(const std::string& axis, const char* op,
                                          const char* phase) {
  return place_of(communication_, CommunicationKey{axis, op, phase});
}

Ledger::Entry Ledger::work_entry(const std::string& op, const char* piece) {
  return place_of(work_, WorkKey{op, piece});
}

std::map<CommunicationKey, CommunicationUse> Ledger::communication() const {
  return used<CommunicationKey, CommunicationUse>(communication_);
}

std::map<WorkKey, WorkUse> Ledger::work() const {
  return used<WorkKey, WorkUse>(work_);
}

double Ledger::communication_seconds(const std::string& left_out) const {
  double seconds = 0;
  for (const auto& booked : communication_) {
    if (booked.key.phase != left_out) seconds += booked.use.seconds;
  }
  return seconds;
}

void Ledger::took_rows(int layer, std::int64_t group, std::int64_t rows) {
  const auto place = static_cast<std::size_t>(layer + 1), at = static_cast<std::size_t>(group);
  if (rows_.size() <= place) rows_.resize(place + 1);
  if (rows_[place].size() <= at) rows_[place].resize(at + 1, -1);
  std::int64_t& sum = rows_[place][at];
  sum = std::max<std::int64_t>(sum, 0) + rows;
}

std::map<std::pair<int, std::int64_t>, std::int64_t> Ledger::rows() const {
  std::map<std::pair<int, std::int64_t>, std::int64_t> sums;
  for (std::size_t place = 0; place < rows_.size(); ++place) {
    for (std::size_t group = 0; group < rows_[place].size(); ++group) {
      if (rows_[place][group] < 0) continue;
      sums[{static_cast<int>(place) - 1, static_cast<std::int64_t>(group)}] = rows_[place][group];
    }
  }
  return sums;
}

void Ledger::clear_step(const std::map<CommunicationKey, CommunicationUse>& sent) {
  for (auto& booked : communication_) booked.use = std::exchange(booked.next, {});
  for (const auto& [key, use] : sent) {
    CommunicationUse& next = communication_[place_of(communication_, key)].use;
    next = {next.calls + use.calls, next.bytes + use.bytes, next.seconds + use.seconds};
  }
  for (auto& booked : work_) booked.use = {};
  for (auto& groups : rows_) std::fill(groups.begin(), groups.end(), -1);
  most_rows_share_ = most_rows_share();
  compared_ = {};
}

}  // namespace mw
