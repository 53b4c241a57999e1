// Prices the instructions and transfers of one rank on a described cluster.
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

// Seconds of `batch` products of m x k by k x n, at `share` of the device's rate; `bits`: 8 where
// operands are fp8.
double gemm_seconds(const DeviceType& device, Dtype dtype, double m, double n, double k,
                    double batch = 1, double share = 1, int bits = 0);
// Seconds of `kernels` kernels that stream `bytes` through the device's memory.
double stream_seconds(const DeviceType& device, double bytes, double kernels = 1);
// Seconds of flash attention that executes `flops` operations; those that a causal mask saves do
// not count.
double flash_seconds(const DeviceType& device, Dtype dtype, int generation, double flops,
                     double kernels);
// Seconds of a phase whose kernels take the device `own` seconds and whose launches take the host
// `host` seconds: nearly the longer of the two.
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
  // links inside a node.
  enum Link : int { node_link, nic_link, node_send_link, sequence_link };
  // Prices one piece of an op of the graph.
  WorkTime op(const RankView& view, int index, Piece piece, int ring_step);
  // `batch` matrix products (m, k) times (k, n), of one piece of an op.
  struct Product {
    double m = 0, n = 0, k = 0, batch = 1;
  };
  // The products of a piece of an op of OpClass::matrix_product.
  Product product_of(const RankView& view, int index, Piece piece) const;
  WorkTime product(const RankView& view, int index, Piece piece);
  WorkTime attention(const RankView& view, int index, Piece piece, int ring_step, const Cost& cost);
  WorkTime streamed(const RankView& view, int index, Piece piece, const Cost& cost);
  // How an op is priced; worked out once for all ops of one Graph::kind.
  struct Priced {
    OpClass as = OpClass::other;
    bool grouped = false;  // many products at once, as experts have
    // Attention in separate kernels that store scores, whatever kernel the stack has.
    bool keeps_scores = false;
    const StreamedOp* streamed = nullptr;  // the stack's entry for the op (Stack::ops); null: none
    bool dense() const { return as == OpClass::matrix_product && !grouped; }
  };
  const Priced& priced(int op);
  // The time of a piece of an op, which holds for all ops that are alike to the view, and the width
  // of the joined product for which it holds.
  struct Known {
    const RankView* view = nullptr;
    double width = 0;
    WorkTime time;
  };
  Known& known(const RankView& view, int index, Piece piece);
  // Elements of the op's first output on the rank.
  double elements(const RankView& view, int index, int ring_step = 0) const;
  // The output width of all linears together that read the op's input; at least `own`.
  double width_of_all(const RankView& view, int index, double own);
  // Elements of a product's operands that this rank casts to narrower numbers.
  double narrowed(const RankView& view, int index, Piece piece, const Product& product);
  // Whether the instruction gathers activations over the model's axes in a stack with fp8 products,
  // which may narrow them before.
  bool narrows(const Instruction& instruction) const;
  double streams(double bytes, double kernels) const;
  double launches(double ops, bool backward) const;
  double local(const Footprint& made) const;
  // Seconds of an op's collective in forward, for a layer that is computed again to its end.
  double forward_transfer(const RankView& view, int op);

  struct Where {
    RankPlacement placed;
    bool model = false, data = false, sequence = false;
    bool parts = false;                    // the axes of the ranks split the batch or the sequence
    std::vector<const Cluster*> clusters;  // clusters of the parts that the ranks lie on
    // The highest `seconds(cluster)` of these clusters: all ranks wait for the slowest.
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
  // The factor from the program's bytes to those that the stack's software sends.
  double more(const Instruction& instruction, const Transfer& transfer);
  Link link_to(const Instruction& instruction) const;
  // Ranks of model axes that have the same rows as this rank before an exchange, or partial sums of
  // them.
  RankSet alike(const Instruction& instruction, const RankSet& exchanging) const;
  TransferCost exchange(const Instruction& instruction, const Transfer& transfer);
  // Whether every atom of the set belongs to an axis of one of these roles.
  bool of_roles(const RankSet& set, std::initializer_list<Role> roles) const;
  // The link of a transfer that crosses nodes.
  Link network_link(bool of_sequence) const;

  const Program& program_;
  const ClusterParts& parts_;
  const Coordinates at_;
  const int rank_;
  const Cluster& cluster_;  // the cluster as the rank's own part is
  const DeviceType& device_;
  const Stack& stack_;
  double reals_ = 2;  // bytes of a real
  // Gradients of a microbatch are added to those of earlier ones.
  bool sums_gradients_ = true;
  RankSet model_;  // atoms of all axes of role model
  // Each rank of the model's axes has all of what a stage sends.
  bool sends_whole_ = false;
  std::set<const Instruction*> backward_gathers_;  // gathers of sharded parameters for backward
  // How many ranks each narrow a part of what a linear reads (forward) or of its gradient (dgrad),
  // by the op and the piece.
  std::map<std::pair<int, Piece>, double> narrowed_by_;
  std::vector<bool> summed_;  // by slot: an all-reduce writes it
  std::map<RankSet, Where> where_;
  // Parts on which each stage's ranks lie, by stage.
  std::map<int, std::vector<int>> parts_of_stages_;
  // Seconds of a shift round a ring, by its ranks and bytes.
  std::map<std::pair<RankSet, double>, double> shifts_;
  std::unordered_map<int, Known> known_;  // times of ops' pieces, by op (RankView::like) and piece
  // Width of joined linears, by op; negative: not worked out yet.
  std::vector<double> joined_;
  std::vector<std::optional<Priced>> priced_;  // how ops are priced, by Graph::kind
  // First transfer of an op's output in forward, by op; null: none.
  std::vector<const Instruction*> forward_starts_;
};

}  // namespace mw
