// `meshwright calibrate`: measures this machine, fits what predictions read, and replaces the
// cluster file of this machine once all of it is there.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "app/calibrate/calibrate.h"
#include "app/command.h"
#include "common/core_meter.h"
#include "common/files.h"
#include "meshwright/engine/control_groups.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "predict/prediction.h"
#include "predict/shared_cores.h"

namespace mw {

namespace {

Error cannot_write(const std::filesystem::path& file, int why) {
  return Error(Stage::environment, "calibration.write", "",
               fmt::format("cannot write {}: {}", file.string(), std::strerror(why)),
               "name another file: meshwright calibrate -o FILE");
}

// Checks that the file can be written, before a minute is spent on measuring.
void check_folder(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw cannot_write(file, error.value());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw cannot_write(file, errno);
}

// Rates of matrix products by size and precision, by the fit.
std::string products_text(const Calibration& c) {
  TextTable table({"matrix products", "10 kFLOP", "1 MFLOP", "100 MFLOP", "a call"});
  static constexpr std::pair<int, const char*> names[] = {{4, "fp32"}, {8, "fp64"}, {2, "bf16"}};
  for (const auto& [element, name] : names) {
    if (!c.work.contains(element)) continue;
    const WorkFit* fit = c.fit_of("linear forward", "", element, true, {1, 1, 1});
    if (fit == nullptr) continue;
    std::vector<std::string> row{name};
    for (const double flops : {1e4, 1e6, 1e8}) {
      const double side = std::cbrt(flops / 2);  // of the product's three square matrices
      const WorkSize size{flops, 3 * element * side * side, flops / side};
      row.push_back(fmt::format("{:.1f} GFLOP/s", 1e-9 * flops / fit->seconds(size)));
    }
    row.push_back(fmt::format("{:.1f} us", 1e6 * fit->call));
    table.add(std::move(row));
  }
  return table.text("  ");
}

std::string transfers_text(const Calibration& c) {
  std::vector<std::string> header{"core seconds of a rank", "ranks", "256 B", "32 KiB", "1 MiB"};
  TextTable table(header);
  for (const auto& [op, by_ways] : c.transfers) {
    for (const auto& [ways, curve] : by_ways) {
      std::vector<std::string> row{op, std::to_string(ways)};
      for (const double bytes : {256.0, 32768.0, 1048576.0})
        row.push_back(fmt::format("{:.1f} us", 1e6 * curve.at(bytes, /*grows=*/true)));
      table.add(std::move(row));
    }
  }
  return table.text("  ");
}

std::string text_of(const Calibration& c, const std::filesystem::path& file, double seconds) {
  TextTable mixes({"its mixes", "ranks", "measured", "predicted", "core s", "predicted"});
  const auto ms = [](double s) { return fmt::format("{:.3g} ms", 1e3 * s); };
  for (const CalibratedMix& m : c.mixes) {
    mixes.add({m.plan, std::to_string(m.ranks), ms(m.step), ms(m.predicted_step), ms(m.cpu),
               ms(m.predicted_cpu)});
  }
  return fmt::format(
      "{} of {}, calibrated in {:.0f} s\n{}\n{}\n{}\n  {} mixes fitted: steps {:.1f} % off on "
      "average, "
      "core seconds {:.1f} %\n  file: {}\n",
      plural(c.cores, "core"), c.cpu, seconds, products_text(c), transfers_text(c),
      mixes.text("  "), c.mixes.size(), 100 * c.step_error, 100 * c.cpu_error, file.string());
}

class Calibrator {
 public:
  Calibrator(const CalibrationSizes& sizes, PluginRegistry& plugins, Output& output)
      : sizes_(sizes), output_(output) {
    context_.catalog = &plugins;
    context_.roots = {"."};
  }

  Calibration run() {
    CoreMeter meter(system_root(), seconds_now(), cpu_seconds_now());
    Calibration c = measure();
    c.others_cores = meter.take(seconds_now(), cpu_seconds_now()).others;
    const bool busy = are_busy(c.others_cores, core_count());
    if (busy && sizes_.quick) {
      forget_wall(c);
    } else if (busy) {
      output_.note(fmt::format(
          "other programs used {:.1f} cores during the measurement, so wall seconds are too "
          "long: calibrate again when the machine does nothing else",
          c.others_cores));
    }
    return c;
  }

 private:
  // Forgets what was fitted to wall seconds, which other programs made too long. Ranks are then
  // assumed to keep the cores busy, and the error of predicted steps is unknown.
  static void forget_wall(Calibration& c) {
    for (SharedCosts* shared : {&c.few, &c.many}) {
      shared->wall = 1;
      shared->idle = 0;
    }
    c.step_error = 0;
  }

  Calibration measure() {
    Calibration c;
    c.quick = sizes_.quick;
    c.date = now_text();
    c.cpu = cpu_model();
    c.cores = core_count();
    c.kernels = kernels_key();
    c.version = version_line();
    c.device = measure_device();
    // All experiments are read before any of them runs.
    const std::vector<CalibrationRun> models = calibration_models(sizes_),
                                      of_ranks = calibration_mixes(sizes_);
    std::vector<MeasuredMix> mixes;
    for (const CalibrationRun& each : of_ranks)
      mixes.push_back({read_experiment(each.table, context_), {}});
    std::vector<OneRank> alone;
    for (const CalibrationRun& each : models)
      alone.emplace_back(read_experiment(each.table, context_));
    // Several rounds, so that a moment in which other programs have the cores spoils no figure.
    for (int round = 0; round < sizes_.rounds(); ++round) {
      for (std::size_t m = 0; m < models.size(); ++m) {
        say("one rank: " + models[m].name);
        alone[m].measure(sizes_.seconds_of_run());
      }
      say("collectives");
      least(c.transfers, measure_transfers(sizes_));
      if (round == 0) fit(alone, c);
      const SharedCores machine(c.device, std::make_shared<Calibration>(c));
      for (std::size_t m = 0; m < mixes.size(); ++m) {
        const auto& experiment = mixes[m].experiment;
        say(fmt::format("{}: {}", experiment.plan->mix(), of_ranks[m].name));
        const MeasuredStep step = measure_step(experiment, sizes_.seconds_of_run(),
                                               predict(*experiment.plan, machine, 1).step_seconds);
        MeasuredStep& best = mixes[m].measured;
        best = round == 0 ? step
                          : MeasuredStep{std::min(best.seconds, step.seconds),
                                         std::min(best.cpu, step.cpu)};
      }
    }
    fit(alone, c);
    fit_mixes(mixes, c);
    return c;
  }

  static void fit(const std::vector<OneRank>& alone, Calibration& c) {
    WorkSamples samples;
    for (const OneRank& each : alone) each.add_to(samples);
    fit_instructions(samples, c);
  }

  void say(const std::string& what) {
    throw_if_stopped();
    output_.note(what);
  }

  const CalibrationSizes sizes_;
  Output& output_;
  ReadContext context_;
};

// Measures this machine for predictions.
int calibrate(const CalibrateArguments& arguments, Output& output) {
  if (!arguments.from.empty()) return describe_cluster(arguments, output);
  PluginRegistry plugins = registry_of(arguments);
  stop_on_signals();
  const double start = seconds_now();
  const std::filesystem::path file =
      arguments.file.empty() ? calibration_file() : std::filesystem::path(arguments.file);
  check_outputs({{"-o", arguments.file, OutputKind::calibration}});
  check_folder(file);
  const Calibration c = Calibrator({arguments.quick}, plugins, output).run();
  throw_if_stopped();
  if (const int why = replace_whole(file, c.to_json().dump(1) + "\n"); why != 0)
    throw cannot_write(file, why);
  const double seconds = seconds_now() - start;
  Json result{{"kind", "calibration"}, {"file", file.string()}, {"seconds", seconds}};
  result.update(c.to_json());
  output.result(result);
  if (!output.json()) output.text(text_of(c, file, seconds));
  return 0;
}

const CommandOf<CalibrateArguments> calibrate_command{
    {"calibrate", 170,
     "measure this machine for predictions: products by shape, ops, collectives, what "
     "several ranks add; takes about a minute, on a machine that does nothing else. With --from: "
     "describe another cluster by what was measured there"},
    [](CLI::App& command, CalibrateArguments& a) {
      command
          .add_option("-o,--output", a.file,
                      "the file to write; if not given, the one that predictions read")
          ->type_name("FILE");
      CLI::Option* quick =
          command.add_flag("--quick", a.quick, "a few small sizes in a few seconds: rough");
      CLI::Option* from =
          command
              .add_option("--from", a.from,
                          "what was measured on a cluster: logs of nccl-tests, and steps (.json); "
                          "-o names the cluster file, NAME.lua")
              ->type_name("FILE")
              ->excludes(quick);
      command
          .add_option(
              "--cluster", a.cluster,
              "gives the values that the logs lack; by default a cluster with the logs' devices")
          ->type_name("BASE")
          ->needs(from);
      command.add_option("--stack", a.stack, "the software of the steps, or what is nearest to it")
          ->type_name("BASE")
          ->needs(from);
      command
          .add_option("--devices", a.devices,
                      "devices of a node; by default as many as the logs have")
          ->check(CLI::Range(1, 65536))
          ->needs(from);
      command.add_flag("--overwrite", a.overwrite, "replace files that are there")->needs(from);
      command.footer(
          "Example: meshwright calibrate\n"
          "         meshwright calibrate --from logs/*.txt steps.json --stack megatron-core -o "
          "mine.lua");
      add_common(command, a);
    },
    calibrate};

}  // namespace
}  // namespace mw
