// A pass that draws the start and the wait of each exchange as far apart as their slots allow.
#include "overlap_exchanges.h"

#include <cstddef>
#include <vector>

namespace ep {
namespace {

bool is_exchange(const mw::Instruction& i) {
  return (i.code == mw::Code::start || i.code == mw::Code::wait) && i.move.exchanges_rows();
}

bool begins(const mw::Instruction& i) {
  return i.code == mw::Code::start && is_exchange(i);
}

void spread_exchanges(const mw::Program& program, std::vector<mw::Instruction>& code) {
  for (std::size_t n = code.size(); n-- > 0;) {
    if (code[n].code == mw::Code::wait && is_exchange(code[n]))
      mw::move_to(code, n, mw::latest(program, code, n, code.size()));
  }
  std::size_t before = 0;  // exchanges go in their order, behind the one that brings their counts
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (!begins(code[n])) continue;
    const std::size_t to = mw::earliest(program, code, n, before);
    mw::move_to(code, n, to);
    before = to + 1;
  }
}

}  // namespace

mw::Pass overlap_exchanges() {
  return {"overlap exchanges", [](mw::Program& program) {
            for (mw::Segment& segment : program.segments) spread_exchanges(program, segment.code);
          }};
}

}  // namespace ep
