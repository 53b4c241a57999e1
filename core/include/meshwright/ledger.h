// The books of one rank: memory by category, to the byte; communication by (axis, op, phase); what
// its ops computed.
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

// `scratch` is the most that a kernel holds while it runs, beyond what it leaves (Ledger::Kernel).
// Scratch depends on the kernels that a library has for the CPU. `host` is memory beside the rank's
// device. Offloaded tensors lie there. They count neither in the rank's total and peak nor against
// its limit, although ranks on CPUs have them in the same memory.
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
  std::int64_t bytes = 0;  // now
  std::int64_t peak = 0;   // highest so far, of this category alone
};

struct CommunicationKey {
  std::string axis, op, phase;
  friend auto operator<=>(const CommunicationKey&, const CommunicationKey&) = default;
};
struct CommunicationUse {
  std::int64_t calls = 0, bytes = 0;
  double seconds = 0;  // spent in start and wait on the rank's own thread
};

struct WorkKey {
  std::string op, piece;  // an op's kind
  friend auto operator<=>(const WorkKey&, const WorkKey&) = default;
};
struct WorkUse {
  std::int64_t calls = 0;
  double flops = 0;    // that the kernels really do (Cost::executed)
  double seconds = 0;  // on the rank's own thread
};

// One rank's books. Not thread-safe: a rank's thread posts to its own.
class Ledger {
 public:
  // Memory that is allocated while a Scope lives goes to its category (the innermost counts).
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

  // A kernel, or a reduction of several ranks' tensors, runs while a Kernel lives. What it takes at
  // its highest beyond what it leaves is its scratch; what it leaves goes to the Scope's. The
  // total and its peak rise at once, the peaks of categories when the Kernel ends. A Kernel within
  // another one is a part of that.
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

  // What is allocated while a Pause lives is not booked and counts against no limit: it is the
  // run-time check's own.
  class Pause {
   public:
    explicit Pause(Ledger& ledger) : ledger_(ledger) { ++ledger_.pauses_; }
    ~Pause() { --ledger_.pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Ledger& ledger_;
  };

  // What is sent while an OfNextStep lives is the next step's, which will not send it again: such
  // as gathers that somebody who reads parameters between two steps has hastened.
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
  // `pointer` may be unknown (allocated before watching began, or by another rank): then ignored.
  void freed(const void* pointer);

  const MemoryUse& memory(Category category) const { return use_[static_cast<int>(category)]; }
  std::int64_t bytes() const { return total_.bytes; }
  std::int64_t peak_bytes() const { return total_.peak; }
  // The highest sum of all categories but scratch (and host).
  std::int64_t peak_without_scratch() const { return without_scratch_.peak; }
  // Peaks restart from what is allocated now (after set-up, before the first step).
  void reset_peaks();
  // From now on allocated() throws Error (run), naming category, rank and numbers, instead of
  // booking what would take the total over `bytes`. 0: no limit. `hint` says what
  // to do then; it is given most_rows_share().
  using LimitHint = std::function<std::string(double rows_share)>;
  void set_limit(std::int64_t bytes, int rank, LimitHint hint = nullptr);
  std::string limit_hint() const;

  // An accelerator's allocation has gone over the limit (see MemoryWatch).
  bool over_limit() const { return over_limit_; }
  // As allocated(), but marks over_limit() instead of throwing.
  void allocated_past_limit(const void* pointer, std::int64_t bytes);

  // A key's place in the book of communication or of work. It stays, so that whoever posts often
  // asks for it once.
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
  // What was posted in this step, by key.
  std::map<CommunicationKey, CommunicationUse> communication() const;
  std::map<WorkKey, WorkUse> work() const;
  // Seconds of this step's communication, all phases but `left_out`.
  double communication_seconds(const std::string& left_out) const;
  // Rows of a group that an op of this layer worked on.
  void took_rows(int layer, std::int64_t group, std::int64_t rows);
  std::map<std::pair<int, std::int64_t>, std::int64_t> rows() const;  // by layer and group
  // Rows that an op of a group worked on, and how many the program supposes of it.
  void compare_rows(std::int64_t rows, std::int64_t supposed) {
    compared_.rows += rows;
    compared_.supposed += supposed;
  }
  // The rows of all that were compared in this step over those supposed; 0: none were.
  double rows_share() const {
    return compared_.supposed > 0
               ? static_cast<double>(compared_.rows) / static_cast<double>(compared_.supposed)
               : 0;
  }
  // The highest rows_share() of this step and those before it.
  double most_rows_share() const { return std::max(most_rows_share_, rows_share()); }
  // Empties the books of communication, work and rows, after those of a step were taken. That of
  // communication then begins with what was sent under OfNextStep, and with `sent`, which is the
  // next step's too.
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
    int made = -1;  // its place in kernel_, if the kernel that runs has allocated it
  };
  // What a kernel has allocated, or, with negative bytes, let go of that it had allocated itself.
  struct KernelEvent {
    std::int64_t bytes;
    Category category;
    const void* pointer;
    bool scratch;  // let go of before the kernel ended
  };
  ska::flat_hash_map<const void*, Block> blocks_;
  std::array<MemoryUse, category_count> use_{};
  MemoryUse total_, without_scratch_;
  std::vector<KernelEvent> kernel_;  // of the kernel that runs
  int kernels_ = 0;                  // that run, one within the other
  Category current_ = Category::buffers;
  int pauses_ = 0;
  std::int64_t limit_ = 0;
  int rank_ = 0;
  LimitHint hint_;
  bool over_limit_ = false;
  template <class Key, class Use>
  struct Booked {
    Key key;
    Use use = {}, next = {};  // of this step, and of what is sent early for the next one
  };
  std::vector<Booked<CommunicationKey, CommunicationUse>> communication_;
  std::vector<Booked<WorkKey, WorkUse>> work_;
  bool of_next_step_ = false;
  std::vector<std::vector<std::int64_t>> rows_;  // by layer + 1 and group; negative: none were
  struct Compared {
    std::int64_t rows = 0, supposed = 0;
  };
  Compared compared_;  // of this step
  double most_rows_share_ = 0;
};

// While it lives, every ATen allocation and free of this thread (and of the autograd calls it
// makes) is posted to `ledger`, to the byte that was asked for. One at a time on a thread; the
// ledger must outlive it. An allocation over the ledger's limit is given back and throws Error
// (run) out of the op that asked for it; on an accelerator, whose allocator cannot be unwound,
// check over_limit(). Frees of a block on another thread than its rank's are not seen: drop tensors
// where they were made.
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

// The ledger to which this thread's allocations are posted; null: they are posted to none.
Ledger* ledger_of_thread();

}  // namespace mw
