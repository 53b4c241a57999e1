// Keeps models and plans by what they are made of, and forgets the plans that nobody has asked for
// the longest.
#include "script/plan_memo.h"

namespace mw {
namespace {

constexpr std::size_t most_models = 256;
constexpr std::size_t most_size = 400'000;  // of some 300 bytes each

std::size_t size_of(const Plan& plan) {
  std::size_t size = 1;
  for (const Program& program : plan.programs) {
    size += program.slots.size();
    for (const Segment& segment : program.segments) size += segment.code.size();
  }
  return size;
}

}  // namespace

PlanMemo::Models PlanMemo::model(const std::string& key, const std::function<Models()>& make) {
  const auto known = models_.find(key);
  if (known != models_.end()) return known->second;
  Models made = make();
  if (models_.size() == most_models) models_.clear();
  if (made != nullptr) models_.emplace(key, made);
  return made;
}

PlanMemo::Plans PlanMemo::plan(const std::string& key, const std::function<Plans()>& make) {
  if (const auto known = plans_.find(key); known != plans_.end()) {
    order_.splice(order_.begin(), order_, known->second.used);
    return known->second.plan;
  }
  Plans made = make();
  if (made == nullptr) return made;
  order_.push_front(key);
  const std::size_t size = size_of(*made);
  plans_.emplace(key, Kept{made, size, order_.begin()});
  size_ += size;
  while (size_ > most_size && order_.size() > 1) {
    const auto oldest = plans_.find(order_.back());
    size_ -= oldest->second.size;
    plans_.erase(oldest);
    order_.pop_back();
  }
  return made;
}

}  // namespace mw
