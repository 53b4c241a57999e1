// Reads and checks the table of mw.strategy: its axes, and what a plan's entries made of it take.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include "meshwright/engine/text.h"
#include "meshwright/passes.h"
#include "script/script_pass.h"
#include "script/script_strategy.h"

namespace mw {

namespace {

using Ask = std::function<Json(const std::vector<Json>&)>;

std::vector<Values> read_entries(const Json& given, const std::string& path, const Options& options,
                                 Problems& problems) {
  std::vector<Values> entries;
  if (given.is_object() && given.empty()) return entries;  // Lua's {} may be a list or a table
  if (!given.is_array()) {
    problems.add(Stage::options, "option.type", path,
                 fmt::format("{} must be a list; got {}", path, describe(given)),
                 "each entry is a table: { { dim = \"ffn\" } }");
    return entries;
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Json& entry = given[i];
    const bool alone = entry.is_array() && entry.size() == 1;  // the short form { "ffn" }
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

// Whether an answer of a script's function is true as in Lua: all but nil and false.
bool holds(const Json& answer) {
  return answer.is_boolean() ? answer.get<bool>() : !answer.is_null();
}

bool shares_atoms(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int atom) { return std::find(b.begin(), b.end(), atom) != b.end(); });
}

// Each entry's values; problems with keys such as "PATH[1].dim".
std::vector<Values> read_rules(const Json& given, const std::string& path, Problems& problems) {
  return read_entries(given, path, strategy_rule_options(), problems);
}

std::vector<Values> read_store(const Json& given, const std::string& path, Problems& problems) {
  return read_entries(given, path, strategy_store_options(), problems);
}

// The function `where` of a rule in one draft, which is asked once for each op.
class EntryCondition {
 public:
  EntryCondition(const Draft& draft, std::string strategy, std::string axis, Ask ask)
      : draft_(draft),
        strategy_(std::move(strategy)),
        axis_(std::move(axis)),
        ask_(std::move(ask)) {}

  bool operator()(const Op& op) {
    const auto known = known_.find(op.name);
    if (known != known_.end()) return known->second;
    // Two rules may ask each other what they claim. The function that was asked first then sees the
    // other's answer as it is without its own rule.
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
  std::map<std::string, bool> known_;  // answer by op name
  bool asking_ = false;
};

class ScriptStrategy : public Strategy {
 public:
  ScriptStrategy(std::string name, std::vector<AxisRequest> axes, const Values& table,
                 std::vector<std::shared_ptr<const PassTable>> passes)
      : name_(std::move(name)), axes_(std::move(axes)), table_(table), passes_(std::move(passes)) {}

  std::vector<AxisRequest> axes() const override { return axes_; }

  void edit(Draft& draft) const override {
    int number = 0;
    for (const Values& rule : rules(draft)) {
      draft.set_option(fmt::format("rules[{}]", ++number));
      if (rule.has("slices")) {
        add_slices(draft, rule);
        continue;
      }
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
    for (std::size_t n = 0; n < passes_.size(); ++n)
      passes_[n]->add_to(draft, table_.reach(), fmt::format("passes[{}]", n + 1));
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

  // The axes that the rule names, or the strategy's own. Refuses unknown axes.
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
      const auto asked = std::make_shared<EntryCondition>(draft, name_, axis, function_of(rule));
      where = [asked](const Op& op) { return (*asked)(op); };
    }
    if (where || !atoms.empty()) {
      draft.shard_in(dim, axis, std::move(where), std::move(atoms));
    } else {
      draft.shard(dim, axis);
    }
  }

  // Adds a rule that has `slices`: each rank computes its own part of the dim slice by slice.
  void add_slices(Draft& draft, const Values& rule) const {
    if (rule.has("axis") || rule.has("lent_by")) {
      draft.refuse("option.conflict", "",
                   fmt::format("{}: slices are computed one after the other, and an axis at once",
                               rule.text("dim")),
                   "leave axis and lent_by out, or make two rules of it");
      return;
    }
    std::function<bool(const Op&)> where;
    if (rule.has("where")) {
      const auto known = std::make_shared<std::map<std::string, bool>>();  // answer by op name
      where = [known, ask = function_of(rule)](const Op& op) {
        const auto [answer, missing] = known->try_emplace(op.name, false);
        if (missing) answer->second = holds(ask({describe_op(op, {})}));
        return answer->second;
      };
    }
    draft.slice(rule.text("dim"), rule.int32("slices"), std::move(where), rule.flag("recompute"));
  }

  static bool can_cut(const Draft& draft, Dim dim, const std::string& axis) {
    const auto info = draft.graph().dims().find(dim);
    if (info == draft.graph().dims().end() || !draft.mesh().has(axis)) return false;
    return info->second.even ? draft.divides(axis, dim)
                             : info->second.size >= draft.mesh().axis(axis).ways;
  }

  // The atoms that the axis shares with `others`.
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
  const std::vector<std::shared_ptr<const PassTable>> passes_;
};

constexpr int most_ways = 1 << 20;

bool is_strategy_name(const std::string& text) {
  const auto letter = [](unsigned char c) { return c < 0x80 && std::isalpha(c) != 0; };
  return !text.empty() && text.size() <= 64 && letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](unsigned char c) {
           return letter(c) || (c >= '0' && c <= '9') || c == '_';
         });
}

std::string path_in(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

std::vector<std::string> texts(const Json& list, const std::string& path, Problems& problems) {
  std::vector<std::string> found;
  for (const Json& item : list) {
    if (item.is_string()) {
      found.push_back(item.get<std::string>());
    } else {
      problems.add(Stage::options, "option.value", path,
                   fmt::format("{}: {} is no name of an axis", path, lua_text(item)),
                   "list names of axes, or roles: " + join(names_of_roles()));
    }
  }
  return found;
}

}  // namespace

const Options& strategy_options() {
  static const Options options =
      Options()
          .text("name", "what plans and messages call it")
          .any(
              "axis",
              "the axis that it asks for, { name, ways, role, borrow }, or a list of several; left "
              "out: none, and rules name another strategy's")
          .optional()
          .any("rules",
               "which dim lives on the axis, and where: a list of { dim, where, axis }, or a "
               "function "
               "that returns it, of { dims = { name = size }, axes = { name = ways }, layers }")
          .optional()
          .list("store",
                "which parameters are stored sharded though they are not used so: a list of "
                "{ dim, where, axis }")
          .optional()
          .bytes("bucket", "gradients that are reduced together, at most; left out: all")
          .at_least(1)
          .optional()
          .boolean("overlap", "start each bucket's reduction inside the last microbatch's backward")
          .fallback(false)
          .list("passes", "what mw.pass and mw.directives return: edits of the program")
          .optional()
          .text("note", "a sentence for the printed plan")
          .optional();
  return options;
}

const Options& strategy_axis_options() {
  static const Options options =
      Options()
          .text("name", "what collectives and messages call it; left out: the strategy's name")
          .optional()
          .positional("name")
          .integer("ways", "its ranks, where a plan does not say")
          .range(1, most_ways)
          .optional()
          .choice("role", names_of_roles(),
                  "what its ranks split; others find it by that, whatever its name")
          .optional()
          .list(
              "borrow",
              "axes, or roles of axes, that lend ranks, in this order; left out: ranks of its own")
          .optional();
  return options;
}

const Options& strategy_rule_options() {
  static const Options options =
      Options()
          .text("dim", "the dim that the axis cuts")
          .positional("dim")
          .function("where",
                    "of an op, returns true where the rule holds, which then outweighs rules "
                    "without one; left out: in every op that has the dim")
          .optional()
          .text("axis", "an axis by name, or all axes of a role; left out: the strategy's own")
          .optional()
          .list("lent_by",
                "only over those ranks of the axis that these axes, or axes of these roles, lend; "
                "the rule is left out where there are none")
          .optional()
          .integer("slices",
                   "no axis cuts it: each rank computes its part of it in so many slices, one "
                   "after the other")
          .range(1, 1 << 16)
          .optional()
          .boolean("recompute", "for slices: backward recomputes the tensors inside a slice")
          .fallback(true)
          .boolean("optional",
                   "left out where the model lacks the dim or the axis cannot cut it as it must be")
          .fallback(false);
  return options;
}

const Options& strategy_store_options() {
  static const Options options =
      Options()
          .text("dim", "the dim of the parameters along which they are stored sharded")
          .positional("dim")
          .function("where",
                    "of a parameter, returns true where the rule holds; left out: all that "
                    "have the dim")
          .optional()
          .text("axis", "an axis by name, or all axes of a role; left out: the strategy's own")
          .optional();
  return options;
}

StrategyTable::StrategyTable(const Json& table, std::string path, Problems& problems) {
  const bool named = table.is_object() && table.contains("name") && table["name"].is_string() &&
                     is_strategy_name(table["name"].get<std::string>());
  if (named) name_ = table["name"].get<std::string>();
  if (path.empty()) path = named ? name_ : "mw.strategy";
  Problems found;
  values_ = strategy_options().read(table, path, found);
  if (!named && values_.has("name")) {
    found.add(Stage::options, "option.value", path_in(path, "name"),
              fmt::format("{}: {} is no name", path_in(path, "name"), lua_text(values_.at("name"))),
              "a name is a letter, then letters, digits and \"_\"");
  }
  if (values_.has("axis")) read_axes(values_.at("axis"), path_in(path, "axis"), found);
  if (values_.has("rules") && !values_.is_function("rules"))
    read_rules(values_.at("rules"), path_in(path, "rules"), found);
  if (values_.has("store")) read_store(values_.at("store"), path_in(path, "store"), found);
  if (values_.has("passes")) read_passes(values_.at("passes"), path_in(path, "passes"), found);
  problems.add(found);
}

// Reads a strategy's passes. An entry is a pass's table, or what mw.pass returns: a strategy that
// has nothing but passes.
void StrategyTable::read_passes(const Json& given, const std::string& path, Problems& problems) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i + 1);
    const Json& entry = given[i];
    if (entry.is_object() && entry.contains(strategy_key)) {
      const Json& own = entry.at(strategy_key);
      for (const Json& pass : own.value("passes", Json::array()))
        passes_.push_back(std::make_shared<PassTable>(pass, here, problems));
    } else {
      passes_.push_back(std::make_shared<PassTable>(entry, here, problems));
    }
  }
}

void StrategyTable::read_axes(const Json& given, const std::string& path, Problems& problems) {
  const bool several = given.is_array();
  for (std::size_t i = 0; i < (several ? given.size() : 1); ++i) {
    const std::string here = several ? fmt::format("{}[{}]", path, i + 1) : path;
    const Values values = strategy_axis_options().read(several ? given[i] : given, here, problems);
    AxisRequest axis;
    axis.name = values.has("name") ? values.text("name") : name_;
    axis.ways = values.has("ways") ? values.int32("ways") : 0;
    if (values.has("role")) axis.role = role_of(values.text("role")).value_or(Role::none);
    if (values.has("borrow")) axis.borrow = texts(values.at("borrow"), here + ".borrow", problems);
    const std::string option = several ? axis.name : "ways";
    options_.integer(option, fmt::format("ranks of the axis {}", axis.name)).range(1, most_ways);
    if (axis.ways > 0) options_.fallback(axis.ways);
    if (!several) options_.positional(option);
    axes_.push_back(std::move(axis));
  }
}

std::shared_ptr<const Strategy> StrategyTable::make(
    const Values& values, const std::shared_ptr<const ScriptReach>& reach) const {
  std::vector<AxisRequest> axes = axes_;
  for (AxisRequest& axis : axes)
    axis.ways = values.int32(values_.at("axis").is_array() ? axis.name : "ways");
  Values table = values_;
  table.set_reach(reach);
  return std::make_shared<ScriptStrategy>(name_, std::move(axes), table, passes_);
}

}  // namespace mw
