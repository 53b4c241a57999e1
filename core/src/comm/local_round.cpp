// Rounds of ranks that are threads: compares the ranks' calls, cuts the work into chunks, and
// carries it out. In host memory the waiting ranks carry out chunks; on accelerators ATen ops work
// on views of the ranks' buffers.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "comm/local_world.h"
#include "comm/step_clock.h"
#include "comm/streams.h"
#include "meshwright/backend.h"
#include "meshwright/engine/host.h"
#include "meshwright/ledger.h"
#include "meshwright/world.h"

namespace mw::comm {

// Guards Round::behind_, and the change of a round of device tensors from open to done.
static std::mutex& behind_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Copies or reduces one range of elements on accelerators, on the current streams of the devices of
// the buffers. The rank that came last calls it, and its ledger books the accumulators as scratch.
void run_task_on_device(at::ScalarType dtype, Combine combine, at::DeviceType type,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements);

namespace {

// Adds the seconds of its lifetime to `copy_seconds` of the thread, if that is set.
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

// A tensor over the memory at `data`. ATen finds the device by the address.
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

// The most elements of the accumulator that a reduction needs beside the ranks' buffers.
constexpr std::int64_t slice_elements = 8 * 1024 * 1024;

}  // namespace

void run_task_on_device(at::ScalarType dtype, Combine combine, at::DeviceType type,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements) {
  const c10::NoGradGuard no_grad;
  std::optional<Ledger::Kernel> kernel;
  if (Ledger* const ledger = ledger_of_thread()) kernel.emplace(*ledger);
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

// Bytes that one chunk reads and writes in all buffers: so many that the cost to claim a chunk does
// not matter, so few that the bytes read are still in the second-level cache when they are written.
constexpr std::int64_t chunk_traffic = 512 * 1024;
constexpr std::int64_t smallest_chunk = 16 * 1024;
// The rank that arrives last carries out a round with fewer bytes alone: waking a helper takes
// longer.
constexpr std::int64_t small_round = 192 * 1024;

// How long a waiting rank yields its core to other threads before it sleeps: waking a sleeper on an
// idle core took 10 to 40 us, more than a small collective itself.
constexpr std::chrono::microseconds before_sleep{20};
// How long a rank yields while other ranks finish the last chunks of a round.
constexpr std::chrono::microseconds last_chunks{50};

}  // namespace

void Round::reset(std::size_t ranks) {
  arrived_ = first_ = 0;
  arrivals_.resize(ranks);
  for (Arrival& arrival : arrivals_) arrival.here = false;
  total_bytes_ = chunks_ = 0;
  tasks_.clear();
  finished_.reset();
  put_off_ = false;
  failing_ = false;  // a thread may have tried to fail the round when it was just done
  next_chunk_.store(0, std::memory_order_relaxed);
  chunks_done_.store(0, std::memory_order_relaxed);
  state_.store(open, std::memory_order_seq_cst);
}

void Round::begin(std::uint64_t number, std::span<const int> ranks) {
  number_ = number;
  pair_.reset();
  ranks_ = ranks;
  reset(ranks.size());
}

void Round::begin(Pair pair) {
  pair_ = pair;
  pair_ranks_ = pair.sender_first ? std::array{pair.from, pair.to} : std::array{pair.to, pair.from};
  ranks_ = pair_ranks_;
  reset(pair_ranks_.size());
}

std::string Round::name() const {
  if (!pair_) return fmt::format("collective {}", number_);
  return fmt::format("{} {} -> {}, tag {}", pair_->sender_first ? "send" : "recv", pair_->from,
                     pair_->to, pair_->tag);
}

// Calls that agree are equal, so it is enough to compare a call with the first one. Only the splits
// of an all-to-all differ from rank to rank.
std::int64_t Round::arrive(int index, Arrival arrival) {
  const auto me = static_cast<std::size_t>(index);
  Arrival& mine = arrivals_[me];
  mine = std::move(arrival);
  mine.here = true;
  if (arrived_++ == 0) {
    first_ = me;
    return 0;
  }
  std::int64_t compared = 1;
  bool fits = mine.call.fits(me, arrivals_[first_].call, first_);
  if (mine.call.op == Collective::all_to_all) {
    for (std::size_t i = 0; fits && i < arrivals_.size(); ++i) {
      if (!arrivals_[i].here || i == me) continue;
      ++compared;
      fits = mine.call.fits(me, arrivals_[i].call, i);
    }
  }
  if (!fits) refuse(me);
  return compared;
}

// Fails the round with a message that names the lowest rank whose call disagrees with this one's.
void Round::refuse(std::size_t index) {
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    const Arrival& other = arrivals_[i];
    const Call& call = arrivals_[index].call;
    if (!other.here || i == index || call.fits(index, other.call, i)) continue;
    return fail(disagreement(axis_, name(), ranks_[i], other.call, ranks_[index], call),
                Cause::itself);
  }
}

void Round::cut() {
  const Call& first = arrivals_[0].call;
  dtype_ = first.dtype;
  combine_ = first.combine;
  item_bytes_ = static_cast<std::int64_t>(c10::elementSize(dtype_));
  calls_.clear();
  in_.clear();
  out_.clear();
  for (const Arrival& arrival : arrivals_) {
    calls_.push_back(&arrival.call);
    in_.push_back(arrival.in);
    out_.push_back(arrival.out);
  }
  lay_out(calls_, runs_);
  for (const Run& run : runs_) {
    const auto buffers = static_cast<std::int64_t>(run.in.count + run.out.count);
    const auto bytes = std::max(smallest_chunk, chunk_traffic / buffers / 4096 * 4096);
    const Task task{run, std::max<std::int64_t>(1, bytes / item_bytes_), chunks_};
    chunks_ += (run.elements + task.chunk - 1) / task.chunk;
    total_bytes_ += run.elements * item_bytes_ * buffers;
    tasks_.push_back(task);
  }
}

void Round::start(int index) {
  cut();
  // From here on the round may fail (another rank died), and ranks may then free their buffers.
  // leave() waits for threads that are counted in working_, as this one is.
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
      // At least one sleeper, because this rank may have other work before it waits.
      wake(std::max<std::int64_t>(1, std::min<std::int64_t>(core_count() - 1, chunks_ - 1)));
    }
  }
  working_.fetch_sub(1, std::memory_order_seq_cst);
}

void Round::run_chunk(std::int64_t number) {
  const auto after = std::upper_bound(
      tasks_.begin(), tasks_.end(), number,
      [](std::int64_t chunk, const Task& task) { return chunk < task.first_chunk; });
  const Task& task = *(after - 1);
  const Run& run = task.run;
  const auto first = (number - task.first_chunk) * task.chunk;
  const auto count = std::min(task.chunk, run.elements - first);
  const std::span in(in_.data() + run.in.first, run.in.count);
  const std::span out(out_.data() + run.out.first, run.out.count);
  if (run.in.count > 1) {
    // reduce() takes one offset for all buffers. If inputs and output begin at different offsets,
    // there is only one output, whose base address is shifted.
    const auto apart = run.out.begin - run.in.begin;
    std::byte* const only = out[0] + apart * item_bytes_;
    reduce(dtype_, combine_, in, apart != 0 ? std::span(&only, 1) : out, run.in.begin + first,
           count);
    return;
  }
  const std::byte* const from = in[0] + (run.in.begin + first) * item_bytes_;
  for (std::byte* base : out) {
    std::byte* const to = base + (run.out.begin + first) * item_bytes_;
    if (to != from) std::memcpy(to, from, static_cast<std::size_t>(count * item_bytes_));
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
  wake();
  return true;
}

// Whether an earlier round on the same stream of one of the ranks is not queued yet. That round
// then starts this one once it is queued itself.
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

// Queues the round on devices, and then the rounds that waited behind it. Its state never becomes
// `ready`, because waiting ranks would then carry out chunks on the host.
void Round::start_on_device(int index) {
  if (puts_off(index)) return;
  try {
    if (state() == open) run_on_device(index);
  } catch (const std::exception& error) {
    fail(aborted_run(error.what()), Cause::earlier);
    throw;
  }
  std::vector<std::pair<std::shared_ptr<Round>, int>> behind;
  {
    const std::lock_guard guard(behind_mutex());
    for (Arrival& arrival : arrivals_) arrival.after = nullptr;
    std::uint32_t expected = open;
    if (state_.compare_exchange_strong(expected, done, std::memory_order_seq_cst)) wake();
    behind.swap(behind_);
  }
  for (const auto& [round, last] : behind) round->start_on_device(last);
}

// Queues the round on one stream of communication for each device: on that of the rank that came
// last, and on each other device on that of the first rank with this device.
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
  for (const Run& run : runs_) {
    std::vector<const std::byte*> in;
    std::vector<std::byte*> out;
    for (std::size_t i = 0; i < run.in.count; ++i)
      in.push_back(in_[run.in.first + i] + run.in.begin * item_bytes_);
    for (std::size_t i = 0; i < run.out.count; ++i)
      out.push_back(out_[run.out.first + i] + run.out.begin * item_bytes_);
    if (in.size() == 1) std::erase(out, in[0]);  // a copy onto itself
    run_task_on_device(dtype_, combine_, streams[0].device_type(), in, out, run.elements);
  }
  for (std::size_t k = 1; k < streams.size(); ++k) {
    wait_for(streams[0], record_event(streams[k]),
             [&] { return wait_name("joined by device", streams[k].device_index()); });
  }
  finished_.emplace(record_event(streams[0]));
}

// The name of a wait for an event, for tests: the same for a send and its recv, whichever came
// first.
std::string Round::wait_name(const char* what, int number) const {
  const Call& call = arrivals_[0].call;
  const std::string own = name();
  return fmt::format("{} on axis {}, {} {}",
                     pair_ ? own.substr(own.find(' ') + 1)
                           : fmt::format("{} of {}, {}", mw::name_of(call.op), call.label, own),
                     axis_, what, number);
}

void Round::block_stream(c10::Stream stream, int index) const {
  if (finished_)
    wait_for(stream, *finished_,
             [&] { return wait_name("awaited by rank", ranks_[static_cast<std::size_t>(index)]); });
}

Round::State Round::wait(Clock::time_point deadline) {
  const Cores* const cores = Sleeper::own().cores();
  const auto linger = [&](State while_in, std::chrono::microseconds time) {
    const auto until = Clock::now() + time;
    while (state() == while_in && (cores == nullptr || !cores->wanted()) && Clock::now() < until)
      std::this_thread::yield();
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
      sleep_while(ready, Clock::now() + std::chrono::seconds(10));
    } else {
      sleep_while(open, deadline);
      if (state() == open && Clock::now() >= deadline) return open;
    }
  }
}

void Round::sleep_while(State now, Clock::time_point deadline) {
  Sleeper& own = Sleeper::own();
  Cores* const cores = own.cores();
  const int core = own.core();
  {
    const std::lock_guard guard(sleepers_lock_);
    if (state() != now) return;
    own.prepare();
    sleepers_.push(own);
  }
  if (cores != nullptr) cores->give(core);
  if (own.sleep(deadline)) return;
  bool alone = false;  // whether no thread is about to wake this one
  {
    const std::lock_guard guard(sleepers_lock_);
    alone = sleepers_.remove(own);
  }
  if (!alone) {
    own.sleep(Clock::time_point::max());
  } else if (cores != nullptr) {
    cores->take();
  }
}

void Round::wake(std::int64_t sleepers) {
  for (; sleepers > 0; --sleepers) {
    Sleeper* next = nullptr;
    {
      const std::lock_guard guard(sleepers_lock_);
      next = sleepers_.pop();
    }
    if (next == nullptr) return;
    next->make_ready();
  }
}

void Round::fail(const Problem& problem, Cause cause) {
  const auto now = state();
  if (now == done || now == failed || failing_.exchange(true)) return;
  problem_ = problem;
  cause_ = cause;
  for (std::uint32_t expected = open;;) {
    if (expected == done) return;  // the last chunk was just finished
    if (state_.compare_exchange_weak(expected, failed, std::memory_order_seq_cst)) break;
  }
  wake();
  std::vector<std::pair<std::shared_ptr<Round>, int>> behind;
  {
    const std::lock_guard guard(behind_mutex());
    behind.swap(behind_);
  }
  for (const auto& [round, last] : behind) round->fail(problem, Cause::earlier);
}

void Round::leave(int index) {
  const auto me = static_cast<std::size_t>(index);
  fail(dropped_collective(axis_, ranks_[me], arrivals_[me].call.describe()), Cause::earlier);
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
