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

std::vector<Instruction> Insertions::into_copy(const Segment& segment) {
  check(segment);
  return merged(segment.code.begin(), segment.code.size(), list_);
}

int add_slot(Program& program, Slot slot) {
  program.slots.push_back(std::move(slot));
  return static_cast<int>(program.slots.size()) - 1;
}

}  // namespace mw
