// A pass that moves weight gradients behind the collectives that do not need them.
#include "overlap_wgrad.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

namespace tp {
namespace {

bool is_piece(const mw::Instruction& i, mw::Piece piece) {
  return i.code == mw::Code::compute && i.piece == piece;
}

// Whether a later dgrad of [first, last) adds into what an earlier wgrad still has to read.
bool overwritten(const mw::Program& program, const std::vector<mw::Instruction>& code,
                 std::size_t first, std::size_t last) {
  std::set<int> read;
  for (std::size_t i = first; i < last; ++i) {
    if (is_piece(code[i], mw::Piece::wgrad)) {
      for (const auto* list : {&code[i].grad_outputs, &code[i].inputs}) {
        for (int slot : *list) {
          if (slot >= 0) read.insert(program.root(slot));
        }
      }
    } else {
      for (int slot : code[i].grad_inputs) {
        if (slot >= 0 && read.count(program.root(slot)) > 0) return true;
      }
    }
  }
  return false;
}

void delay_wgrads(const mw::Program& program, mw::Segment& segment) {
  std::vector<mw::Instruction>& code = segment.code;
  for (std::size_t n = 0; n < code.size(); ++n) {
    // A bucket's reduction reads what the wgrads before it write: they stay before it.
    if (mw::between_lasting(program, code[n])) continue;
    const bool casts = code[n].code == mw::Code::copy && !code[n].move.atoms.empty();
    if (code[n].code != mw::Code::start && !casts) continue;
    std::size_t first = n;
    while (first > 0 && (is_piece(code[first - 1], mw::Piece::dgrad) ||
                         is_piece(code[first - 1], mw::Piece::wgrad))) {
      --first;
    }
    if (overwritten(program, code, first, n)) continue;
    std::stable_partition(code.begin() + static_cast<std::ptrdiff_t>(first),
                          code.begin() + static_cast<std::ptrdiff_t>(n) + 1,
                          [](const mw::Instruction& i) { return !is_piece(i, mw::Piece::wgrad); });
  }
}

}  // namespace

mw::Pass overlap_wgrad() {
  return {"overlap wgrad", [](mw::Program& program) {
            for (mw::Segment& segment : program.segments) {
              if (segment.kind == mw::SegmentKind::backward) delay_wgrads(program, segment);
            }
          }};
}

}  // namespace tp
