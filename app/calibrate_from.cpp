// `meshwright calibrate --from`: describes a cluster, and the software on it, by logs of nccl-tests
// and by steps that were measured there.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "app/calibrate.h"
#include "app/script_command.h"
#include "common/files.h"
#include "lua/cluster_files.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/prediction.h"
#include "predict/step_fit.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// An entry of a file of steps.
struct StepEntry {
  std::string file, script;
  double seconds = 0;
  int nodes = 1;
  std::vector<std::string> settings;
};

const Options& step_options() {
  static const Options options = [] {
    Options o;
    o.text("script", "a script that plans the step; a relative path counts from the file of steps");
    o.number("step", "seconds that a step took, the median of many").range(1e-6, 1e6);
    o.integer("nodes", "of the cluster on which it ran").range(1, 1 << 20);
    o.list("set", "what --set would change of the script, { \"batch=64\" }")
        .fallback(Json::array());
    return o;
  }();
  return options;
}

// What an experiment says of its hardware and its software, as the tables that Lua makes of names.
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

// Keeps the plans that a script makes.
class PlanHost final : public AppHost {
 public:
  using AppHost::AppHost;
  std::vector<std::shared_ptr<const Plan>> plans;
  std::vector<double> seconds;

 protected:
  Json done(const std::string& verb, const Experiment& experiment) override {
    Json result = AppHost::done(verb, experiment);
    if (verb == "plan") {
      plans.push_back(experiment.plan);
      seconds.push_back(result.value("step_seconds", 0.0));
    }
    return result;
  }
};

// "A100" of "NVIDIA A100-SXM4-80GB": letters, then two digits or more.
std::string model_of(const std::string& device) {
  std::string word;
  for (const char c : device + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
      continue;
    }
    const std::size_t digits = word.find_first_of("0123456789");
    const bool begins = digits != 0 && digits != std::string::npos && digits + 1 < word.size();
    if (begins && std::isdigit(static_cast<unsigned char>(word[digits + 1])) != 0) return word;
    word.clear();
  }
  return "";
}

class Describer {
 public:
  Describer(const CalibrateArguments& arguments, Output& output)
      : arguments_(arguments),
        output_(output),
        plugins_(registry_of(arguments)),
        file_(arguments.file),
        stack_file_(file_.parent_path() / (file_.stem().string() + "-stack.lua")) {}

  int run() {
    for (const std::string& from : arguments_.from) read(from);
    check_together(tables_, problems_);
    check_files();
    find_bases();
    problems_.throw_if_any();
    hardware_.table["name"] = file_.stem().string();
    fit_links(hardware_, tables_, arguments_.devices, problems_);
    problems_.throw_if_any();
    if (!entries_.empty()) fit_steps_of_scripts();
    compare_rows();
    write_output("-o", file_.string(), description_text(hardware_, head_of(hardware_)));
    if (!entries_.empty())
      write_output("-o", stack_file_.string(), description_text(software_, head_of(software_)));
    output_.result(result());
    if (!output_.json()) output_.text(text());
    return 0;
  }

 private:
  struct ComparedRow {
    const LoggedTable* table = nullptr;
    LoggedRow row;
    double predicted = 0;
  };

  void refuse(const char* code, const std::string& key, const std::string& message,
              const std::string& hint) {
    problems_.add(Stage::options, code, key, message, hint);
  }

  void read(const std::string& from) {
    const auto text = whole_file(from);
    if (!text) {
      refuse("calibration.log", "--from", from + ": there is no such file, or it cannot be read",
             "name logs of nccl-tests, and files of measured steps that end in .json");
    } else if (fs::path(from).extension() == ".json") {
      read_steps(from, *text);
    } else {
      for (LoggedTable& table : read_nccl_log(from, *text, problems_))
        tables_.push_back(std::move(table));
    }
  }

  void read_steps(const std::string& from, const std::string& text) {
    steps_given_ = true;
    const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!list.is_array() || list.empty()) {
      refuse("calibration.steps", "--from", from + ": it is no list of measured steps",
             R"([{ "script": "mine.lua", "step": 1.234, "nodes": 4 }])");
      return;
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const std::string path = fmt::format("{}[{}]", from, k + 1);
      const std::size_t before = problems_.list().size();
      const Values v = step_options().read(list[k], path, problems_);
      if (problems_.list().size() > before) continue;
      StepEntry entry{from, v.text("script"), v.number("step"), v.int32("nodes"), {}};
      if (!fs::path(entry.script).is_absolute())
        entry.script = (fs::path(from).parent_path() / entry.script).string();
      for (const Json& setting : v.at("set"))
        entry.settings.push_back(setting.is_string() ? setting.get<std::string>() : "");
      if (!fs::exists(entry.script)) {
        refuse("calibration.steps", path + ".script",
               fmt::format("{}: there is no script {}", path, entry.script),
               "a relative path counts from the file of steps");
      }
      entries_.push_back(std::move(entry));
    }
  }

  void check_files() {
    if (arguments_.file.empty() || file_.extension() != ".lua") {
      refuse("calibration.output", "-o",
             arguments_.file.empty() ? "--from writes a cluster file, and nothing names it"
                                     : arguments_.file + ": a cluster file ends in .lua",
             fmt::format("-o {}.lua", file_.stem().empty() ? "mine" : file_.stem().string()));
      return;
    }
    std::vector<fs::path> files = {file_};
    if (!entries_.empty()) files.push_back(stack_file_);
    for (const fs::path& file : files) {
      if (!fs::exists(file) || arguments_.overwrite) continue;
      refuse("calibration.exists", "-o", file.string() + ": is there already",
             "another name, or --overwrite");
    }
  }

  // The tables that Lua makes of `expressions`.
  std::vector<Json> evaluated(const std::string& statements) {
    Output quiet(/*json=*/false, /*quiet=*/true);
    DescriptionHost host(quiet, plugins_);
    ScriptOptions options = script_options({}, "plan", quiet);
    options.say = [](const std::string&) {};
    Script script(host, options);
    script.run_text("local mw = require \"meshwright\"\n" + statements, "--cluster and --stack");
    return host.read;
  }

  void find_bases() {
    if (steps_given_ && arguments_.stack.empty()) {
      refuse("calibration.base", "--stack",
             "steps were measured, and nothing says by which software",
             "name the stack that is nearest to it, for example --stack megatron-core");
    }
    if (!steps_given_ && !arguments_.stack.empty()) {
      refuse("calibration.base", "--stack", "--stack is the software of steps, and none are given",
             "give measured steps, a file .json, or leave --stack out");
    }
    hardware_.base = arguments_.cluster.empty() ? shipped_with_devices() : arguments_.cluster;
    software_.base = arguments_.stack;
    try {
      if (!hardware_.base.empty()) hardware_.table = described("cluster", hardware_.base);
      if (!software_.base.empty()) software_.table = described("stack", software_.base);
    } catch (const Error& error) {
      problems_.add(error);
      return;
    }
    if (!software_.base.empty()) software_.table["name"] = stack_file_.stem().string();
    if (tables_.empty() || hardware_.base.empty()) return;
    const std::string own = hardware_.table["device"].value("name", ""),
                      logged = tables_.front().device;
    if (entries_.empty()) {
      hardware_.unknown.push_back(fmt::format(
          "nccl-tests tell nothing of what devices compute: their rates and memory, and the host, "
          "stay those of {}",
          hardware_.base));
    }
    if (own.find(model_of(logged)) == std::string::npos) {
      hardware_.unknown.push_back(fmt::format(
          "the logs are of {}, and the devices of {} are {}: change device, or name another "
          "--cluster",
          logged, hardware_.base, own));
    }
  }

  Json described(const std::string& what, const std::string& name) {
    Json table =
        evaluated(fmt::format("mw.plan {{ {0} = mw.{0}({1}) }}", what, json_text(Json(name))))
            .front()[what];
    table.erase("changed");
    return table;
  }

  // The first cluster that ships whose devices are those of the logs, by memory too if one is so.
  std::string shipped_with_devices() {
    std::string names, known;
    for (const ClusterFile& one : cluster_files(lua_library().parent_path() / "clusters", ".lua")) {
      if (one.name == "names") continue;
      names += fmt::format("mw.plan {{ cluster = mw.cluster({}) }}\n", json_text(Json(one.name)));
      known += (known.empty() ? "" : ", ") + one.name;
    }
    const std::string logged = tables_.empty() ? "" : tables_.front().device;
    std::string found;
    for (const Json& each : tables_.empty() ? std::vector<Json>{} : evaluated(names)) {
      const Json& cluster = each["cluster"];
      const std::string device = cluster["device"].value("name", "");
      if (model_of(logged).empty() || model_of(device) != model_of(logged)) continue;
      const std::string memory = device.substr(device.find_last_of('-') + 1);
      const bool same = logged.find(memory) != std::string::npos;
      if (same) return cluster["name"];
      if (found.empty()) found = cluster["name"];
    }
    if (found.empty() && (!tables_.empty() || problems_.empty())) {
      refuse("calibration.base", "--cluster",
             logged.empty() ? "no log says which devices the cluster has"
                            : fmt::format("no cluster that ships has {}", logged),
             "name the nearest with --cluster: " + known);
    }
    return found;
  }

  // The plan of an entry's script on the descriptions as they are now, and its seconds.
  std::pair<MeasuredPlan, double> planned(const StepEntry& entry) {
    throw_if_stopped();
    Json cluster = hardware_.table;
    cluster["nodes"] = entry.nodes;
    cluster["kind"] = "cluster";
    Json stack = software_.table;
    stack["kind"] = "stack";
    Output quiet(/*json=*/false, /*quiet=*/true);
    ScriptArguments words;
    words.settings = {"cluster=" + lua_text(cluster), "stack=" + lua_text(stack)};
    words.settings.insert(words.settings.end(), entry.settings.begin(), entry.settings.end());
    ScriptOptions options = script_options(words, "plan", quiet);
    options.say = [](const std::string&) {};
    options.given_as[words.settings[0]] = "the cluster that is described";
    options.given_as[words.settings[1]] = "its stack";
    PlanHost host(quiet, plugins_);
    Script script(host, options);
    const ScriptText text = read_script(entry.script);
    host.set_script(text);
    script.run(text);
    if (host.plans.size() != 1) {
      throw Error(Stage::options, "calibration.steps", "",
                  fmt::format("{}: makes {}, and a measured step is of one", entry.script,
                              plural(std::ssize(host.plans), "plan")),
                  "give a script that plans or trains once, or choose one by \"set\"");
    }
    return {{host.plans.front(), entry.nodes, entry.seconds}, host.seconds.front()};
  }

  // All scripts' problems at once.
  std::vector<std::pair<MeasuredPlan, double>> planned() {
    std::vector<std::pair<MeasuredPlan, double>> all;
    for (const StepEntry& entry : entries_) {
      try {
        all.push_back(planned(entry));
      } catch (const Error& error) {
        problems_.add(error);
      }
    }
    problems_.throw_if_any();
    return all;
  }

  void fit_steps_of_scripts() {
    std::vector<MeasuredPlan> steps;
    for (auto& [plan, seconds] : planned()) steps.push_back(std::move(plan));
    fitted_ = fit_steps(hardware_, software_, steps, problems_);
    problems_.throw_if_any();
    // As plans will say: a layout may be another by the fitted shares.
    for (const auto& [plan, seconds] : planned()) predicted_.push_back(seconds);
  }

  void compare_rows() {
    Cluster cluster = read_cluster(hardware_.table, "cluster", problems_);
    problems_.throw_if_any();
    cluster.node.curve_share = 1;  // the logs' collectives ran alone
    for (const LoggedTable& table : tables_) {
      cluster.nodes = std::max(cluster.nodes, table.nodes());
      for (const LoggedRow& row : table.rows)
        rows_.push_back({&table, row, logged_seconds(cluster, table, row.bytes)});
    }
  }

  std::vector<std::string> head_of(const Description& description) const {
    std::vector<std::string> files;
    for (const std::string& from : arguments_.from) files.push_back(fs::path(from).filename());
    std::vector<std::string> head = {fmt::format(
        "What `meshwright calibrate --from` made of {} on {}. Numbers without a source above them "
        "are those of {}.",
        join(files), now_text().substr(0, 10), description.base)};
    head.insert(head.end(), description.unknown.begin(), description.unknown.end());
    for (std::size_t k = 1; k < head.size(); ++k)
      head[k] = fmt::format("Not measured: {}.", head[k]);
    return head;
  }

  Json result() const {
    Json result = {{"kind", "description"},
                   {"file", file_.string()},
                   {"base", hardware_.base},
                   {"sources", hardware_.sources},
                   {"unknown", unknown()}};
    for (const ComparedRow& each : rows_)
      result["rows"].push_back({{"file", each.table->file},
                                {"line", each.row.line},
                                {"collective", each.table->perf()},
                                {"ranks", each.table->ranks()},
                                {"nodes", each.table->nodes()},
                                {"bytes", each.row.bytes},
                                {"seconds", each.row.seconds},
                                {"predicted_seconds", each.predicted}});
    if (entries_.empty()) return result;
    result["stack_file"] = stack_file_.string();
    result["base_stack"] = software_.base;
    for (std::size_t k = 0; k < entries_.size(); ++k) {
      Json step = {{"script", entries_[k].script},
                   {"nodes", entries_[k].nodes},
                   {"seconds", entries_[k].seconds},
                   {"before_seconds", fitted_.before[k]},
                   {"predicted_seconds", predicted_[k]}};
      if (!fitted_.fit.left_out.empty()) step["left_out_seconds"] = fitted_.fit.left_out[k];
      result["steps"].push_back(std::move(step));
    }
    for (std::size_t k = 0; k < fitted_.shares.size(); ++k)
      result["fitted"][fitted_.shares[k].key] = {{"value", fitted_.fit.values[k]},
                                                 {"before", fitted_.shares[k].value},
                                                 {"told", bool{fitted_.fit.told[k]}}};
    return result;
  }

  std::vector<std::string> unknown() const {
    std::vector<std::string> all = hardware_.unknown;
    all.insert(all.end(), software_.unknown.begin(), software_.unknown.end());
    return all;
  }

  static std::string off(double predicted, double measured) {
    return fmt::format("{:+.1f} %", 100 * (predicted / measured - 1));
  }

  // By how much the description misses each table's rows on average, by their size.
  std::string rows_text() const {
    const std::vector<std::pair<double, const char*>> bands = {{64 << 10, "to 64 KiB"},
                                                               {1 << 20, "to 1 MiB"},
                                                               {32 << 20, "to 32 MiB"},
                                                               {1 << 30, "to 1 GiB"},
                                                               {INFINITY, "above"}};
    std::vector<std::string> header = {"off on average, of rows", "ranks"};
    for (const auto& [most, name] : bands) header.emplace_back(name);
    TextTable lines(header, {2, 3, 4, 5, 6});
    for (const LoggedTable& table : tables_) {
      std::vector<std::string> line = {table.perf(), table.place()};
      double least = 0;
      for (const auto& [most, name] : bands) {
        double sum = 0;
        int count = 0;
        for (const ComparedRow& each : rows_) {
          if (each.table != &table || each.row.bytes <= least || each.row.bytes > most) continue;
          sum += std::abs(each.predicted / each.row.seconds - 1);
          ++count;
        }
        line.push_back(count == 0 ? "" : fmt::format("{:.1f} %", 100 * sum / count));
        least = most;
      }
      lines.add(std::move(line));
    }
    return lines.text("  ");
  }

  std::string steps_text() const {
    TextTable lines({"step", "nodes", "measured", "before", "", "fitted", "", "to the others", ""},
                    {1, 2, 3, 4, 5, 6, 7, 8});
    for (std::size_t k = 0; k < entries_.size(); ++k) {
      const StepEntry& entry = entries_[k];
      const double own = entry.seconds;
      std::vector<std::string> line = {fs::path(entry.script).filename(),
                                       std::to_string(entry.nodes),
                                       duration_text(own),
                                       duration_text(fitted_.before[k]),
                                       off(fitted_.before[k], own),
                                       duration_text(predicted_[k]),
                                       off(predicted_[k], own)};
      if (!fitted_.fit.left_out.empty()) {
        line.push_back(duration_text(fitted_.fit.left_out[k]));
        line.push_back(off(fitted_.fit.left_out[k], own));
      }
      lines.add(std::move(line));
    }
    TextTable shares({"share", "before", "fitted"}, {1, 2});
    for (std::size_t k = 0; k < fitted_.shares.size(); ++k) {
      if (!fitted_.fit.told[k]) continue;
      shares.add({fitted_.shares[k].key, fmt::format("{:.4g}", fitted_.shares[k].value),
                  fmt::format("{:.4g}", fitted_.fit.values[k])});
    }
    return lines.text("  ") + shares.text("  ");
  }

  std::string text() const {
    std::string text =
        fmt::format("{}: as {}, with what was measured\n", file_.string(), hardware_.base);
    if (!rows_.empty()) text += rows_text();
    if (!entries_.empty()) text += steps_text();
    for (const std::string& sentence : unknown())
      text += "  not measured: " + wrapped(sentence, 100, 4) + "\n";
    text += fmt::format("  --cluster {}{}\n", named(file_),
                        entries_.empty() ? "" : " --stack " + named(stack_file_));
    return text;
  }

  // As mw.cluster takes it.
  static std::string named(const fs::path& file) {
    return file.has_parent_path() ? file.string() : "./" + file.string();
  }

  const CalibrateArguments& arguments_;
  Output& output_;
  PluginRegistry plugins_;
  const fs::path file_, stack_file_;
  Problems problems_;
  std::vector<LoggedTable> tables_;
  std::vector<StepEntry> entries_;
  bool steps_given_ = false;  // right or not
  Description hardware_, software_;
  FittedSteps fitted_;
  std::vector<double> predicted_;  // of each step, by the descriptions as they were written
  std::vector<ComparedRow> rows_;
};

}  // namespace

int describe_cluster(const CalibrateArguments& arguments, Output& output) {
  stop_on_signals();
  return Describer(arguments, output).run();
}

}  // namespace mw
