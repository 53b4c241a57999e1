// How fast a rank computes, copies and communicates when others share its cores and memory.
#include "predict/shared_cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/core_meter.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

class OnCalibratedCores final : public RankMachine {
 public:
  OnCalibratedCores(const Program& program, std::shared_ptr<const Calibration> calibration,
                    int threads, double turns)
      : program_(program),
        calibration_(std::move(calibration)),
        element_(bytes_of(program.dtype)),
        threads_(threads),
        several_(program.mesh.size() > 1) {
    if (several_) shared_ = calibration_->shared(program.mesh.size() * threads);
    if (turns == 0) {
      shared_.wall = 1;
      shared_.idle = 0;
      threads_ = 1;
    }
    turns_ = (turns == 0 ? 1 : turns) * (several_ ? shared_.wall : 1);
    find_byte_seconds();
  }

  WorkTime work(const RankView& view, const Instruction& instruction,
                const Footprint& made) override {
    // Work that is left to other ranks, and copies that need no work, take no time.
    if ((instruction.computes() || instruction.copies()) && made.work.empty()) return {};
    const SizedWork sized = sized_work(view, instruction, made);
    double seconds = sized.beside / calibration_->device.bandwidth;
    if (sized.moves) {
      seconds += sized.size.bytes / calibration_->device.bandwidth;
    } else if (const WorkFit* fit = calibration_->fit_of(work_kind(program_, instruction),
                                                         work_class(program_, instruction),
                                                         element_, sized.product, sized.size)) {
      seconds += fit->seconds(sized.size) / (sized.product ? threads_ : 1);
      if (sized.product) seconds += sized.size.bytes * byte_seconds_;
    }
    return {seconds * shared_.work * turns_, 0};
  }

  TransferCost transfer(const RankView&, const Instruction&, const Transfer& transfer) override {
    if (transfer.ways < 2) return {calibration_->device.op_overhead * turns_, 0, 0};
    const double measured = calibration_->transfer_seconds(
        transfer.op, transfer.ways,
        static_cast<double>(std::max<std::int64_t>(1, transfer.payload)));
    const double spent = shared_.transfer * measured + shared_.call;
    const bool pair = transfer.op == Collective::send || transfer.op == Collective::recv;
    // A transfer between stages does not take turns: each of the two stages has its own.
    const bool between = pair && transfer.set.atoms.front() == program_.stage_atom;
    return {spent * (between ? shared_.wall : turns_) + shared_.idle, 0, 0};
  }

  // Prices a step's beginning and its report, once a step.
  WorkTime beside(const RankView&, const Segment& segment) override {
    const bool ends = std::any_of(segment.code.begin(), segment.code.end(),
                                  [](const Instruction& i) { return i.makes_totals(); });
    if (!ends) return {};
    return {(calibration_->step + (several_ ? shared_.step : 0)) * turns_, 0};
  }

 private:
  // Finds the seconds of a byte of a product's operands beyond its fit. A product was measured on a
  // core that has its operands in its own cache. In a step of several ranks they come from memory
  // as far as the weights and gradients that are used between two calls have no place there, and
  // all cores read at once.
  void find_byte_seconds() {
    const Device& device = calibration_->device;
    const double threads = static_cast<double>(program_.mesh.size()) * threads_,
                 cores = device.cores;
    if (!several_ || device.own_cache <= 0) return;
    double bytes = 0;
    for (const ProgramParameter& parameter : program_.parameters) {
      if (parameter.slot < 0) continue;
      double elements = 1;
      for (const std::int64_t size :
           program_.local_shape(program_.slots[parameter.slot], program_.first()))
        elements *= static_cast<double>(size);
      bytes += 2 * elements * element_;
    }
    bytes *= std::max(1.0, threads / cores);
    if (bytes <= device.own_cache) return;
    const double busy = std::min(threads, cores) / cores;
    byte_seconds_ = (1 - device.own_cache / bytes) *
                    ((1 - busy) / device.bandwidth + busy / device.bandwidth_at_once);
  }

  const Program& program_;
  const std::shared_ptr<const Calibration> calibration_;
  const int element_;
  int threads_;
  const bool several_;       // the program has several ranks
  double byte_seconds_ = 0;  // seconds of a byte of a product's operands, beyond its fit
  SharedCosts shared_;
  double turns_ = 1;
};

struct Speed {
  GemmFit gemm;
  double pointwise = 0, bandwidth = 0, overhead = 0;
  double stretch = 1;  // factor on times, as ranks that share a core take turns on it
  int threads = 1;     // threads that share elementwise work
  // The least bytes that a thread's share of elementwise work reads and writes: some three tensors
  // of 32,768 numbers.
  double least_share = 1;
};

// The speed of one of `ranks` ranks that compute with reals of `element` bytes.
Speed speed_of(const Device& device, int ranks, int element, int asked) {
  Speed speed{
      device.gemm(element), device.pointwise(element), device.bandwidth, device.op_overhead, 1, 1,
      3.0 * 32768 * element};
  const int threads = device.threads_of(ranks, asked);
  const int busy = std::min(ranks * threads, device.cores);
  const double loaded = busy == device.cores ? device.all_cores : 1;
  speed.gemm.rate *= threads * loaded;
  // Reals of two bytes go by ATen's kernels in chunks that fit a cache, which are too small to
  // share among threads.
  if (element >= 4) speed.threads = threads;
  speed.pointwise *= loaded;
  speed.bandwidth *= loaded;
  speed.stretch = static_cast<double>(ranks * threads) / busy;
  return speed;
}

class OnSharedCores final : public RankMachine {
 public:
  OnSharedCores(const Program& program, const Device& device, int ranks, int threads, bool turns)
      : program_(program),
        device_(device),
        stage_atom_(program.stage_atom),
        latency_(device.latency),
        speed_(speed_of(device, ranks, bytes_of(program.dtype), threads)) {
    if (!turns) speed_.stretch = 1;
  }

  WorkTime work(const RankView& view, const Instruction& instruction,
                const Footprint& made) override {
    const double share = share_of(view, instruction);
    double seconds = 0;
    for (const LocalWork& work : made.work) seconds += seconds_of(work, share) * speed_.stretch;
    return {seconds, 0};
  }

  TransferCost transfer(const RankView&, const Instruction&, const Transfer& transfer) override {
    return {seconds_of(transfer), 0, 0};
  }

 private:
  // The share of the rate of large products that the instruction's kernel reaches; 1 but for
  // attention.
  double share_of(const RankView& view, const Instruction& instruction) const {
    if (!instruction.runs_op()) return 1;
    const Op& op = program_.graph->ops()[instruction.op];
    if (op.op_class() != OpClass::attention) return 1;
    const LogCurve& shares =
        instruction.piece == Piece::forward ? device_.attention : device_.attention_backward;
    const Dim width = op.inputs[0].dims[3];
    return shares.at(
        static_cast<double>(view.dims(instruction.op, instruction.part()).at(width).size));
  }

  double seconds_of(const LocalWork& work, double share) const {
    const double shares = std::clamp<double>(work.bytes / speed_.least_share, 1, speed_.threads);
    const double rate = work.gemms > 0 ? speed_.gemm.rate * share : speed_.pointwise * shares;
    const double seconds = work.gemms * speed_.gemm.overhead + work.calls * speed_.overhead +
                           std::max(work.flops / rate, work.bytes / speed_.bandwidth);
    // Threads have one memory for device and host.
    return seconds + (work.host + work.one_memory) / speed_.bandwidth;
  }

  double seconds_of(const Transfer& transfer) const {
    if (transfer.ways < 2) return speed_.overhead * speed_.stretch;
    const auto payload = static_cast<double>(transfer.payload);
    if (transfer.op == Collective::send || transfer.op == Collective::recv) {
      // A message is read once and written once; all ranks of a ring copy at once.
      const double others = transfer.set.atoms.front() == stage_atom_ ? 1 : speed_.stretch;
      return latency_ + 2 * payload / speed_.bandwidth * others;
    }
    // A rank reads each other's part once and writes its result once.
    const double bytes =
        payload * (transfer.op == Collective::all_reduce || transfer.op == Collective::all_to_all
                       ? 2.0
                       : 1.0 + 1.0 / transfer.ways);
    // Every rank of the group has to come by; ranks that share a core do so one after the other.
    return (bytes / speed_.bandwidth + latency_) * speed_.stretch;
  }

  const Program& program_;
  const Device& device_;
  const int stage_atom_;
  const double latency_;
  Speed speed_;
};

}  // namespace

SharedCores::SharedCores(Device device, std::shared_ptr<const Calibration> calibration)
    : device_(std::move(device)), calibration_(std::move(calibration)) {
  if (calibration_ != nullptr) {
    const std::int64_t memory = device_.memory;
    device_ = calibration_->device;
    device_.memory = memory;
  }
  auto alone = std::unique_ptr<SharedCores>(new SharedCores(*this, NoTurns()));
  by_core_seconds_ = std::move(alone);
}

SharedCores::SharedCores(const SharedCores& of, NoTurns)
    : device_(of.device_), calibration_(of.calibration_), turns_(false) {}

std::string SharedCores::name() const {
  std::string text =
      fmt::format("this machine, {} of {}", plural(device_.cores, "core"), device_.name);
  if (calibration_ == nullptr) return text + ", by its roofline";
  const std::string date = calibration_->date.substr(0, 10);
  text += (calibration_->quick ? ", measured briefly " : ", calibrated ") + date;
  if (are_busy(calibration_->others_cores, device_.cores)) {
    text +=
        fmt::format(" while other programs used {:.1f} of its cores", calibration_->others_cores);
  } else if (std::isnan(calibration_->others_cores)) {
    text += ", and what other programs used meanwhile is not known";
  }
  return text;
}

std::int64_t SharedCores::room() const {
  return most_thread_ranks;
}

std::unique_ptr<RankMachine> SharedCores::of_rank(const RankView& view, int ranks,
                                                  int threads) const {
  if (calibration_ != nullptr) {
    const int own = device_.threads_of(ranks, threads);
    return std::make_unique<OnCalibratedCores>(view.program(), calibration_, own,
                                               turns_ ? turns(ranks, threads) : 0);
  }
  return std::make_unique<OnSharedCores>(view.program(), device_, ranks, threads, turns_);
}

double SharedCores::peak(int ranks, Dtype dtype, int threads) const {
  return device_.peak(ranks, bytes_of(dtype), threads);
}

double SharedCores::turns(int ranks, int threads) const {
  const int own = device_.threads_of(ranks, threads);
  return static_cast<double>(ranks * own) / std::min(ranks * own, device_.cores);
}

double SharedCores::slowdown(int ranks, int threads, int active) const {
  // Load of one stage's ranks.
  const double load = static_cast<double>(ranks) * threads / device_.cores;
  // A core is slower while all cores are busy; a stage by itself was priced so only if it fills all
  // cores. Where the machine is calibrated, the times of instructions have that in them.
  const bool fills = calibration_ == nullptr && active * load >= 1 && load < 1;
  return std::max(1.0, active * load) / std::max(1.0, load) / (fills ? device_.all_cores : 1);
}

const Machine& this_machine() {
  static const SharedCores machine(this_device(), [] {
    const auto calibration = this_calibration().calibration;
    return calibration ? calibration : first_use_calibration();
  }());
  return machine;
}

}  // namespace mw
