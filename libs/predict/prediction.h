// The prediction of a plan: what `plan` prints and what a run is compared with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/plan.h"
#include "meshwright/json.h"
#include "predict/documents.h"
#include "predict/machine.h"
#include "predict/pipeline.h"
#include "predict/step_counts.h"

namespace mw {

struct RunRequest;  // common/run_request.h
struct RunSetup;    // meshwright/engine/run.h

struct CommunicationForecast {
  CommunicationKey key;
  std::int64_t calls = 0, bytes = 0;  // calls and bytes in a step, each of the rank that has most
  // Seconds of the transfers, and those that nothing hides. With several stages: of the stage that
  // spends most on them.
  double seconds = 0, exposed_seconds = 0;
  double mean_exposed_seconds = 0;  // over all stages: these add up to Prediction::exposed_seconds
  Basis basis = Basis::fitted;      // basis of `seconds`
};

struct StageForecast {
  int stage = 0;
  MemoryForecast memory;           // memory of the stage's fullest rank
  MemoryForecast most;             // of each category, the most bytes that a rank of the stage has
  std::vector<NamedBytes> beside;  // Machine::beside_program of the fullest rank
  DeviceRoom device;               // device of the fullest rank, where ranks have devices
  // The share of the device's memory that the peak fills; where that memory is not known, the peak
  // in bytes.
  double filled() const {
    return static_cast<double>(memory.peak) /
           static_cast<double>(std::max<std::int64_t>(device.bytes, 1));
  }
  // Bytes that a device's driver would report: the peak and all of `beside`.
  std::int64_t reported() const;
  // reported() without the reserve: the bytes in use once the allocator has given back all idle
  // memory.
  std::int64_t in_use() const;
};

// Seconds of a stage's slowest rank in a step, by what it does; together they are the step.
struct StageParts {
  double compute = 0, exposed = 0, host_copies = 0, bubble = 0;
};

// Shares of a step by what it is spent on, averaged over the stages' slowest ranks; together they
// are 1.
struct StepShares {
  double compute = 0, bubble = 0;
  double host_copies = 0;                 // waiting for copies to and from host memory
  std::map<std::string, double> exposed;  // by axis: waiting for its transfers
};

// What the same plan without recompute, or without slices in time, is predicted to hold and take.
struct RecomputeGain {
  std::int64_t peak_without = 0;  // peak bytes of the fullest rank
  double seconds_without = 0;     // seconds of a step
  std::int64_t host_without = 0;  // bytes in host memory, of the rank with most of them
};

// Where a policy fits memory stage by stage (predict/fit.h): what each stage recomputes, and the
// seconds of a step of the same plan with the same choice on all stages (nothing: not known, or the
// stages do not differ).
struct RecomputeByStage {
  Json stages;
  std::optional<double> seconds_alike;
};

// How full a plan that fits makes a device, with what its software holds beside the program.
// `over`: a driver would report more than there is, as the allocator also holds idle memory;
// `runs_out`: more would be in use than there is.
enum class Room : std::uint8_t { ample, nearly_full, over, runs_out };
const char* name_of(Room room);  // "", "nearly full", "over", "runs out"

// What outer steps take (OuterSteps), over all fragments together.
struct OuterForecast {
  std::int64_t every = 1;  // steps from one outer step of a fragment to its next one
  int fragments = 1;
  double seconds = 0;
  std::int64_t bytes = 0;  // bytes to other replicas, of the rank that sends most
  // Transfers after a step, for each kind of event that may be due then.
  std::vector<std::pair<OuterEvent, std::vector<CommunicationForecast>>> communication = {};
};

struct Prediction {
  std::string priced_for;               // Machine::name
  std::vector<std::string> cannot_run;  // Machine::cannot_run of this plan
  std::vector<std::string> undeclared;  // work that no op declares, a sentence each
  // Why neither times nor anything that follows from them are given: the machine could not run the
  // plan, or nothing is known of the machine that would. Empty where times are given.
  std::string untimed;
  bool timed() const { return untimed.empty(); }
  int ranks = 1;
  std::int64_t devices = 0;  // devices of the cluster that the plan is priced for; 0: no cluster
  std::int64_t idle_devices() const { return devices > ranks ? devices - ranks : 0; }
  std::int64_t parameters = 0;
  double flops_per_step = 0;  // see Flops
  double hardware_flops_per_step = 0;
  std::vector<StageForecast> stages;
  // Each row has the bytes of the rank that sends most of it, as a run's table has them, and the
  // seconds of the stage whose slowest rank spends most on it.
  std::vector<CommunicationForecast> communication;
  std::vector<std::vector<TimedAction>> actions;  // actions of each stage's slowest rank
  std::vector<std::vector<InstructionTime>>
      instructions;  // instruction times of each stage, where they were asked for
  // compute_seconds and exposed_seconds are means over the stages. With host_copies.exposed and the
  // bubble (bubble_fraction of the step) they add up to step_seconds.
  double step_seconds = 0, compute_seconds = 0, exposed_seconds = 0;
  std::vector<StageParts> parts;  // parts of a step, by stage
  // Copies between devices and host memory beside compute: their seconds, and those that nothing
  // hides, averaged over the stages. None where ranks have no devices of their own.
  TransferTime host_copies;
  // Updates in host memory that the host makes beside the devices' compute, averaged over the
  // stages. What nothing hides of them is a part of compute_seconds.
  TransferTime host_updates;
  // Core seconds of all ranks' threads in a step; 0: not known.
  double cpu_seconds = 0;
  double step_error = 0;                // Machine::error
  Basis compute_basis = Basis::fitted;  // Machine::basis
  Basis beside_basis = Basis::fitted;   // Machine::beside_basis
  // "counted", or "estimated" where kernels' scratch is estimated, as no call was tried.
  const char* memory_basis() const;
  // The worst basis of the computing and of communication beyond `negligible_share` of the step.
  Basis step_basis() const;
  double bubble_fraction = 0;  // share of all stages' time spent waiting for another stage
  StepShares shares;
  double tokens_per_second = 0, tokens_per_second_per_device = 0;
  double peak_flops = 0;  // operations a second of the ranks' devices together
  // Fractions of the peak; mfu_6n counts 6 flops for each parameter and token.
  double mfu = 0, mfu_6n = 0, hfu = 0;
  // Bytes that are needed, and that there are (0: not known): of all ranks together if they share a
  // machine, else of the fullest rank.
  std::int64_t memory_needed = 0, memory_limit = 0;
  // Bytes in host memory, where devices have one beside them: of the node that needs most, and the
  // capacity of a node (0: not known).
  std::int64_t host_needed = 0, host_limit = 0;
  int host_ranks = 0;  // ranks of a node
  bool fits = true;
  // A user's limit for each rank, in bytes, where ranks have devices of their own (0: none). Where
  // it is less than a device has, it bounds what fits and what is nearly full.
  std::int64_t rank_limit = 0;
  void limit_memory(std::int64_t bytes);  // 0: no limit
  std::int64_t bound() const { return bound_of(memory_limit); }
  std::int64_t bound_of(std::int64_t device) const {
    return rank_limit > 0 ? std::min(rank_limit, device) : device;
  }
  bool host_fits() const { return host_limit == 0 || host_needed <= host_limit; }
  // Above this share of the bound a plan is nearly full: it leaves so little that an allocator has
  // to free blocks and ask again.
  static constexpr double nearly_full_share = 0.95;
  bool nearly_full() const;
  // Whether the plan fits, and yet a driver would report more than the device has.
  bool reported_above() const;
  Room room() const;
  // Gain of recompute, where it was weighed (predict/recompute_gain.h).
  std::optional<RecomputeGain> recompute = {};
  // Gain of slices in time (coshard), where it was weighed.
  std::optional<RecomputeGain> slices = {};
  std::optional<RecomputeByStage> recompute_by_stage = {};
  std::vector<std::string> pitfalls = {};  // one line for each pitfall, where they were looked for
  // Where rows of the data hold documents: times of a step are those of the drawn step that is
  // nearest to the mean of all drawn ones.
  std::optional<DocumentForecast> documents = {};
  // Set where replicas differ. Memory, tokens per second and shares of the peak count outer steps.
  // All other numbers describe a step without an outer step.
  std::optional<OuterForecast> outer = {};
  // Makes the times those of a step of median length: with an outer step, if most steps have one.
  void as_measured();
  // Raises memory to that of other work of the same ranks.
  void raise_memory(const Prediction& other);
  // Seconds of one held-out evaluation, where the run has some.
  std::optional<double> held_out_seconds = {};

  // The stage that waits least for others, by its place in `parts`.
  std::size_t busiest() const;
  // The stage with the highest peak; on devices that are not alike the one that is fullest.
  const StageForecast& fullest() const;
  // The highest peak of any rank in bytes, whatever its device: the number that a limit for all
  // ranks bounds.
  std::int64_t highest_peak() const;
  // The stage for which a driver would report most, relative to its device.
  const StageForecast& most_reported() const;
  // Clears everything that depends on the machine that the plan was priced for; `why` goes to
  // `untimed`.
  void forget_machine(std::string why);
  Json to_json() const;
};

// Predicts the plan on the machine. `threads`: of each rank's ops (RunSetup::threads); 0: the cores
// over the ranks. `traced`: with the times of instructions, if they are not too many to be
// recorded.
Prediction predict(const Plan& plan, const Machine& machine, int threads = 0, bool traced = false);

// The memory and the traffic that one rank's ledger will show in a run.
struct RankPrediction {
  MemoryForecast memory;
  Traffic communication;  // calls and bytes
};
RankPrediction predict_rank(const Plan& plan, int rank);

// The pitfalls that the request's plan walks into, a line each; where other plans would take long
// to make, one line that says so. They are mistakes of mixes that those who know the hardware
// avoid: tensor parallelism or experts whose ranks lie on several nodes, fewer microbatches than
// stages, data parallelism that keeps all on each rank where sharded states cost nothing,
// microbatches too small to fill kernels, a layout of stages that is given and slow, software that
// would run out of the device. A pitfall is told only together with a plan of as many ranks that
// avoids it, and with the time that this plan is predicted to save. Where the setup's plan does
// not fit into memory, it is told with the mildest change that fits, or with the plan that needs
// least memory. `own`: the prediction of the setup's plan on the machine. Pitfalls of nodes and
// devices are looked for where the machine is a cluster.
std::vector<std::string> find_pitfalls(const RunRequest& asked, const RunSetup& setup,
                                       const Machine& machine, const Prediction& own);

// "1.23 ms": for people, in the unit that suits it.
std::string duration_text(double seconds);
// "1.50 GiB".
std::string memory_text(std::int64_t bytes);
// 1.23e9: "1.23 G".
std::string count_text(double value);
// A text for people: the mix, the rules, who holds what, what is sent, how long it takes.
std::string print(const Plan& plan, const Prediction& prediction);
// Parts of print() that a search shows too, each of some lines or empty: what a driver would report
// (reported_text), and which memory is too small or nearly full (room_text).
std::string reported_text(const Prediction& prediction);
std::string room_text(const Prediction& prediction);
// How much of the memory is an estimate; empty where it is too little to matter.
std::string estimated_text(const Prediction& prediction);

}  // namespace mw
