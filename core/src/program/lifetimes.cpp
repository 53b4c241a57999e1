// Decides from the uses of slots what may be overwritten in place and after which instruction
// each is released.
#include "program/lifetimes.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>

namespace mw {
namespace {

// How two segments of a microbatch stand to each other.
enum class Order : std::uint8_t {
  before,
  after,
  either,     // unordered: a wgrad waits as long as the schedule likes
  exclusive,  // never both: "backward" is an alternative to the pair "dgrad" and "wgrad"
};

bool is_forward(const Segment& s) {
  return s.kind == SegmentKind::forward ||
         (!s.gradient && s.kind >= SegmentKind::post && s.kind <= SegmentKind::sent);
}

Order order_of(const Segment& a, const Segment& b) {
  const auto reversed = [](Order o) {
    return o == Order::before ? Order::after : o == Order::after ? Order::before : o;
  };
  if (a.kind == SegmentKind::begin || b.kind == SegmentKind::finish) return Order::before;
  if (b.kind == SegmentKind::begin || a.kind == SegmentKind::finish) return Order::after;
  if (a.kind == SegmentKind::gather) return Order::before;
  if (b.kind == SegmentKind::gather) return Order::after;
  if (a.kind == SegmentKind::sent || b.kind == SegmentKind::sent) {
    // A wait for sends comes after the segment that sends; no other order is certain.
    const Segment& other = a.kind == SegmentKind::sent ? b : a;
    const bool mine =
        a.vstage == b.vstage && is_forward(a) == is_forward(b) && other.kind != SegmentKind::wgrad;
    if (!mine) return Order::either;
    return b.kind == SegmentKind::sent ? Order::before : Order::after;
  }
  if (is_forward(a) != is_forward(b)) return is_forward(a) ? Order::before : Order::after;
  const auto rank = [](const Segment& s) {
    return s.kind == SegmentKind::post ? 0 : s.kind == SegmentKind::receive ? 1 : 2;
  };
  if (a.vstage == b.vstage) {
    if (rank(a) != rank(b)) return rank(a) < rank(b) ? Order::before : Order::after;
    if (a.kind == SegmentKind::backward || b.kind == SegmentKind::backward) return Order::exclusive;
    if (a.kind == b.kind) return Order::exclusive;
    return a.kind == SegmentKind::dgrad ? Order::before : Order::after;
  }
  if (rank(a) < 2 || rank(b) < 2) return Order::either;
  if (is_forward(a)) return a.vstage < b.vstage ? Order::before : Order::after;
  if (a.vstage < b.vstage) return reversed(order_of(b, a));
  // `a` is of a later virtual stage, whose input gradient comes first.
  return a.kind == SegmentKind::wgrad ? Order::either : Order::before;
}

// All uses of slots, a linked list for each storage, so that two storages can be joined at once.
class Uses {
 public:
  explicit Uses(Program& program)
      : program_(program), ends_(program.slots.size()), roots_(program.slots.size()) {
    for (std::size_t slot = 0; slot < roots_.size(); ++slot)
      roots_[slot] = program.root(static_cast<int>(slot));
    std::size_t count = 0;
    for (const Segment& segment : program.segments) count += 6 * segment.code.size();
    uses_.reserve(count);
    for (std::size_t s = 0; s < program.segments.size(); ++s) {
      const Segment& segment = program.segments[s];
      for (std::size_t i = 0; i < segment.code.size(); ++i) {
        const int at = static_cast<int>(i);
        for_each_slot(segment.code[i], [&](int slot) {
          Ends& ends = ends_[roots_[slot]];
          const int next = static_cast<int>(uses_.size());
          if (ends.last >= 0) {
            const Use& last = uses_[ends.last];
            if (last.segment == static_cast<int>(s) && last.index == at) return;  // listed already
            uses_[ends.last].next = next;
          } else {
            ends.first = next;
          }
          ends.last = next;
          uses_.push_back({static_cast<int>(s), at, -1});
        });
      }
    }
  }

  // Whether anyone uses the storage of `slot` after that place. A start's own wait does not count.
  bool later(int slot, int segment, int index) const {
    const Instruction& here = program_.segments[segment].code[index];
    for (int u = ends_[program_.root(slot)].first; u >= 0; u = uses_[u].next) {
      const Use& use = uses_[u];
      if (use.segment != segment) {
        const Order order = order_of(program_.segments[segment], program_.segments[use.segment]);
        if (order == Order::before || order == Order::either) return true;
        continue;
      }
      if (use.index <= index) continue;
      const Instruction& there = program_.segments[use.segment].code[use.index];
      if (!(here.code == Code::start && there.code == Code::wait && there.pending == here.pending))
        return true;
    }
    return false;
  }

  // Has `slot`, which had a storage of its own, share that of `of`.
  void alias(int slot, int of) {
    Ends &from = ends_[slot], &into = ends_[program_.root(of)];
    if (from.first >= 0) {
      (into.last >= 0 ? uses_[into.last].next : into.first) = from.first;
      into.last = from.last;
      from = {};
    }
    program_.slots[slot].alias_of = of;
  }

 private:
  struct Use {
    int segment, index, next;
  };
  struct Ends {
    int first = -1, last = -1;
  };
  Program& program_;
  std::vector<Use> uses_;
  std::vector<Ends> ends_;  // by root slot: its first and its last use
  std::vector<int> roots_;  // by slot: its root before any was aliased
};

bool same_shape(const Program& program, int a, int b) {
  const Slot &x = program.slots[a], &y = program.slots[b];
  auto same_parts = [&] {
    for (std::size_t i = 0; i < x.layout.size(); ++i) {
      if (x.layout[i].is_shard() != y.layout[i].is_shard()) return false;
      if (!x.layout[i].is_shard()) continue;
      const auto at = std::find(x.dims.begin(), x.dims.end(), x.layout[i].dim) - x.dims.begin();
      if (static_cast<std::size_t>(at) >= y.dims.size() || y.layout[i].dim != y.dims[at])
        return false;
    }
    return true;
  };
  if (x.dtype != y.dtype || x.memory != y.memory) return false;
  if (x.ring_step != y.ring_step || x.slices != y.slices) return false;
  if (x.extra != y.extra || x.dims.size() != y.dims.size()) return false;
  for (std::size_t i = 0; i < x.dims.size(); ++i) {
    if (program.graph->size(x.dims[i]) != program.graph->size(y.dims[i])) return false;
  }
  return same_parts();
}

// Whether the slot's storage may be overwritten: activations of one microbatch, on the device.
bool ours(const Program& program, int slot) {
  const Slot& root = program.slots[program.root(slot)];
  return !root.persistent && root.memory == Memory::device &&
         root.category == Category::activations;
}

// An instruction of a segment, and its twins in the segment's copies ("X.last"). It works in place
// in all of them or in none, as all use the same slots.
struct Everywhere {
  struct Place {
    int segment, index;
  };
  Few<Place, 2> places;

  bool later(const Uses& uses, int slot) const {
    return std::any_of(places.begin(), places.end(),
                       [&](const Place& p) { return uses.later(slot, p.segment, p.index); });
  }
  void in_place(Program& program) const {
    for (const Place& p : places) program.segments[p.segment].code[p.index].in_place = true;
  }
};

// The index in `copy` of each instruction of `original`; -1: it is not there. The copy has more
// instructions, perhaps in another order.
std::vector<int> places_in(const Segment& copy, const Segment& original) {
  const auto same = [](const Instruction& a, const Instruction& b) {
    return a.code == b.code && a.op == b.op && a.piece == b.piece && a.pending == b.pending &&
           a.inputs == b.inputs && a.outputs == b.outputs && a.grad_inputs == b.grad_inputs;
  };
  std::vector<int> places;
  std::size_t next = 0;
  const std::size_t size = copy.code.size();
  for (const Instruction& i : original.code) {
    std::size_t looked = 0;
    while (looked < size && !same(i, copy.code[(next + looked) % size])) ++looked;
    places.push_back(looked < size ? static_cast<int>((next + looked) % size) : -1);
    if (looked < size) next = (next + looked) % size + 1;
  }
  return places;
}

void grant_compute(Program& program, Uses& uses, const Everywhere& all) {
  Instruction& i = program.segments[all.places[0].segment].code[all.places[0].index];
  const OpTraits& traits = program.graph->traits(i.op);
  // A slot that several slices add to, or write parts of, cannot take an operand's storage.
  const bool sliced = program.slicing_of(i) != nullptr;
  const auto of_all_slices = [&](int slot) {
    return sliced && slot >= 0 && program.slots[slot].slices == 1;
  };
  // Whether the op reads a slot's storage as two operands.
  const auto read_twice = [&](int from) {
    return std::count_if(i.inputs.begin(), i.inputs.end(), [&](int slot) {
             return slot >= 0 && program.root(slot) == program.root(from);
           }) > 1;
  };
  if (i.piece == Piece::forward) {
    if (of_all_slices(i.outputs[0])) return;
    const int j = traits.forward_in_place;
    if (j < 0) return;
    const int from = i.inputs[j], to = i.outputs[0];
    if (!ours(program, from) || read_twice(from) || all.later(uses, from) ||
        !same_shape(program, from, to)) {
      return;
    }
    all.in_place(program);
    uses.alias(to, from);
    return;
  }
  if (!traits.backward_may_overwrite_saved) return;
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
    if (i.grad_inputs[k] < 0) continue;
    const int from = i.inputs[k];
    if (of_all_slices(i.grad_inputs[k])) return;
    if (from < 0 || i.accumulate[k] || !ours(program, from) || read_twice(from) ||
        all.later(uses, from) || program.slots[i.grad_inputs[k]].persistent ||
        program.slots[i.grad_inputs[k]].alias_of >= 0 ||
        !same_shape(program, from, i.grad_inputs[k])) {
      return;
    }
    pairs.emplace_back(i.grad_inputs[k], from);
  }
  all.in_place(program);
  for (const auto& [to, from] : pairs) uses.alias(to, from);
}

}  // namespace

std::vector<std::pair<int, int>> gradients_ready(const Program& program) {
  std::vector<int> parameter_of(program.slots.size(), -1);
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const int slot = program.parameters[p].gradient_slot;
    if (slot >= 0) parameter_of[slot] = static_cast<int>(p);
  }
  std::vector<std::pair<int, int>> at(program.parameters.size(), {-1, -1});
  std::vector<bool> seen(program.segments.size(), false);
  for (std::size_t r = program.timeline.size(); r-- > 0;) {
    const int segment = program.timeline[r].segment;
    if (seen[segment]) continue;  // an earlier run of the segment
    seen[segment] = true;
    const std::vector<Instruction>& code = program.segments[segment].code;
    for (std::size_t i = code.size(); i-- > 0;) {
      for_each_slot(code[i], [&](int slot) {
        const int parameter = parameter_of[slot];
        if (parameter >= 0 && at[parameter].first < 0)
          at[parameter] = {static_cast<int>(r), static_cast<int>(i)};
      });
    }
  }
  return at;
}

void grant_in_place(Program& program) {
  Uses uses(program);
  // by segment: each copy, and places_in() it
  std::map<int, std::vector<std::pair<int, std::vector<int>>>> copies;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    int of = program.segments[s].copy_of;
    while (of >= 0 && program.segments[of].copy_of >= 0) of = program.segments[of].copy_of;
    if (of < 0) continue;
    copies[of].emplace_back(static_cast<int>(s),
                            places_in(program.segments[s], program.segments[of]));
  }
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    if (program.segments[s].copy_of >= 0) continue;
    for (std::size_t n = 0; n < program.segments[s].code.size(); ++n) {
      const Instruction& i = program.segments[s].code[n];
      const bool reduces = i.code == Code::start && i.move.kind == Move::Kind::all_reduce;
      if (i.op < 0 && !reduces) continue;
      Everywhere all;
      all.places.push_back({static_cast<int>(s), static_cast<int>(n)});
      for (const auto& [copy, places] : copies[static_cast<int>(s)]) {
        if (places[n] >= 0) all.places.push_back({copy, places[n]});
      }
      if (i.op >= 0) {
        grant_compute(program, uses, all);
      } else if (ours(program, i.inputs[0]) && !all.later(uses, i.inputs[0])) {
        uses.alias(i.outputs[0], i.inputs[0]);
        all.in_place(program);
      }
    }
  }
}

void note_releases(Program& program) {
  // A slot lives on past a segment if a later one uses it. One or two segments use most slots.
  constexpr int few = 3;
  std::vector<std::array<int, few>> users(program.slots.size(), {-1, -1, -1});
  std::map<int, std::vector<int>> more;  // further users of slots that more segments use
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    const int user = static_cast<int>(s);
    for (const Instruction& i : program.segments[s].code) {
      for_each_slot(i, [&](int slot) {
        std::array<int, few>& list = users[slot];
        for (int& each : list) {
          if (each == user) return;
          if (each >= 0) continue;
          each = user;
          return;
        }
        std::vector<int>& rest = more[slot];
        if (rest.empty() || rest.back() != user) rest.push_back(user);
      });
    }
  }
  const auto lives_on = [&](int slot, const Segment& segment) {
    const auto after = [&](int user) {
      const Segment& other = program.segments[user];
      if (&other == &segment) return false;
      const Order order = order_of(segment, other);
      // In no known order, each segment would leave the release to the other.
      if (order == Order::either) {
        throw std::logic_error(segment.name + " and " + other.name + " share " +
                               program.slots[slot].name + " in no certain order");
      }
      return order == Order::before;
    };
    for (const int user : users[slot]) {
      if (user >= 0 && after(user)) return true;
    }
    const auto rest = more.find(slot);
    return rest != more.end() && std::any_of(rest->second.begin(), rest->second.end(), after);
  };
  std::vector<bool> gone(program.slots.size());
  for (Segment& segment : program.segments) {
    std::fill(gone.begin(), gone.end(), false);
    for (std::size_t n = segment.code.size(); n-- > 0;) {
      Instruction& i = segment.code[n];
      erase_if(i.release, [&](int slot) { return !program.slots[slot].persistent; });
      for_each_slot(i, [&](int slot) {
        if (program.slots[slot].persistent || gone[slot]) return;
        gone[slot] = true;
        if (!lives_on(slot, segment)) i.release.push_back(slot);
      });
    }
  }
}

}  // namespace mw
