// `meshwright calibrate`: measures this machine and writes its cluster file; with --from it
// describes another cluster by what was measured there.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "app/command.h"
#include "predict/calibration.h"
#include "script/experiment.h"
#include "script/read_experiment.h"

namespace mw {

struct CalibrateArguments : Arguments {
  std::string file;    // file to write; empty: calibration_file()
  bool quick = false;  // measures a few small sizes only
  // --from: logs of nccl-tests, and files of measured steps (.json); empty: this machine.
  std::vector<std::string> from;
  // descriptions to begin with; empty: a cluster by the logs' devices, no stack
  std::string cluster, stack;
  int devices = 0;         // devices of a node; 0: as in the logs
  bool overwrite = false;  // replaces files that exist
};

// The measured steps in a file's text: [{ place = "steps.json[2]", script = as it can be opened
// from here, seconds =, nodes =, settings = { "batch=64" } }].
Json read_steps(const std::string& file, const std::string& text, Problems& problems);

// `calibrate --from`: writes the description of a cluster, and that of its stack where steps were
// measured.
int describe_cluster(const CalibrateArguments& arguments, Output& output);

// How much is measured; `quick`: a few sizes for a moment each, as at a machine's first use.
struct CalibrationSizes {
  bool quick = false;
  int rounds() const { return quick ? 1 : 2; }
  double seconds_of_run() const { return quick ? 0.15 : 0.4; }  // of an experiment, in a round
};

// An experiment that a calibration runs, as a table, with a name for people.
struct CalibrationRun {
  std::string name;
  Json table;
};
// The experiments of one rank, whose every instruction is timed, and those of several ranks.
std::vector<CalibrationRun> calibration_models(const CalibrationSizes& sizes);
std::vector<CalibrationRun> calibration_mixes(const CalibrationSizes& sizes);

// Measured seconds of instructions, by bytes of a real and work_kind; `pooled`: by class of work.
struct WorkSamples {
  std::map<int, std::map<std::string, std::vector<WorkSample>>> by_kind, pooled;
  // For each run of one rank, the sum of its instructions' seconds and the core seconds of a step.
  std::vector<std::pair<double, double>> steps;
};

struct MeasuredStep {
  double seconds = 0, cpu = 0;  // medians; cpu: core seconds of the process
};

// An experiment of one rank whose instructions are timed, in one round or several: what counts is
// the round in which it was quickest, as other programs only make it slower.
class OneRank {
 public:
  explicit OneRank(Experiment experiment) : experiment_(std::move(experiment)) {}
  // Runs the experiment for `budget` seconds. Throws Stopped.
  void measure(double budget);
  void add_to(WorkSamples& samples) const;

 private:
  using Where = std::tuple<int, int, int>;  // segment, index, microbatch
  Experiment experiment_;
  std::map<Where, double> seconds_;
  double cpu_ = std::numeric_limits<double>::infinity();
};

// Runs as many steps as fit into `budget` seconds if each takes `predicted` seconds.
MeasuredStep measure_step(Experiment experiment, double budget, double predicted);

// Measures the core seconds of a rank in a call, by collective, ways and bytes. Throws Stopped.
using TransferCurves = std::map<std::string, std::map<int, LogCurve>>;
TransferCurves measure_transfers(const CalibrationSizes& sizes);
// Keeps in `of`, at each point of `more`, the lesser of both values.
void least(TransferCurves& of, const TransferCurves& more);

// Fits `calibration.work` and `calibration.step`, for which runs of one rank suffice.
void fit_instructions(const WorkSamples& samples, Calibration& calibration);
// Fits what several ranks add, by the mixes' plans and measured steps. Keeps in the calibration
// what it would have predicted of each mix.
struct MeasuredMix {
  Experiment experiment;
  MeasuredStep measured;
};
void fit_mixes(const std::vector<MeasuredMix>& mixes, Calibration& calibration);

}  // namespace mw
