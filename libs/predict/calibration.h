// The results of `meshwright calibrate` for this machine, whose cores the ranks share as threads:
// measured times of instructions and transfers, and the file that keeps them.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/engine/footprint.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/json.h"
#include "meshwright/program.h"
#include "predict/device.h"
#include "predict/work_fit.h"

namespace mw {

// The name of an instruction's kind, by which measured times are looked up: "linear forward",
// "start", "apply".
std::string work_kind(const Program& program, const Instruction& instruction);
// The name of an instruction's class, whose times stand in for a kind that was not measured:
// "matrix_product forward". Empty where the instruction runs no op, or an op of no class.
std::string work_class(const Program& program, const Instruction& instruction);

// The sizes of one rank's instruction from which its seconds follow.
struct SizedWork {
  WorkSize size;
  bool product = false;
  // Bytes in host memory, and bytes of copies that threads make within one memory.
  double beside = 0;
  // Begins or awaits a transfer, and does nothing itself but copy: copies are measured with
  // transfers.
  bool moves = false;
};
SizedWork sized_work(const RankView& view, const Instruction& instruction, const Footprint& made);

// Costs that several ranks add to what they take one by one. Seconds are 0 or more. Factors are
// `least_factor` or more: they may be below 1, as one rank alone may have been measured while the
// machine was slower.
constexpr double least_factor = 0.85;
struct SharedCosts {
  double work = 1;  // factor on the seconds of instructions: ranks share caches and memory
  // Factor on the core seconds of transfers, over those of one after the other.
  double transfer = 1;
  double call = 0;  // core seconds that each transfer adds
  double step = 0;  // core seconds that each rank's step adds
  double wall = 1;  // seconds of a step over those that core seconds alone give
  double idle = 0;  // seconds that each transfer adds in which no core has work
};

// A mix that the calibration ran to measure what several ranks add.
struct CalibratedMix {
  std::string plan;
  int ranks = 1;
  double step = 0, cpu = 0;                      // measured seconds
  double predicted_step = 0, predicted_cpu = 0;  // seconds that the calibration predicts
};

struct Calibration {
  std::string date;  // "2026-11-22T13:00:00Z"
  // The machine that was calibrated: its CPU model, what decides which kernels run (kernels_key),
  // and the version of Meshwright.
  std::string cpu, kernels, version;
  int cores = 1;
  Device device;
  // Fits of core seconds, by the bytes of a real and then by work_kind. A kind that was not
  // measured takes the fit of its work_class, or else that of "product" or "other".
  std::map<int, std::map<std::string, WorkFit>> work;
  // Core seconds of each rank in a transfer: by the collective's name, its number of ranks, and the
  // bytes of the larger buffer.
  std::map<std::string, std::map<int, LogCurve>> transfers;
  // Seconds of a rank's step beside its instructions.
  double step = 0;
  // Costs of sharing the cores: `few` where ranks are as many as cores or fewer, `many` where they
  // are more.
  SharedCosts few, many;
  std::vector<CalibratedMix> mixes;
  // Means of |predicted / measured - 1| over the mixes.
  double step_error = 0, cpu_error = 0;
  double others_cores = 0;  // cores that other programs used during the calibration; NaN: not known
  bool quick = false;       // a short measurement, as at the first use of a machine

  const SharedCosts& shared(int ranks) const { return ranks > cores ? many : few; }
  // The fit that prices an instruction of this kind; reals that were not measured are priced as
  // those with the nearest number of bytes. Null if nothing was measured, or if the kind was not
  // and the instruction has no flops and no bytes, so that it only keeps books.
  const WorkFit* fit_of(const std::string& kind, const std::string& of_class, int element,
                        bool product, const WorkSize& size) const;
  // Core seconds that each rank spends on a transfer; 0 if the collective was not measured.
  double transfer_seconds(Collective op, int ways, double bytes) const;

  Json to_json() const;
  // Throws if the schema is another one, a key is missing, or a number is out of its range.
  static Calibration from_json(const Json& json);
};

// The path of the calibration file: calibration.json in the folder of the cache, or what the
// environment variable MESHWRIGHT_CALIBRATION names.
std::filesystem::path calibration_file();

// Why the calibration is not of this machine: "it is of 4 cores of X, this machine has 2 of Y".
// Empty if it is of this machine.
std::string other_machine(const Calibration& calibration);

// The calibration in the file; null if there is no file. Throws Error (environment) if the file
// cannot be read or is another machine's.
std::shared_ptr<const Calibration> read_calibration(const std::filesystem::path& file);

// The file in the cache folder with the short calibration that is made when a machine is first
// used. Each CPU, number of cores, set of kernels and version has its own file.
std::filesystem::path first_use_file();
// Whether MESHWRIGHT_FIRST_USE=off in the environment turns the measurement at first use off.
bool first_use_left_out();
// The calibration in first_use_file(); null if it is turned off, or if the file is missing or
// cannot be used.
std::shared_ptr<const Calibration> first_use_calibration();

// The calibration in calibration_file(); null if there is none. A file that the environment names
// must exist and be of this machine, or Error is thrown. `why` says why the cache folder's own file
// is not used. this_calibration() reads it once per process.
struct FoundCalibration {
  std::shared_ptr<const Calibration> calibration;
  std::string why;
};
const FoundCalibration& this_calibration();

}  // namespace mw
