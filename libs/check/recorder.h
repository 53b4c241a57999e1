// What a run computes, tensor by tensor, as one rank with the whole batch at once would have it: so
// that runs of different mixes and microbatches can be compared.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "check/observe.h"
#include "meshwright/engine/processes.h"

namespace mw {

// In the order in which a step makes them.
enum class TensorKind : std::uint8_t {
  forward,    // an op's output, or what it reads
  backward,   // the gradient of an op's output
  gradient,   // a parameter's, reduced, before clipping
  parameter,  // after the update
};

// One tensor of a run, whatever the mix. Keys compare as a single rank makes what they name.
struct TensorKey {
  std::int64_t step = 0;
  TensorKind kind = TensorKind::forward;
  // Forward: the op's index. Else counted backwards from the last op, as backward goes; a parameter
  // stands at the op that uses it last.
  int place = 0;
  // Which output of the op; -1 - n: its n-th operand, as it reads it. For a parameter its value in
  // the graph.
  int output = 0;
  bool read() const { return output < 0; }
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};
// The op that a key is about; -1: a parameter that none uses.
int op_of(const Graph& graph, const TensorKey& key);
// The graph's value: an op's output, an operand or a parameter.
int value_of(const Graph& graph, const TensorKey& key);

// One of them, complete.
struct WholeTensor {
  at::Tensor numbers;
  // Ranks that hold it alike, by the plan: the largest 2-norm of a difference between two
  // of them, and who.
  double spread = 0;
  int rank = 0;
  double stored = 0;  // of a parameter that is read: how far from that which is stored
};

// Where ranks are in several processes each has a recorder, and what they recorded comes together
// in the first one's when the run has ended (gather()); only that completes tensors.
//
// Puts rows of microbatches together, and sums or averages what has no rows: a loss of an op over
// the batch is a sum over microbatches, anything else is the same for all. Operands are recorded
// where a collective, a transfer or the optimizer stands between who made them and who reads them,
// so on more than one rank only. Tensors whose rows lie as ranks have them (Sparse) are left out.
// One for a run, shared by its ranks' watchers.
class Recorder {
 public:
  // `complete` gets each tensor once, when the last rank that holds it has brought the last part;
  // one call at a time, in some rank's thread.
  using Complete = std::function<void(const TensorKey&, const WholeTensor&)>;
  // `processes`: null, or those that share the plan's ranks.
  Recorder(const Plan& plan, Complete complete, Processes* processes = nullptr);

  std::unique_ptr<StepWatcher> watcher(RankRun& executor);
  // After the run, by every process; completes what ranks of several processes hold.
  void gather();
  // What each step reported, in the first process; complete once the run has ended.
  const std::vector<StepOutcome>& outcomes() const { return outcomes_; }

 private:
  class RankWatcher;
  struct Part {
    WholeTensor tensor;
    std::vector<int> ranks;  // that have brought it
    bool of(int rank) const { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }
    template <class Pack>
    friend void members(Pack& pack, Part& part) {
      pack(part.tensor.numbers, part.tensor.spread, part.tensor.rank, part.tensor.stored,
           part.ranks);
    }
  };
  struct Parts {
    std::map<int, Part> of;  // by microbatch
    at::Tensor rows;         // put together so far
    double spread = 0;       // squared, over parts
    int rank = 0;
    double most = 0;    // the largest part's spread
    int done = 0;       // microbatches
    double stored = 0;  // WholeTensor's
  };

  void bring(const TensorKey& key, const Program& program, int rank, int microbatch,
             const at::Tensor& tensor, double from_stored = 0);
  void adopt(const TensorKey& key, int microbatch, Part brought);
  void join(const TensorKey& key, const Program& program, int microbatch, Part& part);
  std::size_t holders(const TensorKey& key) const;

  const Plan& plan_;
  const Complete complete_;
  Processes* const processes_;
  std::map<int, std::size_t> ranks_of_op_,
      ranks_of_parameter_;  // how many ranks hold what they make
  std::mutex mutex_;
  std::map<TensorKey, Parts> parts_;
  std::set<TensorKey> completed_;
  std::vector<StepOutcome> outcomes_;
};

}  // namespace mw
