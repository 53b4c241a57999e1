// `meshwright calibrate --from`: describes a cluster, and the software on it, by logs of nccl-tests
// and by steps that were measured there.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "app/calibrate.h"
#include "app/script_command.h"
#include "common/files.h"
#include "lua/cluster_files.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "predict/prediction.h"
#include "predict/step_fit.h"

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

// Keeps what a script plans, with the result.
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

// A measured step on the descriptions as they are.
struct PlannedStep {
  MeasuredPlan measured;
  double seconds = 0;                                 // predicted
  std::int64_t needed = 0, reported = 0, memory = 0;  // bytes of the device
  bool fits = true;
};

// "NVIDIA", "A100", "SXM4", "80GB" of "NVIDIA A100-SXM4-80GB".
std::vector<std::string> words_of(const std::string& device) {
  std::vector<std::string> words(1);
  for (const char c : device) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

// "A100" of "NVIDIA A100-SXM4-80GB": letters, then two digits or more. Empty: no word is such.
std::string model_of(const std::string& device) {
  const auto digit = [](const std::string& word, std::size_t at) {
    return at < word.size() && std::isdigit(static_cast<unsigned char>(word[at])) != 0;
  };
  for (const std::string& word : words_of(device)) {
    const std::size_t digits = word.find_first_of("0123456789");
    if (digits != 0 && digit(word, digits) && digit(word, digits + 1)) return word;
  }
  return "";
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  std::error_code error;
  return fs::equivalent(one, other, error) && !error;
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
    refuse_repeated(entries_, problems_);
    check_files();
    find_bases();
    problems_.throw_if_any();
    hardware_.table["name"] = file_.stem().string();
    fit_links(hardware_, tables_, arguments_.devices, problems_);
    problems_.throw_if_any();
    if (!entries_.empty()) fit_steps_of_scripts();
    compare_rows();
    look_for_ends();
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

  // `value`: what the option was given, which says where the user wrote it.
  void refuse(const char* code, const std::string& option, const std::string& value,
              const std::string& message, const std::string& hint) {
    problems_.add(
        {Stage::options, code, option, message, hint, value.empty() ? "" : option + " " + value});
  }

  void read(const std::string& from) {
    const bool steps = fs::path(from).extension() == ".json";
    steps_given_ = steps_given_ || steps;
    const auto text = whole_file(from);
    if (const std::string kind = irregular(from); !kind.empty()) {
      refuse("calibration.log", "--from", from, fmt::format("it is {}", kind),
             kind == "a folder"
                 ? "name the files in it: logs of nccl-tests, and measured steps that end in .json"
                 : "name a file: a log of nccl-tests, or measured steps that end in .json");
    } else if (!text) {
      refuse("calibration.log", "--from", from, "there is no such file, or it cannot be read",
             "name logs of nccl-tests, and files of measured steps that end in .json");
    } else if (steps) {
      for (StepEntry& entry : read_steps(from, *text, problems_))
        entries_.push_back(std::move(entry));
    } else {
      for (LoggedTable& table : read_nccl_log(from, *text, problems_))
        tables_.push_back(std::move(table));
    }
  }

  void check_files() {
    if (arguments_.file.empty() || file_.extension() != ".lua") {
      refuse("calibration.output", "-o", arguments_.file,
             arguments_.file.empty() ? "--from writes a cluster file, and nothing names it"
                                     : "a cluster file ends in .lua",
             fmt::format("-o {}.lua", file_.stem().empty() ? "mine" : file_.stem().string()));
      return;
    }
    std::error_code error;
    if (file_.has_parent_path() && !fs::is_directory(file_.parent_path(), error)) {
      refuse("calibration.output", "-o", arguments_.file,
             "there is no folder " + file_.parent_path().string(),
             fmt::format("make it first, or -o {}", file_.filename().string()));
      return;
    }
    check_output(file_);
    if (!entries_.empty()) check_output(stack_file_);
  }

  void check_output(const fs::path& file) {
    std::vector<std::string> inputs = arguments_.from;
    for (const StepEntry& entry : entries_) inputs.push_back(entry.script);
    inputs.insert(inputs.end(), {arguments_.cluster, arguments_.stack});
    for (const std::string& input : inputs) {
      if (!is_same_file(file, input)) continue;
      refuse("calibration.output", "-o", arguments_.file,
             fmt::format("{} is an input and would be overwritten", file.string()), "another name");
      return;
    }
    std::error_code error;
    if (!fs::exists(file, error) || arguments_.overwrite) return;
    refuse("calibration.exists", "-o", arguments_.file, file.string() + " exists already",
           "another name, or --overwrite");
  }

  static constexpr const char* chunk = "the bases";  // the name of these statements

  // The experiments that these Lua statements give to mw.plan.
  std::vector<Json> evaluated(const std::string& statements) {
    Output quiet(/*json=*/false, /*quiet=*/true);
    DescriptionHost host(quiet, plugins_);
    ScriptOptions options = script_options({}, "plan", quiet);
    options.say = [](const std::string&) {};
    Script script(host, options);
    script.run_text("local mw = require \"meshwright\"\n" + statements, chunk);
    return host.read;
  }

  void find_bases() {
    if (steps_given_ && arguments_.stack.empty()) {
      refuse("calibration.base", "--stack", "",
             "steps were measured, and nothing says by which software",
             "name the stack that is nearest to it, for example --stack megatron-core");
    }
    if (!steps_given_ && !arguments_.stack.empty()) {
      refuse("calibration.base", "--stack", arguments_.stack,
             "it is the software of steps, and none are given",
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
    if (model_of(logged) != model_of(own) || model_of(own).empty()) {
      doubts_.push_back(fmt::format(
          "the logs are of {}, and the devices of {} are {}: if these are not the same, change "
          "device, or name another --cluster",
          logged, hardware_.base, own));
    }
  }

  Json described(const std::string& what, const std::string& name) {
    try {
      Json table =
          evaluated(fmt::format("mw.plan {{ {0} = mw.{0}({1}) }}", what, json_text(Json(name))))
              .front()[what];
      table.erase("changed");
      return table;
    } catch (const Error& error) {
      std::vector<Problem> problems = error.problems();
      for (Problem& problem : problems)
        if (problem.place.starts_with(chunk)) problem.place = fmt::format("--{} {}", what, name);
      throw Error(std::move(problems));
    }
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
      const std::vector<std::string> words = words_of(logged);
      if (std::ranges::find(words, memory) != words.end()) return cluster["name"];
      if (found.empty()) found = cluster["name"];
    }
    if (found.empty() && (!tables_.empty() || problems_.empty())) {
      refuse("calibration.base", "--cluster", "",
             logged.empty() ? "no log says which devices the cluster has"
                            : fmt::format("no cluster that ships has {}", logged),
             "name the nearest with --cluster: " + known);
    }
    return found;
  }

  // An entry's script, planned on the descriptions as they are now.
  PlannedStep planned(const StepEntry& entry) {
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
    options.given_as[words.settings[0]] =
        fmt::format("--cluster {} --nodes {}", hardware_.base, entry.nodes);
    options.given_as[words.settings[1]] = "--stack " + software_.base;
    PlanHost host(quiet, plugins_);
    Script script(host, options);
    const ScriptText text = read_script(entry.script);
    host.set_script(text);
    script.run(text);
    if (host.plans.size() != 1) {
      throw Error(Problem{Stage::options, "calibration.steps", entry.place + ".script",
                          fmt::format("{} makes {}, but a measured step needs exactly one plan",
                                      entry.script, plural(std::ssize(host.plans), "plan")),
                          "give a script that plans or trains once, or choose one by \"set\"",
                          entry.place});
    }
    const auto& [plan, result] = host.plans.front();
    return {{plan, entry.nodes, entry.seconds},
            result.value("step_seconds", 0.0),
            result.value("memory_needed", std::int64_t{0}),
            result.value("reported_bytes", std::int64_t{0}),
            result.value("memory_limit", std::int64_t{0}),
            result.value("fits", true)};
  }

  // All entries, planned. Throws the problems of all their scripts together, each with the entry as
  // its place where it names nothing of the script.
  std::vector<PlannedStep> all_planned() {
    std::vector<PlannedStep> all;
    for (const StepEntry& entry : entries_) {
      try {
        all.push_back(planned(entry));
      } catch (const Error& error) {
        if (ends_all(error)) throw;
        for (Problem problem : error.problems()) {
          if (problem.place.empty()) problem.place = entry.place;
          if (problem.place.starts_with("--"))
            problem.place = fmt::format("{}: {}", entry.place, problem.place);
          problems_.add(std::move(problem));
        }
      }
    }
    problems_.throw_if_any();
    return all;
  }

  // Refuses a step whose plan does not fit the devices: what was measured did fit.
  void check_memory(const StepEntry& entry, const PlannedStep& step) {
    if (!step.fits) {
      problems_.add(
          {Stage::options, "calibration.steps", entry.place,
           fmt::format("its plan needs {} of a device, and {} has {}: it cannot be what "
                       "was measured",
                       format_bytes(step.needed), hardware_.base, format_bytes(step.memory)),
           "does \"set\" have the recompute, microbatch and sharding that ran? name the "
           "cluster by --cluster if its devices have more",
           entry.place});
    }
  }

  void look_for_full_devices(const std::vector<PlannedStep>& steps) {
    std::int64_t most = 0;
    int full = 0;
    for (const PlannedStep& step : steps) {
      if (step.memory == 0 || step.reported <= step.memory) continue;
      ++full;
      most = std::max(most, step.reported);
    }
    if (full == 0) return;
    doubts_.push_back(fmt::format(
        "a driver would report more than the {} of a device of {} for {} of {}, up to {}: what was "
        "measured may hold pauses of an allocator that gives memory back",
        format_bytes(steps.front().memory), hardware_.base, full,
        plural(std::ssize(steps), "measured step"), format_bytes(most)));
  }

  void fit_steps_of_scripts() {
    std::vector<MeasuredPlan> steps;
    const std::vector<PlannedStep> before = all_planned();
    for (std::size_t k = 0; k < before.size(); ++k) {
      check_memory(entries_[k], before[k]);
      steps.push_back(before[k].measured);
    }
    problems_.throw_if_any();
    look_for_full_devices(before);
    fitted_ = fit_steps(hardware_, software_, steps, problems_);
    problems_.throw_if_any();
    // Planned anew, as `plan` will do it: stages may get other layers by the fitted shares.
    for (const PlannedStep& step : all_planned()) predicted_.push_back(step.seconds);
    for (std::size_t k = 0; k < entries_.size(); ++k) {
      const StepEntry& entry = entries_[k];
      refuse_unexplained(entry, fitted_.before[k], predicted_[k], hardware_.base, problems_);
      const double times = entry.seconds / fitted_.before[k];
      if (is_explained(times)) continue;
      doubts_.push_back(fmt::format(
          "{} took {:.3g} times what {} and {} have it take: the shares fitted to it are those of "
          "other hardware or of another step",
          entry.place, times, hardware_.base, software_.base));
    }
    problems_.throw_if_any();
  }

  void compare_rows() {
    const Cluster cluster = logged_cluster(hardware_, tables_, problems_);
    problems_.throw_if_any();
    for (const LoggedTable& table : tables_) {
      for (const LoggedRow& row : table.rows)
        rows_.push_back({&table, row, logged_seconds(cluster, table, row.bytes)});
    }
  }

  void look_for_ends() {
    for (const LoggedTable& table : tables_) {
      if (table.ended) continue;
      doubts_.push_back(fmt::format(
          "the table at {}:{} ends with {}, without the last lines of nccl-tests (\"# Avg bus "
          "bandwidth\"): it is cut off, or the program did not come to its end",
          table.file, table.line, format_bytes(table.rows.back().bytes)));
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
    for (const std::string& doubt : doubts_) head.push_back(fmt::format("Doubtful: {}.", doubt));
    return head;
  }

  Json result() const {
    Json result = {{"kind", "description"},  {"file", file_.string()},
                   {"base", hardware_.base}, {"sources", hardware_.sources},
                   {"unknown", unknown()},   {"doubts", doubts_}};
    for (const ComparedRow& each : rows_)
      result["rows"].push_back({{"file", each.table->file},
                                {"line", each.row.line},
                                {"collective", each.table->perf()},
                                {"ranks", each.table->ranks()},
                                {"nodes", each.table->nodes()},
                                {"bytes", each.row.bytes},
                                {"seconds", each.row.seconds},
                                {"predicted_seconds", each.predicted},
                                {"is_curve", is_curve(*each.table, devices())}});
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

  int devices() const { return hardware_.table["node"].value("devices", 1); }

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
    std::vector<std::string> header = {"mean error, by size", "ranks"};
    for (const auto& [most, name] : bands) header.emplace_back(name);
    TextTable lines(header, {2, 3, 4, 5, 6});
    for (const LoggedTable& table : tables_) {
      std::vector<std::string> line = {table.perf(), table.place()};
      if (is_curve(table, devices())) {
        line.emplace_back("taken as the curve");
        lines.add(std::move(line));
        continue;
      }
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
    TextTable lines({"step", "nodes", "measured", "before", "", "fitted", "", "fit without it", ""},
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
    for (const std::string& doubt : doubts_) text += "  doubtful: " + wrapped(doubt, 100, 4) + "\n";
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
  std::vector<std::string> doubts_;  // sentences that say what of the input may not be as it seems
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
