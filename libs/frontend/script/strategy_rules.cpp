// Brings the rules of a script's strategy into a plan, and asks the script's functions where they
// hold.
#include "script/strategy_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "meshwright/engine/json_text.h"
#include "meshwright/engine/text.h"
#include "meshwright/passes.h"
#include "script/script_strategy.h"

namespace mw {
namespace {

using Ask = std::function<Json(const std::vector<Json>&)>;

std::vector<Values> read_entries(const Json& given, const std::string& path, const Options& options,
                                 Problems& problems) {
  std::vector<Values> entries;
  if (given.is_object() && given.empty()) return entries;  // Lua's {} may be either
  if (!given.is_array()) {
    problems.add(Stage::options, "option.type", path,
                 fmt::format("{} must be a list; got {}", path, describe(given)),
                 "each entry is a table: { { dim = \"ffn\" } }");
    return entries;
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Json& entry = given[i];
    const bool alone = entry.is_array() && entry.size() == 1;  // { "ffn" }
    entries.push_back(
        options.read(alone ? entry[0] : entry, fmt::format("{}[{}]", path, i + 1), problems));
  }
  return entries;
}

Json describe_op(const Op& op, const std::set<std::string>& claimed) {
  Json inputs = Json::array(), outputs = Json::array(), has = Json::object();
  for (Dim dim : op.space()) has[dim.name()] = true;
  for (const Use& use : op.inputs) inputs.push_back(names_of(use.dims));
  for (const Dims& dims : op.output_dims) outputs.push_back(names_of(dims));
  return {{"name", op.name},
          {"kind", op.kind()},
          {"class", name_of(op.op_class())},
          {"layer", op.layer},
          {"dims", names_of(op.space())},
          {"has", has},
          {"whole", names_of(op.whole)},
          {"inputs", inputs},
          {"outputs", outputs},
          {"claimed", claimed}};
}

// What a script's function answers holds as Lua has it: all but nil and false.
bool holds(const Json& answer) {
  return answer.is_boolean() ? answer.get<bool>() : !answer.is_null();
}

bool shares_atoms(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int atom) { return std::find(b.begin(), b.end(), atom) != b.end(); });
}

// One `where` in one draft: whether its rule holds in an op. Each op is asked about once.
class Where {
 public:
  Where(const Draft& draft, std::string strategy, std::string axis, Ask ask)
      : draft_(draft),
        strategy_(std::move(strategy)),
        axis_(std::move(axis)),
        ask_(std::move(ask)) {}

  bool operator()(const Op& op) {
    const auto known = known_.find(op.name);
    if (known != known_.end()) return known->second;
    // Two functions that look at what the other's rule claims: the one that was asked first sees
    // the other's answer to what is there without it.
    if (asking_) return false;
    const bool first = !anyone_asking;
    asking_ = anyone_asking = true;
    const struct Asked {
      bool& asking;
      bool first;
      ~Asked() {
        asking = false;
        if (first) anyone_asking = false;
      }
    } asked{asking_, first};
    const bool answer = holds(ask_({describe_op(op, claimed(op))}));
    if (first) known_.emplace(op.name, answer);
    return answer;
  }

 private:
  // The dims of the op that rules of other strategies cut over ranks of this axis.
  std::set<std::string> claimed(const Op& op) const {
    std::set<std::string> dims;
    const Mesh& mesh = draft_.mesh();
    const Dims space = op.space();
    for (const Rule& rule : draft_.rules()) {
      if (rule.strategy == strategy_ || !contains(space, rule.dim)) continue;
      if (contains(op.whole, rule.dim)) continue;
      if (!shares_atoms(rule.atoms(mesh), mesh.axis(axis_).atoms)) continue;
      if (!rule.where || rule.where(op)) dims.insert(rule.dim.name());
    }
    return dims;
  }

  static inline thread_local bool anyone_asking = false;
  const Draft& draft_;
  std::string strategy_, axis_;
  Ask ask_;
  std::map<std::string, bool> known_;  // by op
  bool asking_ = false;
};

class ScriptStrategy : public Strategy {
 public:
  ScriptStrategy(std::string name, std::vector<AxisRequest> axes, const Values& table)
      : name_(std::move(name)), axes_(std::move(axes)), table_(table) {}

  std::vector<AxisRequest> axes() const override { return axes_; }

  void edit(Draft& draft) const override {
    int number = 0;
    for (const Values& rule : rules(draft)) {
      draft.set_option(fmt::format("rules[{}]", ++number));
      for (const std::string& axis : axes_of(draft, rule)) add_rule(draft, rule, axis);
    }
    number = 0;
    Problems none;
    const Json& stored = table_.has("store") ? table_.at("store") : Json::array();
    for (const Values& rule : read_store(stored, "store", none)) {
      draft.set_option(fmt::format("store[{}]", ++number));
      for (const std::string& axis : axes_of(draft, rule))
        draft.store(rule.text("dim"), axis, stored_where(rule));
    }
    draft.set_option("");
    if (table_.has("bucket")) draft.add_pass(bucket_gradients(table_.integer("bucket")));
    const bool several = std::any_of(axes_.begin(), axes_.end(),
                                     [](const AxisRequest& axis) { return axis.ways > 1; });
    if (table_.flag("overlap") && several) draft.add_pass(overlap_gradient_reduction());
    if (table_.has("note")) draft.note(fmt::format("{}: {}", name_, table_.text("note")));
  }

 private:
  std::vector<Values> rules(const Draft& draft) const {
    if (!table_.has("rules")) return {};
    Problems problems;
    if (!table_.is_function("rules")) return read_rules(table_.at("rules"), "rules", problems);
    Json dims = Json::object(), axes = Json::object();
    for (const auto& [dim, info] : draft.graph().dims()) dims[dim.name()] = info.size;
    for (const Axis& axis : draft.mesh().axes()) axes[axis.name] = axis.ways;
    const Json returned = table_.function("rules")(
        {Json{{"dims", dims}, {"axes", axes}, {"layers", draft.graph().layers}}});
    if (returned.is_null()) {
      throw Error(Stage::plan, "function.result", "rules", "the function returned nothing",
                  "return a list of rules: { { dim = \"ffn\" } }");
    }
    std::vector<Values> read = read_rules(returned, "rules", problems);
    problems.throw_if_any();
    return read;
  }

  // Those that the rule names, or the strategy's own. Refuses what is not there.
  std::vector<std::string> axes_of(Draft& draft, const Values& rule) const {
    if (!rule.has("axis")) {
      if (axes_.size() == 1) return {axes_.front().name};
      std::vector<std::string> own;
      for (const AxisRequest& axis : axes_) own.push_back(axis.name);
      draft.refuse("option.missing", "", fmt::format("{} -> which axis?", rule.text("dim")),
                   own.empty() ? "the strategy has no axis of its own: name one, or a role, in the "
                                 "rule's `axis`"
                               : "name one of its axes in the rule's `axis`: " + join(own));
      return {};
    }
    const auto named = rule.text("axis");
    const std::optional<Role> role = role_of(named);
    if (!role) return {named};
    std::vector<std::string> names;
    for (const Axis& axis : draft.mesh().with_role(*role)) names.push_back(axis.name);
    if (names.empty()) {
      draft.refuse("axis.unknown", "",
                   fmt::format("{} -> {}: the plan has no axis that splits the {}",
                               rule.text("dim"), named, named),
                   fmt::format("add a strategy whose axis has the role \"{}\"", named));
    }
    return names;
  }

  void add_rule(Draft& draft, const Values& rule, const std::string& axis) const {
    const Dim dim(rule.text("dim"));
    if (rule.flag("optional") && !can_cut(draft, dim, axis)) return;
    std::vector<int> atoms;
    if (rule.has("lent_by") && draft.mesh().has(axis)) {
      atoms = lent(draft.mesh(), axis, rule.at("lent_by"));
      if (atoms.empty()) return;
    }
    std::function<bool(const Op&)> where;
    if (rule.has("where")) {
      const auto asked = std::make_shared<Where>(draft, name_, axis, function_of(rule));
      where = [asked](const Op& op) { return (*asked)(op); };
    }
    if (where || !atoms.empty()) {
      draft.shard_in(dim, axis, std::move(where), std::move(atoms));
    } else {
      draft.shard(dim, axis);
    }
  }

  static bool can_cut(const Draft& draft, Dim dim, const std::string& axis) {
    const auto info = draft.graph().dims().find(dim);
    if (info == draft.graph().dims().end() || !draft.mesh().has(axis)) return false;
    return info->second.even ? draft.divides(axis, dim)
                             : info->second.size >= draft.mesh().axis(axis).ways;
  }

  // The atoms of the axis that are those of the others too.
  static std::vector<int> lent(const Mesh& mesh, const std::string& axis, const Json& others) {
    std::set<int> theirs;
    for (const Json& other : others) {
      if (!other.is_string()) continue;
      const auto name = other.get<std::string>();
      const std::optional<Role> role = role_of(name);
      for (const Axis& lender : mesh.axes()) {
        if (role ? lender.role == *role && !lender.borrowed : lender.name == name)
          theirs.insert(lender.atoms.begin(), lender.atoms.end());
      }
    }
    std::vector<int> atoms = mesh.axis(axis).atoms;
    std::erase_if(atoms, [&](int atom) { return theirs.count(atom) == 0; });
    return atoms;
  }

  Ask function_of(const Values& rule) const {
    Values own(Json{{"where", rule.at("where")}});
    own.set_reach(table_.reach());
    return own.function("where");
  }

  std::function<bool(const Value&)> stored_where(const Values& rule) const {
    if (!rule.has("where")) return {};
    return [ask = function_of(rule)](const Value& value) {
      return holds(ask({Json{{"name", value.name}, {"dims", names_of(value.dims)}}}));
    };
  }

  std::string name_;
  std::vector<AxisRequest> axes_;
  Values table_;
};

}  // namespace

std::vector<Values> read_rules(const Json& given, const std::string& path, Problems& problems) {
  return read_entries(given, path, strategy_rule_options(), problems);
}

std::vector<Values> read_store(const Json& given, const std::string& path, Problems& problems) {
  return read_entries(given, path, strategy_store_options(), problems);
}

std::shared_ptr<const Strategy> make_script_strategy(std::string name,
                                                     std::vector<AxisRequest> axes,
                                                     const Values& table) {
  return std::make_shared<ScriptStrategy>(std::move(name), std::move(axes), table);
}

}  // namespace mw
