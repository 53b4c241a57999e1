// Prices a rank's transfers by where the others of their groups are.
#include <algorithm>
#include <string_view>

#include "predict/on_cluster.h"

namespace mw {

bool OnCluster::of_role(const RankSet& set, Role role) const {
  return std::all_of(set.atoms.begin(), set.atoms.end(), [&](int atom) {
    const auto& axes = program_.mesh.axes();
    return std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) {
      return axis.role == role && !axis.borrowed &&
             std::find(axis.atoms.begin(), axis.atoms.end(), atom) != axis.atoms.end();
    });
  });
}

const OnCluster::Where& OnCluster::where(const RankSet& set) {
  const auto [found, missing] = where_.try_emplace(set);
  if (missing) {
    found->second = {place(cluster_, program_.ranks_of(set, rank_)), of_role(set, Role::model),
                     of_role(set, Role::data), of_role(set, Role::sequence)};
  }
  return found->second;
}

double OnCluster::send(const Instruction& i, const Transfer& transfer) {
  Coordinates peer = at_;
  peer[program_.stage_atom] = i.move.peer;
  const int to = program_.mesh.rank(peer);
  const auto bytes = static_cast<double>(transfer.payload);
  if (!stack_.scattered_sends || !sends_whole_ || model_.atoms.empty())
    return send_seconds(cluster_, bytes, rank_, to);
  const Placed& ranks = where(model_).placed;
  return send_seconds(cluster_, bytes / ranks.ranks, rank_, to) +
         collective_seconds(cluster_, Collective::all_gather, bytes, ranks, {});
}

// Sends inside a node go beside its collectives: a switch takes both.
int OnCluster::link_to(const Instruction& i) const {
  Coordinates peer = at_;
  peer[program_.stage_atom] = i.move.peer;
  const int devices = cluster_.node.devices;
  const bool inside =
      cluster_.torus.shape.empty() && program_.mesh.rank(peer) / devices == rank_ / devices;
  return inside ? 2 : 1;
}

RankSet OnCluster::alike(const Instruction& i, const RankSet& exchanging) const {
  RankSet set;
  if (i.inputs.empty()) return set;
  const auto& placements = program_.slots[i.inputs[0]].layout;
  const auto& moved = exchanging.atoms;
  for (const int atom : model_.atoms) {
    const bool shard = placements[atom].kind == Placement::Kind::shard;
    if (!shard && std::find(moved.begin(), moved.end(), atom) == moved.end())
      set.atoms.push_back(atom);
  }
  return set;
}

// Tokens on their way to their experts, or back.
TransferCost OnCluster::exchange(const Instruction& i, const Transfer& transfer) {
  const Placed& placed = where(transfer.set).placed;
  const Sparse& sparse = program_.graph->sparse;
  RowExchange rows;
  rows.most_nodes = stack_.exchange_nodes;
  rows.by_node = stack_.by_node;
  if (!sparse.dims.empty())
    rows.copies = sparse.share * static_cast<double>(program_.graph->size(sparse.dims.front()));
  double bytes = stack_.exchanged * static_cast<double>(transfer.payload), gathered = 0;
  const RankSet same = stack_.scattered_exchanges ? alike(i, transfer.set) : RankSet{};
  if (!same.atoms.empty()) {
    // Sums are scattered before, what is the same is gathered behind: half an all-reduce each. One
    // that the program has before the exchange is both of them.
    const Placed& ranks = where(same).placed;
    if (!summed_[i.inputs[0]])
      gathered = collective_seconds(cluster_, Collective::all_gather, bytes, ranks, {});
    bytes /= ranks.ranks;
  }
  const double seconds = gathered + exchange_seconds(cluster_, bytes, placed, {}, rows);
  const double slows = stack_.exchange_slowed >= 0
                           ? stack_.exchange_slowed
                           : device_.slowed * traffic_share(cluster_, placed, {});
  // What is hidden costs what it slows.
  const double hidden = stack_.hidden_exchange;
  return {seconds * (1 - hidden + hidden * slows), placed.nodes > 1 ? 1 : 0, slows};
}

// Round a ring all wait for its slowest hop.
double OnCluster::shift(const RankSet& set, double bytes) {
  const auto [known, missing] = shifts_.try_emplace({set, bytes});
  double& slowest = known->second;
  if (!missing) return slowest;
  const std::vector<int> ranks = program_.ranks_of(set, rank_);
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    slowest =
        std::max(slowest, send_seconds(cluster_, bytes, ranks[k], ranks[(k + 1) % ranks.size()]));
  }
  return slowest;
}

double OnCluster::more(const Instruction& i, const Transfer& transfer) {
  const std::string_view phase = transfer.phase;
  if (between_lasting(program_, i) || !where(transfer.set).sequence) return 1;
  return phase == "backward"                          ? stack_.sequence_backward
         : phase == "forward" || phase == "recompute" ? stack_.sequence_forward
                                                      : 1;
}

TransferCost OnCluster::transfer(const RankView&, const Instruction& i, const Transfer& transfer) {
  if (transfer.ways < 2) return {};
  if (transfer.op == Collective::send || transfer.op == Collective::recv) {
    const bool stages = program_.stage_atom >= 0 && transfer.set.atoms.size() == 1 &&
                        transfer.set.atoms.front() == program_.stage_atom;
    if (stages) return {send(i, transfer), link_to(i), 0};
    if (transfer.op == Collective::recv) return {};  // its sender counts it
    const double bytes = static_cast<double>(transfer.payload) * more(i, transfer);
    return {shift(transfer.set, bytes), 1, device_.slowed};
  }
  if (transfer.op == Collective::all_to_all && i.move.exchanges_rows())
    return exchange(i, transfer);
  const Where& group = where(transfer.set);
  Library library;
  library.hierarchical = stack_.hierarchical;
  if (group.data) library.nics = stack_.data_share;
  const double slows = group.data && stack_.data_slowed >= 0
                           ? stack_.data_slowed
                           : device_.slowed * traffic_share(cluster_, group.placed, library);
  double bytes = static_cast<double>(transfer.payload) * more(i, transfer);
  if (stack_.narrow_gathers && narrows(i)) bytes /= reals_;
  double seconds = collective_seconds(cluster_, transfer.op, bytes, group.placed, library);
  if (backward_gathers_.contains(&i)) seconds *= stack_.backward_gathers;
  const std::string_view phase = transfer.phase;
  if (group.model && (phase == "forward" || phase == "backward" || phase == "recompute"))
    seconds *= 1 - stack_.hidden_model;
  // A reduce-scatter is half an all-reduce.
  if (stack_.reduced_whole && between_lasting(program_, i) && i.bucket >= 0 &&
      transfer.op == Collective::reduce_scatter &&
      program_.buckets[i.bucket].sharded_state == ShardedState::optimizer) {
    seconds *= 2;
  }
  // Beside the next step's forward they cost what they slow.
  if (stack_.update_gathers_hidden && between_lasting(program_, i) && i.bucket >= 0 &&
      phase == "parameters" &&
      program_.buckets[i.bucket].sharded_state != ShardedState::parameters) {
    seconds *= slows;
  }
  return {seconds, group.placed.nodes > 1 ? 1 : 0, slows};
}

}  // namespace mw
