// What `meshwright calibrate` has measured of a machine whose cores ranks share as threads: the
// cluster file of this machine.
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

// What instructions are told apart by: "linear forward", "start", "apply".
std::string work_kind(const Program& program, const Instruction& instruction);
// What stands for a kind that was not measured: that of other ops of its class, as
// "matrix_product forward". Empty for what is no op, or is of no class.
std::string work_class(const Program& program, const Instruction& instruction);

// What its seconds are told by, of one rank.
struct SizedWork {
  WorkSize size;
  bool product = false;
  double beside = 0;  // bytes of host memory, and over a link that threads do not have
  // Sends, or waits for what is sent: no work of its own but what it copies, as what a transfer
  // takes is measured with it.
  bool moves = false;
};
SizedWork sized_work(const RankView& view, const Instruction& instruction, const Footprint& made);

// What several ranks add to what they take one by one. Seconds are 0 or more, factors least_factor
// or more: one rank's own may have been measured at a moment when the machine was slower.
constexpr double least_factor = 0.85;
struct SharedCosts {
  double work = 1;      // of instructions: caches and memory are shared, and change hands
  double transfer = 1;  // of collectives, over what they take one after the other
  double call = 0;      // core seconds of each transfer beside
  double step = 0;      // core seconds of each rank's step
  double wall = 1;      // of the step's seconds, over those by core seconds alone
  double idle = 0;      // seconds that each transfer adds in which cores have nothing to do
};

// A mix that the calibration ran, to see what several ranks add.
struct CalibratedMix {
  std::string plan;
  int ranks = 1;
  double step = 0, cpu = 0;                      // measured seconds
  double predicted_step = 0, predicted_cpu = 0;  // by the calibration itself
};

struct Calibration {
  std::string date;  // "2026-11-22T13:00:00Z"
  // This machine's then: what it is, and what decides which kernels run (kernels_key).
  std::string cpu, kernels, version;
  int cores = 1;
  Device device;
  // Seconds of one core: by the bytes of a real, and work_kind. For kinds that were not measured
  // work_class stands, and then "product" or "other".
  std::map<int, std::map<std::string, WorkFit>> work;
  // Core seconds of each rank: by collective, ways, and the bytes of the larger buffer.
  std::map<std::string, std::map<int, LogCurve>> transfers;
  // Seconds of a rank's step beside its instructions.
  double step = 0;
  // What no more ranks than cores add, and what more ranks do.
  SharedCosts few, many;
  std::vector<CalibratedMix> mixes;
  // Means of |predicted / measured - 1| over the mixes.
  double step_error = 0, cpu_error = 0;
  double others_cores = 0;  // that other programs had while it was measured; NaN: not known
  bool quick = false;       // a short measurement, as at the first use of a machine

  const SharedCosts& shared(int ranks) const { return ranks > cores ? many : few; }
  // Reals that were not measured are priced as those with the nearest bytes. Null if nothing was,
  // or for an instruction of a kind that was not and of no size: it only keeps the books.
  const WorkFit* fit_of(const std::string& kind, const std::string& of_class, int element,
                        bool product, const WorkSize& size) const;
  // Core seconds of each rank; 0 if nothing was measured.
  double transfer_seconds(Collective op, int ways, double bytes) const;

  Json to_json() const;
  // Throws if a key is missing or a number is none.
  static Calibration from_json(const Json& json);
};

// Where it is kept: calibration.json in the folder of the cache, or what the environment variable
// MESHWRIGHT_CALIBRATION names.
std::filesystem::path calibration_file();

// Why it is not of this machine: "it is of 4 cores of X, this machine has 2 of Y"; empty: it is.
std::string other_machine(const Calibration& calibration);

// The one in the file; null if there is none. Throws Error (environment) if it cannot be read or is
// another machine's.
std::shared_ptr<const Calibration> read_calibration(const std::filesystem::path& file);

// The file of the cache that keeps the short measurement of this machine's first use. Each CPU,
// number of cores and version has its own.
std::filesystem::path first_use_file();
// Whether the environment turns that measurement off: MESHWRIGHT_FIRST_USE=off.
bool first_use_left_out();
// The calibration in that file; null if it is turned off, or no file is there that can be used.
std::shared_ptr<const Calibration> first_use_calibration();

// That of calibration_file(), read once; null if there is none. A file that the environment names
// must be there and be this machine's (Error); of the cache's own `why` says why it is not used.
struct FoundCalibration {
  std::shared_ptr<const Calibration> calibration;
  std::string why;
};
const FoundCalibration& this_calibration();

}  // namespace mw
