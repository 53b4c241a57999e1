// Faults for `compare` to find, beside any mix: no axis and no rule,
// one pass that edits the derived program.
#include <algorithm>
#include <functional>

#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

using mw::Code;
using mw::Instruction;
using mw::Program;
using mw::Segment;
using mw::SegmentKind;
using Where = std::vector<Instruction>::iterator;

class Faults : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .choice("fault",
                {"none", "missing_all_reduce", "missing_gradient_reduction", "counted_twice",
                 "bias_on_every_rank", "loss_scale", "stale_gather", "microbatch_loss",
                 "microbatch_weight"},
                "what is done")
        .positional("fault")
        .text("at", "how the label of an instruction, or the name of a parameter, begins")
        .fallback("");
  }
  explicit Faults(const mw::Values& values)
      : fault_(values.text("fault")), at_(values.text("at")) {}

  std::vector<mw::AxisRequest> axes() const override { return {}; }

  void edit(mw::Draft& draft) const override {
    if (fault_ == "none") return;
    draft.add_pass({"fault", [fault = fault_, at = at_](Program& program) {
                      if (damage(program, fault, at) == 0 && program.stages == 1)
                        throw mw::Error(mw::Stage::plan, "faults.nothing", "",
                                        "no place for " + fault + " at " + at, "");
                    }});
  }

 private:
  static int damage(Program& program, const std::string& fault, const std::string& at) {
    if (fault == "missing_all_reduce")
      return reductions(program, at, [](std::vector<Instruction>& code, Where start, Where wait) {
        start->code = Code::copy;
        code.erase(wait);
      });
    if (fault == "counted_twice")
      return reductions(program, at, [](std::vector<Instruction>& code, Where, Where wait) {
        code.insert(wait + 1, doubled(wait->outputs[0]));
      });
    if (fault == "bias_on_every_rank") return keep_everywhere(program, at);
    if (fault == "loss_scale") {
      int done = 0;
      for (Segment& segment : program.segments) done += insert(segment, is_seed, doubled_seed);
      return done;
    }
    if (fault == "microbatch_loss") return in_microbatch(program, is_seed, again, doubled_seed);
    if (fault == "microbatch_weight") return in_microbatch(program, is_wgrad, nothing, again);
    return buckets(program, fault, at);
  }

  static Instruction doubled(int slot) {
    Instruction add;
    add.code = Code::add;
    add.inputs = add.outputs = {slot};
    add.phase = "backward";
    add.label = "twice";
    return add;
  }

  // All-reduces of that label in forward.
  static int reductions(Program& program, const std::string& at,
                        const std::function<void(std::vector<Instruction>&, Where, Where)>& edit) {
    int done = 0;
    for (Segment& segment : program.segments) {
      auto& code = segment.code;
      const auto start = std::find_if(code.begin(), code.end(), [&](const Instruction& i) {
        return i.code == Code::start && i.move.kind == mw::Move::Kind::all_reduce &&
               i.label.starts_with(at);
      });
      if (segment.kind != SegmentKind::forward || start == code.end()) continue;
      edit(code, start, std::find_if(start, code.end(), [&](const Instruction& i) {
             return i.code == Code::wait && i.pending == start->pending;
           }));
      ++done;
    }
    return done;
  }

  // What only the first rank is to contribute, all do.
  static int keep_everywhere(Program& program, const std::string& at) {
    int done = 0;
    for (Segment& segment : program.segments) {
      for (Instruction& i : segment.code) {
        if (i.code != Code::move || i.move.kind != mw::Move::Kind::keep || !i.label.starts_with(at))
          continue;
        i.code = Code::copy;
        ++done;
      }
    }
    return done;
  }

  // After each instruction that `which` takes comes what `then` makes of it.
  static int insert(Segment& segment, const std::function<bool(const Instruction&)>& which,
                    const std::function<Instruction(const Instruction&)>& then) {
    std::vector<Instruction> code;
    int done = 0;
    for (const Instruction& i : segment.code) {
      code.push_back(i);
      if (!which(i)) continue;
      code.push_back(then(i));
      ++done;
    }
    segment.code = std::move(code);
    return done;
  }

  static bool is_seed(const Instruction& i) { return i.code == Code::seed; }
  static bool is_wgrad(const Instruction& i) {
    return i.code == Code::compute && i.piece == mw::Piece::wgrad;
  }
  static Instruction doubled_seed(const Instruction& i) { return doubled(i.outputs[0]); }
  static Instruction again(const Instruction& i) { return i; }
  static Instruction nothing(const Instruction&) {  // no sum begins
    Instruction i;
    i.code = Code::begin_sum;
    i.phase = "backward";
    return i;
  }

  // Edits the backward of microbatch 1 alone. A copy of a segment has the same instructions but for
  // what they do, so the others get harmless ones in their place.
  static int in_microbatch(Program& program, bool (*which)(const Instruction&),
                           Instruction (*harmless)(const Instruction&),
                           Instruction (*fault)(const Instruction&)) {
    for (mw::SegmentRun& run : program.timeline) {
      if (run.microbatch != 1 || program.segments[run.segment].kind != SegmentKind::backward)
        continue;
      Segment own = program.segments[run.segment];
      own.name += ".1";
      own.copy_of = run.segment;
      insert(program.segments[run.segment], which, harmless);
      const int done = insert(own, which, fault);
      run.segment = static_cast<int>(program.segments.size());
      program.segments.push_back(std::move(own));
      return done;
    }
    return 0;
  }

  // The bucket that holds a parameter: its gradients are not reduced,
  // or what was updated not gathered.
  static int buckets(Program& program, const std::string& fault, const std::string& at) {
    for (mw::Bucket& bucket : program.buckets) {
      const bool holds =
          std::any_of(bucket.parameters.begin(), bucket.parameters.end(),
                      [&](int p) { return program.name_of_parameter(p).starts_with(at); });
      if (!holds) continue;
      if (fault == "missing_gradient_reduction") {
        bucket.reduce_atoms.clear();
        bucket.overlap = false;
        return 1;
      }
      // Its shard is updated as before; that the others' are gathered is what this says.
      if (bucket.sharded_state != mw::ShardedState::optimizer) continue;
      bucket.sharded_state = mw::ShardedState::nothing;
      return 1;
    }
    return 0;
  }

  std::string fault_, at_;
};

}  // namespace

MESHWRIGHT_PLUGIN("faults", "1.0.0", "one fault in what other strategies derived",
                  mw::strategy<Faults>())
