// Expert parallelism: experts live on ep, an axis that borrows the ranks of dp or zero, then cp,
// then tp, or of those that the script names, so that attention and experts each have a mix of
// their own over the same ranks (Liu et al. 2025, "MoE Parallel Folding"). Tokens go to their
// experts and back by all-to-all (Lepikhin et al. 2021, "GShard"); or tokens are all-gathered and
// the experts' outputs reduce-scattered. Experts' gradients are summed over the data ranks that ep
// does not borrow.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "meshwright/engine/text.h"
#include "meshwright/json.h"
#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

const mw::Dim experts("experts"), scores("scores");

// Roles of the axes from which ep borrows ranks, in this order. Ranks of an axis of data or of the
// sequence each have tokens of their own; ranks of an axis of the model have the same tokens.
const std::vector<std::string> usual_lenders = {"data", "sequence", "model"};

// Whether the instruction is the start, or the wait, as `code` says, of an all-to-all of sparse
// rows.
bool exchange(const mw::Instruction& i, mw::Code code) {
  return i.code == code && i.move.exchanges_rows();
}

void spread_exchanges(const mw::Program& program, std::vector<mw::Instruction>& code) {
  for (std::size_t n = code.size(); n-- > 0;) {
    if (exchange(code[n], mw::Code::wait)) mw::moved(program, code, n, code.size());
  }
  // exchanges keep their order, behind the exchange that brings their row counts
  std::size_t before = 0;
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (exchange(code[n], mw::Code::start)) before = mw::moved(program, code, n, before) + 1;
  }
}

// Lets independent ops compute while rows of sparse tensors are on their way: an exchange begins as
// soon as its input is there, and is awaited where its output is read.
mw::Pass overlap_exchanges() {
  mw::Pass pass;
  pass.name = "overlap exchanges";
  pass.run = [](mw::Program& program) {
    for (mw::Segment& segment : program.segments) spread_exchanges(program, segment.code);
  };
  pass.changes = mw::Pass::Changes::order;
  return pass;
}

class ExpertParallel : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways",
                 "ranks that the experts are split over; ep borrows them from the data axes first, "
                 "then from the sequence's, then from the model's")
        .range(1, 1 << 20)
        .positional("ways")
        .choice(
            "dispatch", {"alltoall", "allgather"},
            "alltoall sends each token to the ranks of its experts; allgather sends all tokens to "
            "all ranks, and reduce-scatters the results")
        .fallback("alltoall")
        .list("borrow",
              "axes, or roles of axes, that lend ranks, in this order: { \"tp\" }; left out: data, "
              "sequence, model")
        .optional()
        .boolean("overlap", "shared experts compute while tokens are exchanged")
        .fallback(false)
        .number("imbalance",
                "for predictions: the rows of the fullest rank, divided by the mean over ranks")
        .range(1, 1 << 20)
        .fallback(1.0);
  }
  explicit ExpertParallel(const mw::Values& values)
      : ways_(values.int32("ways")),
        gathers_(values.text("dispatch") == "allgather"),
        overlap_(values.flag("overlap")),
        imbalance_(values.number("imbalance")) {
    if (imbalance_ > ways_) {
      throw mw::Error(mw::Stage::options, "option.range", "imbalance",
                      fmt::format("no rank of {} can have {} times the average", ways_, imbalance_),
                      fmt::format("nearest: imbalance = {}, all tokens on one rank", ways_));
    }
    if (overlap_ && gathers_) {
      throw mw::Error(mw::Stage::options, "option.needs", "overlap",
                      fmt::format("ep({}): overlap = true under dispatch = \"allgather\", where no "
                                  "tokens are on their way to experts",
                                  ways_),
                      "leave overlap out, or take dispatch = \"alltoall\"");
    }
    lenders_ = usual_lenders;
    if (!values.has("borrow")) return;
    named_ = true;
    lenders_.clear();
    for (const mw::Json& axis : values.at("borrow")) {
      if (!axis.is_string() || axis.get<std::string>() == "ep") {
        throw mw::Error(mw::Stage::options, "option.value", "borrow",
                        fmt::format("{} is no axis to take ranks of", mw::lua_text(axis)),
                        "list names of axes: borrow = { \"dp\", \"tp\" }, or roles: { \"data\" }");
      }
      lenders_.push_back(axis.get<std::string>());
    }
    if (lenders_.empty()) {
      throw mw::Error(mw::Stage::options, "option.missing", "borrow", "lists no axis",
                      "name one, or leave borrow out for data, sequence, model");
    }
  }

  std::vector<mw::AxisRequest> axes() const override {
    return {{"ep", ways_, mw::Role::experts, lenders_}};
  }

  void edit(mw::Draft& draft) const override {
    if (draft.graph().dims().count(experts) == 0) {
      draft.refuse("rule.dim", "", fmt::format("ep({}): the model has no experts", ways_),
                   "leave ep out, or take mw.moe { … }");
      return;
    }
    if (named_ && !has_lenders(draft)) return;
    const auto moves_tokens = [](const mw::Op& op) {
      return op.op_class() == mw::OpClass::dispatch || op.op_class() == mw::OpClass::combine;
    };
    const std::vector<int> common = in_common(draft.mesh());
    if (gathers_ || !shares_out(draft, common)) {
      note_names(draft);
      draft.shard_in("experts", "ep", [](const mw::Op&) { return true; });
    } else {
      draft.shard_in("experts", "ep", [=](const mw::Op& op) { return !moves_tokens(op); });
      // Tokens that ranks of the model have in common are shared out among those ranks that ep
      // borrows.
      if (!common.empty()) {
        draft.shard_in(
            "seq", "ep", [=](const mw::Op& op) { return routes(op) || moves_tokens(op); }, common);
      }
    }
    draft.expect_imbalance(imbalance_, "imbalance", ways_);
    if (overlap_) draft.add_pass(overlap_exchanges());
  }

 private:
  // Whether the op works on tokens before they are sent to their experts.
  static bool routes(const mw::Op& op) {
    const mw::Dims space = op.space();
    return mw::contains(space, scores) && mw::contains(space, "seq") && op.kind() != "admit";
  }

  // Refuses lenders that the plan does not have, which would else be left out in silence.
  bool has_lenders(mw::Draft& draft) const {
    std::vector<std::string> known;
    for (const mw::Axis& axis : draft.mesh().axes()) {
      if (!axis.borrowed) known.push_back(axis.name);
    }
    bool all = true;
    for (const std::string& name : lenders_) {
      const std::optional<mw::Role> role = mw::role_of(name);
      if (role ? !draft.mesh().with_role(*role).empty() : draft.mesh().has(name)) continue;
      draft.refuse("axis.unknown", "borrow",
                   fmt::format("ep({}).borrow: the plan has no axis {}", ways_, name),
                   fmt::format("its axes are {}", fmt::join(known, ", ")));
      all = false;
    }
    return all;
  }

  // Notes axes all of whose ranks ep has: its all-gathers and reduce-scatters are listed under
  // their names. Not axes of the model, whose ranks have all tokens already.
  void note_names(mw::Draft& draft) const {
    const std::vector<int>& atoms = draft.mesh().axis("ep").atoms;
    std::vector<std::string> whole;
    for (const mw::Role role : {mw::Role::data, mw::Role::sequence}) {
      for (const mw::Axis& axis : draft.mesh().with_role(role)) {
        const bool all = std::all_of(axis.atoms.begin(), axis.atoms.end(), [&](int atom) {
          return std::find(atoms.begin(), atoms.end(), atom) != atoms.end();
        });
        if (!axis.borrowed && axis.ways > 1 && all) whole.push_back(axis.name);
      }
    }
    if (whole.empty()) return;
    draft.note(
        fmt::format("ep({}): it has all ranks of {}, under which its tokens' all-gathers and "
                    "reduce-scatters are listed",
                    ways_, fmt::join(whole, ", ")));
  }

  // The atoms that ep borrows from axes whose ranks have the same tokens.
  static std::vector<int> in_common(const mw::Mesh& mesh) {
    std::vector<int> atoms = mesh.axis("ep").atoms;
    for (const mw::Role role : {mw::Role::data, mw::Role::sequence}) {
      for (const mw::Axis& axis : mesh.with_role(role)) {
        std::erase_if(atoms, [&](int atom) {
          return std::find(axis.atoms.begin(), axis.atoms.end(), atom) != axis.atoms.end();
        });
      }
    }
    return atoms;
  }

  // Whether the sequence is long enough for all ranks that have tokens in common to get a part.
  bool shares_out(mw::Draft& draft, const std::vector<int>& common) const {
    const mw::Mesh& mesh = draft.mesh();
    std::int64_t parts = mesh.ways(common);
    for (const mw::Axis& axis : mesh.with_role(mw::Role::sequence)) parts *= axis.ways;
    const std::int64_t length = draft.graph().size("seq");
    if (common.empty() || parts <= length) return true;
    draft.note(
        fmt::format("ep({}): {} tokens are too few to share out among {} ranks: dispatch is "
                    "\"allgather\", each rank computes its experts for all tokens",
                    ways_, length, parts));
    return false;
  }

  int ways_;
  std::vector<std::string> lenders_;
  bool named_ = false;  // the script names the lenders
  bool gathers_, overlap_;
  double imbalance_;
};

}  // namespace

MESHWRIGHT_PLUGIN("ep", "1.0.0", "expert parallelism: experts -> ep, on borrowed ranks",
                  mw::strategy<ExpertParallel>())
