// The verbs that edit any program: who uses which slots, what is put in where, slots added.
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
  list_.emplace(place, std::move(instruction));
}

void Insertions::before(int place, std::vector<Instruction> code) {
  for (Instruction& i : code) before(place, std::move(i));
}

void Insertions::into(Segment& segment) {
  const int end = static_cast<int>(segment.code.size());
  if (!list_.empty() && (list_.begin()->first < 0 || list_.rbegin()->first > end)) {
    throw std::out_of_range("no place for an instruction in " + segment.name);
  }
  std::vector<Instruction> code;
  code.reserve(segment.code.size() + list_.size());
  auto next = list_.begin();
  for (int i = 0; i <= end; ++i) {
    for (; next != list_.end() && next->first == i; ++next) {
      code.push_back(std::move(next->second));
    }
    if (i < end) code.push_back(std::move(segment.code[static_cast<std::size_t>(i)]));
  }
  segment.code = std::move(code);
  list_.clear();
}

int add_slot(Program& program, Slot slot) {
  program.slots.push_back(std::move(slot));
  return static_cast<int>(program.slots.size()) - 1;
}

}  // namespace mw
