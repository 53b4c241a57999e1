// Plans and prices an experiment with one value after another changed.
#include "app/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/texts.h"
#include "app/verbs.h"
#include "lua/settings.h"
#include "meshwright/engine/text.h"
#include "predict/cluster_machine.h"
#include "predict/variants.h"

namespace mw {
namespace {

// Changes below this share are rounding.
constexpr double rounding_share = 1e-9;

bool same_number(double a, double b) {
  return std::abs(a - b) <= rounding_share * std::max(std::abs(a), std::abs(b)) ||
         (std::isnan(a) && std::isnan(b));
}

Priced priced(Experiment experiment) {
  Priced made{std::move(experiment), {}};
  const auto& e = made.experiment;
  PricedPlan plan = price_plan(e, /*advice=*/false);
  made.prediction = std::move(plan.prediction);
  made.prediction.limit_memory(e.memory);
  if (!plan.machine.is_cluster() && e.memory > 0 && made.prediction.highest_peak() > e.memory)
    made.prediction.fits = false;
  return made;
}

// Seconds of a step by what they are spent on, on average over the stages' slowest ranks.
std::map<std::string, double> parts_of(const Prediction& p) {
  std::map<std::string, double> parts = {{"compute", p.shares.compute * p.step_seconds},
                                         {"bubble", p.shares.bubble * p.step_seconds},
                                         {"host copies", p.shares.host_copies * p.step_seconds}};
  for (const auto& [axis, share] : p.shares.exposed)
    parts[axis + "'s transfers"] = share * p.step_seconds;
  return parts;
}

Json part_changes(const Prediction& base, const Prediction& other) {
  std::map<std::string, double> changes = parts_of(other);
  for (const auto& [name, seconds] : parts_of(base)) changes[name] -= seconds;
  std::vector<std::pair<std::string, double>> list(changes.begin(), changes.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return std::abs(a.second) > std::abs(b.second);
  });
  Json json = Json::object();
  for (const auto& [name, seconds] : list) {
    if (std::abs(seconds) > 1e-6 * base.step_seconds) json[name] = seconds;
  }
  return json;
}

std::string signed_duration(double seconds) {
  return (seconds < 0 ? "-" : "+") + duration_text(std::abs(seconds));
}

// Text about transfers that take longer or shorter, though the step does not.
std::string changes_beside(const Prediction& base, const Prediction& other) {
  std::vector<std::string> found;
  for (const CommunicationForecast& c : other.communication) {
    const auto before =
        std::find_if(base.communication.begin(), base.communication.end(),
                     [&](const CommunicationForecast& b) { return b.key == c.key; });
    if (before == base.communication.end() || same_number(before->seconds, c.seconds)) continue;
    found.push_back(fmt::format("{} {}, {}, {}", c.key.axis, c.key.op, c.key.phase,
                                signed_duration(c.seconds - before->seconds)));
  }
  if (found.size() > 3) found.resize(3);
  return found.empty() ? "" : join(found) + ": all of it beside computing";
}

std::string changes_of_room(const Prediction& base, const Prediction& other) {
  if (base.bound() != other.bound()) {
    return fmt::format("no time hangs on it: {} of {} are needed a rank, which {}",
                       format_bytes(other.memory_needed), format_bytes(other.bound()),
                       other.fits ? "fits" : "does not fit");
  }
  if (base.host_limit != other.host_limit) {
    return fmt::format("no time hangs on it: {} of {} are needed in a node's host memory, which {}",
                       format_bytes(other.host_needed), format_bytes(other.host_limit),
                       other.host_fits() ? "fits" : "does not fit");
  }
  if (base.fullest().memory.peak != other.fullest().memory.peak) return "the peak alone";
  if (base.most_reported().reported() != other.most_reported().reported())
    return fmt::format("what a driver would report alone: {} for {}",
                       format_bytes(other.most_reported().reported()),
                       format_bytes(base.most_reported().reported()));
  return "";
}

// Says in a line what of the step changed, or why nothing did.
std::string changed_text(const Knob& knob, const Priced& base, const Priced& other,
                         const Json& parts) {
  const Prediction &p = other.prediction, &before = base.prediction;
  if (same_number(p.step_seconds, before.step_seconds)) {
    std::string text = changes_of_room(before, p);
    if (text.empty()) text = changes_beside(before, p);
    return text.empty() ? why_nothing(knob, base, other) : text;
  }
  std::vector<std::string> texts;
  for (const auto& [name, seconds] : parts.items()) {
    if (texts.size() < 3 &&
        std::abs(seconds.get<double>()) > 0.02 * std::abs(p.step_seconds - before.step_seconds))
      texts.push_back(fmt::format("{} {}", name, signed_duration(seconds.get<double>())));
  }
  return join(texts);
}

// Fills more nodes at the same batch: multiplies the ways of the first entry of the plan with which
// both the ranks and the ways of data parallelism grow by the factor.
class FollowNodes {
 public:
  FollowNodes(const Priced& base, const ReadContext& context) : base_(base), context_(context) {}

  // Returns the table with the changed entry, which `note` names. Returns the table as it is if the
  // plan leaves devices idle, or if no entry will do.
  Json fill(const Json& table, double factor, std::string& note) const {
    const Plan& plan = *base_.experiment.plan;
    const double ranks = plan.ranks() * factor;
    if (base_.prediction.idle_devices() > 0 || !table.contains("plan") || !table["plan"].is_array())
      return table;
    for (std::size_t entry = 0; entry < table["plan"].size(); ++entry) {
      const Json& given = table["plan"][entry];
      if (!given.is_object() || !given.contains("ways")) continue;
      const auto ways = whole_number(given["ways"]);
      if (!ways || std::fmod(static_cast<double>(*ways) * factor, 1.0) != 0) continue;
      Json changed = table;
      const auto now = static_cast<std::int64_t>(static_cast<double>(*ways) * factor);
      changed["plan"][entry]["ways"] = now;
      if (now < 1 || !fills(changed, ranks, factor)) continue;
      note = fmt::format("{} {} -> {}", given.value("plugin", "entry"), *ways, now);
      return changed;
    }
    return table;
  }

 private:
  static int data_ways(const Plan& plan) {
    int ways = 1;
    for (const Axis& axis : plan.mesh.with_role(Role::data)) ways *= axis.ways;
    return ways;
  }
  bool fills(const Json& table, double ranks, double factor) const {
    return unless_refused([&] {
      const Experiment made = read_experiment(table, context_);
      return made.plan->ranks() == ranks &&
             data_ways(*made.plan) == data_ways(*base_.experiment.plan) * factor;
    });
  }

  const Priced& base_;
  const ReadContext& context_;
};

class WhatIf {
 public:
  WhatIf(const Json& table, const ReadContext& context, Experiment base)
      : table_(table), context_(context), base_(priced(std::move(base))) {
    context_.unchecked = true;
  }

  Json row(const Knob& knob, const Knob::Value& value) {
    Json row = {{"knob", knob.name}, {"given", value.text}, {"value", value.value}};
    row["shown"] = shown(knob, value.value);
    std::string note;
    Problems problems;
    const auto other = turned(knob, value.value, note, &problems);
    if (!other) {
      const Problem& first = problems.list().front();
      row["refused"] = first.message + (first.hint.empty() ? "" : " (" + first.hint + ")");
      return row;
    }
    if (!other->prediction.timed()) {
      row["refused"] = "no time is predicted of it: " + other->prediction.untimed;
      return row;
    }
    add_numbers(row, other->prediction);
    const Json parts = part_changes(base_.prediction, other->prediction);
    if (!parts.empty()) row["parts"] = parts;
    std::string what = note == so_already ? "" : changed_text(knob, base_, *other, parts);
    if (!note.empty()) what = note + (what.empty() ? "" : "; " + what);
    row["changed"] = what;
    return row;
  }

  // What 10 % more of the knob's number changes: predicted with that value, or, if the number must
  // be whole, by the slope in logarithms to the row whose number is nearest.
  Json sensitivity(const Knob& knob, const std::vector<Json>& rows) {
    const bool number = std::any_of(rows.begin(), rows.end(), [&](const Json& row) {
      return row["value"].is_number() || knob.in_bytes();
    });
    if (!number) return nullptr;  // a text or a switch has no tenth
    Json json = {{"knob", knob.name}};
    const double before = base_.prediction.step_seconds;
    if (changes_nothing(rows)) {
      json.update({{"worth", 0.0}, {"tokens_worth", 0.0}, {"by", "no value changes the step"}});
      return json;
    }
    std::string note;
    const auto more = tenth_more(knob);
    if (const auto other = more ? turned(knob, *more, note) : std::nullopt) {
      json["worth"] = other->prediction.step_seconds / before - 1;
      json["tokens_worth"] =
          other->prediction.tokens_per_second / base_.prediction.tokens_per_second - 1;
      json["by"] = "predicted with the value 10 % higher";
      return json;
    }
    if (!knob.now.is_number() || knob.now.get<double>() <= 0) return nullptr;
    const double now = knob.now.get<double>();
    double nearest = 0;
    for (const Json& row : rows) {
      if (!row.contains("step_seconds") || !row["value"].is_number()) continue;
      const double ratio = std::log(row["value"].get<double>() / now);
      if (ratio == 0 || (nearest != 0 && std::abs(ratio) >= std::abs(nearest))) continue;
      nearest = ratio;
      const auto tenth = [&](const char* key, double base) {
        return std::pow(1.1, std::log(row[key].get<double>() / base) / ratio) - 1;
      };
      json["worth"] = tenth("step_seconds", before);
      json["tokens_worth"] = tenth("tokens_per_second", base_.prediction.tokens_per_second);
      json["by"] = fmt::format("slope to {}", row["given"].get<std::string>());
    }
    return nearest == 0 ? Json() : json;
  }

  Json base_json() const {
    const Prediction& p = base_.prediction;
    Json json = {{"kind", "what_if"},
                 {"plan", base_.experiment.plan->mix()},
                 {"plan_hash", base_.experiment.plan->hash()},
                 {"name", base_.experiment.name},
                 {"priced_for", p.priced_for}};
    add_numbers(json, p);
    json.erase("change");
    return json;
  }

  const Prediction& base() const { return base_.prediction; }

 private:
  static constexpr const char* so_already = "it is so already";

  static bool changes_nothing(const std::vector<Json>& rows) {
    return std::all_of(rows.begin(), rows.end(), [](const Json& row) {
      return row.contains("change") && std::abs(row["change"].get<double>()) < rounding_share;
    });
  }
  // The value as people read it: sizes in their units.
  static std::string shown(const Knob& knob, const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (knob.in_bytes() && value.is_number()) return format_bytes(value.get<double>());
    return value.is_number_float() ? fmt::format("{:.4g}", value.get<double>()) : describe(value);
  }

  // The experiment with the knob's value, priced; nothing, with problems, where that is refused.
  std::optional<Priced> turned(const Knob& knob, const Json& value, std::string& note,
                               Problems* problems = nullptr) const {
    return unless_refused([&] { return std::optional(turn(knob, value, note)); }, problems);
  }
  Priced turn(const Knob& knob, const Json& value, std::string& note) const {
    Json table = table_;
    Setting setting;
    setting.given = setting.key = knob.path;
    setting.value = value;
    setting.text = describe(value);
    apply_setting(setting, table);
    const bool sized = knob.in_bytes() && value.is_string();
    const auto bytes = sized ? parse_bytes(value.get<std::string>()) : std::nullopt;
    if (table == table_ || (bytes ? Json(*bytes) : value) == knob.now) note = so_already;
    if (knob.path == "cluster.nodes" && value.is_number() && knob.now.is_number())
      table = FollowNodes(base_, context_)
                  .fill(table, value.get<double>() / knob.now.get<double>(), note);
    return priced(read_experiment(table, context_));
  }

  void add_numbers(Json& row, const Prediction& p) const {
    if (p.timed()) {
      row["step_seconds"] = p.step_seconds;
      if (base_.prediction.timed())
        row["change"] = p.step_seconds / base_.prediction.step_seconds - 1;
      row["tokens_per_second"] = p.tokens_per_second;
      row["basis"] = name_of(p.step_basis());
    }
    row["ranks"] = p.ranks;
    row["peak_bytes"] = p.fullest().memory.peak;
    if (p.bound() > 0) row["fits"] = p.fits;
  }

  const Json& table_;
  ReadContext context_;
  Priced base_;
};

// Says that kinds of nodes have the knob's key for themselves; empty: none has.
std::string of_kinds(const Json& cluster, const Knob& knob) {
  const std::size_t table = knob.path.find('.') + 1, key = knob.path.rfind('.');
  if (!cluster.contains("kinds") || key < table) return "";
  const std::string in = knob.path.substr(table, key - table), own = knob.path.substr(key + 1);
  std::vector<std::string> found;
  int number = 0;
  for (const Json& kind : cluster["kinds"]) {
    ++number;
    if (kind.contains(in) && kind[in].contains(own))
      found.push_back(fmt::format("cluster.kinds[{}].{}.{}", number, in, own));
  }
  if (found.empty()) return "";
  return fmt::format("kinds of nodes have it for themselves, and take values there: {}",
                     join(found));
}

}  // namespace

std::string why_nothing(const Knob& knob, const Priced& base, const Priced& other) {
  const Prediction& p = base.prediction;
  const Plan& plan = *base.experiment.plan;
  const std::string doc = knob.declared == nullptr ? "" : fmt::format(" ({})", knob.declared->doc);
  const std::string generic = fmt::format("nothing of this plan is priced by {}{}", knob.name, doc);
  Problems none;
  const auto machine = base.experiment.cluster.is_null()
                           ? nullptr
                           : read_machine(base.experiment.cluster, base.experiment.stack, none);
  if (!machine) return generic;
  const Cluster& cluster = machine->cluster();
  const auto within = [&](const char* table) { return knob.path.starts_with(table); };
  if (const std::string kinds = of_kinds(base.experiment.cluster, knob); !kinds.empty())
    return kinds;
  if (knob.path == "cluster.nodes") {
    return fmt::format("no data parallelism of the plan fills them: {} of {} devices are idle",
                       other.prediction.idle_devices(), other.prediction.devices);
  }
  if (within("cluster.network.") && p.ranks <= cluster.node.devices) {
    return fmt::format("all {} are in one node of {} devices, so nothing leaves it",
                       plural(p.ranks, "rank"), cluster.node.devices);
  }
  if ((knob.path == "cluster.node.latency" || knob.path == "cluster.node.share") &&
      !cluster.node.curves.empty()) {
    return "collectives inside a node take what was measured: node.bandwidth and node.curve_share "
           "scale that";
  }
  if ((knob.path == "cluster.network.latency" || knob.path == "cluster.network.share" ||
       knob.path == "cluster.network.hop") &&
      !cluster.network.curves.empty()) {
    return "collectives over these nodes take what was measured: network.nic scales that";
  }
  if (within("cluster.host.") && p.host_needed == 0) return "the plan keeps nothing in host memory";
  if (within("cluster.device.peak")) {
    return fmt::format("the plan computes in {}, and nothing at the rate of {}",
                       name_of(plan.programs.front().dtype), knob.name);
  }
  return generic;
}

Json run_what_if(const Json& table, const Json& asked, const ReadContext& context,
                 Experiment base) {
  const std::vector<Knob> knobs = knobs_of(asked, table, *context.catalog);
  WhatIf what(table, context, std::move(base));
  if (!what.base().timed()) {
    throw Error(Stage::options, "what-if.untimed", "",
                "what_if: no time is predicted of the plan: " + what.base().untimed,
                "name a cluster: --cluster NAME, or cluster = mw.cluster(\"NAME\")");
  }
  Json result = what.base_json();
  result["rows"] = Json::array();
  result["sensitivities"] = Json::array();
  for (const Knob& knob : knobs) {
    std::vector<Json> rows;
    for (const Knob::Value& value : knob.values) {
      throw_if_stopped();
      rows.push_back(what.row(knob, value));
      result["rows"].push_back(rows.back());
    }
    if (Json one = what.sensitivity(knob, rows); !one.is_null())
      result["sensitivities"].push_back(std::move(one));
  }
  result["text"] = from_library("what_if", result);
  return result;
}

Json what_if_page(const Json& result) {
  Json rows = Json::array();
  for (const Json& row : result["rows"]) {
    Json shown = {{"name", fmt::format("{} {}", row["knob"].get<std::string>(),
                                       row["given"].get<std::string>())},
                  {"value", row["shown"]}};
    for (const char* key :
         {"step_seconds", "change", "tokens_per_second", "peak_bytes", "fits", "basis"})
      if (row.contains(key)) shown[key] = row[key];
    shown["changed"] = row.contains("refused") ? row["refused"] : row["changed"];
    rows.push_back(std::move(shown));
  }
  return {{"rows", rows}, {"sensitivities", result["sensitivities"]}};
}

}  // namespace mw
