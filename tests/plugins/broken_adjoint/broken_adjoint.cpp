// A form with a fault, for `verify` to find: tp's rules, and a pass that breaks one of the
// reductions that were derived from them.
#include <algorithm>

#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

using mw::Code;
using mw::Instruction;
using mw::Program;
using mw::Segment;

class BrokenAdjoint : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that heads, ffn and vocab are split over")
        .at_least(1)
        .positional("ways")
        .choice("fault",
                {"none", "drop_forward", "drop_backward", "double_backward", "drop_gradient"},
                "what is done to the first reduction of that phase")
        .fallback("none")
        .text("at", "how the label of the reduction, or the name of the parameter, begins")
        .fallback("");
  }
  explicit BrokenAdjoint(const mw::Values& values)
      : ways_(static_cast<int>(values.integer("ways"))),
        fault_(values.text("fault")),
        at_(values.text("at")) {}

  std::vector<mw::AxisRequest> axes() const override { return {{"tp", ways_, {}}}; }

  void edit(mw::Draft& draft) const override {
    for (const char* dim : {"heads", "ffn", "vocab"}) draft.shard(dim, "tp");
    if (draft.divides("tp", "kv_heads")) draft.shard("kv_heads", "tp");
    if (fault_ == "none") return;
    const std::string fault = fault_, at = at_;
    draft.add_pass({"break", [fault, at](Program& program) { damage(program, fault, at); }});
  }

 private:
  static void damage(Program& program, const std::string& fault, const std::string& at) {
    if (fault == "drop_gradient") return drop_gradient(program, at);
    const std::string phase = fault == "drop_forward" ? "forward" : "backward";
    int done = 0;
    for (Segment& segment : program.segments) {  // "backward.last" is a copy of "backward"
      if (segment.name.starts_with(phase)) done += damage(segment, fault == "double_backward", at);
    }
    if (done == 0)
      throw mw::Error(mw::Stage::plan, "broken-adjoint.nothing", "",
                      "there is no such reduction: " + at, "");
  }

  static bool damage(Segment& segment, bool twice, const std::string& at) {
    auto& code = segment.code;
    const auto start = std::find_if(code.begin(), code.end(), [&](const Instruction& i) {
      return i.code == Code::start && i.move.kind == mw::Move::Kind::all_reduce &&
             i.label.starts_with(at);
    });
    if (start == code.end()) return false;
    const auto wait = std::find_if(start, code.end(), [&](const Instruction& i) {
      return i.code == Code::wait && i.pending == start->pending;
    });
    if (twice) {
      Instruction add;
      add.code = Code::add;
      add.inputs = add.outputs = wait->outputs;
      add.label = wait->label;
      code.insert(wait + 1, add);
    } else {
      start->code = Code::copy;
      code.erase(wait);
    }
    return true;
  }

  static void drop_gradient(Program& program, const std::string& at) {
    for (std::size_t b = 0; b < program.buckets.size(); ++b) {
      mw::Bucket& bucket = program.buckets[b];
      const bool holds =
          std::any_of(bucket.parameters.begin(), bucket.parameters.end(),
                      [&](int p) { return program.name_of_parameter(p).starts_with(at); });
      if (!holds || bucket.reduce_atoms.empty()) continue;
      bucket.reduce_atoms.clear();
      for (Segment& segment : program.segments) {
        std::erase_if(segment.code,
                      [&](const Instruction& i) { return i.bucket == static_cast<int>(b); });
      }
      return;
    }
    throw mw::Error(mw::Stage::plan, "broken-adjoint.nothing", "",
                    "no bucket that is reduced holds " + at, "");
  }

  int ways_;
  std::string fault_, at_;
};

}  // namespace

MESHWRIGHT_PLUGIN("broken_adjoint", "1.0.0", "tp with one reduction broken",
                  mw::strategy<BrokenAdjoint>())
