// A pass that moves weight gradients behind the collectives that do not need them.
#include "overlap_wgrad.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tp {
namespace {

bool is_piece(const mw::Instruction& i, mw::Piece piece) {
  return i.code == mw::Code::compute && i.piece == piece;
}

void delay_wgrads(const mw::Program& program, mw::Segment& segment) {
  std::vector<mw::Instruction>& code = segment.code;
  for (std::size_t n = 0; n < code.size(); ++n) {
    // A bucket's reduction reads what the wgrads before it write: they stay before it.
    if (mw::between_lasting(program, code[n])) continue;
    const bool casts = code[n].code == mw::Code::copy && !code[n].move.atoms.empty();
    if (code[n].code != mw::Code::start && !casts) continue;
    std::size_t begins = n;  // where the collective stands
    for (std::size_t i = n; i-- > 0;) {
      if (is_piece(code[i], mw::Piece::wgrad)) {
        if (mw::latest(program, code, i, begins) == begins) mw::move_to(code, i, begins--);
      } else if (!is_piece(code[i], mw::Piece::dgrad)) {
        break;
      }
    }
  }
}

// Where no backward is whole, its weight gradients are works of their own.
std::string idle(const std::vector<mw::Program>& programs) {
  bool whole = false, parted = false;
  for (const mw::Program& program : programs) {
    for (const mw::SegmentRun& run : program.timeline) {
      const mw::SegmentKind kind = program.segments[static_cast<std::size_t>(run.segment)].kind;
      whole = whole || kind == mw::SegmentKind::backward;
      parted = parted || kind == mw::SegmentKind::dgrad;
    }
  }
  if (whole || !parted) return "";
  return "tp: overlap = true has no effect: this schedule splits every backward into I and W, "
         "and I has no weight gradients to compute beside its all-reduces";
}

}  // namespace

mw::Pass overlap_wgrad() {
  mw::Pass pass;
  pass.name = "overlap wgrad";
  pass.run = [](mw::Program& program) {
    for (mw::Segment& segment : program.segments) {
      if (segment.kind == mw::SegmentKind::backward) delay_wgrads(program, segment);
    }
  };
  pass.note = idle;
  return pass;
}

}  // namespace tp
