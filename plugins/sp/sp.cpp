// Sequence and context parallelism. sp() is Megatron's (Korthikanti et al. 2022, "Reducing
// Activation Recomputation", section 4.2.2): on tp's own ranks, the residual stream is cut along
// the sequence, so that tp's all-reduces become reduce-scatters and all-gathers of the same bytes.
// sp { n } has ranks of its own and cuts the sequence everywhere; its form says how attention gets
// at the other ranks' keys: they go round a ring (Liu et al. 2023, "Ring Attention"); they are
// gathered (Llama 3 Team 2024, section 3.3.2); or an all-to-all gives each rank whole sequences of
// some heads (Jacobs et al. 2023, "DeepSpeed Ulysses"). The last goes with either of the others
// (Fang and Zhao 2024, "USP").
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

const mw::Dim seq("seq"), hidden("hidden");

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
        .optional()
        .choice(
            "balance", {"zigzag", "documents", "none"},
            "zigzag gives each rank of a ring, or of gathered keys, one part of the first half of "
            "the sequence and the mirrored part of the second half, so that all ranks have "
            "equal work in causal attention; documents does so with each document of a row; by "
            "default zigzag")
        .optional()
        .integer("ulysses",
                 "with a ring or gathered keys: number n of adjacent ranks that exchange heads by "
                 "all-to-all; the ring, or the gather of keys, has ways / n ranks")
        .range(1, 1 << 20)
        .fallback(1);
  }
  explicit SequenceParallel(const mw::Values& values)
      : ways_(values.has("ways") ? values.int32("ways") : 0),
        heads_(values.int32("ulysses")),
        form_(values.has("form") ? values.text("form") : "ring"),
        balance_(values.has("balance") ? values.text("balance") : "") {
    for (const char* option : {"form", "balance"}) {
      if (ways_ > 0 || !values.has(option)) continue;
      refuse("option.needs", option,
             fmt::format("\"{}\" is for ranks of sp's own", values.text(option)),
             fmt::format("write sp {{ 2, {} = \"{}\" }}, or sp() on tp's ranks", option,
                         values.text(option)));
    }
    if (form_ == "ulysses" && (balance_ == "zigzag" || balance_ == "documents")) {
      refuse("option.needs", "balance",
             "\"" + balance_ +
                 "\" under form = \"ulysses\", where each rank has all queries of its heads: "
                 "there is nothing to balance",
             "leave balance out, or take form = \"ring\" or \"allgather\"");
    }
    if (heads_ == 1) return;
    if (ways_ == 0) {
      refuse("option.needs", "ulysses", "shares out ranks of sp's own",
             "write sp { 4, ulysses = 2 }");
    }
    if (form_ == "ulysses") {
      refuse("option.conflict", "ulysses",
             fmt::format("{} of the ranks share out heads, and under form = \"ulysses\" all do",
                         heads_),
             "take form = \"ring\" or \"allgather\" for the others, or leave ulysses out");
    }
    if (ways_ % heads_ != 0) {
      refuse("option.divides", "ulysses",
             fmt::format("{} does not divide sp's {} ranks", heads_, ways_),
             fmt::format("nearest: ulysses = {}", nearest_divisor()));
    }
  }

  std::vector<mw::AxisRequest> axes() const override {
    if (ways_ == 0) return {};
    if (heads_ == 1) return {{"cp", ways_, mw::Role::sequence}};
    return {{"cp", ways_ / heads_, mw::Role::sequence}, {"ulysses", heads_, mw::Role::sequence}};
  }

  void edit(mw::Draft& draft) const override {
    if (ways_ > 0) {
      cut_everywhere(draft);
    } else if (on_the_models_ranks(draft)) {
      for (const mw::Axis& axis : draft.mesh().with_role(mw::Role::model)) {
        cut_the_stream(draft, axis.name);
      }
    }
  }

 private:
  // Whether there are ranks of the model, and the sequence has parts for all of them; else refuses.
  static bool on_the_models_ranks(mw::Draft& draft) {
    const std::vector<mw::Axis> model = draft.mesh().with_role(mw::Role::model);
    const std::vector<mw::Axis> sequence = draft.mesh().with_role(mw::Role::sequence);
    if (model.empty()) {
      draft.refuse("axis.unknown", "",
                   "sp() cuts the residual stream over the ranks of tp, and the plan has no tp",
                   "add tp(n), or write sp { n, form = \"ring\" } for ranks of its own");
      return false;
    }
    const std::int64_t length = draft.graph().size("seq");
    const std::int64_t own = ways_of(model), over = own * ways_of(sequence);
    const std::string names = names_of(model);
    if (length < over) {
      const std::string beside =
          over > own ? fmt::format(" and the {} that have parts of it", over / own) : "";
      draft.refuse("axis.too-many", "",
                   fmt::format("sp(): {} tokens cannot be split over {}'s {} ranks{}", length,
                               names, own, beside),
                   fmt::format("nearest: a sequence of {}, or leave sp() out", over));
      return false;
    }
    if (!sequence.empty() && model.front().atoms.front() < sequence.front().atoms.front()) {
      draft.note(
          fmt::format("sp(): {0} stands before sp's own ranks, so every block gathers the sequence "
                      "over both; write sp before {0} to send and hold less",
                      names));
    }
    return true;
  }

  // Cuts the sequence in the ops along the residual stream: those that the axis' other rules leave
  // whole, once all strategies have added theirs.
  static void cut_the_stream(mw::Draft& draft, const std::string& axis) {
    draft.shard_where("seq", axis, [&draft, axis](const mw::Op& op) {
      const mw::Dims space = op.space();
      if (!mw::contains(space, seq) || !along_the_stream(space)) return false;
      if (mw::contains(space, "experts") || mw::contains(space, "scores"))
        return false;  // ep cuts the ops of experts
      return std::none_of(draft.rules().begin(), draft.rules().end(), [&](const mw::Rule& rule) {
        return rule.axis == axis && rule.dim != seq && mw::contains(space, rule.dim) &&
               (!rule.where || rule.where(op));
      });
    });
  }

  // Whether an op is on the residual stream or on latents (DeepSeek-V2's attention), which are
  // narrower: they are gathered where heads are made of them.
  static bool along_the_stream(const mw::Dims& space) {
    return mw::contains(space, hidden) || mw::contains(space, "q_rank") ||
           mw::contains(space, "kv_rank") ||
           (mw::contains(space, "rope_dim") && mw::contains(space, "batch"));
  }

  static std::int64_t ways_of(const std::vector<mw::Axis>& axes) {
    std::int64_t ways = 1;
    for (const mw::Axis& axis : axes) ways *= axis.ways;
    return ways;
  }

  // The axes' names for messages: "tp", "rows and columns".
  static std::string names_of(const std::vector<mw::Axis>& axes) {
    std::string names;
    for (const mw::Axis& axis : axes) names += (names.empty() ? "" : " and ") + axis.name;
    return names;
  }

  // The axes that cut heads, as far as rules are known: axes of the model, but for those that have
  // rules, none of which is for heads.
  static std::vector<mw::Axis> head_axes(const mw::Draft& draft) {
    std::vector<mw::Axis> axes = draft.mesh().with_role(mw::Role::model);
    std::erase_if(axes, [&](const mw::Axis& axis) {
      bool any = false, heads = false;
      for (const mw::Rule& rule : draft.rules()) {
        any = any || rule.axis == axis.name;
        heads = heads || (rule.axis == axis.name && rule.dim == mw::Dim("heads"));
      }
      return any && !heads;
    });
    return axes;
  }

  static std::string of_each_rank(const std::vector<mw::Axis>& beside) {
    return ways_of(beside) > 1 ? " of each rank of " + names_of(beside) : "";
  }

  static bool is_attention(const mw::Op& op) { return op.op_class() == mw::OpClass::attention; }

  [[noreturn]] static void refuse(const char* code, const char* option, const std::string& message,
                                  const std::string& hint) {
    throw mw::Error(mw::Stage::options, code, option, message, hint);
  }

  int nearest_divisor() const {
    int best = 1;
    for (int d = 1; d <= ways_; ++d) {
      if (ways_ % d == 0 && std::abs(d - heads_) < std::abs(best - heads_)) best = d;
    }
    return best;
  }

  template <class Fits>
  static int largest(int limit, const Fits& fits) {
    while (limit > 1 && !fits(limit)) --limit;
    return limit;
  }

  // Whether the heads divide by `ways` (form = "ulysses") or by `ulysses`; refuses by that option
  // if not.
  bool divides(mw::Draft& draft) const {
    const std::int64_t heads = draft.graph().size("heads");
    const std::vector<mw::Axis> others = head_axes(draft);
    const std::int64_t beside = ways_of(others);
    // heads of one rank of the other axes, if they divide evenly
    const std::int64_t left = heads / beside;
    if (form_ == "ulysses" && heads % beside == 0 && left % ways_ != 0) {
      draft.refuse(
          "axis.cannot-share", "ways",
          fmt::format("sp({}) cannot share out {} heads{}", ways_, left, of_each_rank(others)),
          fmt::format("nearest: sp {{ {}, form = \"ulysses\" }}",
                      largest(ways_, [&](int d) { return left % d == 0; })));
      return false;
    }
    if (heads_ > 1 && heads % beside == 0 && left % heads_ != 0) {
      draft.refuse("axis.cannot-share", "ulysses",
                   fmt::format("sp({}): ulysses = {} cannot share out {} heads{}", ways_, heads_,
                               left, of_each_rank(others)),
                   fmt::format("nearest: ulysses = {}", largest(heads_, [&](int d) {
                                 return ways_ % d == 0 && left % d == 0;
                               })));
      return false;
    }
    return true;
  }

  // Whether any op compares a token with the keys of all others. If none does, as in a model of
  // recurrences, no keys go round, and all ranks have equal work in any case.
  static bool compares_tokens(const mw::Draft& draft) {
    const auto& ops = draft.graph().ops();
    return std::any_of(ops.begin(), ops.end(),
                       [](const mw::Op& op) { return is_attention(op) && op.has("keys"); });
  }

  // Unfused attention's softmax is over all keys of a query, and a ring never has them at once.
  bool can_ring(mw::Draft& draft) const {
    const auto& ops = draft.graph().ops();
    const bool unfused = std::any_of(ops.begin(), ops.end(), [](const mw::Op& op) {
      return op.kind() == "unfused_attention" && op.has("keys");
    });
    if (!unfused) return true;
    draft.refuse("option.conflict", "form",
                 fmt::format("sp({}): form = \"ring\" brings keys one part after the other, and "
                             "attention that is unfused (by attention = \"unfused\", softcap, "
                             "biased, sinks or causal = false) needs all keys of a query at once",
                             ways_),
                 "take form = \"allgather\" or \"ulysses\", or the model's attention = "
                 "\"flash\"");
    return false;
  }

  void cut_everywhere(mw::Draft& draft) const {
    if (!divides(draft)) return;
    draft.shard("seq", "cp");
    if (form_ == "ulysses") {
      share_heads(draft, "cp", ways_);
      return;
    }
    if (heads_ > 1) {
      draft.shard("seq", "ulysses");
      share_heads(draft, "ulysses", heads_);
    }
    const int round = ways_ / heads_;
    if (form_ == "ring" && round > 1 && compares_tokens(draft)) {
      if (!can_ring(draft)) return;
      draft.rotate("keys", "cp", is_attention);
      draft.note(fmt::format("sp({}): in attention, keys and values go round cp", ways_));
    }
    const bool named = balance_ == "zigzag" || balance_ == "documents";
    if (named || (balance_.empty() && compares_tokens(draft))) balance(draft, round);
  }

  void share_heads(mw::Draft& draft, const char* axis, int ways) const {
    draft.shard_in("heads", axis, is_attention);
    const std::int64_t keys = draft.graph().size("kv_heads");
    const std::int64_t beside = ways_of(head_axes(draft));
    if (keys % (ways * beside) == 0) {
      draft.shard_in("kv_heads", axis, is_attention);
    } else {
      draft.note(fmt::format(
          "sp({}): {} key and value heads do not divide by {}: each rank gathers all of "
          "them",
          ways_, keys, beside > 1 ? fmt::format("{} x {}", ways, beside) : std::to_string(ways)));
    }
  }

  // The r-th rank has the parts r and 2n - 1 - r of 2n: every rank has the same number of keys
  // before the tokens of both parts together (Llama 3 Team 2024, section 3.3.2), or nearly so where
  // the sequence does not divide.
  void balance(mw::Draft& draft, int ranks) const {
    if (ranks == 1) {
      if (!balance_.empty()) draft.note("sp: one rank has the whole sequence: nothing to balance");
      return;
    }
    const std::int64_t length = draft.graph().size("seq");
    if (length < ranks) return;  // refused by the rule for seq
    const bool documents = draft.graph().find("starts") >= 0;
    if (balance_ == "documents" && documents) {
      draft.part_documents(ranks);
      draft.note(
          fmt::format("sp({}): each document is cut into {} parts, and each rank has two that "
                      "mirror each other",
                      ways_, 2 * ranks));
      return;
    }
    if (balance_ == "documents")
      draft.note(
          "sp: the data's rows are one document each, and balance = \"documents\" is zigzag");
    std::vector<mw::Range> order;
    std::int64_t begin = 0, end = length;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t own = mw::shard_range(length, ranks, rank).size;
      const std::int64_t front = (own + 1) / 2, back = own / 2;
      order.push_back({begin, front});
      begin += front;
      end -= back;
      if (back > 0) order.push_back({end, back});
    }
    draft.permute_tokens("seq", std::move(order));
    draft.note(
        fmt::format("sp({}): zigzag: of {} parts of the sequence rank r has parts r and {} - r",
                    ways_, 2 * ranks, 2 * ranks - 1));
  }

  int ways_;
  int heads_;
  std::string form_;
  std::string balance_;
};

}  // namespace

MESHWRIGHT_PLUGIN(
    "sp", "1.0.0",
    "sequence parallelism on tp's ranks, or context parallelism on its own: seq -> tp, cp",
    mw::strategy<SequenceParallel>())
