// Sequence and context parallelism. sp() is Megatron's (Korthikanti et al. 2022, "Reducing Activation
// Recomputation", section 4.2.2): on tp's own ranks, the residual stream is cut along the sequence, so
// that tp's all-reduces become reduce-scatters and all-gathers of the same bytes. sp { n } has ranks of
// its own and cuts the sequence everywhere; its form says how attention gets at the other ranks' keys:
// by gathering K and V (Llama 3 Team 2024, section 3.3.2), or by an all-to-all to whole sequences of
// some heads (Jacobs et al. 2023, "DeepSpeed Ulysses").
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

const mw::Dim seq("seq"), hidden("hidden");

bool has(const mw::Dims& dims, mw::Dim dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

class SequenceParallel : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer(
            "ways",
            "ranks of its own (axis cp) that the sequence is split over; left out: tp's ranks, "
            "in the residual stream")
        .range(1, 1 << 20)
        .positional("ways")
        .optional()
        .choice("form", {"ring", "allgather", "ulysses"},
                "with ranks of its own, how attention sees the whole sequence: keys and values go "
                "round; they are gathered; or an all-to-all gives each rank some heads of it")
        .optional();
  }
  explicit SequenceParallel(const mw::Values& values)
      : ways_(values.has("ways") ? static_cast<int>(values.integer("ways")) : 0),
        form_(values.has("form") ? values.text("form") : "ring") {
    if (ways_ == 0 && values.has("form")) {
      throw mw::Error(mw::Stage::options,
                      fmt::format("form: \"{}\" is for ranks of sp's own", values.text("form")),
                      fmt::format("write sp {{ 2, form = \"{}\" }}, or sp() on tp's ranks",
                                  values.text("form")));
    }
  }

  std::vector<mw::AxisRequest> axes() const override {
    if (ways_ == 0) return {};
    return {{"cp", ways_, {}}};
  }

  void edit(mw::Draft& draft) const override {
    if (ways_ > 0) {
      cut_everywhere(draft);
    } else if (!draft.mesh().has("tp")) {
      draft.refuse("sp() cuts the residual stream over the ranks of tp, and the plan has no tp",
                   "add tp(n), or write sp { n, form = \"allgather\" } for ranks of its own");
    } else {
      cut_the_stream(draft);
    }
  }

 private:
  // The ops along the residual stream: those that tp leaves whole. Asked when all strategies have
  // spoken.
  static void cut_the_stream(mw::Draft& draft) {
    draft.shard_where("seq", "tp", [&draft](const mw::Op& op) {
      const mw::Dims space = op.space();
      if (!has(space, seq) || !has(space, hidden)) return false;
      return std::none_of(draft.rules().begin(), draft.rules().end(), [&](const mw::Rule& rule) {
        return rule.axis == "tp" && rule.dim != seq && has(space, rule.dim) &&
               (!rule.where || rule.where(op));
      });
    });
  }

  void cut_everywhere(mw::Draft& draft) const {
    draft.shard("seq", "cp");
    const auto attention = [](const mw::Op& op) { return op.kind() == "attention"; };
    if (form_ == "ring") draft.rotate("keys", "cp", attention);
    if (form_ != "ulysses") return;
    draft.shard_in("heads", "cp", attention);
    const std::int64_t keys = draft.graph().size("kv_heads");
    const int beside = draft.mesh().has("tp") ? draft.mesh().axis("tp").ways : 1;
    if (keys % (ways_ * beside) == 0) {
      draft.shard_in("kv_heads", "cp", attention);
    } else {
      draft.note(fmt::format(
          "sp({}): {} key and value heads do not divide by {}: each rank gathers all of "
          "them",
          ways_, keys, beside > 1 ? fmt::format("{} x {}", ways_, beside) : std::to_string(ways_)));
    }
  }

  int ways_;
  std::string form_;
};

}  // namespace

MESHWRIGHT_PLUGIN(
    SequenceParallel, "sp", "1.0.0",
    "sequence parallelism on tp's ranks, or context parallelism on its own: seq -> tp, cp")
