// The ledger of one rank: memory by category, to the byte; communication by (axis, op, phase); work
// by kind of op.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace mw {

// The purpose of memory. `scratch` is the most that a kernel holds while it runs, beyond what it
// leaves (Ledger::Kernel); it depends on a library's kernels for the CPU. `host` is memory beside
// the rank's device, which holds offloaded tensors. It counts neither in the rank's total and peak
// nor against its limit, although it is the same memory for ranks on CPUs.
enum class Category : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  buffers,
  scratch,
  host,
};
constexpr int category_count = 7;
const char* name_of(Category category);

struct MemoryUse {
  std::int64_t bytes = 0;  // bytes allocated now
  std::int64_t peak = 0;   // highest `bytes` so far
};

struct CommunicationKey {
  std::string axis, op, phase;
  friend auto operator<=>(const CommunicationKey&, const CommunicationKey&) = default;
};
struct CommunicationUse {
  std::int64_t calls = 0, bytes = 0;
  double seconds = 0;  // time in start and wait on the rank's own thread
};

struct WorkKey {
  std::string op, piece;  // `op`: the op's kind, as "linear"
  friend auto operator<=>(const WorkKey&, const WorkKey&) = default;
};
struct WorkUse {
  std::int64_t calls = 0;
  double flops = 0;    // operations that the kernels execute (Cost::executed)
  double seconds = 0;  // time on the rank's own thread
};

// The counts of one rank. Not thread-safe: each rank's thread posts to its own ledger.
class Ledger {
 public:
  // Memory that is allocated while a Scope lives is booked under the category of the innermost
  // Scope.
  class Scope {
   public:
    Scope(Ledger& ledger, Category category);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Ledger& ledger_;
    Category before_;
  };

  // Marks that a kernel, or a reduction of several ranks' tensors, runs while a Kernel lives. The
  // most memory that it takes beyond what it leaves is its scratch; the memory that it leaves goes
  // to the Scope's category. The total and its peak rise at once, the peaks of categories when the
  // Kernel ends. A Kernel inside of another one counts as a part of the outer one.
  class Kernel {
   public:
    explicit Kernel(Ledger& ledger) : ledger_(ledger) { ++ledger_.kernels_; }
    ~Kernel() {
      if (--ledger_.kernels_ == 0) ledger_.end_kernel();
    }
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

   private:
    Ledger& ledger_;
  };

  // Memory that is allocated while a Pause lives is not booked and counts against no limit, because
  // it belongs to the run-time check.
  class Pause {
   public:
    explicit Pause(Ledger& ledger) : ledger_(ledger) { ++ledger_.pauses_; }
    ~Pause() { --ledger_.pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Ledger& ledger_;
  };

  // Communication while an OfNextStep lives is booked under the next step, which will not repeat
  // it: a gather that is made early because parameters are read between two steps.
  class OfNextStep {
   public:
    explicit OfNextStep(Ledger& ledger) : ledger_(ledger) { ledger_.of_next_step_ = true; }
    ~OfNextStep() { ledger_.of_next_step_ = false; }
    OfNextStep(const OfNextStep&) = delete;
    OfNextStep& operator=(const OfNextStep&) = delete;

   private:
    Ledger& ledger_;
  };

  void allocated(const void* pointer, std::int64_t bytes);
  // Ignores an unknown `pointer` (allocated before watching began, or by another rank).
  void freed(const void* pointer);

  const MemoryUse& memory(Category category) const { return use_[static_cast<int>(category)]; }
  std::int64_t bytes() const { return total_.bytes; }
  std::int64_t peak_bytes() const { return total_.peak; }
  // The highest sum of all categories except scratch and host.
  std::int64_t peak_without_scratch() const { return without_scratch_.peak; }
  // Sets all peaks to the bytes allocated now (called after set-up, before the first step).
  void reset_peaks();
  // Sets a limit for the total: allocated() then throws Error (run), with category, rank and
  // numbers, instead of booking an allocation that exceeds `bytes`. 0: no limit. `hint` returns
  // what the user can do; its argument is most_rows_share().
  using LimitHint = std::function<std::string(double rows_share)>;
  void set_limit(std::int64_t bytes, int rank, LimitHint hint = nullptr);
  std::string limit_hint() const;

  // Whether an accelerator's allocation has exceeded the limit (see MemoryWatch).
  bool over_limit() const { return over_limit_; }
  // As allocated(), but marks over_limit() instead of throwing.
  void allocated_past_limit(const void* pointer, std::int64_t bytes);

  // The index of a key in the book of communication or of work. It never changes, so that code that
  // posts often looks it up once.
  using Entry = std::size_t;
  Entry communication_entry(const std::string& axis, const char* op, const char* phase);
  Entry work_entry(const std::string& op, const char* piece);
  void communicated(Entry entry, std::int64_t bytes) {
    CommunicationUse& use = communication_use(entry);
    ++use.calls;
    use.bytes += bytes;
  }
  void waited(Entry entry, double seconds) { communication_use(entry).seconds += seconds; }
  void worked(Entry entry, double flops, double seconds) {
    WorkUse& use = work_[entry].use;
    ++use.calls;
    use.flops += flops;
    use.seconds += seconds;
  }
  // The counts of this step, by key.
  std::map<CommunicationKey, CommunicationUse> communication() const;
  std::map<WorkKey, WorkUse> work() const;
  // Seconds of this step's communication, of all phases except `left_out`.
  double communication_seconds(const std::string& left_out) const;
  // Adds rows of a group (an expert) on which an op of a layer has worked.
  void took_rows(int layer, std::int64_t group, std::int64_t rows);
  std::map<std::pair<int, std::int64_t>, std::int64_t> rows() const;  // by layer and group
  // Adds the rows on which an op has worked, and the rows that the program supposes for it.
  void compare_rows(std::int64_t rows, std::int64_t supposed) {
    compared_.rows += rows;
    compared_.supposed += supposed;
  }
  // The rows of this step's compare_rows() divided by the supposed rows; 0: there were none.
  double rows_share() const {
    return compared_.supposed > 0
               ? static_cast<double>(compared_.rows) / static_cast<double>(compared_.supposed)
               : 0;
  }
  // The highest rows_share() of this step and those before it.
  double most_rows_share() const { return std::max(most_rows_share_, rows_share()); }
  // Clears the counts of communication, work and rows at the end of a step. The next step's counts
  // of communication begin with those made under OfNextStep and with `sent`.
  void clear_step(const std::map<CommunicationKey, CommunicationUse>& sent = {});

 private:
  void add(MemoryUse& use, std::int64_t bytes);
  void add(Category category, std::int64_t bytes);
  void book(const void* pointer, std::int64_t bytes);
  void end_kernel();
  CommunicationUse& communication_use(Entry entry) {
    return of_next_step_ ? communication_[entry].next : communication_[entry].use;
  }

  struct Block {
    std::int64_t bytes;
    Category category;
    int made = -1;  // index into kernel_, if the running kernel has allocated the block
  };
  // An allocation of a kernel, or, with negative bytes, the free of a block that it had allocated.
  struct KernelEvent {
    std::int64_t bytes;
    Category category;
    const void* pointer;
    bool scratch;  // freed before the kernel ended
  };
  ska::flat_hash_map<const void*, Block> blocks_;
  std::array<MemoryUse, category_count> use_{};
  MemoryUse total_, without_scratch_;
  std::vector<KernelEvent> kernel_;  // events of the running kernel
  int kernels_ = 0;                  // number of living Kernels, one inside of the other
  Category current_ = Category::buffers;
  int pauses_ = 0;
  std::int64_t limit_ = 0;
  int rank_ = 0;
  LimitHint hint_;
  bool over_limit_ = false;
  template <class Key, class Use>
  struct Booked {
    Key key;
    Use use = {}, next = {};  // counts of this step, and those made early for the next step
  };
  std::vector<Booked<CommunicationKey, CommunicationUse>> communication_;
  std::vector<Booked<WorkKey, WorkUse>> work_;
  bool of_next_step_ = false;
  std::vector<std::vector<std::int64_t>> rows_;  // by layer + 1 and group; negative: not counted
  struct Compared {
    std::int64_t rows = 0, supposed = 0;
  };
  Compared compared_;  // sums of this step's compare_rows()
  double most_rows_share_ = 0;
};

// While a MemoryWatch lives, every ATen allocation and free of this thread (and of the autograd
// calls that it makes) is posted to `ledger`, in requested bytes. A thread has at most one; the
// ledger must outlive it. An allocation over the ledger's limit is freed again, and the op that
// asked for it throws Error (run). An accelerator's allocator does not allow that: check
// over_limit() instead. A free on another thread than the rank's is not seen, so destroy tensors on
// the thread that made them.
class MemoryWatch {
 public:
  explicit MemoryWatch(Ledger& ledger);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The ledger to which this thread's allocations are posted; null: none.
Ledger* ledger_of_thread();

}  // namespace mw
