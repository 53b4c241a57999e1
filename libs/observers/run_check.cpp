// Compares, while a run goes on, the bits of tensors that ranks must hold alike, and looks for
// numbers that are not finite.
#include "observers/run_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "meshwright/engine/host.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"
#include "observers/not_finite.h"

namespace mw {
namespace {

constexpr const char* infinite_hint =
    "a lower learning rate, clip, or a look at the data; what came before was finite";

class Stopwatch : public CheckStopwatch {
 public:
  using CheckStopwatch::CheckStopwatch;

 private:
  const HostWait waits_{"watched tensors"};
};

}  // namespace

void Check::begin(RankRun& executor, std::int64_t step) {
  executor_ = &executor;
  step_ = step;
  overflowed_.clear();
}

void Check::computed(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) {
  look(words_of_computed(i), i.piece != Piece::forward, slot, microbatch, tensor);
}

void Check::moved(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) {
  look(words_of_moved(i), i.phase != std::string_view("forward"), slot, microbatch, tensor);
}

void Check::look(const std::string& what, bool backward, int slot, int microbatch,
                 const at::Tensor& tensor) {
  const Stopwatch watch(report_.seconds);
  Ledger::Pause pause(executor_->ledger());
  const Program& program = executor_->program();
  const Slot& lies = program.slots[slot];
  ++report_.tensors;
  const std::string where = fmt::format("step {}, microbatch {}", step_, microbatch);
  const bool rows = program.graph->sparse.has(lies.dims);  // the number of rows depends on the data
  const std::vector<std::int64_t> shape =
      program.local_shape(lies, executor_->coordinates(), program.batch_of(microbatch));
  const at::ScalarType type = scalar_type(lies.dtype);
  if ((!rows && tensor.sizes() != shape) || tensor.scalar_type() != type) {
    throw Error(Stage::run, "check.placement", "",
                fmt::format("check: {} is {} [{}], its placement ({}) makes it {} [{}] ({})", what,
                            c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                            to_string(lies.layout, program.mesh), c10::toString(type),
                            fmt::join(shape, ", "), where),
                "a kernel or a rule of the plan is at fault");
  }
  look_for_infinities(what, backward, where, tensor);
  RankSet set;
  for (std::size_t a = 0; a < lies.layout.size(); ++a) {
    const bool stage = static_cast<int>(a) == program.stage_atom;
    if (!stage && !program.parts_replicas(static_cast<int>(a)) && lies.layout[a].is_replicate() &&
        program.mesh.atoms()[a].ways > 1)
      set.atoms.push_back(static_cast<int>(a));
  }
  if (set.atoms.empty()) return;
  ++report_.replicas;
  seen_[set].push_back({what, sum_of_bits(tensor), microbatch});
}

// With a loss scale, an infinite gradient is only noted: gradients() throws if the update is not
// left out.
void Check::look_for_infinities(const std::string& what, bool backward, const std::string& where,
                                const at::Tensor& tensor) {
  if (finite(tensor)) return;
  const bool nan = at::isnan(tensor).any().item<bool>();
  const std::string said = fmt::format("check: {} has {} ({})", what, nan ? "NaN" : "Inf", where);
  if (!backward || !overflows_)
    throw Error(Stage::run, "check.not-finite", "", said, infinite_hint);
  if (overflowed_.empty()) overflowed_ = said;
}

void Check::ran(int /*microbatch*/) {
  const Stopwatch watch(report_.seconds);
  compare();
}

// Compares what was seen since the last call. All ranks of a set have seen the same tensors.
void Check::compare() {
  Ledger::Pause pause(executor_->ledger());
  for (auto& [set, list] : seen_) {
    compare_bits(*executor_, set, list, step_);
    list.clear();
  }
}

void Check::gradients(RankRun& executor) {
  const Stopwatch watch(report_.seconds);
  Ledger::Pause pause(executor.ledger());
  const Program& program = executor.program();
  if (executor.update_left_out()) return;  // the step's gradients are not used
  if (!overflowed_.empty())
    throw Error(Stage::run, "check.not-finite", "", overflowed_, infinite_hint);
  const std::vector<int> all = program.graph->parameters();
  at::Tensor used = at::zeros({static_cast<std::int64_t>(all.size())}, at::kLong);
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const int value = program.parameters[p].value;
    const auto place = std::find(all.begin(), all.end(), value) - all.begin();
    const at::Tensor own = executor.own_gradient(static_cast<int>(p));
    look_for_infinities("the gradient of " + program.graph->value(value).name, false,
                        fmt::format("step {}", step_), own);
    if (own.numel() > 0 && own.ne(0).any().item<bool>()) used[place] = 1;
  }
  if (program.mesh.size() > 1) {
    static const std::string label = "parameters that have a gradient";
    used = used.to(executor.device());
    executor.group({world_atoms(program.mesh), {}})
        .all_reduce(used, Reduction::max, {"check", &label})
        .wait();
    used = used.cpu();
  }
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Value& value = program.graph->value(all[k]);
    if (value.counts || value.frozen) continue;
    bool& known = used_[value.name];
    known = known || used[static_cast<std::int64_t>(k)].item<std::int64_t>() > 0;
  }
}

void Check::ended() {
  const Stopwatch watch(report_.seconds);
  compare_kept();
  compare();
  ++report_.steps;
  ++report_.compared;
}

void Check::compare_kept() {
  Ledger::Pause pause(executor_->ledger());
  each_kept(*executor_, [&](const KeptTensor& kept) {
    const std::string what = fmt::format("{} of {}", kept.what, kept.bucket.name);
    ++report_.tensors;
    look_for_infinities(what, false, fmt::format("after step {}", step_), kept.tensor);
    if (kept.ranks.atoms.empty()) return;
    ++report_.replicas;
    seen_[kept.ranks].push_back({what, sum_of_bits(kept.tensor)});
  });
}

CheckReport Check::report() const {
  CheckReport report = report_;
  for (const auto& [name, used] : used_) {
    if (!used) report.unused.push_back(name);
  }
  return report;
}

void RunCheck::begin(RankRun& rank) {
  auto check = std::make_unique<Check>(overflows_);
  rank.watch(check.get());
  const std::lock_guard lock(mutex_);
  checks_[rank.rank()] = std::move(check);
}

void RunCheck::finish(RankRun& rank) {
  const std::lock_guard lock(mutex_);
  rank.unwatch(checks_.at(rank.rank()).get());
}

CheckReport RunCheck::report() const {
  CheckReport longest;
  for (const auto& [rank, check] : checks_) {
    const CheckReport report = check->report();
    if (longest.steps == 0 || report.seconds > longest.seconds) longest = report;
  }
  return longest;
}

}  // namespace mw
