// What a rank's instructions and transfers take on cores that were calibrated.
#include "predict/calibrated_cores.h"

#include <algorithm>

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
  }

  WorkTime work(const RankView& view, const Instruction& instruction,
                const Footprint& made) override {
    // What is left to other ranks, and what is there without a copy.
    const bool may_do_nothing = instruction.code == Code::compute || instruction.code == Code::copy;
    if (may_do_nothing && made.work.empty()) return {};
    const SizedWork sized = sized_work(view, instruction, made);
    double seconds = sized.beside / calibration_->device.bandwidth;
    if (sized.moves) {
      seconds += sized.size.bytes / calibration_->device.bandwidth;
    } else if (const WorkFit* fit = calibration_->fit_of(work_kind(program_, instruction),
                                                         work_class(program_, instruction),
                                                         element_, sized.product, sized.size)) {
      seconds += fit->seconds(sized.size) / (sized.product ? threads_ : 1);
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
    // Of two stages each has its own turns.
    const bool between = pair && transfer.set.atoms.front() == program_.stage_atom;
    return {spent * (between ? shared_.wall : turns_) + shared_.idle, 0, 0};
  }

  // A step's beginning and its report, once a step.
  WorkTime beside(const RankView&, const Segment& segment) override {
    const bool ends = std::any_of(segment.code.begin(), segment.code.end(),
                                  [](const Instruction& i) { return i.code == Code::totals; });
    if (!ends) return {};
    return {(calibration_->step + (several_ ? shared_.step : 0)) * turns_, 0};
  }

 private:
  const Program& program_;
  const std::shared_ptr<const Calibration> calibration_;
  const int element_;
  int threads_;
  const bool several_;
  SharedCosts shared_;
  double turns_ = 1;
};

}  // namespace

std::unique_ptr<RankMachine> on_calibrated_cores(const Program& program,
                                                 std::shared_ptr<const Calibration> calibration,
                                                 int threads, double turns) {
  return std::make_unique<OnCalibratedCores>(program, std::move(calibration), threads, turns);
}

}  // namespace mw
