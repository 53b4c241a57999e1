// A pass that draws the start and the wait of each exchange as far apart as their slots allow.
#include "overlap_exchanges.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ep {
namespace {

bool is_exchange(const mw::Instruction& i) {
  return (i.code == mw::Code::start || i.code == mw::Code::wait) && i.move.exchanges_rows();
}

bool touches(const mw::Program& program, const mw::Instruction& i, int slot) {
  bool found = false;
  mw::for_each_slot(i,
                    [&](int other) { found = found || program.root(other) == program.root(slot); });
  return found;
}

void spread_exchanges(const mw::Program& program, std::vector<mw::Instruction>& code) {
  const auto at = [&](std::size_t i) { return code.begin() + static_cast<std::ptrdiff_t>(i); };
  for (std::size_t n = code.size(); n-- > 0;) {
    if (code[n].code != mw::Code::wait || !is_exchange(code[n])) continue;
    std::size_t to = n + 1;
    while (to < code.size() && !touches(program, code[to], code[n].outputs[0])) ++to;
    std::rotate(at(n), at(n + 1), at(to));
  }
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (code[n].code != mw::Code::start || !is_exchange(code[n])) continue;
    std::size_t to = n;
    // Exchanges go in their order, and behind the one that brings their counts.
    const auto begins = [](const mw::Instruction& i) {
      return i.code == mw::Code::start && is_exchange(i);
    };
    while (to > 0 && !begins(code[to - 1]) && !touches(program, code[to - 1], code[n].inputs[0]))
      --to;
    std::rotate(at(to), at(n), at(n + 1));
  }
}

}  // namespace

mw::Pass overlap_exchanges() {
  return {"overlap exchanges", [](mw::Program& program) {
            for (mw::Segment& segment : program.segments) spread_exchanges(program, segment.code);
          }};
}

}  // namespace ep
