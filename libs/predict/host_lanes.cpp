// Keeps the copies that are under way between a device and its host memory, and when they end.
#include "predict/host_lanes.h"

#include <algorithm>
#include <cmath>

namespace mw {

HostLanes::HostLanes(const RankView& rank) : program_(rank.program()) {
  const Program& program = program_;
  const auto on_host = [&](int slot) {
    return slot >= 0 && program.slots[slot].memory == Memory::host;
  };
  const auto some = [](const auto& list, const auto& of) {
    return std::any_of(list.begin(), list.end(), of);
  };
  // Most programs have no slot in host memory, so no copies are looked for.
  if (!some(program.slots, [](const Slot& slot) { return slot.memory == Memory::host; })) return;
  Footprint made;
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) {
      if (i.ring || (!some(i.inputs, on_host) && !some(i.outputs, on_host))) continue;
      footprint(rank, i, FootprintParts::work, made);
      if (made.host_copy.bytes <= 0 || made.host_copy.device < 0) continue;
      copied_.resize(program.slots.size(), false);
      copied_[storage(made.host_copy.device)] = true;
    }
  }
}

int HostLanes::storage(int slot) const {
  return program_.root(slot);
}

std::vector<int> HostLanes::awaits(const Instruction& instruction) const {
  std::vector<int> found;
  if (copied_.empty()) return found;
  const int followed = follows(instruction);
  const auto look = [&](int slot) {
    const int root = storage(slot);
    if (copied_[root] && root != followed &&
        std::find(found.begin(), found.end(), root) == found.end())
      found.push_back(root);
  };
  for_each_slot(instruction, look);
  for (const int slot : instruction.release) look(slot);
  return found;
}

int HostLanes::follows(const Instruction& instruction) const {
  const bool moves = instruction.begins_transfer() || instruction.awaits_transfer();
  if (copied_.empty() || !moves || instruction.runs_hook() ||
      !between_lasting(program_, instruction))
    return -1;
  const int root = storage(instruction.inputs[0]);
  return copied_[root] ? root : -1;
}

template <class Which>
double HostLanes::over(const Which& which) const {
  double end = 0;
  for (const Underway& copy : underway_) {
    if (which(copy)) end = std::max(end, copy.end);
  }
  return end;
}

double HostLanes::there(const std::vector<int>& storages, int microbatch) const {
  return over([&](const Underway& copy) {
    return copy.of(microbatch) && std::ranges::find(storages, copy.device) != storages.end();
  });
}

double HostLanes::on_host(int slot) const {
  return over([&](const Underway& copy) { return copy.host == slot; });
}

double HostLanes::left() const {
  return over([](const Underway& copy) { return copy.leaves; });
}

bool HostLanes::awaits_left(const HostCopy& copy) const {
  if (!copy.leaves || copy.device < 0) return copy.leaves;
  const Slot& device = program_.slots[copy.device];
  return !device.persistent || device.transient;
}

HostLanes::Copy HostLanes::begin(const HostCopy& copy, double seconds, int microbatch,
                                 double clock) {
  std::erase_if(underway_, [&](const Underway& one) { return one.end <= clock; });
  double& free = copy.leaves ? out_ : in_;
  Copy made{std::max(clock, free), 0};
  for (const Underway& one : underway_) {
    if (!copy.leaves && one.leaves && one.host == copy.host && one.of(microbatch))
      made.begin = std::max(made.begin, one.end);
  }
  free = made.end = made.begin + seconds;
  const int device = copy.device >= 0 ? storage(copy.device) : -1;
  underway_.push_back(
      {made.end, device, copy.host, microbatch, copy.leaves, program_.slots[copy.host].persistent});
  return made;
}

bool HostLanes::State::like(const State& other) const {
  const auto near = [](double a, double b) { return std::abs(a - b) < 1e-9; };
  return near(out, other.out) && near(in, other.in) &&
         std::equal(copies.begin(), copies.end(), other.copies.begin(), other.copies.end(),
                    [&](const Underway& a, const Underway& b) {
                      return near(a.end, b.end) && a.device == b.device && a.host == b.host &&
                             a.of(b.microbatch) && a.leaves == b.leaves && a.lasts == b.lasts;
                    });
}

HostLanes::State HostLanes::state(double clock, int microbatch) const {
  State seen{std::max(0.0, out_ - clock), std::max(0.0, in_ - clock), {}};
  for (Underway copy : underway_) {
    if (copy.end <= clock) continue;
    copy.end -= clock;
    copy.microbatch -= microbatch;
    seen.copies.push_back(copy);
  }
  return seen;
}

void HostLanes::resume(const State& state, double clock, int microbatch) {
  out_ = clock + state.out;
  in_ = clock + state.in;
  underway_ = state.copies;
  for (Underway& copy : underway_) {
    copy.end += clock;
    copy.microbatch += microbatch;
  }
}

}  // namespace mw
