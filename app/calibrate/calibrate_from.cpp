// `meshwright calibrate --from`: Python (meshwright_calibrate) describes a cluster, and the
// software on it, by logs of nccl-tests and by steps that were measured there. The C++ side reads
// measured steps, plans and prices what Python tries, and writes the files that it makes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "app/calibrate/calibrate.h"
#include "app/script_command.h"
#include "common/files.h"
#include "common/python.h"
#include "lua/cluster_files.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/cluster_machine.h"
#include "predict/network.h"
#include "predict/prediction.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// Keeps each experiment of a script unread: its keys `cluster` and `stack` are the tables that Lua
// makes of the names of clusters and stacks.
class DescriptionHost final : public AppHost {
 public:
  using AppHost::AppHost;
  Json call(const std::string&, const std::vector<Json>& experiments,
            const CallFunction&) override {
    read.push_back(experiments.front());
    return {{"kind", "plan"}, {"text", ""}};
  }
  std::vector<Json> read;
};

// Keeps each plan that a script makes, with its result.
class PlanHost final : public AppHost {
 public:
  using AppHost::AppHost;
  std::vector<std::pair<std::shared_ptr<const Plan>, Json>> plans;

 protected:
  Json done(const std::string& verb, const Experiment& experiment) override {
    Json result = AppHost::done(verb, experiment);
    if (verb == "plan") plans.emplace_back(experiment.plan, result);
    return result;
  }
};

// The numbers that a fit changes, by their keys in descriptions.
std::map<std::string, double*> shares_of(Cluster& cluster, Stack& stack) {
  return {{"device.gemm", &cluster.device.gemm},
          {"device.bandwidth_share", &cluster.device.bandwidth_share},
          {"node.share", &cluster.node.share},
          {"node.curve_share", &cluster.node.curve_share},
          {"network.share", &cluster.network.share},
          {"network.hop", &cluster.network.hop},
          {"network.latency", &cluster.network.latency},
          {"stack.host", &stack.host},
          {"stack.data_share", &stack.data_share}};
}

// Appends the predicted seconds of rows of an nccl-tests table: { op =, node = { node of each rank
// }, bytes = { of each row } }.
void price_rows(const Cluster& cluster, const Json& rows, Json& seconds) {
  Collective op = Collective::send;
  for (const Collective one : {Collective::all_reduce, Collective::all_gather,
                               Collective::reduce_scatter, Collective::all_to_all})
    if (rows["op"] == name_of(one)) op = one;
  std::vector<int> ranks;
  std::map<int, int> used;
  for (const int node : rows["node"]) ranks.push_back(node * cluster.node.devices + used[node]++);
  std::vector<int> ascending = ranks;
  std::sort(ascending.begin(), ascending.end());
  const RankPlacement placed = place(cluster, ascending);
  for (const double bytes : rows["bytes"]) {
    double slowest = 0;  // seconds of the slowest send from a rank to the next, round a ring
    for (std::size_t r = 0; op == Collective::send && r < ranks.size(); ++r)
      slowest =
          std::max(slowest, send_seconds(cluster, bytes, ranks[r], ranks[(r + 1) % ranks.size()]));
    seconds.push_back(op == Collective::send ? slowest
                                             : collective_seconds(cluster, op, bytes, placed, {}));
  }
}

class Describer {
 public:
  explicit Describer(const CalibrateArguments& arguments)
      : arguments_(arguments), plugins_(registry_of(arguments)) {}

  Json request() {
    Json clusters = Json::array(), from = Json::array();
    for (const ClusterFile& one : cluster_files(lua_library().parent_path() / "clusters", ".lua"))
      if (one.name != "names") clusters.push_back(one.name);
    for (const std::string& file : arguments_.from) from.push_back(given(file));
    return {{"from", from},
            {"file", arguments_.file},
            {"cluster", arguments_.cluster},
            {"stack", arguments_.stack},
            {"devices", arguments_.devices},
            {"overwrite", arguments_.overwrite},
            {"clusters", clusters}};
  }

  Json answer(const Json& question) {
    if (question.contains("write")) return writable(question["write"]);
    if (question.contains("describe")) return described(question["describe"]);
    if (question.contains("plan")) return planned(question["plan"]);
    return priced(question["price"]);
  }

 private:
  // What Python gets of a file of --from: a log's text, or measured steps and their problems.
  Json given(const std::string& file) {
    Json one = {{"file", file}, {"irregular", irregular(file)}};
    const auto text = whole_file(file);
    if (fs::path(file).extension() != ".json") {
      one["text"] = text ? Json(*text) : Json();
      return one;
    }
    Problems problems;
    one["steps"] = text ? read_steps(file, *text, problems) : Json();
    one["problems"] = json_of(problems.list());
    for (const Json& step : one["steps"]) steps_.push_back(step);
    return one;
  }

  // Returns true if these files, which -o asks for, may be written, and throws Error otherwise.
  Json writable(const Json& files) const {
    std::vector<OutputFile> outputs;
    for (const Json& file : files) outputs.push_back({"-o", file, OutputKind::description});
    std::vector<std::pair<std::string, std::string>> inputs;
    const auto add = [&](const char* what, const std::string& path) {
      if (!path.empty()) inputs.emplace_back(what, path);
    };
    for (const std::string& file : arguments_.from) add("a file of --from", file);
    for (const Json& step : steps_) add("the script of a measured step", step["script"]);
    add("the file of --cluster", arguments_.cluster);
    add("the file of --stack", arguments_.stack);
    check_outputs(outputs, inputs);
    return true;
  }

  static constexpr const char* chunk = "the bases";  // the name of these statements

  // The tables that Lua makes of the names of clusters or stacks.
  Json described(const Json& asked) {
    const auto what = asked["what"].get<std::string>();
    std::string statements = "local mw = require \"meshwright\"\n";
    for (const Json& name : asked["names"])
      statements += fmt::format("mw.plan {{ {0} = mw.{0}({1}) }}\n", what, json_text(name));
    Output quiet(/*json=*/false, /*quiet=*/true);
    DescriptionHost host(quiet, plugins_);
    ScriptOptions options = script_options({}, "plan", quiet);
    options.say = [](const std::string&) {};
    Script script(host, options);
    try {
      script.run_text(statements, chunk);
    } catch (const Error& error) {
      std::vector<Problem> problems = error.problems();
      for (Problem& problem : problems)
        if (problem.place.starts_with(chunk))
          problem.place = fmt::format("--{} {}", what, asked["names"][0].get<std::string>());
      throw Error(std::move(problems));
    }
    Json tables = Json::array();
    for (Json& each : host.read) {
      each[what].erase("changed");
      tables.push_back(std::move(each[what]));
    }
    return tables;
  }

  // Plans all measured steps on the cluster and stack of `on`. Throws the problems of all their
  // scripts together; a problem that names no place in a script gets the step's place.
  Json planned(const Json& on) {
    Problems problems;
    Json all = Json::array();
    plans_.clear();
    for (const Json& step : steps_) {
      const auto at = step["place"].get<std::string>();
      try {
        all.push_back(planned(step, on));
      } catch (const Error& error) {
        if (ends_all(error)) throw;
        for (Problem problem : error.problems()) {
          if (problem.place.empty()) problem.place = at;
          if (problem.place.starts_with("--"))
            problem.place = fmt::format("{}: {}", at, problem.place);
          problems.add(std::move(problem));
        }
      }
    }
    problems.throw_if_any();
    return all;
  }

  Json planned(const Json& step, const Json& on) {
    throw_if_stopped();
    Json cluster = on["cluster"];
    cluster["nodes"] = step["nodes"];
    Output quiet(/*json=*/false, /*quiet=*/true);
    ScriptArguments words;
    words.settings = step["settings"].get<std::vector<std::string>>();
    words.settings.insert(words.settings.begin(),
                          {"cluster=" + lua_text(cluster), "stack=" + lua_text(on["stack"])});
    ScriptOptions options = script_options(words, "plan", quiet);
    options.say = [](const std::string&) {};
    options.given_as[words.settings[0]] = fmt::format(
        "--cluster {} --nodes {}", on["bases"][0].get<std::string>(), step["nodes"].get<int>());
    options.given_as[words.settings[1]] = "--stack " + on["bases"][1].get<std::string>();
    PlanHost host(quiet, plugins_);
    Script script(host, options);
    const auto file = step["script"].get<std::string>(), at = step["place"].get<std::string>();
    const ScriptText text = read_script(file);
    host.set_script(text);
    script.run(text);
    if (host.plans.size() != 1) {
      throw Error(Problem{Stage::options, "calibration.steps", at + ".script",
                          fmt::format("{} makes {}, but a measured step needs exactly one plan",
                                      file, plural(std::ssize(host.plans), "plan")),
                          "give a script that plans or trains once, or choose one by \"set\"", at});
    }
    const auto& [plan, result] = host.plans.front();
    plans_.emplace_back(plan, step["nodes"].get<int>());
    return {{"seconds", result.value("step_seconds", 0.0)},
            {"needed", result.value("memory_needed", std::int64_t{0})},
            {"reported", result.value("reported_bytes", std::int64_t{0})},
            {"memory", result.value("memory_limit", std::int64_t{0})},
            {"fits", result.value("fits", true)}};
  }

  // Predicts the seconds of rows of nccl-tests tables, or else of the planned steps, with the asked
  // shares. Returns the shares too.
  Json priced(const Json& asked) {
    Problems problems;
    Cluster cluster = read_cluster(asked["cluster"], "cluster", problems);
    Stack stack;
    if (asked.contains("stack")) stack = read_stack(asked["stack"], "stack", problems);
    problems.throw_if_any();
    Json seconds = Json::array(), shares;
    for (const auto& [key, share] : shares_of(cluster, stack))
      shares[key] = *share = asked["shares"].value(key, *share);
    if (asked.contains("tables")) {
      cluster.nodes = std::max(cluster.nodes, asked["nodes"].get<int>());
      cluster.node.curve_share = 1;  // nccl-tests run alone
      for (const Json& rows : asked["tables"]) price_rows(cluster, rows, seconds);
    } else {
      for (const auto& [plan, nodes] : plans_) {
        throw_if_stopped();
        cluster.nodes = nodes;
        seconds.push_back(predict(*plan, ClusterMachine(cluster, stack), 1).step_seconds);
      }
    }
    return {{"seconds", seconds}, {"shares", shares}};
  }

  const CalibrateArguments& arguments_;
  PluginRegistry plugins_;
  Json steps_ = Json::array();
  std::vector<std::pair<std::shared_ptr<const Plan>, int>> plans_;  // plan and nodes of each step
};

}  // namespace

int describe_cluster(const CalibrateArguments& arguments, Output& output) {
  stop_on_signals();
  Describer describer(arguments);
  const Json made = answer_of({.name = "meshwright_calibrate",
                               .asked_by = "--from",
                               .does = "reads what was measured",
                               .needs = "python3 and numpy"},
                              describer.request(),
                              [&](const Json& question) { return describer.answer(question); });
  for (const Json& file : made["files"])
    write_output({"-o", file[0], OutputKind::description}, file[1]);
  output.result(made["result"]);
  if (!output.json()) output.text(made["text"]);
  return 0;
}

}  // namespace mw
