// Makes observers from functions, which return numbers or end the run, and from plugins.
#include "script/read_observers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "meshwright/engine/text.h"
#include "script/guarded.h"
#include "script/identity.h"
#include "script/in_run.h"

namespace mw {
namespace {

constexpr const char* observer_forms =
    "name a plugin's observer, { kind = \"NAME\", … } or NAME { … } of mw.plugins(\"NAME\"), or "
    "write function(step, facts) … end";

class FunctionObserver final : public RunObserver {
 public:
  FunctionObserver(std::string place, Call call)
      : place_(std::move(place)), call_(std::move(call)) {}
  std::string name() const override { return place_; }
  bool decides() const override { return true; }

  void step(RankRun& /*rank*/, StepEnd& end) override {
    if (end.report == nullptr) return;
    Json facts = {{"loss", end.report->labels > 0 ? Json(end.report->loss) : Json()},
                  {"grad_norm", end.report->grad_norm},
                  {"lr", end.report->lr},
                  {"tokens", end.report->tokens},
                  {"seconds", end.report->seconds}};
    if (end.held_out) facts["held_out_loss"] = end.held_out->loss;
    take(call_({Json(end.step), std::move(facts)}), end);
  }

 private:
  [[noreturn]] void refuse(const StepEnd& end, const std::string& returned,
                           const char* hint) const {
    throw Error(Stage::run, "function.result", place_,
                fmt::format("{}({}) returned {}", place_, end.step, returned), hint);
  }

  void take(const Json& given, StepEnd& end) const {
    if (given.is_null()) return;
    if (!given.is_object()) refuse(end, lua_text(given), "return { name = number }, or nothing");
    for (const auto& [name, value] : given.items()) {
      if (name.starts_with('$')) continue;
      if (name == "stop" && value.is_boolean()) {
        end.last = end.last || value.get<bool>();
        continue;
      }
      if (name.empty()) refuse(end, "a number without a name", "return { name = number }");
      if (!value.is_number())
        refuse(end, fmt::format("{} = {}, which is no number", name, lua_text(value)),
               "return { name = number }");
      if (std::ranges::any_of(end.metrics, [&, name = name](auto& m) { return m.first == name; }))
        refuse(end, fmt::format("{}, which the run records itself, or another observer", name),
               "give it another name");
      end.metrics.emplace_back(name, value.get<double>());
    }
  }

  const std::string place_;
  const Call call_;
};

}  // namespace

std::vector<ListedObserver> read_observers(const Values& values,
                                           const std::shared_ptr<const ScriptReach>& reach,
                                           Problems& problems) {
  const auto given = [&](const char* key) {
    return values.has(key) && !values.at(key).is_null() ? values.at(key) : Json::array();
  };
  std::vector<ListedObserver> listed;
  if (const Json observe = given("observe"); is_function(observe))
    listed.push_back({"observe", observe, {}});
  int number = 0;
  for (const Json& entry : given("observers")) {
    std::string place = fmt::format("observers[{}]", ++number);
    if (is_function(entry)) {
      listed.push_back({std::move(place), entry, {}});
    } else if (auto chosen =
                   choose(Kind::observer, entry, place, reach, observer_forms, problems)) {
      listed.push_back({std::move(place), {}, std::move(*chosen)});
    }
  }
  return listed;
}

Json make_observers(const std::vector<ListedObserver>& listed, const ReadContext& context,
                    const ObservedRun& run, double timeout,
                    std::vector<std::shared_ptr<RunObserver>>& made, Problems& problems) {
  Json deciding = Json::object();
  for (const ListedObserver& one : listed) {
    if (!one.chosen) {
      made.push_back(
          std::make_shared<FunctionObserver>(one.place, call_in_run(context, one.function)));
      // The hash covers the function's code and plain values, and no table in which it collects.
      deciding[one.place] = one.function.value(plain_code_key, "");
      continue;
    }
    const Chosen& chosen = *one.chosen;
    auto observer = make_chosen<RunObserver>(chosen, problems, run);
    if (!observer) continue;
    try {
      made.push_back(guarded(std::move(observer), chosen.speaker, timeout));
    } catch (const Error& error) {
      problems.add(error);
      continue;
    }
    if (!made.back()->decides()) continue;
    deciding[one.place] = resolved_value(chosen.values.json());
    deciding[one.place]["kind"] = chosen.registration->name;
  }
  return deciding;
}

}  // namespace mw
