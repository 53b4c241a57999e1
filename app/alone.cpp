// Measures kernels of a run's products on made-up operands, and copies of buffers of many sizes, on
// one rank and on all at once.
#include "app/alone.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "common/statistics.h"
#include "meshwright/communicator.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scalar_type.h"

namespace mw {

// A distinct product of the run, with an instruction that computes it and where that runs.
struct AloneTimes::Product {
  ProductName name;
  const Plan* plan = nullptr;
  int rank = 0, microbatch = -1;
  Instruction instruction;
};

namespace {

const std::string measured_label = "products and copies alone";

// Measures core seconds where kernels use one CPU thread, so that other programs do not count, and
// else wall seconds.
class Stopwatch {
 public:
  explicit Stopwatch(at::Device device)
      : device_(device), by_core_(device.is_cpu() && at::get_num_threads() == 1) {}
  double now() const {
    if (!device_.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(device_.type());
      guard.getStream(device_).synchronize();
    }
    return by_core_ ? core_seconds_of(CLOCK_THREAD_CPUTIME_ID) : seconds_now();
  }
  // Seconds of one call: the median of batches that take long enough to be timed.
  double seconds_of(double budget, const std::function<void()>& call) const {
    // An idle accelerator starts at a low clock rate.
    constexpr double warm = 0.02;
    double began = now();
    do call();
    while (!device_.is_cpu() && now() - began < warm);
    began = now();
    call();
    const double once = std::max(now() - began, 1e-9);
    const auto batch = static_cast<int>(std::clamp(5e-4 / once, 1.0, 1000.0));
    std::vector<double> seconds;
    double taken = 0;
    while (seconds.size() < 3 || (taken < budget && seconds.size() < 100)) {
      began = now();
      for (int k = 0; k < batch; ++k) call();
      seconds.push_back((now() - began) / batch);
      taken += seconds.back() * batch;
    }
    return median(seconds);
  }

 private:
  const at::Device device_;
  const bool by_core_;
};

std::vector<std::int64_t> operand_shape(const Graph& graph, const LocalDims& dims, const Dims& of) {
  if (!graph.sparse.has(of)) return dims.shape(of);
  const Dims& cells = graph.sparse.dims;
  std::vector<std::int64_t> shape{0};
  std::int64_t row = 1;
  for (const Dim dim : of) {
    if (std::find(cells.begin(), cells.end(), dim) != cells.end()) continue;
    shape.push_back(dims.at(dim).size);
    row *= shape.back();
  }
  shape[0] = dims.count(of) / std::max<std::int64_t>(row, 1);
  return shape;
}

// A product as an instruction calls it, on operands that are made up for the measurement.
class ProductTrial {
 public:
  ProductTrial(const RankView& view, const Instruction& i, at::TensorOptions options)
      : program_(view.program()),
        op_(program_.graph->ops()[static_cast<std::size_t>(i.op)]),
        options_(options.dtype(scalar_type(program_.dtype))),
        whole_(blank(view.dims(i.op, i.slice), i)),
        call_(blank(view.dims(i.op, i.part()), i)) {
    for (std::size_t k = 0; k < op_.inputs.size(); ++k) {
      whole_.inputs.push_back(operand(whole_.dims, k));
      call_.inputs.push_back(operand(call_.dims, k));
    }
    // Later ring steps and backward pieces read what a forward leaves.
    if (i.ring_step > 0 || i.piece != Piece::forward) {
      op_.type->forward(op_, whole_);
      call_.outputs = whole_.outputs;
      call_.saved = whole_.saved;
    }
    if (i.piece == Piece::forward) return;
    for (const at::Tensor& output : call_.outputs) call_.grad_outputs.push_back(filled(output));
    for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
      const int slot = i.grad_inputs[k];
      call_.wants.push_back(slot >= 0);
      const bool kept = slot >= 0 && program_.slots[static_cast<std::size_t>(slot)].persistent &&
                        program_.gradient_dtype == program_.dtype;
      call_.accumulate.push_back(kept && program_.microbatches > 1);
      call_.grad_inputs.push_back(kept ? at::zeros_like(call_.inputs[k]) : at::Tensor());
    }
  }

  void run(Piece piece) const {
    OpCall call = call_;
    switch (piece) {
      case Piece::forward:
        op_.type->forward(op_, call);
        break;
      case Piece::backward:
        op_.type->backward(op_, call);
        break;
      case Piece::dgrad:
        op_.type->dgrad(op_, call);
        break;
      case Piece::wgrad:
        op_.type->wgrad(op_, call);
        break;
    }
  }

 private:
  OpCall blank(const LocalDims& dims, const Instruction& i) const {
    OpCall call{dims, {}, {}, {}, {}, {}, {}, {}, false, options_.dtype().toScalarType(), {}, 1};
    call.ring_steps = i.ring_steps;
    call.outputs.resize(i.piece == Piece::forward ? i.outputs.size() : op_.outputs.size());
    const Dims& x = op_.inputs[0].dims;
    const Sparse& sparse = program_.graph->sparse;
    if (!sparse.has(x)) return call;
    const std::int64_t groups = dims.at(sparse.dims.front()).size;
    const std::int64_t rows = operand_shape(*program_.graph, dims, x)[0];
    for (std::int64_t g = 0; g < groups; ++g)  // as if tokens chose experts evenly
      call.rows.push_back(rows * (g + 1) / groups - rows * g / groups);
    return call;
  }
  at::Tensor operand(const LocalDims& dims, std::size_t input) const {
    const Use& use = op_.inputs[input];
    const auto shape = operand_shape(*program_.graph, dims, use.dims);
    if (program_.graph->value(use.value).scalar == Scalar::index)
      return at::zeros(shape, options_.dtype(at::kLong));
    return filled(at::empty(shape, options_));
  }
  // Fills a tensor with varied numbers, as a device may be faster on zeros.
  static at::Tensor filled(const at::Tensor& like) {
    return at::arange(like.numel(), like.options().dtype(at::kFloat))
        .remainder_(251)
        .sub_(125)
        .mul_(1.0 / 125)
        .to(like.options().dtype())
        .view(like.sizes());
  }

  const Program& program_;
  const Op& op_;
  const at::TensorOptions options_;
  OpCall whole_, call_;
};

void all_meet(RankRun& rank) {
  const Program& program = rank.program();
  if (program.mesh.size() == 1) return;
  rank.group({world_atoms(program.mesh), {}}).barrier({"account", &measured_label}).wait();
}

void each_instruction(const Program& program,
                      const std::function<void(const Instruction&)>& visit) {
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) {
      if (!i.ring) {
        visit(i);
        continue;
      }
      for (const Instruction& inner : ring_steps(program, i)) visit(inner);
    }
  }
}

constexpr std::int64_t sizes_of_copies[] = {1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 27};

}  // namespace

bool is_product(const Program& program, const Instruction& i) {
  if (!i.runs_op()) return false;
  const OpClass of = program.graph->ops()[static_cast<std::size_t>(i.op)].op_class();
  return of == OpClass::matrix_product || of == OpClass::attention;
}

ProductName product_of(const RankView& view, const Instruction& i) {
  const Graph& graph = *view.program().graph;
  const Op& op = graph.ops()[static_cast<std::size_t>(i.op)];
  ProductName made{fmt::format("{} {}", op.kind(), name_of(i.piece)), "",
                   view.cost(i.op, i.piece, i.part()).executed};
  const LocalDims& dims = view.dims(i.op, i.part());
  for (std::size_t k = 0; k < std::min<std::size_t>(op.inputs.size(), 2); ++k) {
    const auto shape = operand_shape(graph, dims, op.inputs[k].dims);
    made.shape += fmt::format("{}{}", k == 0 ? "" : ", ", fmt::join(shape, "x"));
  }
  return made;
}

AloneTimes::AloneTimes(std::vector<const Plan*> plans) : plans_(std::move(plans)) {
  for (const Plan* plan : plans_) find_products(*plan);
}

AloneTimes::~AloneTimes() = default;

// Every process must find equal products in one order: all ranks meet once for each product.
void AloneTimes::find_products(const Plan& plan) {
  const auto known = [&](const ProductName& name) {
    return std::any_of(products_.begin(), products_.end(),
                       [&](const Product& p) { return p.name == name; });
  };
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    const Program& program = plan.program_of(rank);
    const RankViews views(program, program.mesh.coordinates(rank));
    std::set<std::tuple<int, Piece, int, int>> seen;
    for (int kind = 0; kind < views.kinds(); ++kind) {
      const RankView& view = views.of_kind(kind);
      each_instruction(program, [&](const Instruction& i) {
        if (!is_product(program, i) || !view.runs(i)) return;
        // Like ops have the same products. Ring steps differ, as their causal blocks do.
        if (!seen.emplace(view.like(i.op), i.piece, i.part(), kind).second) return;
        ProductName name = product_of(view, i);
        if (known(name)) return;
        int microbatch = 0;
        while (microbatch + 1 < program.microbatches && views.kind(microbatch) != kind)
          ++microbatch;
        products_.push_back({std::move(name), &plan, rank, microbatch, i});
      });
    }
  }
}

void AloneTimes::begin(RankRun& rank) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto sent = rank.ledger().communication();
  {
    const Ledger::Pause unbooked(rank.ledger());
    const Stopwatch watch(rank.device());
    for (const Product& product : products_) {
      all_meet(rank);
      if (rank.rank() != 0) continue;
      const Program& program = product.plan->program_of(product.rank);
      const RankViews views(program, program.mesh.coordinates(product.rank));
      double& seconds = seconds_[product.name];
      seconds = not_known;
      try {
        const ProductTrial call(views.of(product.microbatch), product.instruction,
                                at::TensorOptions().device(rank.device()));
        seconds = watch.seconds_of(0.03, [&] { call.run(product.instruction.piece); });
        // the op needs more than operands: its seconds stay not_known
      } catch (const std::exception&) {
      }
    }
    measure_copies(rank);
    all_meet(rank);
  }
  rank.ledger().clear_step(sent);
}

// Measures copies and triads whose buffers together have `bytes`, over and over, so that small
// buffers stay in a cache. First on rank 0 alone, then on as many ranks at once as have a core.
void AloneTimes::measure_copies(RankRun& rank) {
  const int ranks = rank.program().mesh.size();
  const int cores = std::max(1, core_count() / std::max(1, at::get_num_threads()));
  const int at_once = rank.device().is_cpu() ? std::min(ranks, cores) : ranks;
  const Stopwatch watch(rank.device());
  const auto options = at::TensorOptions().device(rank.device()).dtype(at::kFloat);
  std::set<int> groups = {1, at_once};
  for (const int group : groups) {
    for (const std::int64_t bytes : sizes_of_copies) {
      for (const bool triad : {false, true}) {
        all_meet(rank);
        if (rank.rank() >= group) continue;
        const std::int64_t elements = bytes / 4 / (triad ? 3 : 2);
        const at::Tensor a = at::ones({elements}, options), b = at::ones({elements}, options);
        at::Tensor c = triad ? at::ones({elements}, options) : at::Tensor();
        const double seconds = watch.seconds_of(0.01, [&] {
          if (triad) {
            at::add_out(c, a, b, 2);
          } else {
            b.copy_(a);
          }
        });
        if (rank.rank() == 0)
          bandwidths_.push_back(
              {triad ? "triad" : "copy", group, bytes, static_cast<double>(bytes) / seconds});
      }
    }
  }
}

double AloneTimes::product_seconds(const ProductName& product) const {
  const auto found = seconds_.find(product);
  return found == seconds_.end() ? not_known : found->second;
}

// Uses the rate of the next larger measured size, or that of the largest.
double AloneTimes::copy_seconds(double bytes) const {
  int most = 1;
  for (const BandwidthRow& row : bandwidths_) most = std::max(most, row.ranks);
  double rate = 0, size = 0;
  for (const BandwidthRow& row : bandwidths_) {
    const auto measured = static_cast<double>(row.bytes);
    if (row.ranks != most || (size >= bytes && measured > size)) continue;
    rate = measured > size ? row.bytes_per_second : std::max(rate, row.bytes_per_second);
    size = measured;
  }
  return rate > 0 ? bytes / rate : not_known;
}

}  // namespace mw
