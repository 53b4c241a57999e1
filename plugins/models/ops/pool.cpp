// The mean, or the largest, of each group of neighbours along a dim.
#include "kernel.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

class Pool final : public OpType {
 public:
  explicit Pool(bool max) : max_(max) {}

  std::string kind() const override { return max_ ? "max_pool" : "mean_pool"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = traits_without_reads(op);
    traits.backward_reads_input = {max_};
    traits.backward_reads_output = {max_};
    traits.gradients_apart = true;
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const std::int64_t dim = place(op);
    const at::Tensor groups = groups_of(op, call, call.inputs[0]);
    set_outputs(call, {max_ ? groups.amax(dim + 1) : groups.mean(dim + 1)});
  }

  // Elements of a group that are equally large share its gradient.
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const std::int64_t dim = place(op);
    const at::Tensor given = call.grad_outputs[0].unsqueeze(dim + 1);
    const LocalDim& from = call.dims.at(op.inputs[0].dims[static_cast<std::size_t>(dim)]);
    const std::int64_t members = from.size / given.size(dim);
    at::Tensor made;
    if (max_) {
      const at::Tensor largest = groups_of(op, call, call.inputs[0])
                                     .eq(call.outputs[0].unsqueeze(dim + 1))
                                     .to(given.scalar_type());
      made = largest * (given / largest.sum(dim + 1, /*keepdim=*/true));
    } else {
      std::vector<std::int64_t> shape = given.sizes().vec();
      shape[static_cast<std::size_t>(dim) + 1] = members;
      made = (given / members).expand(shape);
    }
    made = made.flatten(dim, dim + 1);
    if (!from.runs.empty()) made = made.index_select(dim, places_of(from, made));
    deliver(call, 0, made.contiguous());
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t in = dims.count(op.inputs[0].dims), out = dims.count(op.output_dims[0]);
    const bool reads = piece == Piece::forward || max_;
    Cost cost;
    cost.executed = static_cast<double>(in);
    cost.bytes = static_cast<double>(((reads ? in : 0) + (piece == Piece::forward ? 0 : in) + out) *
                                     element);
    // Tokens in their order; backward also which are the largest, and how many.
    cost.accelerator_workspace =
        piece == Piece::forward ? in * element : (2 * in + 2 * out) * element + in;
    return cost;
  }

 private:
  static std::int64_t place(const Op& op) {
    const Dims &in = op.inputs[0].dims, &out = op.output_dims[0];
    return std::mismatch(in.begin(), in.end(), out.begin()).first - in.begin();
  }
  // x in the order of the sequence, with the pooled dim as two: groups, and members of a group.
  static at::Tensor groups_of(const Op& op, const OpCall& call, const at::Tensor& x) {
    const std::int64_t dim = place(op);
    const auto at = static_cast<std::size_t>(dim);
    const LocalDim& from = call.dims.at(op.inputs[0].dims[at]);
    const std::int64_t groups = call.dims.at(op.output_dims[0][at]).size;
    const at::Tensor sorted =
        from.runs.empty() ? x : x.index_select(dim, places_of(from, x).argsort());
    return sorted.unflatten(dim, {groups, from.size / groups});
  }

  const bool max_;
};

}  // namespace

OpTypePtr pool(bool max) {
  return only_of<Pool>(max);
}

}  // namespace mw
