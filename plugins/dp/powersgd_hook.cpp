// A reduction hook that sends a low-rank product instead of a gradient matrix and keeps the
// error for the next step (Vogels et al. 2019, "PowerSGD").
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "hooks.h"
#include "meshwright/decompositions.h"

namespace dp {
namespace {

// A parameter in its bucket: a matrix that is compressed, or elements that are sent as they are.
struct Part {
  std::int64_t offset = 0, elements = 0;      // in the flat gradient
  std::int64_t rows = 0, cols = 0, rank = 0;  // rank 0: sent as it is
  // Offsets in the buffer of the first all-reduce (the elements themselves, or P), of Qs and of
  // errors.
  std::int64_t sent = 0, q = 0, error = 0;
};

struct Packing {
  std::vector<Part> parts;
  std::int64_t sent = 0, q = 0, errors = 0;  // total elements of each buffer
};

Packing packing_of(const mw::BucketShape& bucket, std::int64_t rank, bool even_if_larger) {
  Packing all;
  std::int64_t offset = 0;
  for (const auto& shape : bucket.shapes) {
    Part part;
    part.offset = offset;
    part.elements = c10::multiply_integers(shape);
    offset += part.elements;
    std::int64_t rows = 1, least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t d = 0; d + 1 < shape.size() && part.elements > 0; ++d) {
      rows *= shape[d];
      const std::int64_t cols = part.elements / rows;
      if (rows + cols >= least) continue;
      least = rows + cols;
      part.rows = rows;
      part.cols = cols;
    }
    const std::int64_t r = std::min({rank, part.rows, part.cols});
    if (r > 0 && (even_if_larger || r * least < part.elements)) part.rank = r;
    part.sent = all.sent;
    part.q = all.q;
    part.error = all.errors;
    all.sent += part.rank > 0 ? part.rows * r : part.elements;
    if (part.rank > 0) {
      all.q += part.cols * r;
      all.errors += part.elements;
    }
    all.parts.push_back(part);
  }
  return all;
}

class PowerSgdReduction : public mw::BucketReduction {
 public:
  PowerSgdReduction(Packing packing, int ways, at::TensorOptions options)
      : packing_(std::move(packing)), ways_(ways) {
    if (packing_.errors == 0) return;
    errors_ = at::zeros({packing_.errors}, options);
    // A fixed seed: every rank begins with the same Q.
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{20190531});
    q_ = at::empty({packing_.q}, options);
    q_.copy_(at::randn({packing_.q}, generator, options.device(at::kCPU)));
  }

  void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
    gradient_ = std::move(gradient);
    ranks_ = &ranks;
    purpose_ = purpose;
    if (packing_.errors == 0) {
      pending_ = ranks.all_reduce(gradient_, mw::Reduction::sum, purpose);
      return;
    }
    sent_ = at::empty({packing_.sent}, gradient_.options());
    for (const Part& p : packing_.parts) {
      if (p.rank == 0) {
        plain(p).copy_(gradient_.narrow(0, p.offset, p.elements));
        continue;
      }
      at::Tensor m = matrix(p), left = p_of(p);
      m.add_(error(p));
      at::mm_out(left, m, q_of(p));
    }
    pending_ = ranks.all_reduce(sent_, mw::Reduction::sum, purpose);
  }

  void finish() override {
    pending_.wait();
    if (packing_.errors > 0) decompress();
    sent_ = at::Tensor();
    gradient_ = at::Tensor();
  }

  std::vector<at::Tensor> state() override {
    if (packing_.errors == 0) return {};
    return {errors_, q_};
  }

 private:
  void decompress() {
    for (const Part& p : packing_.parts) {
      if (p.rank == 0) {
        gradient_.narrow(0, p.offset, p.elements).copy_(plain(p));
        continue;
      }
      at::Tensor left = p_of(p), right = q_of(p);
      left.copy_(std::get<0>(mw::qr(left)));
      at::mm_out(right, matrix(p).t(), left);
    }
    ranks_->all_reduce(q_, mw::Reduction::sum, purpose_).wait();
    for (const Part& p : packing_.parts) {
      if (p.rank == 0) continue;
      at::Tensor m = matrix(p), e = error(p);
      e.copy_(m);
      at::mm_out(m, p_of(p), q_of(p).t());
      // With 1 / ways of the product on each rank, the errors add up to what the sum lacks.
      e.sub_(m, 1.0 / ways_);
    }
  }

  at::Tensor plain(const Part& p) const { return sent_.narrow(0, p.sent, p.elements); }
  at::Tensor p_of(const Part& p) const {
    return sent_.narrow(0, p.sent, p.rows * p.rank).view({p.rows, p.rank});
  }
  at::Tensor q_of(const Part& p) const {
    return q_.narrow(0, p.q, p.cols * p.rank).view({p.cols, p.rank});
  }
  at::Tensor matrix(const Part& p) const {
    return gradient_.narrow(0, p.offset, p.elements).view({p.rows, p.cols});
  }
  at::Tensor error(const Part& p) const {
    return errors_.narrow(0, p.error, p.elements).view({p.rows, p.cols});
  }

  const Packing packing_;
  const int ways_;
  at::Tensor errors_, q_;
  at::Tensor gradient_, sent_;
  mw::Communicator* ranks_ = nullptr;
  mw::Purpose purpose_;
  mw::Pending pending_;
};

}  // namespace

mw::Options PowerSgdHook::options() {
  return mw::Options()
      .integer("rank", "columns of the factors that stand for a gradient matrix")
      .range(1, 1 << 20)
      .fallback(4)
      .positional("rank")
      .boolean("even_if_larger", "matrices are factored that do not become smaller by it, too")
      .fallback(false);
}

PowerSgdHook::PowerSgdHook(const mw::Values& values)
    : rank_(values.integer("rank")), even_if_larger_(values.flag("even_if_larger")) {}

void PowerSgdHook::check(const mw::BucketShape& bucket) const {
  if (bucket.element >= 4 || exact(bucket)) return;
  throw mw::Error(mw::Stage::plan, "hook.dtype", "",
                  fmt::format("powersgd factors gradients, and {} has them in {} bytes each",
                              bucket.name, bucket.element),
                  "write main_gradients = \"fp32\" in the experiment");
}

bool PowerSgdHook::exact(const mw::BucketShape& bucket) const {
  return packing_of(bucket, rank_, even_if_larger_).errors == 0;
}

mw::ReductionCost PowerSgdHook::cost(const mw::BucketShape& bucket) const {
  const Packing packing = packing_of(bucket, rank_, even_if_larger_);
  const std::int64_t size = bucket.element;
  mw::ReductionCost cost;
  // Gradients that are sent as they are go with the zeros after them.
  const std::int64_t sent = packing.errors == 0 ? bucket.elements : packing.sent;
  cost.start.calls = {{mw::Collective::all_reduce, size * sent}};
  if (packing.errors == 0) return cost;
  cost.finish.calls = {{mw::Collective::all_reduce, size * packing.q}};
  cost.kept = size * (packing.errors + packing.q);
  cost.held = size * packing.sent;
  for (const Part& p : packing.parts) {
    if (p.rank == 0) {
      cost.start.touched += size * 2 * p.elements;
      cost.finish.touched += size * 2 * p.elements;
      continue;
    }
    const auto product = 2.0 * static_cast<double>(p.elements * p.rank);
    const std::int64_t factors = (p.rows + p.cols) * p.rank;
    cost.start.flops += product;
    cost.finish.flops += 2 * product + 4.0 * static_cast<double>(p.rows * p.rank * p.rank);
    cost.start.touched += size * (4 * p.elements + factors);
    cost.finish.touched += size * (7 * p.elements + 4 * factors);
    // The QR makes Q, R, and the reflectors' factors; LAPACK's scratch of some hundred bytes is
    // left out.
    cost.finish.workspace =
        std::max(cost.finish.workspace, size * (p.rows * p.rank + p.rank * p.rank + p.rank));
  }
  return cost;
}

std::unique_ptr<mw::BucketReduction> PowerSgdHook::make(const mw::BucketShape& bucket,
                                                        at::TensorOptions options) const {
  return std::make_unique<PowerSgdReduction>(packing_of(bucket, rank_, even_if_larger_),
                                             bucket.ways, options);
}

}  // namespace dp
