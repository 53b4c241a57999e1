// Compares, while a run goes on, the bits of what ranks should hold alike and looks for numbers
// that are not finite.
#include "check/run_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "check/not_finite.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"

namespace mw {
namespace {

constexpr std::int64_t summed_at_a_time = 1 << 16;
constexpr const char* infinite_hint =
    "a lower learning rate, clip, or a look at the data; what came before was finite";

// Odd numbers without a pattern.
at::Tensor weights_on(at::Device device) {
  static const at::Tensor weights = [] {
    at::Tensor list = at::empty({summed_at_a_time}, at::kLong);
    auto* element = list.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < summed_at_a_time; ++i) {
      const auto place = static_cast<std::uint64_t>(i) + 1;
      element[i] = static_cast<std::int64_t>(finalise64(place * 0x9e3779b97f4a7c15u) | 1);
    }
    return list;
  }();
  return weights.to(device);
}

at::ScalarType integer_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 8:
      return at::kLong;
    case 4:
      return at::kInt;
    case 2:
      return at::kShort;
    default:
      return at::kChar;
  }
}

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += seconds_now() - began_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const double began_ = seconds_now();
  const HostWait waits_{"check = true"};
};

}  // namespace

std::int64_t sum_of_bits(const at::Tensor& tensor) {
  const at::Tensor bits = tensor.contiguous().view(-1).view(integer_of(tensor));
  const at::Tensor weights = weights_on(tensor.device());
  std::uint64_t sum = 0x2545f4914f6cdd1dull + static_cast<std::uint64_t>(bits.numel());
  for (std::int64_t at = 0; at < bits.numel(); at += summed_at_a_time) {
    const std::int64_t count = std::min(summed_at_a_time, bits.numel() - at);
    const auto part =
        bits.narrow(0, at, count)
            .to(at::kLong)
            .mul(weights.narrow(0, 0, count))  // not in place: of int64 it is the tensor itself
            .sum()
            .item<std::int64_t>();
    sum = (sum ^ static_cast<std::uint64_t>(part)) * 0x9e3779b97f4a7c15ull;
  }
  return static_cast<std::int64_t>(sum >> 1);
}

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
  const bool rows = program.graph->sparse.has(lies.dims);  // as many as there are
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
    if (!stage && lies.layout[a].is_replicate() && program.mesh.atoms()[a].ways > 1)
      set.atoms.push_back(static_cast<int>(a));
  }
  if (set.atoms.empty()) return;
  ++report_.replicas;
  seen_[set].push_back({what, sum_of_bits(tensor), microbatch});
}

// A step whose gradients overflow is left out where the loss is scaled:
// what was seen counts if it is not.
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

// All ranks of a set have seen the same list.
void Check::compare() {
  Ledger::Pause pause(executor_->ledger());
  static const std::string label = "replicas";
  for (auto& [set, list] : seen_) {
    if (list.empty()) continue;
    Communicator& ranks = executor_->group(set);
    const auto count = static_cast<std::int64_t>(list.size());
    at::Tensor sums = at::empty({2, count}, at::kLong);
    for (std::int64_t k = 0; k < count; ++k) {
      sums[0][k] = list[k].bits;
      sums[1][k] = -list[k].bits;
    }
    const at::Tensor own = sums[0].clone();
    sums = sums.to(executor_->device());
    ranks.all_reduce(sums, Reduction::max, {"check", &label}).wait();
    const at::Tensor differ = sums[0].add(sums[1]).ne(0).cpu();
    if (differ.any().item<bool>()) {
      const auto first = differ.nonzero()[0].item<std::int64_t>();
      const at::Tensor mine = own[first].clone().view({1}).to(executor_->device());
      const at::Tensor all = at::empty({ranks.ways()}, mine.options());
      ranks.all_gather(all, mine, {"check", &label}).wait();
      std::vector<int> others;  // whose bits are not those of the first
      const at::Tensor bits = all.cpu();
      for (int r = 0; r < ranks.ways(); ++r) {
        if (!bits[r].equal(bits[0])) others.push_back(ranks.group()[r]);
      }
      throw Error(
          Stage::run, "check.replicas", "",
          fmt::format(
              "check: {} is called Replicate over {}, and its bits on rank{} {} are not "
              "those on rank {} (step {}{})",
              list[first].what, executor_->program().name_of(set), others.size() == 1 ? "" : "s",
              fmt::join(others, ", "), ranks.group()[0], step_,
              list[first].microbatch < 0 ? ""
                                         : fmt::format(", microbatch {}", list[first].microbatch)),
          "a reduction or a gather before it is missing, doubled or stale; mw.verify names the op "
          "that parts first");
    }
    list.clear();
  }
}

void Check::gradients(RankRun& executor) {
  const Stopwatch watch(report_.seconds);
  Ledger::Pause pause(executor.ledger());
  const Program& program = executor.program();
  if (executor.update_left_out()) return;  // what is in the gradients says nothing
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
    if (value.counts) continue;
    bool& known = used_[value.name];
    known = known || used[static_cast<std::int64_t>(k)].item<std::int64_t>() > 0;
  }
}

void Check::ended() {
  const Stopwatch watch(report_.seconds);
  compare_kept();
  compare();
  ++report_.steps;
}

// Parameters and optimizer state, on the ranks that keep the same part.
void Check::compare_kept() {
  Ledger::Pause pause(executor_->ledger());
  const Program& program = executor_->program();
  for (const Bucket& bucket : program.buckets) {
    const auto among = [](const std::vector<int>& atoms, int a) {
      return std::find(atoms.begin(), atoms.end(), a) != atoms.end();
    };
    const auto set_of = [&](bool parts) {
      RankSet set;
      for (int a = 0; a < static_cast<int>(program.mesh.atoms().size()); ++a) {
        const bool other = a == program.stage_atom ? bucket.stages.empty()
                                                   : among(bucket.parameter_atoms, a) ||
                                                         (parts && among(bucket.shard_atoms, a));
        if (!other && program.mesh.atoms()[a].ways > 1) set.atoms.push_back(a);
      }
      if (!bucket.stages.empty()) set.stages = bucket.stages;
      return set;
    };
    const auto add = [&](const std::string& what, const at::Tensor& tensor, bool parts) {
      if (!tensor.defined()) return;
      ++report_.tensors;
      look_for_infinities(what, false, fmt::format("after step {}", step_), tensor);
      const RankSet set = set_of(parts);
      if (set.atoms.empty() || (set.atoms.size() == 1 && set.stages.size() == 1)) return;
      ++report_.replicas;
      seen_[set].push_back({what, sum_of_bits(tensor)});
    };
    const std::string of = " of " + bucket.name;
    const at::Tensor& whole = executor_->kept(bucket.flat.parameters);
    add("the parameters" + of, whole.defined() ? whole : executor_->kept(bucket.flat.stored),
        !whole.defined());
    if (bucket.flat.master >= 0) add("the masters" + of, executor_->kept(bucket.flat.master), true);
    for (std::size_t k = 0; k < bucket.flat.states.size(); ++k)
      add(fmt::format("state {} of the optimizer{}", k, of), executor_->kept(bucket.flat.states[k]),
          true);
  }
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
  rank.watch(nullptr);
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
