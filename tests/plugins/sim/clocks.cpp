// Orders the simulated accelerator's ops by vector clocks and reports what is not in order.
#include "clocks.h"

#include <algorithm>
#include <cstring>

#include "meshwright/engine/host.h"

namespace mw::sim {
namespace {

thread_local int device_now = 0;
thread_local std::vector<std::uint32_t> streams_now;  // by device
thread_local Clock clock_of_host;
thread_local int no_host_waits = 0;

bool after(const Clock& clock, std::uint32_t stream, std::uint64_t time) {
  return stream < clock.size() && clock[stream] >= time;
}

std::string name_of(std::uint32_t stream) {
  const StreamInfo& info = state().streams[stream];
  return c10::str("sim:", info.device, " stream ", info.number);
}

}  // namespace

State& state() {
  static auto* all = new State;
  return *all;
}

int current_device() {
  return device_now;
}
void set_current_device(int device) {
  device_now = device;
}
std::uint32_t current_stream_of(int device) {
  for (int d = static_cast<int>(streams_now.size()); d < devices; ++d)
    streams_now.push_back(static_cast<std::uint32_t>(d));
  return streams_now.at(static_cast<std::size_t>(device));
}
void set_current_stream_of(int device, std::uint32_t stream) {
  current_stream_of(device);
  streams_now[static_cast<std::size_t>(device)] = stream;
}

// The default stream's id is 0, as everywhere; others carry their index.
std::uint32_t index_of(c10::Stream stream) {
  return static_cast<std::uint32_t>(stream.id() == 0 ? stream.device_index() : stream.id());
}
c10::Stream stream_at(std::uint32_t index) {
  const StreamInfo& info = state().streams[index];
  return c10::Stream(c10::Stream::UNSAFE, device(info.device),
                     info.number == 0 ? 0 : std::int64_t{index});
}

void join(Clock& to, const Clock& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}
bool holds(const Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < other.size(); ++i)
    if (other[i] > (i < clock.size() ? clock[i] : 0)) return false;
  return true;
}
void look_for_missing(std::uint32_t stream) {
  State& s = state();
  if (s.missing && s.missing->stream == stream && holds(s.clocks[stream], s.missing->clock))
    s.missing->made_up_for = true;
}
Clock& host_clock() {
  return clock_of_host;
}

Stamp enqueue(const std::string& op, std::uint32_t stream, const std::vector<Use>& uses) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Clock& clock = s.clocks[stream];
  join(clock, clock_of_host);
  look_for_missing(stream);
  if (clock.size() <= stream) clock.resize(stream + 1);
  const Stamp stamp{stream, ++clock[stream]};
  ++s.counts[s.streams[stream].device].ops;
  for (const Use& use : uses) {
    auto& past = use.block->accesses;
    for (const Access& a : past) {
      if (a.end <= use.begin || use.end <= a.begin || !(a.write || use.write)) continue;
      if (after(clock, a.stream, a.time)) continue;
      s.reports.push_back(c10::str("race: ", op, " on ", name_of(stream), " ",
                                   use.write ? "writes" : "reads", " bytes ", use.begin, "..",
                                   use.end, " of a block that ", a.op, " on ", name_of(a.stream),
                                   " ", a.write ? "writes" : "reads", ", with no wait between"));
    }
    // An access that this one covers and follows can be forgotten: who comes after this one comes
    // after it.
    std::erase_if(past, [&](const Access& a) {
      return use.begin <= a.begin && a.end <= use.end && (use.write || !a.write) &&
             after(clock, a.stream, a.time);
    });
    past.push_back({use.begin, use.end, stream, stamp.time, op, use.write});
  }
  return stamp;
}

namespace {

void report_written(const Copying& copy) {
  state().reports.push_back(c10::str("race: the host wrote page-locked memory while a copy on ",
                                     name_of(copy.stamp.stream), " was reading it"));
}

}  // namespace

void settle(const Block* block) {
  State& s = state();
  std::erase_if(s.copying, [&](const Copying& copy) {
    if (copy.block != block && !after(clock_of_host, copy.stamp.stream, copy.stamp.time))
      return false;
    if (copy.to_host) {
      std::memcpy(copy.host, copy.data.data(), copy.data.size());
    } else if (copy.block != block &&
               std::memcmp(copy.host, copy.data.data(), copy.data.size()) != 0) {
      report_written(copy);
    }
    return true;
  });
}

void settle_reads(const Block* block) {
  State& s = state();
  std::erase_if(s.copying, [&](const Copying& copy) {
    if (copy.block != block || copy.to_host) return false;
    if (std::memcmp(copy.host, copy.data.data(), copy.data.size()) != 0) report_written(copy);
    return true;
  });
}

void host_sync(const Clock& clock, std::uint32_t stream, const std::string& op) {
  State& s = state();
  const char* why = HostWait::current();
  const std::lock_guard lock(s.mutex);
  join(clock_of_host, clock);
  if (why != nullptr) {
    ++s.host_waits[why];
  } else {
    ++s.counts[s.streams[stream].device].undeclared_waits;
    if (no_host_waits > 0) {
      s.reports.push_back(
          c10::str("host wait: ", op, " waits for ", name_of(stream), ", and nobody declared it"));
    }
  }
  settle();
}
void host_sync(std::uint32_t stream, const std::string& op) {
  Clock clock;
  {
    const std::lock_guard lock(state().mutex);
    clock = state().clocks[stream];
  }
  host_sync(clock, stream, op);
}

std::vector<std::string> take_reports() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().reports, {});
}

Counts counts(int device) {
  const std::lock_guard lock(state().mutex);
  return state().counts.at(static_cast<std::size_t>(device));
}

std::map<std::string, std::int64_t> host_waits() {
  const std::lock_guard lock(state().mutex);
  return state().host_waits;
}

std::int64_t reset() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  clock_of_host.clear();
  std::int64_t blocks = 0;
  std::vector<bool> empty(static_cast<std::size_t>(devices), true);
  for (const auto& [first, block] : s.blocks) {
    if (block->device >= 0) ++blocks;
    if (block->device >= 0) empty[static_cast<std::size_t>(block->device)] = false;
    block->accesses.clear();
    block->recorded.clear();
    if (block->device >= 0) block->stream = static_cast<std::uint32_t>(block->device);
  }
  // Addresses are handed out anew only here, so that whoever keeps one that was freed is found.
  for (std::size_t d = 0; d < empty.size(); ++d) {
    if (empty[d]) s.next[d] = reinterpret_cast<std::uintptr_t>(s.base) + d * span;
  }
  s.copying.clear();
  s.missing.reset();
  s.streams.resize(static_cast<std::size_t>(devices));
  s.clocks.assign(static_cast<std::size_t>(devices), Clock());
  s.last_stream.assign(static_cast<std::size_t>(devices), 0);
  s.counts.assign(static_cast<std::size_t>(devices), Counts());
  s.host_waits.clear();
  return blocks;
}

NoHostWaits::NoHostWaits() {
  ++no_host_waits;
}
NoHostWaits::~NoHostWaits() {
  --no_host_waits;
}

}  // namespace mw::sim
