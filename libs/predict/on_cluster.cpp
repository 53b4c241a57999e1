// Prices a rank's instructions on a described cluster: products by their shapes, streaming kernels
// by their bytes, attention by its kernel, launches by the host's time, and transfers by where the
// ranks of their groups lie.
#include "predict/on_cluster.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace mw {
namespace {

// How many launches attention takes the host: in any case, in addition where it is in separate
// kernels, and where its softmax is not fused either.
constexpr double attention_forward = 7, attention_backward = 7, parts_forward = 3,
                 parts_backward = 4, unfused_forward = 5, unfused_backward = 4;

}  // namespace

OnCluster::OnCluster(const RankView& view, const ClusterParts& parts, const Stack& stack)
    : program_(view.program()),
      parts_(parts),
      at_(view.at()),
      rank_(program_.mesh.rank(view.at())),
      cluster_(parts.part_of(rank_).cluster),
      device_(cluster_.device),
      stack_(stack),
      reals_(bytes_of(program_.dtype)),
      summed_(program_.slots.size(), false),
      joined_(program_.graph->ops().size(), -1),
      priced_(program_.graph->ops().size()),
      forward_starts_(program_.graph->ops().size(), nullptr) {
  bool shards_parameters = false;
  for (const Bucket& bucket : program_.buckets)
    shards_parameters = shards_parameters || bucket.sharded_state == ShardedState::parameters;
  sums_gradients_ = program_.microbatches > 1 || !shards_parameters;
  for (const Axis& axis : program_.mesh.axes()) {
    if (axis.role == Role::model && !axis.borrowed)
      model_.atoms.insert(model_.atoms.end(), axis.atoms.begin(), axis.atoms.end());
  }
  std::vector<int> made_by(program_.slots.size(), -1);  // by slot: the op that makes it in forward
  for (const Segment& segment : program_.segments) {
    const int lanes = std::max(1, static_cast<int>(segment.lanes.size()));
    for (int lane = 0; lane < lanes; ++lane) look_at(segment, lane, made_by);
  }
}

// Looks at a segment, or at one lane of a braid. `made_by`: for each slot, the op that makes it in
// forward.
void OnCluster::look_at(const Segment& segment, int lane, std::vector<int>& made_by) {
  std::map<int, double> gathered;  // by slot: how many ranks it is gathered from
  const bool braided = segment.kind == SegmentKind::braid;
  const bool forward =
      SegmentKind::forward ==
      (braided ? segment.lanes[static_cast<std::size_t>(lane)].kind : segment.kind);
  if (forward) std::fill(made_by.begin(), made_by.end(), -1);
  for (const Instruction& i : segment.code) {
    if (i.lane != lane) continue;
    if (stack_.narrow_gathers && narrows(i))
      gathered[i.outputs[0]] = program_.mesh.ways(i.move.atoms);
    if (!gathered.empty() && i.runs_op()) {
      for (const int slot : i.inputs) {
        if (gathered.contains(slot)) narrowed_by_[{i.op, i.piece}] = gathered[slot];
      }
    }
    if (i.begins_transfer() && i.serves == Serves::parameters && !forward &&
        program_.buckets[i.bucket].sharded_state == ShardedState::parameters) {
      backward_gathers_.insert(&i);
    }
    if (forward && i.runs_op() && i.piece == Piece::forward) {
      for (const int slot : i.outputs) made_by[slot] = i.op;
    }
    if (!i.begins_transfer() || i.inputs.empty() || between_lasting(program_, i)) continue;
    if (i.move.kind == Move::Kind::all_reduce) {
      for (const int slot : i.outputs) summed_[slot] = true;
    }
    if (i.move.kind == Move::Kind::send) {
      const auto& placements = program_.slots[i.inputs[0]].layout;
      sends_whole_ = true;
      for (const int atom : model_.atoms) {
        if (placements[atom].kind != Placement::Kind::replicate) sends_whole_ = false;
      }
    } else if (forward && made_by[i.inputs[0]] >= 0) {
      const Instruction*& first = forward_starts_[made_by[i.inputs[0]]];
      if (first == nullptr) first = &i;
    }
  }
}

bool OnCluster::narrows(const Instruction& i) const {
  return stack_.product_bits == 8 && i.begins_transfer() && i.move.kind == Move::Kind::all_gather &&
         !between_lasting(program_, i) &&
         std::all_of(i.move.atoms.begin(), i.move.atoms.end(), [&](int atom) {
           return std::find(model_.atoms.begin(), model_.atoms.end(), atom) != model_.atoms.end();
         });
}

double OnCluster::streams(double bytes, double kernels) const {
  return stream_seconds(device_, bytes, kernels);
}

double OnCluster::launches(double ops, bool backward) const {
  return ops * device_.launch * stack_.host * (backward ? device_.backward_launch : 1);
}

const OnCluster::Priced& OnCluster::priced(int index) {
  std::optional<Priced>& known = priced_[program_.graph->kind(index)];
  if (known) return *known;
  const Op& op = program_.graph->ops()[index];
  known.emplace();
  known->as = op.op_class();
  if (known->as == OpClass::matrix_product) {
    known->grouped = std::ranges::any_of(op.inputs[1].dims, [&](Dim dim) {
      return contains(op.inputs[0].dims, dim) && contains(op.output_dims[0], dim);
    });
  }
  if (known->as == OpClass::attention) {  // whether it saves a softmax over queries and keys
    known->keeps_scores =
        std::ranges::any_of(program_.graph->traits(index).saved, [&](const SavedValue& saved) {
          return contains(saved.dims, op.inputs[0].dims[1]) &&
                 contains(saved.dims, op.inputs[1].dims[1]);
        });
  }
  auto streamed = stack_.ops.find(op.kind());
  if (streamed == stack_.ops.end()) streamed = stack_.ops.find(name_of(known->as));
  if (streamed != stack_.ops.end()) known->streamed = &streamed->second;
  return *known;
}

double OnCluster::elements(const RankView& view, int index, int ring_step) const {
  const Op& op = program_.graph->ops()[index];
  if (op.output_dims.empty()) return 0;
  return static_cast<double>(view.dims(index, ring_step).count(op.output_dims[0]));
}

WorkTime OnCluster::work(const RankView& view, const Instruction& i, const Footprint& made) {
  if (i.runs_op()) return view.runs(i) ? op(view, i.op, i.piece, i.part()) : WorkTime{};
  if (made.on_host >= 0) return {local(made), 0};
  const bool own_update = stack_.optimizer_bytes <= 0;
  if (i.computes()) {
    if (own_update || i.update != Update::apply || i.parameter >= 0) return {local(made), 0};
    const auto shard = static_cast<double>(view.shard(i.bucket).size);
    return {streams(shard * stack_.optimizer_bytes, 0) + local(made) -
                streams(made.work.empty() ? 0 : made.work.front().bytes, 0),
            0};
  }
  if (i.makes_totals()) return {device_.optimizer + (own_update ? local(made) : 0), 0};
  if (i.copies() && between_lasting(program_, i) && !own_update) return {};
  WorkTime time{local(made), 0};
  if (i.begins_transfer() && !made.between_stages)
    time.host = launches(1, i.phase != std::string_view("forward"));
  return time;
}

double OnCluster::local(const Footprint& made) const {
  double seconds = 0;
  for (const LocalWork& work : made.work) {
    if (work.gemms > 0) {
      seconds +=
          work.flops / (device_.peak(program_.dtype) * device_.gemm) + work.gemms * device_.kernel;
    } else if (work.bytes > 0) {
      seconds += streams(work.bytes, work.calls);
    }
    seconds += host_copy(work.link);
    if (work.host > 0 && cluster_.host_bandwidth > 0)
      seconds += work.host / cluster_.host_bandwidth;
  }
  return seconds;
}

// All ranks of a node copy at the same time.
double OnCluster::host_copy(double bytes) const {
  const int devices = cluster_.node.devices, before = rank_ / devices * devices;
  return host_copy_seconds(cluster_, bytes, std::min(devices, program_.mesh.size() - before));
}

WorkTime OnCluster::op(const RankView& view, int index, Piece piece, int ring_step) {
  if (priced(index).as == OpClass::matrix_product) {
    if (piece != Piece::backward) return product(view, index, piece);
    const WorkTime input = product(view, index, Piece::dgrad);
    const WorkTime weight = product(view, index, Piece::wgrad);
    return {input.seconds + weight.seconds, input.host + weight.host};
  }
  const Cost& cost = view.cost(index, piece, ring_step);
  Known* const before = ring_step == 0 ? &known(view, index, piece) : nullptr;
  if (before != nullptr && before->view == &view) return before->time;
  const WorkTime time = priced(index).as == OpClass::attention
                            ? attention(view, index, piece, ring_step, cost)
                            : streamed(view, index, piece, cost);
  if (before != nullptr) *before = {&view, 0, time};
  return time;
}

OnCluster::Known& OnCluster::known(const RankView& view, int index, Piece piece) {
  return known_[view.like(index) * 4 + static_cast<int>(piece)];
}

double OnCluster::width_of_all(const RankView& view, int index, double own) {
  if (joined_[index] >= 0) return joined_[index];
  const auto& ops = program_.graph->ops();
  const Op& op = ops[index];
  double width = 0;
  if (priced(index).dense()) {
    // Products that read one input stand close together in the graph.
    const int last = std::min<int>(static_cast<int>(ops.size()), index + 8);
    for (int other = std::max(0, index - 8); other < last; ++other) {
      if (ops[other].inputs.empty() || ops[other].inputs[0].value != op.inputs[0].value ||
          !priced(other).dense())
        continue;
      width += product_of(view, other, Piece::forward).n;
    }
  }
  return joined_[index] = std::max(width, own);
}

// Only activations and their gradients count, as weights are narrowed once a step. What several
// products read is narrowed once for all of them, and once more for the weights' gradient.
double OnCluster::narrowed(const RankView& view, int index, Piece piece, const Product& product) {
  const auto parts = [&](Piece of) {
    const auto found = narrowed_by_.find({index, of});
    return found == narrowed_by_.end() ? 1.0 : found->second;
  };
  if (piece == Piece::dgrad) return product.m * product.k / parts(Piece::dgrad);
  const bool forward = piece == Piece::forward;
  const double width = forward ? product.n : product.m, tokens = forward ? product.m : product.k,
               read = forward ? product.k : product.n;
  const double input =
      tokens * read * width / width_of_all(view, index, width) / parts(Piece::forward);
  return forward ? input : input + tokens * width / parts(Piece::dgrad);
}

OnCluster::Product OnCluster::product_of(const RankView& view, int index, Piece piece) const {
  const Op& op = program_.graph->ops()[index];
  const LocalDims& dims = view.dims(index);
  const Dims& x = op.inputs[0].dims;
  double n = 1, k = 1, matrices = 1;
  for (Dim dim : op.inputs[1].dims) {
    const bool output = contains(op.output_dims[0], dim);
    (!output ? k : contains(x, dim) ? matrices : n) *= static_cast<double>(dims.at(dim).size);
  }
  if (n * k * matrices == 0) return {};
  // Each of a group's products is supposed to have an equal share of the rows.
  const double rows = std::floor(static_cast<double>(dims.count(x)) / k);
  const double m = std::ceil(rows / matrices), batch = m > 0 ? std::round(rows / m) : 1;
  if (piece == Piece::dgrad) return {m, k, n, batch};
  if (piece == Piece::wgrad) return {n, k, m, batch};
  return {m, n, k, batch};
}

WorkTime OnCluster::product(const RankView& view, int index, Piece piece) {
  const Product sizes = product_of(view, index, piece);
  auto [m, n, k, batch] = sizes;
  if (m * n * k == 0) return {};
  // The op's output width is n of forward, k of dgrad and m of wgrad.
  double& width = piece == Piece::forward ? n : piece == Piece::dgrad ? k : m;
  const double own = width, weights = piece == Piece::wgrad ? m * n * batch : 0;
  if (batch == 1 && stack_.joined_projections) width = width_of_all(view, index, own);
  Known& before = known(view, index, piece);
  // Else the price depends on the op's layer and its neighbours.
  const bool shared = stack_.product_bits == 0;
  if (shared && before.view == &view && before.width == width) return before.time;
  const double part = own / width;
  const Op& op = program_.graph->ops()[index];
  // Embedding and output projection keep the program's numbers.
  const int bits = op.layer >= 0 ? stack_.product_bits : 0;
  WorkTime time{
      part * gemm_seconds(device_, program_.dtype, m, n, k, batch,
                          stack_.products * (priced(index).grouped ? stack_.grouped : 1), bits),
      0};
  if (bits > 0) {
    const double elements = narrowed(view, index, piece, sizes);
    time.seconds += streams(stack_.product_casts * batch * elements, part);
  }
  if (piece == Piece::wgrad && sums_gradients_)
    time.seconds += streams(stack_.gradient_sum * weights, 0);
  time.host = launches(part * (piece == Piece::wgrad ? 2 : 1), piece != Piece::forward);
  if (shared) before = {&view, width, time};
  return time;
}

WorkTime OnCluster::attention(const RankView& view, int index, Piece piece, int ring_step,
                              const Cost& cost) {
  const bool backward = piece != Piece::forward;
  const Op& op = program_.graph->ops()[index];
  const LocalDims& dims = view.dims(index, ring_step);
  const Dims& q = op.inputs[0].dims;
  const auto size = [&](Dim dim) { return static_cast<double>(dims.at(dim).size); };
  const double heads = size(q[0]) * size(q[2]), queries = size(q[1]),
               keys = size(op.inputs[1].dims[1]), width = size(q[3]);
  // Copies of tensors that lie otherwise in memory.
  WorkTime time = streamed(view, index, piece, cost);
  time.host = launches(backward ? attention_backward : attention_forward, backward);
  if (cost.flops <= 0) return time;
  if (stack_.flash > 0 && !priced(index).keeps_scores) {
    // Over a whole sequence: half of all products, if the op says that its causal mask leaves some
    // out. Over a part of a sequence: what the program's kernel executes.
    const double all = backward ? 1.25 * cost.flops : cost.flops;
    const bool whole = queries == keys && queries == static_cast<double>(dims.at(q[1]).global);
    const Cost& forward = view.cost(index, Piece::forward, ring_step);
    const bool causal = whole && forward.executed < forward.flops;
    const double done = causal ? 0.5 * all : std::min(all, cost.executed);
    // Backward reaches less of the peak (Dao 2023, "FlashAttention-2", section 4.1).
    time.seconds += flash_seconds(device_, program_.dtype, stack_.flash,
                                  backward ? done / 0.85 : done, backward ? 3 : 1);
    return time;
  }
  const double scores = heads * queries * keys;
  const auto each = [&](double m, double n, double k) {
    return gemm_seconds(device_, program_.dtype, m, n, k, heads, device_.batched);
  };
  const double first = each(queries, keys, width), second = each(queries, width, keys);
  time.seconds += backward ? 2 * first + second + each(keys, width, queries) : first + second;
  time.seconds += streams(scores * (backward ? stack_.scores_backward : stack_.scores_forward), 2);
  time.host += launches(backward ? parts_backward : parts_forward, backward);
  if (stack_.fused_heads > 0 && static_cast<std::int64_t>(heads) % stack_.fused_heads != 0)
    time.host += launches(backward ? unfused_backward : unfused_forward, backward);
  return time;
}

WorkTime OnCluster::streamed(const RankView& view, int index, Piece piece, const Cost& cost) {
  const bool backward = piece != Piece::forward;
  const Op& op = program_.graph->ops()[index];
  const OpClass as = priced(index).as;
  const StreamedOp* const said = priced(index).streamed;
  const StreamedOp::Way way = said == nullptr ? StreamedOp::Way{}
                              : backward      ? said->backward
                                              : said->forward;
  double bytes = way.passes < 0 ? cost.bytes : way.passes * elements(view, index) * reals_;
  if (as == OpClass::attention && way.passes < 0) bytes = 0;
  const double logit = backward ? stack_.loss_backward : stack_.loss_forward;
  if (logit > 0 && as == OpClass::loss)
    bytes = logit * static_cast<double>(view.dims(index).count(op.inputs[0].dims));
  if (logit > 0 && as == OpClass::loss_part) bytes = 0;
  const double kernels = bytes > 0 ? way.kernels : 0;
  return {streams(bytes, kernels), launches(way.host, backward)};
}

double OnCluster::forward_transfer(const RankView& view, int op) {
  const Instruction* found = forward_starts_[op];
  if (found == nullptr) return 0;
  double seconds = 0;
  for (const Transfer& each : footprint(view, *found, FootprintParts::work).transfers)
    seconds += transfer(view, *found, each).seconds;
  return seconds;
}

WorkTime OnCluster::beside(const RankView& view, const Segment& segment) {
  WorkTime time;
  const bool forward = segment.kind == SegmentKind::forward;
  const bool backward = segment.kind == SegmentKind::backward || segment.kind == SegmentKind::dgrad;
  if (!forward && !backward) return time;
  const auto chunks = static_cast<double>(
      std::count(program_.stage_of.begin(), program_.stage_of.end(), program_.stage));
  // The host's launches for data, masks and loss in forward; fewer in backward.
  time.host = launches(stack_.microbatch_host, false) * (forward ? 1 : 0.3) / std::max(chunks, 1.0);
  if (!backward || !stack_.whole_recompute) return time;
  std::set<int> again;
  for (const Instruction& i : segment.code) {
    if (i.runs_op() && i.piece == Piece::forward) again.insert(i.op);
  }
  if (again.empty()) return time;
  const auto& ops = program_.graph->ops();
  std::set<int> layers;  // layers that are recomputed from their first op on
  for (const int op : again) {
    if (ops[op].layer >= 0 && op > 0 && ops[op - 1].layer != ops[op].layer)
      layers.insert(ops[op].layer);
  }
  for (int op = *again.begin(); op < static_cast<int>(ops.size()); ++op) {
    if (!layers.contains(ops[op].layer) || again.contains(op)) continue;
    const WorkTime own = this->op(view, op, Piece::forward, 0);
    time.seconds += own.seconds + forward_transfer(view, op);
    time.host += own.host;
  }
  return time;
}

double OnCluster::run_seconds(double device, double host) const {
  return phase_seconds(device_, device, host);
}

OnCluster::Link OnCluster::network_link(bool of_sequence) const {
  return of_sequence && stack_.sequence_beside ? sequence_link : nic_link;
}

bool OnCluster::of_roles(const RankSet& set, std::initializer_list<Role> roles) const {
  return std::all_of(set.atoms.begin(), set.atoms.end(), [&](int atom) {
    const auto& axes = program_.mesh.axes();
    return std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) {
      return std::ranges::find(roles, axis.role) != roles.end() && !axis.borrowed &&
             std::find(axis.atoms.begin(), axis.atoms.end(), atom) != axis.atoms.end();
    });
  });
}

const OnCluster::Where& OnCluster::where(const RankSet& set) {
  const auto [found, missing] = where_.try_emplace(set);
  if (!missing) return found->second;
  const std::vector<int> ranks = program_.ranks_of(set, rank_);
  found->second = {place(cluster_, ranks),
                   of_roles(set, {Role::model}),
                   of_roles(set, {Role::data}),
                   of_roles(set, {Role::sequence}),
                   of_roles(set, {Role::data, Role::sequence}),
                   {&cluster_}};
  if (!parts_.uneven()) return found->second;
  for (const int rank : ranks) {
    const Cluster* other = &parts_.part_of(rank).cluster;
    if (std::ranges::find(found->second.clusters, other) == found->second.clusters.end())
      found->second.clusters.push_back(other);
  }
  return found->second;
}

double OnCluster::send(const Instruction& i, const Transfer& transfer) {
  Coordinates peer = at_;
  peer[program_.stage_atom] = i.move.peer;
  const int to = program_.mesh.rank(peer);
  const auto bytes = static_cast<double>(transfer.payload);
  if (!stack_.scattered_sends || !sends_whole_ || model_.atoms.empty())
    return send_to(i.move.peer, to, bytes);
  const Where& ranks = where(model_);
  return send_to(i.move.peer, to, bytes / ranks.placed.ranks) +
         ranks.slowest([&](const Cluster& cluster) {
           return collective_seconds(cluster, Collective::all_gather, bytes, ranks.placed, {});
         });
}

double OnCluster::send_to(int stage, int rank, double bytes) {
  double seconds = send_seconds(cluster_, bytes, rank_, rank);
  if (!parts_.uneven()) return seconds;
  for (const int either : {program_.stage, stage}) {
    const auto [found, missing] = parts_of_stages_.try_emplace(either);
    if (missing) found->second = parts_.of_stage(program_, either);
    for (const int part : found->second) {
      const Cluster& cluster = parts_.all()[static_cast<std::size_t>(part)].cluster;
      seconds = std::max(seconds, send_seconds(cluster, bytes, rank_, rank));
    }
  }
  return seconds;
}

// The link of a send to another stage.
OnCluster::Link OnCluster::link_to(const Instruction& i) const {
  Coordinates peer = at_;
  peer[program_.stage_atom] = i.move.peer;
  const int devices = cluster_.node.devices;
  const bool inside =
      cluster_.torus.shape.empty() && program_.mesh.rank(peer) / devices == rank_ / devices;
  return inside ? node_send_link : nic_link;
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

// Prices an exchange of tokens on their way to their experts, or back.
TransferCost OnCluster::exchange(const Instruction& i, const Transfer& transfer) {
  const Where& group = where(transfer.set);
  const RankPlacement& placed = group.placed;
  const Sparse& sparse = program_.graph->sparse;
  RowExchange rows;
  rows.most_nodes = stack_.exchange_nodes;
  rows.by_node = stack_.by_node;
  if (!sparse.dims.empty())
    rows.copies = sparse.share * static_cast<double>(program_.graph->size(sparse.dims.front()));
  double bytes = stack_.exchanged * static_cast<double>(transfer.payload), gathered = 0;
  const RankSet same = stack_.scattered_exchanges ? alike(i, transfer.set) : RankSet{};
  if (!same.atoms.empty()) {
    // Partial sums are reduce-scattered before the exchange, and equal rows are gathered after it:
    // half an all-reduce each. An all-reduce that the program has before the exchange is both of
    // them.
    const Where& ranks = where(same);
    if (!summed_[i.inputs[0]]) {
      gathered = ranks.slowest([&](const Cluster& cluster) {
        return collective_seconds(cluster, Collective::all_gather, bytes, ranks.placed, {});
      });
    }
    bytes /= ranks.placed.ranks;
  }
  const double seconds = gathered + group.slowest([&](const Cluster& cluster) {
    return exchange_seconds(cluster, bytes, placed, {}, rows);
  });
  const double slows = stack_.exchange_slowed >= 0
                           ? stack_.exchange_slowed
                           : device_.slowed * traffic_share(cluster_, placed, {});
  return {seconds, placed.nodes > 1 ? nic_link : node_link, slows,
          link_basis(cluster_, placed.nodes != 1)};
}

// Seconds of a shift round a ring, in which all ranks wait for the slowest hop.
double OnCluster::shift(const RankSet& set, double bytes) {
  const auto [known, missing] = shifts_.try_emplace({set, bytes});
  double& slowest = known->second;
  if (!missing) return slowest;
  const std::vector<int> ranks = program_.ranks_of(set, rank_);
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    const double hop = where(set).slowest([&](const Cluster& cluster) {
      return send_seconds(cluster, bytes, ranks[k], ranks[(k + 1) % ranks.size()]);
    });
    slowest = std::max(slowest, hop);
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
    if (stages) {
      const Link link = link_to(i);
      return {send(i, transfer), link, 0, link_basis(cluster_, link == nic_link)};
    }
    if (transfer.op == Collective::recv) return {};  // the sender's side has the cost
    const double bytes = static_cast<double>(transfer.payload) * more(i, transfer);
    return {shift(transfer.set, bytes), network_link(/*of_sequence=*/true), device_.slowed,
            link_basis(cluster_, where(transfer.set).placed.nodes != 1)};
  }
  if (transfer.op == Collective::all_to_all && i.move.exchanges_rows())
    return exchange(i, transfer);
  const Where& group = where(transfer.set);
  // Optimizer state may be sharded over the ranks that split the sequence too, so transfers between
  // these count as those of data axes.
  const bool lasting = between_lasting(program_, i), data = lasting ? group.parts : group.data;
  Library library;
  library.hierarchical = stack_.hierarchical;
  if (data) library.nics = stack_.data_share;
  const double slows = data && stack_.data_slowed >= 0
                           ? stack_.data_slowed
                           : device_.slowed * traffic_share(cluster_, group.placed, library);
  double bytes = static_cast<double>(transfer.payload) * more(i, transfer);
  if (stack_.narrow_gathers && narrows(i)) bytes /= reals_;
  const double alone = group.slowest([&](const Cluster& cluster) {
    return collective_seconds(cluster, transfer.op, bytes, group.placed, library);
  });
  double seconds = alone;
  if (backward_gathers_.contains(&i)) seconds *= stack_.backward_gathers;
  const std::string_view phase = transfer.phase;
  if (group.model && (phase == "forward" || phase == "backward" || phase == "recompute"))
    seconds *= 1 - stack_.hidden_model;
  // A reduce-scatter is half an all-reduce.
  if (stack_.reduced_whole && lasting && i.has_bucket() &&
      transfer.op == Collective::reduce_scatter &&
      program_.buckets[i.bucket].sharded_state == ShardedState::optimizer) {
    seconds *= 2;
  }
  const Link link = group.placed.nodes > 1 ? network_link(group.sequence && !lasting) : node_link;
  Basis basis = collective_basis(cluster_, transfer.op, bytes, group.placed, library);
  if (seconds != alone) basis = std::max(basis, Basis::fitted);
  return {seconds, link, slows, basis};
}

}  // namespace mw
