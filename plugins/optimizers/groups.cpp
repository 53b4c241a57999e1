// `mw.groups`: groups of parameters, each with an optimizer of its own.
//
// groups { { where = function(p) return #p.dims == 1 end, adamw { lr, weight_decay = 0 } },
//   adamw { lr }, clip = 1 }: `where` is a function of a parameter, or a part of its name, or a
//   list of such parts; the group without it, the last one, has all that are left.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "meshwright/choice.h"
#include "meshwright/engine/text.h"
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

// The first of some names.
std::string first_of(std::vector<std::string> names) {
  constexpr std::size_t most = 4;
  if (names.size() <= most) return join(names);
  const std::size_t more = names.size() - most;
  names.resize(most);
  return fmt::format("{} and {} more", join(names), more);
}

class Groups final : public Optimizer {
 public:
  static Options options() {
    return Options()
        .any("groups",
             "optimizers, each with the parameters that it updates: { where = …, mw.adamw { … } }; "
             "where is a function of a parameter's name, dims, shape, layer and matrix, or a part "
             "of its name, or a list of such parts. The last one may have all that are left, "
             "without where. The first one's lr is that of schedules")
        .positional("groups")
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  explicit Groups(const Values& values) : clip_(values.has("clip") ? values.number("clip") : 0) {
    Json entries = values.at("groups");
    if (!entries.is_array()) entries = Json::array({entries});
    Problems problems;
    for (std::size_t n = 0; n < entries.size(); ++n)
      read(entries.at(n), fmt::format("[{}]", n + 1), n + 1 == entries.size(), values, problems);
    problems.throw_if_any();
  }

  double lr() const override { return members_.front().optimizer->lr(); }
  double clip() const override { return clip_; }
  int groups() const override {
    return members_.back().first + members_.back().optimizer->groups();
  }
  UpdateRule rule(int group) const override {
    const Member& member = *std::find_if(members_.rbegin(), members_.rend(),
                                         [&](const Member& one) { return one.first <= group; });
    UpdateRule rule = member.optimizer->rule(group - member.first);
    if (member.optimizer->lr() != lr()) rule.lr_scale *= member.optimizer->lr() / lr();
    return rule;
  }
  std::vector<int> groups_of(const std::vector<ParameterFacts>& parameters) const override;

 private:
  struct Member {
    std::string key;  // "[2]", for messages
    std::shared_ptr<const Optimizer> optimizer;
    int first = 0;  // the first of the groups of this optimizer
    bool rest = false;
    // `where`: parts of names, one of which a parameter's name has; or a function of the script.
    std::vector<std::string> parts;
    std::function<Json(const std::vector<Json>&)> call;
  };

  static bool read_where(const Json& entry, const std::string& path, const Values& values,
                         Member& member);
  void read(const Json& entry, const std::string& key, bool last, const Values& values,
            Problems& problems);
  bool takes(const Member& member, const ParameterFacts& parameter) const;

  double clip_;
  std::vector<Member> members_;
  mutable std::mutex mutex_;
  // What functions of the script said: plans are also made where no script may be called.
  mutable std::map<std::pair<std::string, std::string>, bool> said_;
};

// Reads the `where` of a group; false if it is neither a function nor parts of names.
bool Groups::read_where(const Json& entry, const std::string& path, const Values& values,
                        Member& member) {
  Values own(entry, path);
  own.set_reach(values.reach());
  if (own.is_function("where")) {
    member.call = own.function("where");
    return true;
  }
  const Json& where = entry.at("where");
  const Json parts = where.is_string() ? Json::array({where}) : where;
  if (!parts.is_array() || parts.empty() ||
      !std::all_of(parts.begin(), parts.end(), [](const Json& part) { return part.is_string(); }))
    return false;
  member.parts = parts.get<std::vector<std::string>>();
  return true;
}

// Reads { where = …, optimizer = OPTIMIZER } or OPTIMIZER.
void Groups::read(const Json& entry, const std::string& key, bool last, const Values& values,
                  Problems& problems) {
  const std::string path = values.path("groups") + key;
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    problems.add(Stage::options, "option.value", "groups" + key, message, hint);
  };
  Member member{.key = key};
  Json optimizer = entry;
  const bool named = entry.is_object() && entry.contains("optimizer");
  if (entry.is_object() && (named || entry.contains("where"))) {
    optimizer = entry.value("optimizer", Json());
    for (const auto& [name, item] : entry.items())
      if (name != "where" && name != "optimizer" && !name.starts_with("$"))
        return refuse(fmt::format("{} stands beside the optimizer", quote(name)),
                      "a group has where and an optimizer, whose options stand in its own braces");
    if (!entry.contains("where"))
      return refuse("it has no where", "{ where = \"norm\", mw.adamw { lr = 3e-4 } }");
    if (!read_where(entry, path, values, member))
      refuse(fmt::format("where is {}", lua_text(entry.at("where"))),
             "a function(p), a part of names as \"norm\", or a list of such parts");
  } else {
    member.rest = true;
    if (!last)
      refuse("it has no where, and others follow it", "the group of all that are left is the last");
  }
  try {
    member.optimizer = make_inner<Optimizer>(values, optimizer, "groups" + key, "optimizer",
                                             "{ where = …, mw.adamw { lr = 3e-4 } }");
  } catch (const Error& error) {
    for (const Problem& problem : error.problems()) problems.add(problem);
    return;
  }
  if (member.optimizer->clip() > 0)
    refuse("clip is of the norm of all gradients", "write mw.groups { …, clip = 1 }");
  if (members_.empty() && member.optimizer->lr() == 0)
    refuse("lr is 0, and the rates of all groups follow it",
           "begin with a group whose lr is above 0");
  member.first = members_.empty() ? 0 : groups();
  members_.push_back(std::move(member));
}

bool Groups::takes(const Member& member, const ParameterFacts& parameter) const {
  if (!member.call)
    return std::any_of(member.parts.begin(), member.parts.end(), [&](const std::string& part) {
      return parameter.name.find(part) != std::string::npos;
    });
  const std::lock_guard lock(mutex_);
  const std::pair key(member.key, parameter.name);
  if (const auto known = said_.find(key); known != said_.end()) return known->second;
  Json facts{{"name", parameter.name},
             {"dims", parameter.dims},
             {"shape", parameter.shape},
             {"layer", parameter.layer},
             {"matrix", parameter.matrix}};
  const Json said = member.call({facts});
  const bool takes = !said.is_null() && said != Json(false);
  said_[key] = takes;
  return takes;
}

std::vector<int> Groups::groups_of(const std::vector<ParameterFacts>& parameters) const {
  std::vector<std::vector<std::size_t>> of_member(members_.size());
  std::vector<std::string> none, twice;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    std::vector<std::size_t> by;
    for (std::size_t m = 0; m < members_.size(); ++m)
      if (!members_[m].rest && takes(members_[m], parameters[p])) by.push_back(m);
    if (by.empty() && members_.back().rest) by.push_back(members_.size() - 1);
    if (by.empty()) none.push_back(parameters[p].name);
    if (by.size() > 1)
      twice.push_back(fmt::format("{} ({} and {})", parameters[p].name, members_[by[0]].key,
                                  members_[by[1]].key));
    if (!by.empty()) of_member[by[0]].push_back(p);
  }
  Problems problems;
  const auto refuse = [&](const std::string& message, const char* hint) {
    problems.add(Stage::plan, "optimizer.groups", "optimizer", "mw.groups: " + message, hint);
  };
  if (!none.empty())
    refuse(fmt::format("{} of {} in no group: {}", none.size(),
                       plural(parameters.size(), "parameter"), first_of(none)),
           "let the last group have no where: it takes all that are left");
  if (!twice.empty())
    refuse(fmt::format("{} of {} in two groups: {}", twice.size(),
                       plural(parameters.size(), "parameter"), first_of(twice)),
           "narrow one of them");
  std::vector<int> groups(parameters.size(), 0);
  std::vector<std::string> names;
  for (const ParameterFacts& parameter : parameters) names.push_back(parameter.name);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (of_member[m].empty())
      refuse(
          fmt::format("the group {} takes no parameter, of {}", members_[m].key, first_of(names)),
          "mend its where, or leave it out");
    std::vector<ParameterFacts> own;
    for (const std::size_t p : of_member[m]) own.push_back(parameters[p]);
    const std::vector<int> inner = members_[m].optimizer->groups_of(own);
    for (std::size_t k = 0; k < own.size(); ++k)
      groups[of_member[m][k]] = members_[m].first + inner[k];
  }
  problems.throw_if_any();
  return groups;
}

}  // namespace

MESHWRIGHT_BUILT_IN(
    mw::optimizer<Groups>("groups", "Groups of parameters, each with an optimizer of its own."));

}  // namespace mw
