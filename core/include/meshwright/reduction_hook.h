// The interface of reduction hooks, which sum a bucket's gradients over ranks, and gather sharded
// parameters, in another way than by one collective: cast to fewer bits, compressed, or by a
// plugin's own method.
//
// A hook belongs to the plan and has no state. The state of a bucket on a rank is in a
// BucketReduction. cost() declares what a reduction sends and allocates; predicted bytes, times and
// memory come from this declaration.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/registration.h"

namespace mw {

// A bucket on one rank. Its flat gradient tensor holds the gradients of its parameters one after
// the other, then zeros to the next multiple of the ranks that have shards of it.
struct BucketShape {
  std::string name;
  std::vector<std::string> parameters;            // names of the parameters
  std::vector<std::vector<std::int64_t>> shapes;  // shape of each parameter's local part
  std::int64_t elements = 0;                      // elements of the flat tensor
  int element = 4;                                // bytes of one element
  int ways = 1;                                   // number of ranks of the reduction
  // The elements whose sum this rank reads: all, or its shard of a bucket that ZeRO shards.
  std::int64_t own_offset = 0, own_elements = 0;
  // Whether no two ranks of the reduction read the sum of the same elements.
  bool in_shards() const { return ways > 1 && own_elements * ways == elements; }
};

// The cost of one reduction on one rank; all sizes in bytes.
struct ReductionCost {
  struct Call {
    Collective op = Collective::all_reduce;
    std::int64_t bytes = 0;  // size of the larger of the rank's two buffers
  };
  struct Phase {
    std::vector<Call> calls;     // in the order in which they are made
    std::int64_t workspace = 0;  // most bytes allocated and freed within the phase, beside `held`
    std::int64_t touched = 0;    // bytes read and written by local work
    double flops = 0;
  };
  Phase start, finish;
  std::int64_t kept = 0;  // bytes of the state that is kept from step to step
  std::int64_t held = 0;  // bytes allocated by start and alive until finish returns
};

// Runs a bucket's reductions on one rank, one after the other, in the rank's thread. The memory
// that it allocates is booked as buffers.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  // Begins a reduction of the flat tensor `gradient`, which nothing else changes until finish()
  // returns. Should not wait, so that backward can continue during the transfer. `purpose` is to be
  // passed to each collective.
  virtual void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) = 0;
  // Ends the reduction: leaves the sum over the ranks, or an approximation of it, in the tensor, at
  // least in BucketShape::own_elements, bit for bit the same on all ranks that read them.
  virtual void finish() = 0;
  // The state that is kept from step to step. Checkpoints save these tensors, and a run that
  // resumes with the same mix restores them in place before the next reduction. Each call must
  // return as many tensors, of the same shapes and dtypes. Called between reductions.
  virtual std::vector<at::Tensor> state() { return {}; }
};

// Gathers a bucket's parameters on one rank, one gather after the other, in the rank's thread.
class BucketGather {
 public:
  virtual ~BucketGather() = default;
  // Begins to gather the ranks' shards of equal size into `whole`, in the group's order. Should not
  // wait. Nothing changes `shard` until finish() returns.
  virtual void start(at::Tensor shard, at::Tensor whole, Communicator& ranks, Purpose purpose) = 0;
  // Ends the gather: leaves all shards, or approximations of them, in `whole`, bit for bit the same
  // on all ranks.
  virtual void finish() = 0;
};

class ReductionHook : public Registered {
 public:
  // The name and the options, as read_hook() has read them.
  virtual std::string identity() const { return name() + options_; }
  void set_options(std::string options) { options_ = std::move(options); }
  // Throws Error (plan), with the reason, for a bucket that the hook cannot reduce.
  virtual void check(const BucketShape&) const {}
  // Whether the sum is exact except for rounding in the gradients' dtype. If not, `verify` cannot
  // compare the mix with one rank.
  virtual bool exact(const BucketShape& bucket) const = 0;
  virtual ReductionCost cost(const BucketShape& bucket) const = 0;
  // Called once for each rank and bucket. `options`: dtype and device of the gradients.
  virtual std::unique_ptr<BucketReduction> make(const BucketShape& bucket,
                                                at::TensorOptions options) const = 0;

  // Whether the hook gathers parameters too. If so: what a gather over BucketShape::ways ranks
  // sends and allocates, keeping nothing from step to step, and what runs it (`options`: dtype and
  // device of the parameters; the shape's `element` is theirs). A gather loses bits.
  virtual bool gathers() const { return false; }
  virtual ReductionCost gather_cost(const BucketShape&) const { return {}; }
  virtual std::unique_ptr<BucketGather> make_gather(const BucketShape&, at::TensorOptions) const {
    return nullptr;
  }

 private:
  std::string options_;
};

using Hook = std::shared_ptr<const ReductionHook>;
// A hook's name with its options, by which hooks are told apart; "": there is none.
inline std::string identity_of(const Hook& hook) {
  return hook ? hook->identity() : "";
}

// What a strategy's option says of a bucket's hook.
struct HookChoice {
  // By bucket, when the plan is made: the hook, or null for none. Empty: no bucket has a hook.
  // Throws Error, with the option's key, for a bucket that the hook cannot reduce.
  std::function<Hook(const BucketShape&)> choose;
  std::string note;  // in words, which hook it is
};
// Reads the option `key`: "none", the name of a hook, a table of a name and its options, or a
// function of the script that gets { name, bytes, parameters, ways } of a bucket and returns one of
// these. `choices`: for an option that takes hooks which gather, the values that messages name.
// Throws Error (options) for anything else.
HookChoice read_hook(const Values& values, const std::string& key, std::string choices = "");

template <>
struct KindOf<ReductionHook> {
  static constexpr Kind kind = Kind::hook;
  using Make = std::unique_ptr<ReductionHook>(const Values& values);
};
template <class Class>
constexpr Registration reduction_hook(const char* name = nullptr, const char* doc = nullptr) {
  return registration<ReductionHook, Class>(name, doc);
}

}  // namespace mw
