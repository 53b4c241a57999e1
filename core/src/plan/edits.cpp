// The verbs by which passes edit a program: find the uses of slots, insert and move instructions,
// add slots and streams.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "meshwright/passes.h"
#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {

std::vector<Span> spans(const Segment& segment, const std::map<int, int>& group_of) {
  std::vector<Span> list;
  if (group_of.empty()) return list;
  constexpr int none = std::numeric_limits<int>::min();
  // A table by slot: a map would be slow to look up each slot of each instruction in.
  std::vector<int> groups(static_cast<std::size_t>(std::max(0, group_of.rbegin()->first + 1)),
                          none);
  for (const auto& [slot, group] : group_of) {
    if (slot >= 0) groups[slot] = group;
  }
  std::map<int, std::size_t> known;  // group -> its index in `list`
  for (std::size_t i = 0; i < segment.code.size(); ++i) {
    const int at = static_cast<int>(i);
    for_each_slot(segment.code[i], [&](int slot) {
      if (static_cast<std::size_t>(slot) >= groups.size() || groups[slot] == none) return;
      const auto [place, fresh] = known.emplace(groups[slot], list.size());
      if (fresh) list.push_back({groups[slot], at, at});
      list[place->second].last = at;
    });
  }
  return list;
}

void Insertions::before(int place, Instruction instruction) {
  list_.emplace(place, std::vector<Instruction>{})->second.push_back(std::move(instruction));
}

void Insertions::before(int place, std::vector<Instruction> code) {
  list_.emplace(place, std::move(code));
}

namespace {

// The `size` instructions from `from` on, moved or copied, with those of the list before their
// places. Empties the list.
template <class Iterator>
std::vector<Instruction> merged(Iterator from, std::size_t size,
                                std::multimap<int, std::vector<Instruction>>& list) {
  std::vector<Instruction> code;
  std::size_t all = size;
  for (const auto& [place, some] : list) all += some.size();
  code.reserve(all);
  std::ptrdiff_t done = 0;
  const auto until = [&](std::ptrdiff_t place) {
    code.insert(code.end(), from + done, from + place);
    done = place;
  };
  for (auto& [place, some] : list) {
    until(place);
    std::move(some.begin(), some.end(), std::back_inserter(code));
  }
  until(static_cast<std::ptrdiff_t>(size));
  list.clear();
  return code;
}

bool share_storage(const Program& program, int a, int b) {
  if (a == b) return true;
  const auto of_parameter = [&](int slot) {
    return program.slots[slot].persistent && !program.slots[slot].is_flat();
  };
  return !(of_parameter(a) && of_parameter(b)) && program.root(a) == program.root(b);
}

// The atoms whose ranks the instruction exchanges something with; null: it begins no transfer.
const std::vector<int>* ranks_of(const Program& program, const Instruction& i) {
  if (i.ring) return &program.rotations.at(i.op).atoms;
  return i.code == Code::start ? &i.move.atoms : nullptr;
}

// Whether two instructions begin transfers of one group of ranks (RankSet::by_axis).
bool same_group(const Program& program, const Instruction& first, const Instruction& second) {
  const std::vector<int>*a = ranks_of(program, first), *b = ranks_of(program, second);
  return a != nullptr && b != nullptr && *a == *b && first.move.stages == second.move.stages &&
         first.move.exchanges_rows() == second.move.exchanges_rows();
}

// Whether two transfers have an order that a pass cannot choose. Ranks of one stage run one
// program, and so all make its transfers in one order; ranks of different stages do not. Among
// exchanges of rows, one brings the counts that the others need.
bool order_is_fixed(const Program& program, const Instruction& first, const Instruction& second) {
  const Move& move = first.move;
  const bool between =
      !move.stages.empty() || move.kind == Move::Kind::send || move.kind == Move::Kind::recv;
  return same_group(program, first, second) && (between || move.exchanges_rows());
}

// Whether two transfers go on one stream, in the order of their starts: a named one, or that of
// their group of ranks.
bool same_stream(const Program& program, const Instruction& first, const Instruction& second) {
  if (ranks_of(program, first) == nullptr || ranks_of(program, second) == nullptr) return false;
  if (first.move.stream != second.move.stream) return false;
  return first.move.stream >= 0 || same_group(program, first, second);
}

// Whether both are slices of one op (Program::slicing), which are computed in their order.
bool slices_of_one(const Program& program, const Instruction& first, const Instruction& second) {
  return first.code == Code::compute && second.code == Code::compute && first.op == second.op &&
         first.piece == second.piece && program.slicing_of(first) != nullptr;
}

// Whether the instruction keeps its place, as it works with more than slots: a hook, states, all
// ranks.
bool stays(const Instruction& i) {
  return i.code == Code::totals || i.code == Code::hook_start || i.code == Code::hook_finish ||
         i.update != Update::none;
}

// Finds the instructions that must move along with those that are to move up or down. The caller
// goes through the code from the instruction that has the farthest to go.
class Moving {
 public:
  // `streams`: transfers of one stream keep their order.
  Moving(const Program& program, const std::vector<Instruction>& code, Moves moves, bool streams)
      : program_(program),
        code_(code),
        up_(moves == Moves::first),
        streams_(streams),
        uses_(program.slots.size(), 0),
        why_(code.size(), none) {}

  void add(std::size_t at, std::size_t why) {
    for_each_use(code_[at], [&](int slot, Access access) {
      std::uint8_t& use = uses_[static_cast<std::size_t>(program_.root(slot))];
      use = std::max<std::uint8_t>(use, access == Access::read ? 1 : 2);
    });
    const Instruction& i = code_[at];
    if (i.pending >= 0 || stays(i) || ranks_of(program_, i) != nullptr ||
        program_.slicing_of(i) != nullptr)
      more_.push_back(at);
    all_.push_back(at);
    why_[at] = why;
  }
  // A moving instruction that may not pass the one at `at`; none: all of them may.
  std::size_t blocks(std::size_t at) const {
    bool near = stays(code_[at]);
    for_each_use(code_[at], [&](int slot, Access access) {
      const std::uint8_t use = uses_[static_cast<std::size_t>(program_.root(slot))];
      near = near || use == 2 || (access != Access::read && use == 1);
    });
    for (const std::size_t other : near ? all_ : more_) {
      const Instruction &first = code_[up_ ? at : other], &then = code_[up_ ? other : at];
      if (depends(program_, first, then) || (streams_ && same_stream(program_, first, then)))
        return other;
    }
    return none;
  }
  bool has(std::size_t at) const { return why_[at] != none; }
  // The instruction that the caller asked to move and for whose sake the one at `at` must move too.
  std::size_t reason(std::size_t at) const {
    while (why_[at] != at) at = why_[at];
    return at;
  }

  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

 private:
  const Program& program_;
  const std::vector<Instruction>& code_;
  const bool up_, streams_;
  std::vector<std::uint8_t> uses_;       // by root slot: 1 read, 2 written by what moves
  std::vector<std::size_t> all_, more_;  // all that move; those that depend on more than slots
  std::vector<std::size_t> why_;         // by instruction: the one that it moves for, or itself
};

}  // namespace

void Insertions::check(const Segment& segment) const {
  const int end = static_cast<int>(segment.code.size());
  if (!list_.empty() && (list_.begin()->first < 0 || list_.rbegin()->first > end)) {
    throw std::out_of_range("no place for an instruction in " + segment.name);
  }
}

void Insertions::into(Segment& segment) {
  check(segment);
  if (list_.empty()) return;
  segment.code = merged(std::make_move_iterator(segment.code.begin()), segment.code.size(), list_);
}

int add_copy(Program& program, int segment, const std::string& suffix, Insertions& inserts) {
  Segment copy = program.segments[segment];
  const std::string name = fmt::format("{}.{}", copy.name, suffix);
  copy.name = name;
  const auto is_taken = [&](const Segment& other) { return other.name == copy.name; };
  for (int n = 2; std::any_of(program.segments.begin(), program.segments.end(), is_taken); ++n)
    copy.name = fmt::format("{}.{}", name, n);
  copy.copy_of = segment;
  inserts.into(copy);
  program.segments.push_back(std::move(copy));
  return static_cast<int>(program.segments.size()) - 1;
}

bool depends(const Program& program, const Instruction& first, const Instruction& second) {
  if (stays(first) || stays(second)) return true;
  if (first.pending >= 0 && first.pending == second.pending) return true;
  if (order_is_fixed(program, first, second) || slices_of_one(program, first, second)) return true;
  bool apart = true;
  for_each_use(first, [&](int one, Access access) {
    for_each_use(second, [&](int other, Access then) {
      if (access != Access::read || then != Access::read)
        apart = apart && !share_storage(program, one, other);
    });
  });
  return !apart;
}

bool may_swap(const Program& program, const Instruction& first, const Instruction& second) {
  return !depends(program, first, second) && !same_stream(program, first, second);
}

std::size_t latest(const Program& program, const std::vector<Instruction>& code, std::size_t at,
                   std::size_t limit) {
  std::size_t to = at;
  while (to < limit && to + 1 < code.size() && may_swap(program, code[at], code[to + 1])) ++to;
  return to;
}

std::size_t earliest(const Program& program, const std::vector<Instruction>& code, std::size_t at,
                     std::size_t limit) {
  std::size_t to = at;
  while (to > limit && may_swap(program, code[to - 1], code[at])) --to;
  return to;
}

void move_to(std::vector<Instruction>& code, std::size_t from, std::size_t to) {
  const auto at = [&](std::size_t i) { return code.begin() + static_cast<std::ptrdiff_t>(i); };
  if (from < to) std::rotate(at(from), at(from + 1), at(to + 1));
  if (to < from) std::rotate(at(to), at(from), at(from + 1));
}

std::size_t moved(const Program& program, std::vector<Instruction>& code, std::size_t from,
                  std::size_t to, const std::function<bool(const Instruction&)>& over) {
  std::size_t at = from;
  const auto passes = [&](std::size_t next) {
    const bool down = from < to;
    return (!over || over(code[next])) && (down ? may_swap(program, code[from], code[next])
                                                : may_swap(program, code[next], code[from]));
  };
  while (at < to && at + 1 < code.size() && passes(at + 1)) ++at;
  while (at > to && passes(at - 1)) --at;
  move_to(code, from, at);
  return at;
}

namespace {

// order_before() with a choice: if `streams`, transfers of one stream keep their order.
std::pair<int, int> ordered(const Program& program, std::vector<Instruction>& code,
                            const std::vector<std::size_t>& first,
                            const std::vector<std::size_t>& then, Moves moves, bool streams,
                            std::vector<std::size_t>& places) {
  const bool up = moves == Moves::first;
  const std::vector<std::size_t>&asked = up ? first : then, &passed = up ? then : first;
  const std::size_t begin = then.front(), end = first.back() + 1;
  Moving moving(program, code, moves, streams);
  for (std::size_t n = begin; n < end; ++n) {
    const std::size_t at = up ? begin + end - 1 - n : n;
    const bool is_asked = std::binary_search(asked.begin(), asked.end(), at);
    const std::size_t why = is_asked ? at : moving.blocks(at);
    if (why == Moving::none) continue;
    if (std::binary_search(passed.begin(), passed.end(), at)) {
      const int other = static_cast<int>(is_asked ? at : moving.reason(why));
      const int here = static_cast<int>(at);
      return up ? std::pair{here, other} : std::pair{other, here};
    }
    moving.add(at, why);
  }
  const auto place = [&](std::size_t at) {
    return places.begin() + static_cast<std::ptrdiff_t>(at);
  };
  std::stable_partition(place(begin), place(end),
                        [&](std::size_t at) { return moving.has(at) == up; });
  std::vector<Instruction> now;
  now.reserve(code.size());
  for (const std::size_t at : places) now.push_back(std::move(code[at]));
  code = std::move(now);
  return {-1, -1};
}

}  // namespace

std::pair<int, int> order_before(const Program& program, std::vector<Instruction>& code,
                                 const std::vector<std::size_t>& first,
                                 const std::vector<std::size_t>& then, Moves moves,
                                 std::vector<std::size_t>& places) {
  places.resize(code.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (first.empty() || then.empty() || first.back() < then.front()) return {-1, -1};
  const auto pair = ordered(program, code, first, then, moves, /*streams=*/true, places);
  if (pair.first < 0) return pair;
  return ordered(program, code, first, then, moves, /*streams=*/false, places);
}

int stream_named(Program& program, const std::string& name) {
  const auto found = std::find(program.streams.begin(), program.streams.end(), name);
  if (found != program.streams.end()) return static_cast<int>(found - program.streams.begin());
  program.streams.push_back(name);
  return static_cast<int>(program.streams.size()) - 1;
}

int add_slot(Program& program, Slot slot) {
  program.slots.push_back(std::move(slot));
  return static_cast<int>(program.slots.size()) - 1;
}

}  // namespace mw
