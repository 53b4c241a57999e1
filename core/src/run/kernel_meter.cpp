// Counts ops of libtorch by its own hook for profilers.
#include "run/kernel_meter.h"

#include <ATen/core/function_schema.h>

#include <memory>
#include <string_view>
#include <unordered_map>

namespace mw {
namespace {

thread_local std::int64_t kernels = 0;

// A call of an op, while it runs. The innermost one of the thread is known, so that a call that
// calls others is told from a kernel.
struct Call final : at::ObserverContext {
  explicit Call(bool is_kernel) : counts(is_kernel), outer(innermost) {
    if (outer != nullptr) outer->counts = false;
    innermost = this;
  }
  ~Call() override {
    if (counts) ++kernels;
    innermost = outer;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool counts;
  Call* outer;
  static thread_local Call* innermost;
};
thread_local Call* Call::innermost = nullptr;

// Whether an op computes something itself, if it calls no other op.
bool computes(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto schema = function.operator_schema();
  if (!schema) return name.starts_with("meshwright::");
  if (name.starts_with("aten::empty") || name == "aten::resize_" || name == "aten::set_" ||
      name == "aten::record_stream" || name == "aten::_local_scalar_dense")
    return false;
  for (const c10::Argument& made : schema->returns()) {
    const c10::AliasInfo* const alias = made.alias_info();
    if (alias != nullptr && !alias->isWrite()) return false;  // a view
  }
  return true;
}

std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
  // An op's name lasts as long as the program; a schema takes long to copy.
  thread_local std::unordered_map<const void*, bool> known;
  const auto [found, fresh] = known.try_emplace(function.name());
  if (fresh) found->second = computes(function);
  return std::make_unique<Call>(found->second);
}

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

std::int64_t KernelMeter::taken() {
  const std::int64_t taken = kernels;
  kernels = 0;
  return taken;
}

}  // namespace mw
