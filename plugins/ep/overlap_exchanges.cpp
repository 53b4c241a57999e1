// A pass that draws the start and the wait of each exchange as far apart as their slots allow.
#include "overlap_exchanges.h"

#include <cstddef>
#include <vector>

namespace ep {
namespace {

// Whether it is the start or the wait, as `code` says, of an exchange of rows.
bool exchange(const mw::Instruction& i, mw::Code code) {
  return i.code == code && i.move.exchanges_rows();
}

void spread_exchanges(const mw::Program& program, std::vector<mw::Instruction>& code) {
  for (std::size_t n = code.size(); n-- > 0;) {
    if (exchange(code[n], mw::Code::wait))
      mw::move_to(code, n, mw::latest(program, code, n, code.size()));
  }
  std::size_t before = 0;  // exchanges go in their order, behind the one that brings their counts
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (!exchange(code[n], mw::Code::start)) continue;
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
