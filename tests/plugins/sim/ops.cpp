// The simulated accelerator's ops: each runs the CPU's kernel on the bytes behind its device
// tensors. What it reads and writes comes from its schema, as ranges of bytes.
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/library.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "clocks.h"

namespace mw::sim {
namespace {

const c10::DispatchKeySet device_keys(c10::DispatchKey::PrivateUse1);

// While a CPU kernel runs for the device, its host memory is not the rank's.
struct Unheard final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};
struct Hide {
  Hide() {
    static const auto none = std::make_shared<Unheard>();
    if (c10::memoryProfilingEnabled()) guard.emplace(c10::DebugInfoKind::PROFILER_STATE, none);
  }
  std::optional<c10::DebugInfoGuard> guard;
};

// One run of an op: device tensors go in as CPU tensors on the same bytes, and come out again.
class Call {
 public:
  enum Mode { none, read, write };  // none: of a view's base

  at::Tensor in(const at::Tensor& t, Mode mode) {
    if (!t.defined()) return t;
    if (t.is_cpu()) {
      foreign = foreign || t.dim() > 0;
      parts_.push_back({t, t, nullptr, false});
      return t;
    }
    TORCH_CHECK(t.device().type() == device_type && (on < 0 || on == t.get_device()),
                "sim: expected all tensors on sim:", on, ", found one on ", t.device());
    on = t.get_device();
    if (auto use = use_of(t, mode == write); use && mode != none) uses.push_back(*use);
    c10::Storage& host = storages_[t.storage().unsafeGetStorageImpl()];
    if (!host) {
      const auto& data = t.storage().data_ptr();
      const Block* block = block_of(data);
      const auto at = reinterpret_cast<std::uintptr_t>(data.get());
      char* bytes = block != nullptr ? block->host + (at - block->first) : nullptr;
      host = c10::Storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                          c10::DataPtr(bytes, c10::kCPU), c10::GetCPUAllocator(), true);
    }
    auto cpu = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(host), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    cpu.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      cpu.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (t.is_conj()) cpu._set_conj(true);
    if (t.is_neg()) cpu._set_neg(true);
    parts_.push_back({t, cpu, host.data(), mode == write});
    return cpu;
  }

  // What the kernel returned: an argument, a view of one, or a tensor of its own.
  at::Tensor out(const at::Tensor& t, Stamp stamp, const std::string& op) {
    if (!t.defined()) return t;
    const at::Tensor* base = nullptr;
    for (const Part& part : parts_) {
      if (part.cpu.is_same(t)) return part.device;
      if (part.host != nullptr && part.cpu.is_alias_of(t)) base = &part.device;
    }
    at::Tensor result;
    if (base != nullptr) {
      result = at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(base->storage()), base->key_set(), t.dtype());
    } else {
      auto* host = t.storage().unsafeGetStorageImpl();
      c10::Storage& fresh = storages_[host];
      if (!fresh) {
        fresh = c10::Storage(c10::Storage::use_byte_size_t(), host->nbytes(),
                             take(*host, stamp, op), device_allocator(), true);
      }
      result =
          at::detail::make_tensor<c10::TensorImpl>(c10::Storage(fresh), device_keys, t.dtype());
    }
    result.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    return result;
  }

  // What the kernel resized.
  void write_back(Stamp stamp, const std::string& op) {
    for (auto& [to, cpu, host, written] : parts_) {
      if (!written) continue;
      auto* storage = cpu.storage().unsafeGetStorageImpl();
      if (storage->data() != host && to.storage().nbytes() < storage->nbytes()) {
        old_.push_back(to.storage().set_data_ptr(take(*storage, stamp, op)));
        to.storage().set_nbytes(storage->nbytes());
      }
      if (to.sizes() != cpu.sizes() || to.strides() != cpu.strides()) {
        to.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(),
                                                        cpu.storage_offset());
      }
    }
  }

  void tell_of_new() const {
    for (const Block* block : new_) tell_of(*block, static_cast<std::int64_t>(block->size));
  }

  int on = -1;
  bool foreign = false;  // a CPU tensor that is no scalar
  std::vector<Use> uses;

 private:
  struct Part {
    at::Tensor device, cpu;
    const void* host;
    bool written;
  };

  c10::DataPtr take(const c10::StorageImpl& from, Stamp stamp, const std::string& op) {
    if (from.nbytes() == 0) return owned(nullptr, on);
    Block* block = new_block(on, from.nbytes());
    std::memcpy(block->host, from.data(), from.nbytes());
    block->accesses.assign(1, {0, block->size, stamp.stream, stamp.time, op, true});
    new_.push_back(block);
    return owned(block, on);
  }

  std::vector<Part> parts_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;  // by the other's
  std::vector<const Block*> new_;
  std::vector<c10::DataPtr> old_;
};

bool is_generator(const c10::Argument& argument) {
  const auto* type = argument.type()->castRaw<c10::OptionalType>();
  return type != nullptr && type->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Ops that wait for the device, as the shape of what they return is in the data; that return a
  // number but look at no data; that take indices from the host.
  static const std::unordered_set<std::string> sized{
      "aten::nonzero",    "aten::masked_select",      "aten::_unique",          "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave"};
  static const std::unordered_set<std::string> shapes{"aten::_fused_sdp_choice", "aten::is_set_to"};
  static const std::unordered_set<std::string> indexed{"aten::index", "aten::index_put_",
                                                       "aten::_index_put_impl_"};
  const c10::OperatorName& name = op.operator_name();
  const std::string text = toString(name);
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  Call call;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    const auto* alias = arguments[i].alias_info();
    const auto mode = alias == nullptr ? Call::read : alias->isWrite() ? Call::write : Call::none;
    if (value.isTensor()) {
      value = call.in(value.toTensor(), mode);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(call.in(t, mode));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& t : value.toOptionalTensorVector())
        list.push_back(t ? std::optional(call.in(*t, mode)) : std::nullopt);
      value = list;
    } else if (value.isDevice()) {
      const c10::Device device = value.toDevice();
      if (call.on < 0) call.on = device.has_index() ? device.index() : current_device();
      value = c10::Device(c10::kCPU);
    }
  }
  TORCH_CHECK(call.on >= 0, "sim: ", text, " has no tensor on a device");
  TORCH_CHECK(!call.foreign || indexed.count(name.name) > 0, "sim: ", text,
              " was given a CPU tensor beside tensors on sim:", call.on);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if ((*stack)[first + i].isNone() && is_generator(arguments[i]))
      (*stack)[first + i] = state().generators[static_cast<std::size_t>(call.on)];
  }

  const std::uint32_t stream = current_stream_of(call.on);
  const Stamp stamp = enqueue(text, stream, call.uses);
  bool waits = sized.count(name.name) != 0;
  {
    const Hide hide;
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    call.write_back(stamp, text);
    const auto results = op.schema().returns().size();
    for (auto i = stack->size() - results; i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      if (value.isTensor()) {
        value = call.out(value.toTensor(), stamp, text);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : value.toTensorVector()) list.push_back(call.out(t, stamp, text));
        value = list;
      } else if (!value.isNone() && shapes.count(name.name) == 0) {
        waits = true;
      }
    }
  }
  call.tell_of_new();
  if (waits) host_sync(stream, text);
}

// As on CUDA: from pageable memory a small copy that need not block is staged at once; one to
// pageable memory always blocks.
constexpr std::size_t staged_bytes = 64 * 1024;

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  static const std::string name = "aten::_copy_from";
  const bool to_host = to.is_cpu(), from_host = from.is_cpu();
  Call source, target;
  const at::Tensor in = source.in(from, Call::read), out = target.in(to, Call::write);
  std::vector<Use> uses = source.uses;
  uses.insert(uses.end(), target.uses.begin(), target.uses.end());
  Block* pinned = nullptr;
  if (to_host || from_host) {
    if (auto use = use_of(to_host ? to : from, to_host)) {
      uses.push_back(*use);
      pinned = use->block;
    }
  }
  const std::uint32_t stream = current_stream_of(from_host ? target.on : source.on);
  const bool two = !to_host && !from_host && source.on != target.on;
  State& s = state();
  const auto meet = [&](std::uint32_t to_stream, std::uint32_t from_stream) {
    const std::lock_guard lock(s.mutex);
    join(s.clocks[to_stream], s.clocks[from_stream]);
  };
  if (two) meet(stream, current_stream_of(target.on));  // as between CUDA devices
  const Stamp stamp = enqueue(name, stream, uses);
  if (two) meet(current_stream_of(target.on), stream);
  const Hide hide;
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool later =
      non_blocking && pinned != nullptr && (to_host ? to : from).is_non_overlapping_and_dense();
  if (pinned != nullptr && from_host) {
    const std::lock_guard lock(s.mutex);
    settle(pinned);
  }
  if (!later) {
    out.copy_(in);
    const bool staged = non_blocking && from_host && pinned == nullptr && from.is_contiguous() &&
                        from.nbytes() <= staged_bytes;
    if ((to_host || from_host) && !staged) host_sync(stream, name);
    return to;
  }
  const at::Tensor& host = to_host ? to : from;
  const at::Tensor data = at::empty_like(host, host.options().pinned_memory(false)).copy_(in);
  const auto* bytes = static_cast<const char*>(data.const_data_ptr());
  Copying copy{stamp, pinned, host.data_ptr(), {bytes, bytes + data.nbytes()}, to_host};
  if (!to_host) out.copy_(in);
  const std::lock_guard lock(s.mutex);
  if (to_host) {
    settle_reads(pinned);
    std::memset(copy.host, 0xff, data.nbytes());  // until the host has waited for it
  }
  s.copying.push_back(std::move(copy));
  return to;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, device_allocator(), device_keys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), device_keys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  use_on(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("record_stream", record_stream);
}
// Else torch resolves a conjugate by a clone, that by copy_, and that by _copy_from, for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace

// A composite kernel goes before the fallback: what the CPU does in one kernel would be several ops
// here, with other rounding. So what has a kernel for the CPU gets it by name, unless autograd
// differentiates through the composite.
void register_kernels() {
  using c10::DispatchKey;
  auto& all = c10::Dispatcher::singleton();
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, 0);
  for (const c10::OperatorName& name : all.getRegistrationsForDispatchKey(DispatchKey::CPU)) {
    const auto op = all.findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0 ||
        op->hasKernelForDispatchKey(DispatchKey::PrivateUse1) ||
        (op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op->hasKernelForDispatchKey(DispatchKey::Autograd)))
      continue;
    library->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
  }
}

}  // namespace mw::sim
