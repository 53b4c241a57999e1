// Records the tensors that a run computes, each as one rank with the whole batch at once would have
// it, so that runs of different plans and microbatches can be compared.
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
  parameter,  // a parameter, after the update
};

// Names one tensor of a run, whatever the plan. Keys are ordered as one rank makes the tensors.
struct TensorKey {
  std::int64_t step = 0;
  TensorKind kind = TensorKind::forward;
  // Forward: the op's number in the model (number_in_model()). Other kinds: that number counted
  // backwards from the last op, as backward goes. A parameter has the op that uses it last.
  int place = 0;
  // Index of the op's output; -1 - n: its n-th operand, as the op reads it. For a parameter and its
  // gradient: the parameter's value in the graph.
  int output = 0;
  bool read() const { return output < 0; }
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};
// How many ops of the model stand before an op of the graph, whose plan may compute some of them
// in parts.
int number_in_model(const Graph& graph, int op);
// The op that a key is about; -1: a parameter that no op uses.
int op_of(const Graph& graph, const TensorKey& key);
// The graph's value that a key is about: an op's output, an operand or a parameter.
int value_of(const Graph& graph, const TensorKey& key);

// A recorded tensor, complete.
struct WholeTensor {
  at::Tensor numbers;
  // The largest difference (2-norm) between the first copy and another one that the plan says is
  // alike, and the rank of that copy.
  double spread = 0;
  int rank = 0;
  double stored = 0;  // for a parameter that an op reads: its distance from the stored parameter
};

// Records one run. Its ranks' watchers share it. Where ranks are in several processes, each process
// has a recorder, and the first one's collects all tensors after the run (gather()). Only that
// recorder completes tensors.
//
// Joins the batch rows of microbatches. Tensors without batch rows are summed over microbatches if
// their op runs over the batch (a loss), else averaged. Operands are recorded where a collective, a
// transfer or the optimizer stands between producer and reader, so on more than one rank only.
// Sparse tensors, whose rows depend on the ranks, are left out.
class Recorder {
 public:
  // Called for each tensor once, when the last rank that holds it has brought its last part. One
  // call at a time, in any rank's thread.
  using Complete = std::function<void(const TensorKey&, const WholeTensor&)>;
  // `processes`: the processes that share the plan's ranks; null: this one has all.
  Recorder(const Plan& plan, Complete complete, Processes* processes = nullptr);

  std::unique_ptr<StepWatcher> watcher(RankRun& executor);
  // Called by every process after the run. Completes tensors that ranks of several processes hold.
  void gather();
  // By step: what rank 0 reported. Complete in the first process once the run has ended.
  const std::vector<StepOutcome>& outcomes() const { return outcomes_; }

 private:
  class RankWatcher;
  struct Part {
    WholeTensor tensor;
    std::vector<int> ranks;  // the ranks that have brought it
    bool of(int rank) const { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }
    template <class Pack>
    friend void members(Pack& pack, Part& part) {
      pack(part.tensor.numbers, part.tensor.spread, part.tensor.rank, part.tensor.stored,
           part.ranks);
    }
  };
  struct Parts {
    std::map<int, Part> of;  // by microbatch
    at::Tensor rows;         // the tensor, as far as it is joined
    double spread = 0;       // sum of the squared spreads of parts
    int rank = 0;            // the rank of `most`
    double most = 0;         // largest spread of a part
    int done = 0;            // number of microbatches joined
    double stored = 0;       // WholeTensor::stored so far
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
      ranks_of_parameter_;  // number of ranks that hold the op's results, or the parameter
  std::mutex mutex_;
  std::map<TensorKey, Parts> parts_;
  std::set<TensorKey> completed_;
  std::vector<StepOutcome> outcomes_;
};

}  // namespace mw
