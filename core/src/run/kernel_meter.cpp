// Counts ops of libtorch by its own hook for profilers.
#include "run/kernel_meter.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace mw {
namespace {

thread_local std::int64_t kernels = 0;

// A call of an op, while it runs. The innermost one of the thread is known, so that a call that
// only calls kernels is told from a kernel.
struct Call final : at::ObserverContext {
  explicit Call(bool is_kernel) : kernel(is_kernel), outer(innermost) { innermost = this; }
  ~Call() override {
    if (!has_kernels && kernel) ++kernels;
    if (outer != nullptr) outer->has_kernels = outer->has_kernels || has_kernels || kernel;
    innermost = outer;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const bool kernel;
  bool has_kernels = false;  // a call inside of this one was a kernel
  Call* outer;
  static thread_local Call* innermost;
};
thread_local Call* Call::innermost = nullptr;

// Whether an op computes something itself, if it calls no other op that does.
bool computes(std::string_view name, const c10::FunctionSchema& schema) {
  constexpr std::array others{"aten::resize_",   "aten::set_", "aten::record_stream",
                              "aten::detach_",   "aten::item", "aten::_local_scalar_dense",
                              "aten::is_nonzero"};
  if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty") ||
      std::find(others.begin(), others.end(), name) != others.end())
    return false;
  for (const c10::Argument& made : schema.returns()) {
    const c10::AliasInfo* const alias = made.alias_info();
    if (alias != nullptr && !alias->isWrite()) return false;  // a view
  }
  return true;
}

std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
  // By name, as a scope's name has no lasting address. A schema takes long to copy.
  thread_local std::unordered_map<std::string, bool> known;
  const auto [found, fresh] = known.try_emplace(function.name());
  if (fresh) {
    const auto schema = function.operator_schema();
    found->second = schema ? computes(found->first, *schema)
                           : std::string_view(found->first).starts_with("meshwright::");
  }
  return std::make_unique<Call>(found->second);
}

// The end of a call destroys its Call, which counts it.
void ended(const at::RecordFunction&, at::ObserverContext*) {}

}  // namespace

void KernelMeter::begin() {
  end();
  kernels = 0;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(began, ended).scopes({at::RecordScope::FUNCTION}));
  runs_ = true;
}

void KernelMeter::end() {
  if (runs_) at::removeCallback(handle_);
  runs_ = false;
}

std::int64_t KernelMeter::counted() {
  return kernels;
}

void KernelMeter::set_counted(std::int64_t number) {
  kernels = number;
}

std::int64_t KernelMeter::taken() {
  const std::int64_t taken = kernels;
  kernels = 0;
  return taken;
}

}  // namespace mw
