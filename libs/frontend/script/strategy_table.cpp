// Reads and checks the table of mw.strategy: its axes, and what a plan's entries made of it take.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "meshwright/engine/json_text.h"
#include "meshwright/engine/text.h"
#include "script/script_strategy.h"
#include "script/strategy_rules.h"

namespace mw {
namespace {

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
                   fmt::format("{}: {} is no name of an axis", path, json_text(item)),
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
          .list("borrow",
                "axes, or roles of axes, whose ranks it takes, the first first; left out: ranks of "
                "its own")
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
    found.add(
        Stage::options, "option.value", path_in(path, "name"),
        fmt::format("{}: {} is no name", path_in(path, "name"), json_text(values_.at("name"))),
        "a name is a letter, then letters, digits and \"_\"");
  }
  if (values_.has("axis")) read_axes(values_.at("axis"), path_in(path, "axis"), found);
  if (values_.has("rules") && !values_.is_function("rules"))
    read_rules(values_.at("rules"), path_in(path, "rules"), found);
  if (values_.has("store")) read_store(values_.at("store"), path_in(path, "store"), found);
  problems.add(found);
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
  return make_script_strategy(name_, std::move(axes), table);
}

}  // namespace mw
