// Copies what a rank keeps into checkpoints and fills it from them, whatever mix wrote them.
#include "checkpoint/run_checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "meshwright/engine/host.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"
#include "meshwright/outer_steps.h"

namespace mw {
namespace {

constexpr std::int64_t read_at_a_time = 1 << 20;  // elements of a parameter read at a time
constexpr std::int64_t alignment = 64;            // bytes to which copies in the buffer are aligned
constexpr std::int64_t past_columns = 6, evaluation_columns = 3;

std::string hook_tensor(int bucket, std::size_t which) {
  return fmt::format("hooks/{}/{}", bucket, which);
}

StoredPiece own_piece(std::string name, at::Tensor data) {
  return {std::move(name), std::move(data), {}, {}, true};
}

}  // namespace

Checkpoints::Checkpoints(const RunSetup& run, Setup setup) : run_(run), setup_(std::move(setup)) {
  if (setup_.from) {
    first_step_ = setup_.from->index().step;
    read_history();
  }
  if (!setup_.writes) return;
  CheckpointWriter::Setup writer;
  writer.path = setup_.path;
  writer.mark = setup_.mark;
  writer.here = setup_.here;
  writer.ranks = run_.plan->ranks();
  writer.folder = setup_.folder;
  writer.keep = setup_.keep;
  writer.stale = setup_.stale;
  // Meanwhile ranks of this process may wait for room for the next checkpoint, and other ranks for
  // them. The writer must give up before those ranks time out.
  writer.patience = std::chrono::duration<double>(run_.timeout) / 2;
  writer_ = std::make_unique<CheckpointWriter>(std::move(writer));
}

Checkpoints::~Checkpoints() = default;

Checkpoints::Rank& Checkpoints::rank_of(RankRun& executor) {
  const std::lock_guard lock(mutex_);
  Rank& rank = ranks_[executor.rank()];
  if (!rank.view) {
    rank.view = std::make_unique<RankView>(executor.program(), executor.coordinates());
    rank.kept = kept_slices(*rank.view);
  }
  return rank;
}

void Checkpoints::begin(RankRun& executor) {
  const at::NoGradGuard no_grad;
  Rank& rank = rank_of(executor);
  if (setup_.from) load(executor, rank);
}

bool Checkpoints::same_mix() const {
  const CheckpointIndex& index = setup_.from->index();
  return index.mix == run_.plan->mix() && index.ranks == run_.plan->ranks();
}

std::string Checkpoints::left_behind() const {
  if (!setup_.from || setup_.from->index().own.empty() || same_mix()) return "";
  for (const auto& [rank, names] : setup_.from->index().own)
    for (const std::string& name : names)
      if (name.starts_with("hooks/"))
        return fmt::format(
            "what its reduction hooks have kept is not taken along: it belongs to the ranks of {}",
            setup_.from->index().mix);
  return "";
}

void Checkpoints::load(RankRun& executor, Rank& rank) const {
  Ledger::Scope scope(executor.ledger(), Category::buffers);
  load_parameters(executor, rank);
  for (const KeptSlice& kept : rank.kept) {
    if (kept.of_parameter) continue;
    setup_.from->read(kept.tensor, kept.shape, kept.slice,
                      executor.kept(kept.slot).narrow(0, kept.first, kept.slice.count));
  }
  load_hooks(executor);
  LossScalerState state = setup_.from->index().loss_scaler;
  if (!setup_.from->index().scaled) {  // the count of steps left out is all that goes on
    state = {.left_out = state.left_out, .had_no_labels = state.had_no_labels};
    if (state.left_out == 0 && !state.had_no_labels) return;
  }
  if (!executor.scaler().active()) state.scale = 1;  // keeps the count of steps left out
  executor.scaler().go_on_from(state);
}

// Fills parameters as at the start of a run: whole or the rank's shard, and their masters.
void Checkpoints::load_parameters(RankRun& executor, const Rank& rank) const {
  const Program& program = executor.program();
  const auto type = scalar_type(program.optimizer_dtype);
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const int parameter = static_cast<int>(p);
    const ParameterPlace place = place_of(*rank.view, parameter);
    const Bucket& bucket = executor.bucket_of(parameter);
    const FlatSlots& flat = bucket.flat;
    const int replica = bucket.fragment < 0 ? 0 : program.replica_of(executor.coordinates());
    const std::string tensor = of_replica(replica, parameter_tensor(place.name));
    const Range all = rank.view->place(parameter);
    Range part = rank.view->part(flat.stored);
    if (executor.kept(flat.parameters).defined()) part = all;  // the rank keeps them whole
    const std::int64_t begin = std::max(part.offset, all.offset) - all.offset;
    const std::int64_t end = std::min(part.offset + part.size, all.offset + all.size) - all.offset;
    for (std::int64_t at = begin; at < end; at += read_at_a_time) {
      const std::int64_t count = std::min(read_at_a_time, end - at);
      const at::Tensor numbers = at::empty({count}, type);
      setup_.from->read(tensor, place.shape, {place.box, at, count}, numbers);
      executor.fill(parameter, at, numbers);
    }
  }
}

// The error for a hook whose state does not match: the plan is the same by name, so the hook is of
// another version.
Error Checkpoints::of_another_hook(int bucket, std::size_t which, const at::Tensor& there,
                                   const at::Tensor& here) const {
  const auto shape = [](const at::Tensor& tensor) {
    return tensor.defined() ? fmt::format("{} of [{}]", c10::toString(tensor.scalar_type()),
                                          fmt::join(tensor.sizes(), ", "))
                            : std::string("missing");
  };
  return {Stage::run, "checkpoint.lacks", "resume",
          fmt::format("checkpoint {}: of what the reduction hook of bucket {} keeps, number {} is "
                      "{} there and {} here",
                      setup_.from->folder().string(), bucket, which, shape(there), shape(here)),
          "resume with the hook that wrote it, in the version that its plugin had; or name another "
          "hook in the plan, not by a function: then what it keeps begins anew"};
}

void Checkpoints::load_hooks(RankRun& executor) const {
  if (!same_mix()) return;
  for (std::size_t b = 0; b < executor.program().buckets.size(); ++b) {
    BucketReduction* hook = executor.hook_of(static_cast<int>(b));
    if (hook == nullptr) continue;
    const std::vector<at::Tensor> state = hook->state();
    for (std::size_t s = 0; s < state.size(); ++s) {
      const at::Tensor kept =
          setup_.from->read_own(executor.rank(), hook_tensor(static_cast<int>(b), s));
      if (!kept.defined() || kept.sizes() != state[s].sizes() ||
          kept.scalar_type() != state[s].scalar_type())
        throw of_another_hook(static_cast<int>(b), s, kept, state[s]);
      state[s].copy_(kept);
    }
    const at::Tensor more =
        setup_.from->read_own(executor.rank(), hook_tensor(static_cast<int>(b), state.size()));
    if (more.defined()) throw of_another_hook(static_cast<int>(b), state.size(), more, {});
  }
}

void Checkpoints::note(const PastStep& step) {
  past_.push_back(step);
}

void Checkpoints::note(const PastEvaluation& evaluation) {
  past_evaluations_.push_back(evaluation);
}

bool Checkpoints::due(const StepEnd& end) const {
  const std::int64_t every = setup_.every;
  return setup_.writes && (end.last || (every > 0 && (end.step + 1) % every == 0));
}

void Checkpoints::step(RankRun& executor, StepEnd& end) {
  const bool first = executor.rank() == 0;
  if (first && end.report != nullptr) {
    const StepReport& report = *end.report;
    note(PastStep{report.seconds, report.loss, report.grad_norm, report.lr, report.loss_scale,
                  report.update_left_out, report.labels > 0});
    if (end.held_out) note(PastEvaluation{end.step, end.held_out->loss, end.held_out->seconds});
  }
  if (!due(end)) return;
  end.apart = true;
  if (first && before_) before_();
  const std::int64_t done = end.step + 1;
  const StepOutcome& outcome = end.outcome;
  const bool explained = outcome.update_left_out && !outcome.not_finite;
  if (!std::isfinite(outcome.loss) || (!explained && !std::isfinite(outcome.grad_norm))) {
    if (!first) return;
    CheckpointReport report;
    report.news.step = done;
    report.news.failed = fmt::format("the {} of its last step is not finite",
                                     std::isfinite(outcome.loss) ? "gradient norm" : "loss");
    const std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    return;
  }
  const at::NoGradGuard no_grad;
  const double began = seconds_now();
  Rank& rank = rank_of(executor);
  writer_->wait_for_room(done);
  std::vector<StoredPiece> pieces = copies(executor, rank);
  std::optional<CheckpointIndex> about;
  if (first) {
    about = facts(executor, done);
    for (StoredPiece& piece : history()) pieces.push_back(std::move(piece));
    const std::lock_guard lock(mutex_);
    waited_[done] = seconds_now() - began;
  }
  writer_->hand_over(done, executor.rank(), std::move(pieces), std::move(about));
}

// Copies what the rank writes into memory that no ledger counts, since it belongs to the process
// and not to a step.
std::vector<StoredPiece> Checkpoints::copies(RankRun& executor, Rank& rank) const {
  executor.await_updates();  // collective: also on ranks that write nothing
  std::vector<std::pair<StoredPiece, at::Tensor>> from;  // each piece, and the tensor to copy
  for (const KeptSlice& kept : rank.kept) {
    if (!kept.writes) continue;
    from.emplace_back(StoredPiece{kept.tensor, {}, kept.shape, kept.slice},
                      executor.kept(kept.slot).narrow(0, kept.first, kept.slice.count));
  }
  for (std::size_t b = 0; b < executor.program().buckets.size(); ++b) {
    BucketReduction* hook = executor.hook_of(static_cast<int>(b));
    if (hook == nullptr) continue;
    const std::vector<at::Tensor> state = hook->state();
    for (std::size_t s = 0; s < state.size(); ++s)
      from.emplace_back(own_piece(hook_tensor(static_cast<int>(b), s), {}), state[s]);
  }
  std::int64_t bytes = 0;
  const auto padded = [](const at::Tensor& tensor) {
    return (static_cast<std::int64_t>(tensor.nbytes()) + alignment - 1) / alignment * alignment;
  };
  for (const auto& [piece, tensor] : from) bytes += padded(tensor);
  if (static_cast<std::int64_t>(rank.buffer.size()) < bytes)
    rank.buffer.resize(static_cast<std::size_t>(bytes));
  std::vector<StoredPiece> pieces;
  std::int64_t at = 0;
  for (auto& [piece, tensor] : from) {
    piece.data = at::from_blob(rank.buffer.data() + at, tensor.sizes(),
                               at::TensorOptions().dtype(tensor.scalar_type()));
    piece.data.copy_(tensor);
    at += padded(tensor);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<StoredPiece> Checkpoints::history() const {
  std::vector<StoredPiece> pieces;
  // Not allocated by ATen, as a ledger would miss that the writer's thread frees it.
  const auto table = [&](const char* name, std::size_t rows, std::int64_t columns) {
    const auto size = rows * static_cast<std::size_t>(columns);
    const std::shared_ptr<double[]> values =
        std::make_shared<double[]>(std::max<std::size_t>(size, 1));
    pieces.push_back(
        own_piece(name, at::from_blob(
                            values.get(), {static_cast<std::int64_t>(rows), columns},
                            [values](void*) {}, at::TensorOptions().dtype(at::kDouble))));
    return values.get();
  };
  double* to = table("history/steps", past_.size(), past_columns);
  for (const PastStep& step : past_) {
    for (const double value : {step.seconds, step.loss, step.grad_norm, step.lr, step.loss_scale,
                               !step.has_labels ? 2.0
                               : step.left_out  ? 1.0
                                                : 0.0})
      *to++ = value;
  }
  if (past_evaluations_.empty()) return pieces;
  to = table("history/held_out", past_evaluations_.size(), evaluation_columns);
  for (const PastEvaluation& evaluation : past_evaluations_) {
    for (const double value :
         {static_cast<double>(evaluation.step), evaluation.loss, evaluation.seconds})
      *to++ = value;
  }
  return pieces;
}

void Checkpoints::read_history() {
  const auto rows = [&](const char* name, std::int64_t columns) {
    at::Tensor data = setup_.from->read_own(0, name);
    if (!data.defined()) data = at::empty({0, columns}, at::kDouble);
    if (data.dim() == 2 && data.size(1) == columns && data.scalar_type() == at::kDouble)
      return data;
    throw Error(Stage::run, "checkpoint.lacks", "resume",
                fmt::format("checkpoint {}: {} is no table of {} numbers a row",
                            setup_.from->folder().string(), name, columns),
                "was it written by another version?");
  };
  const at::Tensor steps = rows("history/steps", past_columns);
  if (steps.size(0) != setup_.from->index().step)
    throw Error(
        Stage::run, "checkpoint.lacks", "resume",
        fmt::format("checkpoint {}: it has the losses of {} of its {} steps",
                    setup_.from->folder().string(), steps.size(0), setup_.from->index().step),
        "was it written by another version?");
  for (std::int64_t r = 0; r < steps.size(0); ++r) {
    const double* v = steps[r].const_data_ptr<double>();
    past_.push_back({v[0], v[1], v[2], v[3], v[4], v[5] != 0, v[5] != 2});
  }
  const at::Tensor held_out = rows("history/held_out", evaluation_columns);
  for (std::int64_t r = 0; r < held_out.size(0); ++r) {
    const double* v = held_out[r].const_data_ptr<double>();
    past_evaluations_.push_back({static_cast<std::int64_t>(v[0]), v[1], v[2]});
  }
}

Json chosen_of(const Plan& plan) {
  Json chosen = Json::object();
  const Json said = plan.description();
  for (const char* key : {"layers", "recompute"}) {
    const bool open = key == std::string("layers") || plan.request.recompute.fit > 0;
    if (open && said.contains(key)) chosen[key] = said[key];
  }
  return chosen;
}

CheckpointIndex Checkpoints::facts(RankRun& executor, std::int64_t step) const {
  CheckpointIndex index;
  index.step = step;
  index.sample = run_.first_sample(step - 1) + run_.plan_at(step - 1).request.batch;
  index.tokens = index.sample * run_.plan_at(step - 1).request.sequence;
  index.created = now_text();
  index.version = MESHWRIGHT_VERSION;
  index.name = setup_.name;
  index.hash = setup_.hash;
  index.started_by = setup_.started_by;
  index.mix = run_.plan->mix();
  index.ranks = run_.plan->ranks();
  index.chosen = chosen_of(*run_.plan);
  index.settings = setup_.settings;
  index.scaled = executor.scaler().active();
  index.loss_scaler = executor.scaler().state();
  return index;
}

void Checkpoints::complete() {
  if (writer_) writer_->finish();
}

void Checkpoints::break_off() {
  if (writer_) writer_->stop();
}

std::vector<CheckpointReport> Checkpoints::reports() {
  const std::lock_guard lock(mutex_);
  std::vector<CheckpointReport> all = std::exchange(reports_, {});
  if (!writer_) return all;
  for (CheckpointNews& news : writer_->news()) {
    const auto waited = waited_.find(news.step);
    all.push_back({std::move(news), waited == waited_.end() ? 0 : waited->second});
    if (waited != waited_.end()) waited_.erase(waited);
  }
  return all;
}

std::int64_t Checkpoints::bytes_of(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const Program& program : plan.programs) {
    for (const Bucket& bucket : program.buckets) {
      if (!bucket.stages.empty() && bucket.stages.front() != program.stage) continue;
      const FlatSlots& flat = bucket.flat;
      std::int64_t element = mw::bytes_of(program.slots[flat.updated()].dtype);
      for (const int state : flat.states) element += mw::bytes_of(program.slots[state].dtype);
      const std::int64_t replicas = bucket.fragment < 0 ? 1 : program.replicas();
      element *= replicas;
      for (const auto& [state, slot] : states_of_outer_steps(program, bucket))
        element += mw::bytes_of(program.slots[slot].dtype);
      for (const int p : bucket.parameters) {
        std::int64_t elements = 1;
        for (const Dim dim : program.graph->value(program.parameters[p].value).dims)
          elements *= program.graph->size(dim);
        bytes += elements * element;
        for (std::size_t k = 0; k < flat.of_matrix.size(); ++k) {
          const MatrixSizes one = program.matrices(program.parameters[p], program.first());
          bytes += replicas * elements / (one.rows * one.columns) *
                   bucket.rule->of_matrix[k].elements(one.rows, one.columns) *
                   mw::bytes_of(program.slots[flat.of_matrix[k]].dtype);
        }
      }
    }
  }
  return bytes;
}

}  // namespace mw
