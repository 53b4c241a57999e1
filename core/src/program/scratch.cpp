// Measures what an op's kernels allocate for themselves on this machine, by one trial; estimates
// larger kernels from smaller ones.
#include "meshwright/engine/scratch.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "meshwright/ledger.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

// The operations that a trial takes at most; each element moved counts as 16. Products of 2-byte
// numbers run at a hundredth of the speed of others where the CPU has no instructions for them.
double most_tried(at::ScalarType real) {
  return c10::elementSize(real) > 2 ? 1 << 26 : 1 << 23;
}

// The dtype of a saved tensor: fp32 for what must not be rounded to a half type.
at::ScalarType type_of(const SavedValue& saved, at::ScalarType real) {
  return saved.fp32_at_least && c10::elementSize(real) < 4 ? at::kFloat : real;
}

// The shape of an operand. That of a sparse one is its number of rows, and then its other dims.
std::vector<std::int64_t> shape_of(const KernelTrial& trial, const Dims& dims) {
  const Dims& sparse = trial.sparse.dims;
  if (!trial.sparse.has(dims)) return trial.dims.shape(dims);
  std::vector<std::int64_t> shape{trial.dims.count(sparse)};
  for (const Dim dim : dims)
    if (std::find(sparse.begin(), sparse.end(), dim) == sparse.end())
      shape.push_back(trial.dims.at(dim).size);
  return shape;
}

// The rows of each group of a sparse input: all have the same number, the first ones one more where
// it does not come out even.
std::vector<std::int64_t> rows_of(const KernelTrial& trial) {
  const auto& inputs = trial.op.inputs;
  const auto is_sparse = [&](const Use& use) { return trial.sparse.has(use.dims); };
  if (std::none_of(inputs.begin(), inputs.end(), is_sparse)) return {};
  const std::int64_t groups = trial.dims.at(trial.sparse.dims.front()).size,
                     rows = trial.dims.count(trial.sparse.dims);
  std::vector<std::int64_t> of_group;
  for (std::int64_t g = 0; g < groups; ++g)
    of_group.push_back(rows / groups + (g < rows % groups ? 1 : 0));
  return of_group;
}

OpCall call_of(const KernelTrial& trial) {
  const Op& op = trial.op;
  const LocalDims& dims = trial.dims;
  const OpTraits traits = op.type->traits(op);
  const bool forward = trial.piece == Piece::forward, goes_on = dims.ring_step() > 0;
  OpCall call{dims};
  call.real = trial.real;
  call.rows = rows_of(trial);
  call.ring_steps = dims.ring_step() + 1;
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const KernelTrial::Input& input = trial.inputs[k];
    const auto zeros = [&] { return at::zeros(shape_of(trial, op.inputs[k].dims), input.type); };
    const bool wanted =
        !forward && input.wanted &&
        (trial.piece == Piece::backward || (trial.piece == Piece::dgrad) == (k == 0));
    call.inputs.push_back(forward || traits.backward_reads_input[k] ? zeros() : at::Tensor());
    call.wants.push_back(wanted);
    call.accumulate.push_back(wanted && input.added);
    call.grad_inputs.push_back(wanted && input.added ? zeros() : at::Tensor());
  }
  for (std::size_t k = 0; k < op.output_dims.size(); ++k) {
    const auto zeros = [&] {
      return at::zeros(shape_of(trial, op.output_dims[k]), trial.outputs[k]);
    };
    const bool read = forward ? goes_on : traits.backward_reads_output[k];
    call.outputs.push_back(read ? zeros() : at::Tensor());
    const bool comes = !forward && trial.outputs[k] != at::kLong;
    call.grad_outputs.push_back(comes ? zeros() : at::Tensor());
  }
  for (const SavedValue& saved : traits.saved) {
    std::vector<std::int64_t> shape = dims.shape(saved.dims);
    if (saved.extra > 0) shape.push_back(saved.extra);
    const bool read = !forward || goes_on;
    call.saved.push_back(read ? at::zeros(shape, type_of(saved, trial.real)) : at::Tensor());
  }
  return call;
}

double elements_of(const KernelTrial& trial) {
  std::int64_t elements = 0;
  for (const Use& use : trial.op.inputs) elements += trial.dims.count(use.dims);
  for (const Dims& output : trial.op.output_dims) elements += trial.dims.count(output);
  for (const SavedValue& saved : trial.op.type->traits(trial.op).saved)
    elements += trial.dims.count(saved.dims);
  return static_cast<double>(elements);
}

bool too_large(const KernelTrial& trial) {
  const int element = static_cast<int>(c10::elementSize(trial.real));
  const Cost cost = trial.op.type->cost(trial.op, trial.piece, trial.dims, element);
  return cost.executed + 16 * elements_of(trial) > most_tried(trial.real);
}

// Halves the largest of the op's dims, and each dim that is as large over all ranks: a rank's own
// tokens keep their places among the keys. False if none can be halved.
bool halve(KernelTrial& trial) {
  LocalDim largest;
  for (const Dim dim : trial.op.space())
    if (const LocalDim& local = trial.dims.at(dim); local.size > largest.size) largest = local;
  if (largest.size < 2) return false;
  for (const Dim dim : trial.op.space()) {
    LocalDim local = trial.dims.at(dim);
    if (local.global != largest.global || local.size < 2) continue;
    local.global /= 2;
    local.offset /= 2;
    local.size /= 2;
    if (!local.runs.empty()) local.size = 0;
    for (Range& run : local.runs) {
      run = {run.offset / 2, std::max<std::int64_t>(run.size / 2, 1)};
      local.size += run.size;
    }
    trial.dims.set(local);
  }
  return true;
}

// A trial asks for cost() and traits() with dims that no plan has. What a plugin's op throws then
// fails no plan.
Scratch tried(const KernelTrial& trial) try {
  KernelTrial less = trial;
  bool whole = true;
  while (too_large(less)) {
    whole = false;
    if (!halve(less)) return {0, false};
  }
  const std::optional<std::int64_t> bytes = try_scratch(less);
  if (whole && bytes) return {*bytes};
  if (!bytes) return {0, false};
  KernelTrial least = less;
  const double elements = elements_of(less);
  double of_element = static_cast<double>(*bytes) / std::max(elements, 1.0);
  if (halve(least)) {
    const auto more = static_cast<double>(*bytes - try_scratch(least).value_or(0));
    of_element = std::max(more, 0.0) / std::max(elements - elements_of(least), 1.0);
  }
  const double all = static_cast<double>(*bytes) + of_element * (elements_of(trial) - elements);
  const auto estimate = static_cast<std::int64_t>(std::min(all, 9e18));
  return {estimate, false, estimate};
} catch (...) {
  return {0, false};
}

std::string name_of(const KernelTrial& trial) {
  std::string name =
      fmt::format("{} {} {} {} {}", fmt::ptr(trial.op.type.get()), mw::name_of(trial.piece),
                  at::toString(trial.real), trial.threads, trial.dims.ring_step());
  for (std::size_t k = 0; k < trial.op.inputs.size(); ++k) {
    const auto& [type, wanted, added] = trial.inputs[k];
    name += fmt::format(", {} {} {} {}", fmt::join(shape_of(trial, trial.op.inputs[k].dims), " "),
                        at::toString(type), wanted, added);
  }
  for (const Dim dim : trial.op.space()) {
    const LocalDim& local = trial.dims.at(dim);
    name += fmt::format(", {} {} {}", local.offset, local.size, local.global);
    for (const Range& run : local.runs) name += fmt::format(" {}+{}", run.offset, run.size);
  }
  return name;
}

}  // namespace

std::optional<std::int64_t> try_scratch(const KernelTrial& trial) {
  constexpr std::array kernels{&OpType::forward, &OpType::backward, &OpType::dgrad, &OpType::wgrad};
  std::optional<std::int64_t> bytes;
  const int threads_before = at::get_num_threads();
  in_own_thread([&] {
    try {
      // Set up as a rank's thread is (comm/rendezvous.cpp, run/executor.cpp).
      at::get_num_threads();
      at::set_num_threads(trial.threads);
      const at::NoGradGuard no_grad;
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      OpCall call = call_of(trial);
      Ledger ledger;
      const MemoryWatch watch(ledger);
      {
        const Ledger::Kernel kernel(ledger);
        (trial.op.type.get()->*kernels.at(static_cast<std::size_t>(trial.piece)))(trial.op, call);
      }
      bytes = ledger.memory(Category::scratch).peak;
    } catch (...) {  // the op throws again where it really runs
    }
  });
  at::set_num_threads(threads_before);
  return bytes;
}

Scratch scratch_of(const KernelTrial& trial) {
  struct Known {
    Scratch scratch;
    std::shared_ptr<const OpType> type;  // kept, so that no other type gets its address
  };
  constexpr std::size_t most_known = 4096;
  static std::mutex mutex;
  // never destroyed: it may be asked for at the program's end
  static auto& known = *new std::map<std::string, Known>;
  const std::lock_guard guard(mutex);
  const std::string name = name_of(trial);
  if (const auto found = known.find(name); found != known.end()) return found->second.scratch;
  if (known.size() >= most_known) known.clear();
  return known.emplace(name, Known{tried(trial), trial.op.type}).first->second.scratch;
}

}  // namespace mw
