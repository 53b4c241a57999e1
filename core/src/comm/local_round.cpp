// Rounds of thread ranks whose tensors lie on accelerators, one that they share or several: ATen
// ops on views of the ranks' buffers.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>

#include "comm/local_world.h"
#include "comm/step_clock.h"
#include "comm/streams.h"
#include "meshwright/backend.h"
#include "meshwright/engine/host.h"
#include "meshwright/world.h"

namespace mw::comm {

// Guards what says which rounds of streams are queued on devices, and which ones wait behind them.
static std::mutex& behind_mutex() {
  static std::mutex mutex;
  return mutex;
}

// As Round's chunks on the host, all at once on the current streams of the devices on which the
// buffers lie. What it allocates for itself is booked to no rank: whichever came last calls it.
void run_task_on_device(at::ScalarType dtype, Combine combine, at::DeviceType type,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements);

namespace {

// Adds the seconds of its life to what the thread has copied, where somebody asks.
class CopyTimer {
 public:
  CopyTimer() : began_(copy_seconds == nullptr ? 0 : seconds_now()) {}
  ~CopyTimer() {
    if (copy_seconds != nullptr) *copy_seconds += seconds_now() - began_;
  }
  CopyTimer(const CopyTimer&) = delete;
  CopyTimer& operator=(const CopyTimer&) = delete;

 private:
  const double began_;
};

// The device is the one on which the address lies.
at::Tensor view(const void* data, std::int64_t elements, at::ScalarType dtype,
                at::DeviceType type) {
  return at::from_blob(const_cast<void*>(data), {elements},  // NOLINT: inputs are only read
                       at::TensorOptions().dtype(dtype).device(type));
}

void combine_into(at::Tensor& total, const at::Tensor& next, Combine combine) {
  switch (combine) {
    case Combine::sum:
    case Combine::average:
      total.add_(next);
      break;
    case Combine::product:
      total.mul_(next);
      break;
    case Combine::min:
      at::minimum_out(total, total, next);
      break;
    case Combine::max:
      at::maximum_out(total, total, next);
      break;
  }
}

// Bounds the accumulator that a reduction needs beside the ranks' buffers.
constexpr std::int64_t slice_elements = 8 * 1024 * 1024;

class Unbooked final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

}  // namespace

void run_task_on_device(at::ScalarType dtype, Combine combine, at::DeviceType type,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements) {
  const c10::NoGradGuard no_grad;
  static const auto unbooked = std::make_shared<Unbooked>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, unbooked);
  const auto item = static_cast<std::int64_t>(c10::elementSize(dtype));
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  for (std::int64_t first = 0; first < elements; first += slice_elements) {
    const auto count = std::min(slice_elements, elements - first);
    const auto slice = [&](const std::byte* base) {
      return view(base + first * item, count, dtype, type);
    };
    at::Tensor total = slice(in[0]);
    if (in.size() > 1) {
      const at::Device home = slice(out[0]).device();
      const auto there = [&](const at::Tensor& tensor) {
        return tensor.device() == home ? tensor : tensor.to(home, /*non_blocking=*/true);
      };
      total = there(total).to(narrow ? at::kFloat : dtype, /*non_blocking=*/true, /*copy=*/true);
      for (std::size_t k = 1; k < in.size(); ++k) combine_into(total, there(slice(in[k])), combine);
      if (combine == Combine::average) total.div_(static_cast<double>(in.size()));
    }
    for (std::byte* to : out) slice(to).copy_(total, /*non_blocking=*/true);
  }
}

namespace {

// Read and written by one chunk, all buffers together: large beside the cost of claiming it, small
// enough that what a chunk has read is still in the second-level cache when it writes.
constexpr std::int64_t chunk_traffic = 512 * 1024;
constexpr std::int64_t smallest_chunk = 16 * 1024;
// A round that moves less is done by the last to arrive: waking a helper would take longer.
constexpr std::int64_t small_round = 192 * 1024;

// A waiting rank gives its core to any other thread that can run, and sleeps only after this long:
// to wake a sleeper on an idle core took 10 to 40 us, more than a small collective itself.
constexpr std::chrono::microseconds before_sleep{20};
// The same where nothing is left to do but what others have begun.
constexpr std::chrono::microseconds last_chunks{50};

}  // namespace

Round::Round(std::string axis, std::vector<int> ranks, std::string name)
    : axis_(std::move(axis)),
      ranks_(std::move(ranks)),
      name_(std::move(name)),
      arrivals_(ranks_.size()) {}

bool Round::arrive(int index, Arrival arrival) {
  auto& mine = arrivals_[static_cast<std::size_t>(index)];
  mine = std::move(arrival);
  mine.here = true;
  ++arrived_;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto& other = arrivals_[i];
    if (!other.here || i == static_cast<std::size_t>(index)) continue;
    bool fits = mine.call.agrees_with(other.call);
    if (fits && mine.call.op == Collective::all_to_all) {
      const auto me = static_cast<std::size_t>(index);
      fits = mine.call.in_splits[i] == other.call.out_splits[me] &&
             mine.call.out_splits[i] == other.call.in_splits[me];
    }
    if (fits) continue;
    const auto problem = disagreement(axis_, name_, ranks_[i], other.call,
                                      ranks_[static_cast<std::size_t>(index)], mine.call);
    fail(problem.message, problem.hint, Cause::itself);
    return false;
  }
  return true;
}

void Round::add_task(std::int64_t elements, std::vector<const std::byte*> in,
                     std::vector<std::byte*> out) {
  if (elements == 0) return;
  if (in.size() == 1) std::erase(out, in[0]);  // in place: already there
  if (out.empty()) return;
  const auto buffers = static_cast<std::int64_t>(in.size() + out.size());
  Task task{};
  task.in_begin = static_cast<std::uint32_t>(in_.size());
  task.in_count = static_cast<std::uint32_t>(in.size());
  task.out_begin = static_cast<std::uint32_t>(out_.size());
  task.out_count = static_cast<std::uint32_t>(out.size());
  task.elements = elements;
  const auto bytes = std::max(smallest_chunk, chunk_traffic / buffers / 4096 * 4096);
  task.chunk = std::max<std::int64_t>(1, bytes / item_bytes_);
  task.first_chunk = chunks_;
  chunks_ += (elements + task.chunk - 1) / task.chunk;
  total_bytes_ += elements * item_bytes_ * buffers;
  in_.insert(in_.end(), in.begin(), in.end());
  out_.insert(out_.end(), out.begin(), out.end());
  tasks_.push_back(task);
}

void Round::lay_out() {
  const auto& first = arrivals_[0].call;
  dtype_ = first.dtype;
  combine_ = first.combine;
  item_bytes_ = static_cast<std::int64_t>(c10::elementSize(dtype_));
  const auto n = arrivals_.size();
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
  in.reserve(n);
  out.reserve(n);
  const auto all = [&](auto& list, auto member, std::int64_t elements) {
    list.clear();
    for (auto& a : arrivals_) list.push_back(a.*member + elements * item_bytes_);
  };
  switch (first.op) {
    case Collective::barrier:
      break;
    case Collective::all_reduce:
      all(in, &Arrival::in, 0);
      all(out, &Arrival::out, 0);
      add_task(first.elements, in, out);
      break;
    case Collective::all_gather:
      for (std::size_t i = 0; i < n; ++i) {
        all(out, &Arrival::out, static_cast<std::int64_t>(i) * first.elements);
        add_task(first.elements, {arrivals_[i].in}, out);
      }
      break;
    case Collective::reduce_scatter:
      for (std::size_t i = 0; i < n; ++i) {
        all(in, &Arrival::in, static_cast<std::int64_t>(i) * first.elements);
        add_task(first.elements, in, {arrivals_[i].out});
      }
      break;
    case Collective::all_to_all: {
      std::vector<std::int64_t> filled(n, 0);  // rows of each output that are laid out
      for (std::size_t from = 0; from < n; ++from) {
        std::int64_t taken = 0;
        for (std::size_t to = 0; to < n; ++to) {
          const auto rows = arrivals_[from].call.in_splits[to];
          add_task(rows * first.elements,
                   {arrivals_[from].in + taken * first.elements * item_bytes_},
                   {arrivals_[to].out + filled[to] * first.elements * item_bytes_});
          taken += rows;
          filled[to] += rows;
        }
      }
      break;
    }
    case Collective::broadcast:
      all(out, &Arrival::out, 0);
      add_task(first.elements, {arrivals_[static_cast<std::size_t>(first.root)].in}, out);
      break;
    case Collective::send:
    case Collective::recv: {
      const bool first_sends = first.op == Collective::send;
      add_task(first.elements, {arrivals_[first_sends ? 0 : 1].in},
               {arrivals_[first_sends ? 1 : 0].out});
      break;
    }
  }
}

void Round::start(int index) {
  lay_out();
  // From here on the round may fail (another rank died), and then the buffers may go: as a worker
  // this thread holds them until it is through.
  working_.fetch_add(1, std::memory_order_seq_cst);
  std::uint32_t expected = open;
  if (!arrivals_[0].call.device.is_cpu()) {
    try {
      start_on_device(index);
    } catch (...) {
      working_.fetch_sub(1, std::memory_order_seq_cst);
      throw;
    }
  } else if (state_.compare_exchange_strong(expected, ready, std::memory_order_seq_cst)) {
    if (chunks_ == 0 || total_bytes_ <= small_round) {
      if (chunks_ == 0) finish(done);
      work();
    } else {
      // One at least: this rank may have other things to do before it waits.
      const auto helpers = std::min<std::int64_t>(core_count() - 1, chunks_ - 1);
      futex_wake(state_, static_cast<int>(std::max<std::int64_t>(1, helpers)));
    }
  }
  working_.fetch_sub(1, std::memory_order_seq_cst);
}

void Round::run_chunk(std::int64_t number) {
  const auto after = std::upper_bound(
      tasks_.begin(), tasks_.end(), number,
      [](std::int64_t chunk, const Task& task) { return chunk < task.first_chunk; });
  const auto& task = *(after - 1);
  const auto first = (number - task.first_chunk) * task.chunk;
  const auto count = std::min(task.chunk, task.elements - first);
  const std::span in(in_.data() + task.in_begin, task.in_count);
  const std::span out(out_.data() + task.out_begin, task.out_count);
  if (task.in_count == 1) {
    for (std::byte* to : out) {
      std::memcpy(to + first * item_bytes_, in[0] + first * item_bytes_,
                  static_cast<std::size_t>(count * item_bytes_));
    }
  } else {
    reduce(dtype_, combine_, in, out, first, count);
  }
}

bool Round::work() {
  const CopyTimer timer;
  for (;;) {
    if (state() != ready) return false;
    const auto chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= chunks_) return false;
    run_chunk(chunk);
    if (chunks_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks_) return finish(done);
  }
}

bool Round::finish(State state) {
  std::uint32_t expected = ready;
  if (!state_.compare_exchange_strong(expected, state, std::memory_order_seq_cst)) return false;
  futex_wake(state_);
  return true;
}

// Whether a round that one of the ranks has called before on the same stream is not queued yet.
// Then that earlier round starts this one once it is queued itself.
bool Round::puts_off(int index) {
  const std::lock_guard guard(behind_mutex());
  for (const Arrival& arrival : arrivals_) {
    if (!arrival.after || arrival.after->state() != open) continue;
    arrival.after->behind_.emplace_back(shared_from_this(), index);
    put_off_ = true;
    return true;
  }
  return false;
}

// Queues the round, and those that waited behind it. Its state is never `ready`, at which whoever
// waits would carry out chunks on the host.
void Round::start_on_device(int index) {
  if (puts_off(index)) return;
  try {
    if (state() == open) run_on_device(index);
  } catch (const std::exception& error) {
    fail(error.what(), "", Cause::earlier);
    throw;
  }
  std::vector<std::pair<std::shared_ptr<Round>, int>> behind;
  {
    const std::lock_guard guard(behind_mutex());
    for (Arrival& arrival : arrivals_) arrival.after = nullptr;
    std::uint32_t expected = open;
    if (state_.compare_exchange_strong(expected, done, std::memory_order_seq_cst))
      futex_wake(state_);
    behind.swap(behind_);
  }
  for (const auto& [round, last] : behind) round->start_on_device(last);
}

// On the streams of communication of the devices: the last rank's on its own, of each other device
// the first rank's that has it.
void Round::run_on_device(int index) {
  const auto me = static_cast<std::size_t>(index);
  std::vector<c10::Stream> streams{*arrivals_[me].stream};
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    const Arrival& arrival = arrivals_[i];
    auto on = std::find_if(streams.begin(), streams.end(), [&](const c10::Stream& stream) {
      return stream.device() == arrival.call.device;
    });
    if (on == streams.end()) on = streams.insert(on, *arrival.stream);
    wait_for(*on, *arrival.ready,
             [&] { return wait_name("after the arrival of rank", ranks_[i]); });
    if (arrival.after && arrival.after->finished_) {
      wait_for(*on, *arrival.after->finished_,
               [&] { return wait_name("after the stream of rank", ranks_[i]); });
    }
  }
  const c10::MultiStreamGuard guard(streams);
  const c10::DeviceGuard device(streams[0].device());
  for (const auto& task : tasks_) {
    run_task_on_device(dtype_, combine_, streams[0].device_type(),
                       std::span(in_.data() + task.in_begin, task.in_count),
                       std::span(out_.data() + task.out_begin, task.out_count), task.elements);
  }
  for (std::size_t k = 1; k < streams.size(); ++k) {
    wait_for(streams[0], record_event(streams[k]),
             [&] { return wait_name("joined by device", streams[k].device_index()); });
  }
  finished_.emplace(record_event(streams[0]));
}

// A send and its recv have one name, whichever came first.
std::string Round::wait_name(const char* what, int number) const {
  const Call& call = arrivals_[0].call;
  const bool pair = call.op == Collective::send || call.op == Collective::recv;
  return fmt::format("{} on axis {}, {} {}",
                     pair ? name_.substr(name_.find(' ') + 1)
                          : fmt::format("{} of {}, {}", mw::name_of(call.op), call.label, name_),
                     axis_, what, number);
}

void Round::block_stream(c10::Stream stream, int index) const {
  if (finished_)
    wait_for(stream, *finished_,
             [&] { return wait_name("awaited by rank", ranks_[static_cast<std::size_t>(index)]); });
}

Round::State Round::wait(Clock::time_point deadline) {
  const auto linger = [&](State while_in, std::chrono::microseconds time) {
    const auto until = Clock::now() + time;
    while (state() == while_in && Clock::now() < until) std::this_thread::yield();
  };
  linger(open, before_sleep);
  for (;;) {
    const auto now = state();
    if (now == done || now == failed) return now;
    if (now == ready) {
      working_.fetch_add(1, std::memory_order_seq_cst);
      work();
      working_.fetch_sub(1, std::memory_order_seq_cst);
      // Others finish their last chunks: that takes microseconds, no deadline is needed.
      linger(ready, last_chunks);
      if (state() == ready) futex_wait(state_, ready, Clock::now() + std::chrono::seconds(10));
    } else {
      futex_wait(state_, open, deadline);
      if (state() == open && Clock::now() >= deadline) return open;
    }
  }
}

void Round::fail(const std::string& message, const std::string& hint, Cause cause) {
  const auto now = state();
  if (now == done || now == failed || failing_.exchange(true)) return;
  message_ = message;
  hint_ = hint;
  cause_ = cause;
  for (std::uint32_t expected = open;;) {
    if (expected == done) return;  // the last chunk was just finished
    if (state_.compare_exchange_weak(expected, failed, std::memory_order_seq_cst)) break;
  }
  futex_wake(state_);
  std::vector<std::pair<std::shared_ptr<Round>, int>> behind;
  {
    const std::lock_guard guard(behind_mutex());
    behind.swap(behind_);
  }
  for (const auto& [round, last] : behind) round->fail(message, hint, Cause::earlier);
}

void Round::throw_failure() const {
  if (cause_ == Cause::itself) throw Error(Stage::run, "collective.mismatch", "", message_, hint_);
  if (cause_ == Cause::absence)
    throw WaitedInVain(Stage::run, "collective.timeout", "", message_, hint_);
  throw Aborted(message_, hint_);
}

void Round::leave(int index) {
  fail(fmt::format("Rank {} dropped a collective on axis '{}' without waiting for it: {}.",
                   ranks_[static_cast<std::size_t>(index)], axis_,
                   arrivals_[static_cast<std::size_t>(index)].call.describe()),
       "Call wait() on every Pending.", Cause::earlier);
  // A chunk takes at most some hundred microseconds, and no new one is begun.
  for (;;) {
    const auto now = state();
    if (now == done) return;
    if (now == failed && working_.load(std::memory_order_seq_cst) == 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

std::string Round::describe() const {
  for (const auto& arrival : arrivals_) {
    if (arrival.here) return arrival.call.describe();
  }
  return "a collective";
}

std::vector<int> Round::missing() const {
  std::vector<int> list;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!arrivals_[i].here) list.push_back(ranks_[i]);
  }
  return list;
}

std::vector<int> Round::present() const {
  std::vector<int> list;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (arrivals_[i].here) list.push_back(ranks_[i]);
  }
  return list;
}

}  // namespace mw::comm
