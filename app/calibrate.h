// `meshwright calibrate`: measures this machine and writes its cluster file; with --from it
// describes another one by what was measured there.
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
  std::string file;    // to write; empty: calibration_file()
  bool quick = false;  // a few small sizes
  // --from: logs of nccl-tests, and files of measured steps (.json); empty: this machine.
  std::vector<std::string> from;
  std::string cluster, stack;  // what is described begins as them; empty: by the logs, none
  int devices = 0;             // of a node; 0: by the logs
  bool overwrite = false;      // files that are there
};

std::string now_text();  // "2026-11-22T13:00:00Z"

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
  double seconds_of_run() const { return quick ? 0.15 : 0.4; }  // in a round
};

// What is run: tables of experiments, with a name for people.
struct CalibrationRun {
  std::string name;
  Json table;
};
// Models of one rank, whose every instruction is timed; and mixes of several ranks.
std::vector<CalibrationRun> calibration_models(const CalibrationSizes& sizes);
std::vector<CalibrationRun> calibration_mixes(const CalibrationSizes& sizes);

// Seconds of instructions: by the bytes of a real and work_kind.
struct WorkSamples {
  std::map<int, std::map<std::string, std::vector<WorkSample>>> by_kind, pooled;
  // What the instructions of each run of one rank take together, and its core seconds.
  std::vector<std::pair<double, double>> steps;
};

struct MeasuredStep {
  double seconds = 0, cpu = 0;  // medians, core seconds of the process
};

// An experiment of one rank whose instructions are timed, in one round or several: what counts is
// the round in which it was quickest, as other programs only make it slower.
class OneRank {
 public:
  explicit OneRank(Experiment experiment) : experiment_(std::move(experiment)) {}
  // Runs it for so many seconds. Throws Stopped.
  void measure(double budget);
  void add_to(WorkSamples& samples) const;

 private:
  using Where = std::tuple<int, int, int>;  // segment, index, microbatch
  Experiment experiment_;
  std::map<Where, double> seconds_;
  double cpu_ = std::numeric_limits<double>::infinity();
};

// Runs the experiment for so many seconds, if it takes what is predicted of it.
MeasuredStep measure_step(Experiment experiment, double budget, double predicted);

// Core seconds of each rank by collective, ways and bytes. Throws Stopped.
using TransferCurves = std::map<std::string, std::map<int, LogCurve>>;
TransferCurves measure_transfers(const CalibrationSizes& sizes);
// Takes the lesser value of each point that both have.
void least(TransferCurves& of, const TransferCurves& more);

// Fits `calibration.work` and `step`, which need no ranks.
void fit_instructions(const WorkSamples& samples, Calibration& calibration);
// Fits what several ranks add, from the mixes' plans and what was measured of them, and says what
// the calibration would have predicted of each.
struct MeasuredMix {
  Experiment experiment;
  MeasuredStep measured;
};
void fit_mixes(const std::vector<MeasuredMix>& mixes, Calibration& calibration);

}  // namespace mw
