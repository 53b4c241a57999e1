// Slices in time (nnScaler's coshard; Lin et al. 2024, OSDI): a rank computes its part of a dim in
// equal slices, one after the other, so that the tensors between neighbouring ops exist for one
// slice at a time. The strategy takes no ranks and sends nothing.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

// Whether `name` is the op's kind or one of the parts between the dots of the op's name.
bool is_called(const mw::Op& op, const std::string& name) {
  return op.kind() == name || ("." + op.name + ".").find("." + name + ".") != std::string::npos;
}

class Coshard : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .text("dim", "the dim that is computed in slices: \"ffn\", \"heads\", \"seq\", \"vocab\"")
        .integer("slices", "how many; each rank's part of the dim must divide by it")
        .range(1, 1 << 16)
        .list("ops", "only ops of these kinds, or with such a part between the dots of their name")
        .optional()
        .boolean("recompute", "backward recomputes the tensors inside a slice, slice by slice")
        .fallback(true)
        .positional("dim");
  }

  explicit Coshard(const mw::Values& values)
      : dim_(values.text("dim")),
        slices_(values.int32("slices")),
        recompute_(values.flag("recompute")) {
    if (!values.has("ops")) return;
    for (const mw::Json& name : values.at("ops")) {
      if (!name.is_string())
        throw mw::Error(mw::Stage::options, "option.type", "ops", "ops has what is no name",
                        "write ops = { \"mlp\" }");
      ops_.push_back(name.get<std::string>());
    }
  }

  std::vector<mw::AxisRequest> axes() const override { return {}; }

  void edit(mw::Draft& draft) const override {
    for (const std::string& name : ops_) {
      const auto& ops = draft.graph().ops();
      if (std::any_of(ops.begin(), ops.end(),
                      [&](const mw::Op& op) { return is_called(op, name); }))
        continue;
      draft.refuse("slices.ops", "ops", fmt::format("no op is called {}", name),
                   "kinds and names of ops: plan --program lists them");
      return;
    }
    draft.slice(
        dim_, slices_,
        [ops = ops_](const mw::Op& op) {
          return ops.empty() || std::any_of(ops.begin(), ops.end(), [&](const std::string& name) {
                   return is_called(op, name);
                 });
        },
        recompute_);
    if (slices_ > 1)
      draft.note(fmt::format("coshard: {} in {} slices, one after the other{}", dim_, slices_,
                             recompute_ ? ", which backward makes again slice by slice" : ""));
  }

 private:
  std::string dim_;
  int slices_;
  bool recompute_;
  std::vector<std::string> ops_;
};

}  // namespace

MESHWRIGHT_PLUGIN("coshard", "1.0.0", "a dim is computed in slices, one after the other",
                  mw::strategy<Coshard>())
