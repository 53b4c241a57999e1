// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): heads, ffn and vocab are cut; the
// residual stream is not. Column- and row-parallel linears, the vocab-parallel embedding and
// cross-entropy, and two all-reduces a layer each way all follow from that.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

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

// Whether the instruction reads, from slots that do not persist, what code[from, to) makes.
bool reads_from(const mw::Instruction& i, const mw::Program& program,
                const std::vector<mw::Instruction>& code, std::size_t from, std::size_t to) {
  std::set<int> read;
  mw::for_each_use(i, [&](int slot, mw::Access access) {
    if (access == mw::Access::read && !program.slots[slot].persistent)
      read.insert(program.root(slot));
  });
  bool found = false;
  for (std::size_t n = from; n < to && !found; ++n) {
    mw::for_each_use(code[n], [&](int slot, mw::Access access) {
      const bool makes = access == mw::Access::write || access == mw::Access::add;
      found = found || (makes && read.count(program.root(slot)) > 0);
    });
  }
  return found;
}

// For a backward that is parted into I and W: while a collective of I sums the input gradients of
// ops, the weight gradients of the same ops are computed, which are moved here from W. A weight
// gradient stays in W if it needs what W or a later part of I makes, and so do slices of an op,
// which are computed in their order.
void bring_wgrads(const mw::Program& program, mw::Segment& dgrad, mw::Segment& wgrad) {
  std::vector<mw::Instruction>& code = dgrad.code;
  for (std::size_t n = code.size(); n-- > 0;) {
    if (code[n].code != mw::Code::start || mw::between_lasting(program, code[n])) continue;
    mw::Insertions beside;
    for (std::size_t i = n; i-- > 0 && is_piece(code[i], mw::Piece::dgrad);) {
      const auto found =
          std::find_if(wgrad.code.begin(), wgrad.code.end(), [&](const mw::Instruction& other) {
            return is_piece(other, mw::Piece::wgrad) && other.op == code[i].op && !other.ring &&
                   program.slicing_of(other) == nullptr;
          });
      if (found == wgrad.code.end() || !found->release.empty()) continue;
      const auto at = static_cast<std::size_t>(found - wgrad.code.begin());
      if (reads_from(*found, program, wgrad.code, 0, at) ||
          reads_from(*found, program, code, n + 1, code.size()))
        continue;
      beside.before(static_cast<int>(n) + 1, *found);
      wgrad.code.erase(found);
    }
    beside.into(dgrad);
  }
}

// Lets weight gradients run while an input gradient is on its way: each collective of backward
// starts right after the last dgrad that feeds it, and the wgrads that stood before it come between
// start and wait.
mw::Pass overlap_wgrad() {
  mw::Pass pass;
  pass.name = "overlap wgrad";
  pass.run = [](mw::Program& program) {
    for (mw::Segment& segment : program.segments) {
      if (segment.kind == mw::SegmentKind::backward) delay_wgrads(program, segment);
      if (segment.kind != mw::SegmentKind::dgrad || segment.copy_of >= 0) continue;
      const int wgrad = program.segment(mw::SegmentKind::wgrad, segment.vstage);
      if (wgrad >= 0)
        bring_wgrads(program, segment, program.segments[static_cast<std::size_t>(wgrad)]);
    }
  };
  return pass;
}

class TensorParallel : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that heads, ffn and vocab are split over")
        .range(1, 1 << 20)
        .positional("ways")
        .boolean("overlap", "compute weight gradients while input gradients are all-reduced")
        .fallback(false);
  }
  explicit TensorParallel(const mw::Values& values)
      : ways_(values.int32("ways")), overlap_(values.flag("overlap")) {}

  std::vector<mw::AxisRequest> axes() const override { return {{"tp", ways_, mw::Role::model}}; }

  void edit(mw::Draft& draft) const override {
    draft.shard("heads", "tp");
    if (draft.divides("tp", "kv_heads")) {
      draft.shard("kv_heads", "tp");
    } else {
      draft.note(fmt::format(
          "tp: {} key and value heads do not divide by {}: each rank computes all of them",
          draft.graph().size("kv_heads"), ways_));
    }
    for (const char* width : {"ffn", "expert_ffn", "shared_ffn"}) {
      if (draft.graph().dims().count(width) > 0) draft.shard(width, "tp");
    }
    draft.shard("vocab", "tp");
    if (overlap_ && ways_ > 1) draft.add_pass(overlap_wgrad());
  }

  std::vector<mw::Lighter> lighter() const override {
    std::vector<mw::Lighter> variants;
    for (const int times : {2, 4})
      variants.push_back({"tensor parallelism of more ranks", {{"ways", times * ways_}}, true});
    return variants;
  }

 private:
  int ways_;
  bool overlap_;
};

}  // namespace

MESHWRIGHT_PLUGIN("tp", "1.0.0", "tensor parallelism: heads, kv_heads, ffn, vocab -> tp",
                  mw::strategy<TensorParallel>())
