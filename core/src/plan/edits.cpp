// The verbs that edit any program: who uses which slots, what is put in where, slots added.
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "meshwright/passes.h"

namespace mw {

std::vector<Span> spans(const Segment& segment, const std::map<int, int>& group_of) {
  std::vector<Span> list;
  std::map<int, std::size_t> known;  // group -> where in the list
  for (std::size_t i = 0; i < segment.code.size(); ++i) {
    const int at = static_cast<int>(i);
    for_each_slot(segment.code[i], [&](int slot) {
      const auto group = group_of.find(slot);
      if (group == group_of.end()) return;
      const auto [place, fresh] = known.emplace(group->second, list.size());
      if (fresh) list.push_back({group->second, at, at});
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

// `from`, whose instructions are moved or copied, with those of the list before their places.
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

// Calls `visit` with each slot that the instruction uses, and whether it writes it. What is sent or
// on its way is used from the start to the wait, which both have its slots.
template <class Visit>
void visit_uses(const Instruction& i, const Visit& visit) {
  const bool backward = i.code == Code::compute && i.piece != Piece::forward;
  const auto all = [&](const Slots& slots, bool writes) {
    for (const int slot : slots) {
      if (slot >= 0) visit(slot, writes);
    }
  };
  all(i.inputs, i.in_place);
  all(i.outputs, !backward);
  all(i.saved, !backward);
  all(i.grad_outputs, false);
  all(i.grad_inputs, true);
  all(i.release, true);
}

bool overlap(const Program& program, int a, int b) {
  if (a == b) return true;
  const auto of_parameter = [&](int slot) {
    return program.slots[slot].persistent && program.slots[slot].bucket < 0;
  };
  return !(of_parameter(a) && of_parameter(b)) && program.root(a) == program.root(b);
}

// The atoms whose ranks the instruction exchanges something with; null: it begins no transfer.
const std::vector<int>* ranks_of(const Program& program, const Instruction& i) {
  if (i.ring) return &program.rotations.at(i.op).atoms;
  return i.code == Code::start ? &i.move.atoms : nullptr;
}

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

bool may_swap(const Program& program, const Instruction& first, const Instruction& second) {
  // These work with more than their slots: a hook, an optimizer's state, all ranks.
  const auto stays = [](const Instruction& i) {
    return i.code == Code::totals || i.code == Code::hook_start || i.code == Code::hook_finish ||
           i.update != Update::none;
  };
  if (stays(first) || stays(second)) return false;
  if (first.pending >= 0 && first.pending == second.pending) return false;
  const std::vector<int>*a = ranks_of(program, first), *b = ranks_of(program, second);
  if (a != nullptr && b != nullptr && *a == *b && first.move.stages == second.move.stages)
    return false;
  bool apart = true;
  visit_uses(first, [&](int one, bool writes_one) {
    visit_uses(second, [&](int other, bool writes_other) {
      if (writes_one || writes_other) apart = apart && !overlap(program, one, other);
    });
  });
  return apart;
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

int add_slot(Program& program, Slot slot) {
  program.slots.push_back(std::move(slot));
  return static_cast<int>(program.slots.size()) - 1;
}

}  // namespace mw
