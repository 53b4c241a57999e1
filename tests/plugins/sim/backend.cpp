// Tells PyTorch of the simulated accelerator: its devices, streams, events, generators and memory.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>

#include <chrono>

#include "clocks.h"

namespace mw::sim {
namespace {

struct EventState {
  Clock clock;
  std::uint32_t stream = 0;
  std::chrono::steady_clock::time_point at;
};

int index_or_current(c10::Device d) {
  return d.has_index() ? d.index() : current_device();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device old = getDevice();
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return device(current_device()); }
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(d.type() == device_type && index_or_current(d) < devices, "sim: no device ", d);
    set_current_device(index_or_current(d));
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    set_current_device(index_or_current(d));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }

  c10::Stream getStream(c10::Device d) const override {
    return stream_at(current_stream_of(index_or_current(d)));
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return stream_at(static_cast<std::uint32_t>(index_or_current(d)));
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    State& s = state();
    const auto at = static_cast<std::size_t>(index_or_current(d));
    const std::lock_guard lock(s.mutex);
    TORCH_CHECK(s.streams.size() < s.streams.capacity(), "sim: too many streams");
    s.streams.push_back({static_cast<int>(at), ++s.last_stream[at]});
    s.clocks.emplace_back();
    return stream_at(static_cast<std::uint32_t>(s.streams.size() - 1));
  }
  // CUDA hands out 32 streams in turn; here each is new, so that none is ordered by chance.
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override {
    return getNewStream(d, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const std::uint32_t old = current_stream_of(stream.device_index());
    set_current_stream_of(stream.device_index(), index_of(stream));
    return stream_at(old);
  }
  // Asking is no wait: what the host has not waited for is not over yet.
  bool queryStream(const c10::Stream& stream) const override {
    const std::lock_guard lock(state().mutex);
    return holds(host_clock(), state().clocks[index_of(stream)]);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    host_sync(index_of(stream), "Stream::synchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    std::unique_lock lock(state().mutex);
    const auto streams = static_cast<std::uint32_t>(state().streams.size());
    lock.unlock();
    for (std::uint32_t i = 0; i < streams; ++i)
      if (state().streams[i].device == d) host_sync(i, "synchronizeDevice");
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex d,
              const c10::EventFlag) const override {
    TORCH_CHECK(d < 0 || d == stream.device_index(), "sim: an event of device ", d, " recorded on ",
                stream);
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (*event == nullptr) *event = new EventState;
    const std::uint32_t i = index_of(stream);
    join(s.clocks[i], host_clock());
    *static_cast<EventState*>(*event) = {s.clocks[i], i, std::chrono::steady_clock::now()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    ++s.counts[static_cast<std::size_t>(stream.device_index())].waits;
    join(s.clocks[index_of(stream)], static_cast<EventState*>(event)->clock);
    look_for_missing(index_of(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || holds(host_clock(), static_cast<EventState*>(event)->clock);
  }
  void synchronizeEvent(void* event) const override { wait(event, "Event::synchronize"); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  double elapsedTime(void* a, void* b, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(static_cast<EventState*>(b)->at -
                                                     static_cast<EventState*>(a)->at)
        .count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    use_on(data, stream);
  }

 private:
  static void wait(void* event, const char* op) {
    const auto* known = static_cast<EventState*>(event);
    if (known != nullptr) host_sync(known->clock, known->stream, op);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return devices; }
  void setCurrentDevice(c10::DeviceIndex d) const override { set_current_device(d); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    const int old = current_device();
    set_current_device(d);
    return static_cast<c10::DeviceIndex>(old);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override {
    return exchangeDevice(d);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex d) const override {
    return state().generators[static_cast<std::size_t>(d < 0 ? current_device() : d)];
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const Block* block = find_block(data);
    TORCH_CHECK(block != nullptr && block->device >= 0, "sim: ", data,
                " is no memory of a device, or was freed");
    return device(block->device);
  }
  bool isPinnedPtr(const void* data) const override {
    const Block* block = find_block(data);
    return block != nullptr && block->device < 0;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
};

}  // namespace

bool leave_out(c10::Stream stream, const c10::Event& event) {
  const auto* known = static_cast<EventState*>(event.eventId());
  if (known == nullptr) return false;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Clock now = s.clocks[index_of(stream)];
  join(now, host_clock());
  if (holds(now, known->clock)) return false;
  s.missing = Missing{index_of(stream), known->clock};
  return true;
}

bool made_up_for() {
  const std::lock_guard lock(state().mutex);
  return state().missing && state().missing->made_up_for;
}

at::Device device(int index) {
  return {device_type, static_cast<c10::DeviceIndex>(index)};
}

void install() {
  State& s = state();
  if (s.installed) return;
  s.base = static_cast<char*>(mmap(nullptr, static_cast<std::size_t>(devices) * span, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  TORCH_CHECK(s.base != MAP_FAILED, "sim: no addresses for ", devices, " devices");
  s.streams.reserve(1 << 16);
  for (int d = 0; d < devices; ++d) {
    s.streams.push_back({d, 0});
    s.clocks.emplace_back();
    s.next.push_back(reinterpret_cast<std::uintptr_t>(s.base) +
                     static_cast<std::uintptr_t>(d) * span);
    s.generators.push_back(at::detail::createCPUGenerator(c10::default_rng_seed_val));
  }
  s.counts.resize(static_cast<std::size_t>(devices));
  s.last_stream.resize(static_cast<std::size_t>(devices));
  s.installed = true;
  static const c10::impl::DeviceGuardImplRegistrar guard(device_type, new Guard);
  c10::register_privateuse1_backend("sim");
  c10::SetAllocator(device_type, device_allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  register_kernels();
}

}  // namespace mw::sim
