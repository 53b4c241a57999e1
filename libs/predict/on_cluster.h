// One rank of a plan on a described cluster: what its instructions and transfers take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "predict/cluster_parts.h"
#include "predict/machine.h"
#include "predict/network.h"
#include "predict/stack.h"

namespace mw {

// `batch` products of m x k by k x n, at `share` of the device's rate; `bits`: 8
// where operands are fp8.
double gemm_seconds(const DeviceType& device, Dtype dtype, double m, double n, double k,
                    double batch = 1, double share = 1, int bits = 0);
// Kernels that stream so many bytes through memory.
double stream_seconds(const DeviceType& device, double bytes, double kernels = 1);
// Flash attention of so many operations, causal ones counted once.
double flash_seconds(const DeviceType& device, Dtype dtype, int generation, double flops,
                     double kernels);
// What a phase takes whose kernels take the device so long and whose launches the host: nearly the
// longer of the two.
double phase_seconds(const DeviceType& device, double own, double host);

class OnCluster final : public RankMachine {
 public:
  OnCluster(const RankView& view, const ClusterParts& parts, const Stack& stack);

  WorkTime work(const RankView& view, const Instruction& instruction,
                const Footprint& made) override;
  TransferCost transfer(const RankView& view, const Instruction& instruction,
                        const Transfer& transfer) override;
  double host_copy(double bytes) const override;
  WorkTime beside(const RankView& view, const Segment& segment) override;
  double run_seconds(double device, double host) const override;

 private:
  void look_at(const Segment& segment, int lane, std::vector<int>& made_by);
  // Values of TransferCost::link. Inside a node sends go beside collectives, as a switch takes
  // both; some stacks send over the sequence's axes beside all else on the NICs. Even numbers are
  // inside a node.
  enum Link : int { node_link, nic_link, node_send_link, sequence_link };
  // One piece of an op of the graph.
  WorkTime op(const RankView& view, int index, Piece piece, int ring_step);
  // A matrix product (m, k) times (k, n) of one piece of an op, so many at once.
  struct Product {
    double m = 0, n = 0, k = 0, batch = 1;
  };
  // What an op of OpClass::matrix_product multiplies.
  Product product_of(const RankView& view, int index, Piece piece) const;
  WorkTime product(const RankView& view, int index, Piece piece);
  WorkTime attention(const RankView& view, int index, Piece piece, int ring_step, const Cost& cost);
  WorkTime streamed(const RankView& view, int index, Piece piece, const Cost& cost);
  // How an op is priced; asked for once of all ops that are alike (Graph::kind).
  struct Priced {
    OpClass as = OpClass::other;
    bool grouped = false;                  // many products at once, as those of experts
    bool keeps_scores = false;             // attention in parts, whatever kernel the stack has
    const StreamedOp* streamed = nullptr;  // what the stack says of it; null: nothing
    bool dense() const { return as == OpClass::matrix_product && !grouped; }
  };
  const Priced& priced(int op);
  // What a piece of an op takes, of ops that are alike to the view; the width of what is joined
  // decides too.
  struct Known {
    const RankView* view = nullptr;
    double width = 0;
    WorkTime time;
  };
  Known& known(const RankView& view, int index, Piece piece);
  // Elements of the op's first output on the rank.
  double elements(const RankView& view, int index, int ring_step = 0) const;
  // The width of all linears of the op's input.
  double width_of_all(const RankView& view, int index, double own);
  // Elements that a product's operands are narrowed from, on this rank.
  double narrowed(const RankView& view, int index, Piece piece, const Product& product);
  // Whether it gathers, over the model's axes, what a stack with narrow products may narrow before.
  bool narrows(const Instruction& instruction) const;
  double streams(double bytes, double kernels) const;
  double launches(double ops, bool backward) const;
  double local(const Footprint& made) const;
  // Seconds of an op's collective in forward, for a layer that is computed again to its end.
  double forward_transfer(const RankView& view, int op);

  struct Where {
    Placed placed;
    bool model = false, data = false, sequence = false;
    bool parts = false;                    // its axes split the batch or the sequence
    std::vector<const Cluster*> clusters;  // of the parts that its ranks lie on
    // The most that `seconds(cluster)` is of any of these: all ranks wait for the slowest.
    template <class Seconds>
    double slowest(const Seconds& seconds) const {
      double most = 0;
      for (const Cluster* cluster : clusters) most = std::max(most, seconds(*cluster));
      return most;
    }
  };
  const Where& where(const RankSet& set);
  double send(const Instruction& instruction, const Transfer& transfer);
  // A message from this rank to one of another stage, by the slowest links of both stages: all
  // ranks of a stage wait for theirs.
  double send_to(int stage, int rank, double bytes);
  double shift(const RankSet& set, double bytes);
  // Times the program's bytes that other software sends.
  double more(const Instruction& instruction, const Transfer& transfer);
  Link link_to(const Instruction& instruction) const;
  // Ranks of model axes that have the same rows as this one before an exchange, or parts of their
  // sums.
  RankSet alike(const Instruction& instruction, const RankSet& exchanging) const;
  TransferCost exchange(const Instruction& instruction, const Transfer& transfer);
  // Whether every atom belongs to an axis of one of these roles.
  bool of_roles(const RankSet& set, std::initializer_list<Role> roles) const;
  // The link of what crosses nodes.
  Link network_link(bool of_sequence) const;

  const Program& program_;
  const ClusterParts& parts_;
  const Coordinates at_;
  const int rank_;
  const Cluster& cluster_;  // as the rank's own part is
  const DeviceType& device_;
  const Stack& stack_;
  double reals_ = 2;            // bytes of a real
  bool sums_gradients_ = true;  // a microbatch's gradients are added to those before
  RankSet model_;               // all axes of the model
  bool sends_whole_ = false;    // each of their ranks has all of what a stage sends
  std::set<const Instruction*> backward_gathers_;  // of parameters that are kept in shards
  // Ranks that each narrow a part of what a linear reads (forward) or of its gradient (dgrad).
  std::map<std::pair<int, Piece>, double> narrowed_by_;
  std::vector<bool> summed_;  // slots that an all-reduce leaves
  std::map<RankSet, Where> where_;
  std::map<int, std::vector<int>> parts_of_stages_;      // by stage
  std::map<std::pair<RankSet, double>, double> shifts_;  // by bytes
  std::unordered_map<int, Known> known_;                 // by op (RankView::like) and piece
  std::vector<double> joined_;                           // by op; negative: not asked for
  std::vector<std::optional<Priced>> priced_;            // by Graph::kind
  std::vector<const Instruction*> forward_starts_;  // by op whose output is moved; null: it is not
};

}  // namespace mw
