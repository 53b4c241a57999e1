// Activation offload: what forward keeps for backward lies in host memory in between (Ren et al.
// 2021, "ZeRO-Offload", does so with optimizer states; Beaumont et al. 2021, "Efficient Combination
// of Rematerialization and Offloading", with activations).
#include "plan/build.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>

namespace mw {
namespace {

// Copies, by the index of the instruction that they stand before, then by that of the first reader
// of what they fetch.
using Inserts = std::map<std::pair<int, int>, std::vector<Instruction>>;

class Offloader {
 public:
  Offloader(Program& program, const OffloadSet& set, int vstage)
      : program_(program), set_(set), vstage_(vstage) {
    find_uses();
    find_layers();
  }

  Offloaded run() {
    Offloaded done;
    const int forward = program_.segment(SegmentKind::forward, vstage_);
    std::map<int, Inserts> inserts;  // copies to insert, by segment
    const int slots = static_cast<int>(program_.slots.size());
    for (int slot = 0; slot < slots; ++slot) {
      if (!goes(slot, forward)) continue;
      const int host = host_copy(slot, Memory::host);
      inserts[forward][{uses_[slot].at(forward).back() + 1, 0}].push_back(
          copy(slot, host, "forward"));
      for (const int segment : backwards_) {
        const auto found = uses_[slot].find(segment);
        if (found == uses_[slot].end()) continue;
        const int back = host_copy(slot, Memory::device);
        for (int index : found->second) replace(program_.segments[segment].code[index], slot, back);
        const int reader = found->second.front();
        inserts[segment][{place(segment, reader), reader}].push_back(copy(host, back, "backward"));
      }
      ++done.tensors;
      done.bytes += bytes(slot);
    }
    for (auto& [segment, list] : inserts) insert(program_.segments[segment].code, list);
    return done;
  }

 private:
  void find_uses() {
    uses_.resize(program_.slots.size());
    for (std::size_t s = 0; s < program_.segments.size(); ++s) {
      const Segment& segment = program_.segments[s];
      const int at = static_cast<int>(s);
      const bool back = segment.kind == SegmentKind::backward ||
                        segment.kind == SegmentKind::dgrad || segment.kind == SegmentKind::wgrad;
      if (back && segment.vstage == vstage_) backwards_.push_back(at);
      for (std::size_t i = 0; i < segment.code.size(); ++i) {
        for_each_slot(segment.code[i], [&](int slot) {
          std::vector<int>& list = uses_[slot][at];
          if (list.empty() || list.back() != static_cast<int>(i))
            list.push_back(static_cast<int>(i));
        });
      }
    }
  }

  // Finds the layers that the set offloads: all of this virtual stage, or the first ones.
  void find_layers() {
    for (std::size_t op = 0; op < program_.vstage_of.size(); ++op) {
      if (program_.vstage_of[op] == vstage_ && program_.graph->ops()[op].layer >= 0) {
        layers_.insert(program_.graph->ops()[op].layer);
      }
    }
    while (set_.layers > 0 && static_cast<int>(layers_.size()) > set_.layers) {
      layers_.erase(std::prev(layers_.end()));
    }
  }

  std::int64_t bytes(int slot) const {
    return program_.local_bytes(program_.slots[slot], program_.first());
  }

  bool goes(int slot, int forward) const {
    const Slot& s = program_.slots[slot];
    if (s.persistent || s.category != Category::activations) return false;
    if (s.value >= 0 && program_.graph->value(s.value).source != Value::Source::op) return false;
    if (uses_[slot].count(forward) == 0 || bytes(slot) < std::max<std::int64_t>(set_.least, 1))
      return false;
    const bool named = set_.tensors.count(s.name) > 0;
    bool chosen = false;
    for (const auto& [segment, indices] : uses_[slot]) {
      const Segment& user = program_.segments[segment];
      if (user.vstage != vstage_) return false;
      const bool back =
          std::find(backwards_.begin(), backwards_.end(), segment) != backwards_.end();
      if (!back && user.gradient) return false;
      for (int index : indices) chosen = chosen || (back && (named || serves(user.code, index)));
    }
    return chosen;
  }

  // Whether an instruction of a backward segment is of a chosen op,
  // or a move of what such an op reads.
  bool serves(const std::vector<Instruction>& code, int index) const {
    const Instruction& i = code[index];
    if (i.code == Code::compute) {
      return set_.ops[i.op] && layers_.count(program_.graph->ops()[i.op].layer) > 0;
    }
    if (i.code != Code::start && i.code != Code::move && i.code != Code::copy) return false;
    for (int output : i.outputs) {
      for (std::size_t n = static_cast<std::size_t>(index) + 1; n < code.size(); ++n) {
        const bool reads =
            std::find(code[n].inputs.begin(), code[n].inputs.end(), output) != code[n].inputs.end();
        if (reads && serves(code, static_cast<int>(n))) return true;
      }
    }
    return false;
  }

  // The index of the instruction before which a tensor is fetched whose first reader is `reader`.
  int place(int segment, int reader) const {
    const std::vector<Instruction>& code = program_.segments[segment].code;
    std::vector<int> begins;  // index of each layer's first compute, up to the reader's layer
    std::set<int> seen;
    for (std::size_t n = 0; n < code.size(); ++n) {
      if (code[n].code != Code::compute) continue;
      if (seen.insert(program_.graph->ops()[code[n].op].layer).second) {
        begins.push_back(static_cast<int>(n));
      }
      if (static_cast<int>(n) >= reader) break;  // a move belongs to the compute that follows
    }
    const std::size_t ahead =
        std::min(begins.size(), static_cast<std::size_t>(set_.prefetch) + std::size_t{1});
    return begins.empty() ? reader : std::min(reader, begins[begins.size() - ahead]);
  }

  int host_copy(int slot, Memory memory) {
    Slot other = program_.slots[slot];
    other.alias_of = -1;
    other.memory = memory;
    if (memory == Memory::host) other.name = "host " + other.name;
    program_.slots.push_back(std::move(other));
    return static_cast<int>(program_.slots.size()) - 1;
  }

  Instruction copy(int from, int to, const char* phase) const {
    Instruction i;
    i.code = Code::copy;
    i.phase = phase;
    i.label = program_.slots[program_.slots[to].memory == Memory::host ? from : to].name;
    i.inputs = {from};
    i.outputs = {to};
    return i;
  }

  static void replace(Instruction& i, int slot, int by) {
    for (auto* list : {&i.inputs, &i.outputs, &i.saved}) {
      std::replace(list->begin(), list->end(), slot, by);
    }
  }

  static void insert(std::vector<Instruction>& code, const Inserts& inserts) {
    for (auto at = inserts.rbegin(); at != inserts.rend(); ++at) {
      code.insert(code.begin() + at->first.first, at->second.begin(), at->second.end());
    }
  }

  Program& program_;
  const OffloadSet& set_;
  const int vstage_;
  std::vector<int> backwards_;                         // backward segments of the virtual stage
  std::vector<std::map<int, std::vector<int>>> uses_;  // of each slot: segment -> instructions
  std::set<int> layers_;
};

}  // namespace

bool OffloadSet::any() const {
  return !tensors.empty() || std::any_of(ops.begin(), ops.end(), [](bool op) { return op; });
}

Offloaded offload_activations(Program& program, const OffloadSet& set) {
  Offloaded total;
  if (!set.any()) return total;
  std::set<int> vstages;
  for (const Segment& segment : program.segments) {
    if (segment.kind == SegmentKind::forward) vstages.insert(segment.vstage);
  }
  for (int vstage : vstages) {
    const Offloaded done = Offloader(program, set, vstage).run();
    total.tensors += done.tensors;
    total.bytes += done.bytes;
  }
  return total;
}

}  // namespace mw
