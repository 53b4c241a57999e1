// An elementwise expression of operands that broadcast by the names of their dims. Forward and
// backward pass over memory once, in chunks that stay in a core's cache; backward computes what it
// needs of forward again.
#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "draws.h"
#include "expression.h"
#include "fused.h"
#include "kernel.h"
#include "meshwright/ops.h"
#include "on_threads.h"

namespace mw {
namespace {

using namespace kernel;

// Views tensors of a call with the dims of the output. A dim that a tensor lacks has size 1.
class Beside {
 public:
  // `rows`: how many first dims are stored as one, as those of a sparse tensor are.
  Beside(Dims to, std::size_t rows) : to_(without_first(to, rows)), rows_(rows) {}

  // Whether the tensor lies as the output does.
  bool whole(const Dims& dims) const { return without_first(dims, rows_of_dims(dims)) == to_; }

  at::Tensor view(const at::Tensor& tensor, const Dims& all) const {
    if (!tensor.defined()) return tensor;
    const Dims dims = without_first(all, rows_of_dims(all));
    std::vector<std::int64_t> order, missing;
    for (std::size_t i = 0; i < to_.size(); ++i) {
      const auto found = std::find(dims.begin(), dims.end(), to_[i]);
      if (found == dims.end()) {
        missing.push_back(static_cast<std::int64_t>(i));
      } else {
        order.push_back(found - dims.begin());
      }
    }
    at::Tensor view = tensor.permute(order);
    for (std::int64_t dim : missing) view = view.unsqueeze(dim);
    return view;
  }

 private:
  std::size_t rows_of_dims(const Dims& dims) const {
    return rows_ > 0 && !dims.empty() && dims.size() > rows_ && contains(dims, to_[0]) ? rows_ : 0;
  }
  static Dims without_first(const Dims& dims, std::size_t count) {
    Dims rest;
    for (std::size_t i = count; i < dims.size(); ++i) rest.push_back(dims[i]);
    return rest;
  }

  const Dims to_;
  const std::size_t rows_;
};

// How many first dims of an op's tensors are stored as one.
std::size_t rows_stored_as_one(const Op& op, const std::vector<at::Tensor>& inputs) {
  std::size_t rows = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined())
      rows = std::max(rows, op.inputs[i].dims.size() - static_cast<std::size_t>(inputs[i].dim()));
  }
  return rows;
}

// Parts of a tensor of these sizes that follow each other, each of at most so many elements: single
// indices of the first dims, and a range of one dim.
class MapChunks {
 public:
  MapChunks(std::vector<std::int64_t> sizes, std::int64_t most) : sizes_(std::move(sizes)) {
    for (dim_ = 0; dim_ + 1 < sizes_.size() && elements_after(dim_) > most; ++dim_)
      outer_ *= sizes_[dim_];
    if (sizes_.empty()) return;
    step_ = std::clamp<std::int64_t>(most / std::max<std::int64_t>(elements_after(dim_), 1), 1,
                                     std::max<std::int64_t>(sizes_[dim_], 1));
    inner_ = (sizes_[dim_] + step_ - 1) / step_;
  }

  std::int64_t count() const { return outer_ * inner_; }
  std::int64_t elements() const { return sizes_.empty() ? 1 : step_ * elements_after(dim_); }

  at::Tensor of(at::Tensor tensor, std::int64_t chunk) const {
    if (!tensor.defined() || sizes_.empty()) return tensor;
    const std::int64_t first = chunk % inner_ * step_;
    tensor = cut(tensor, dim_, first, std::min(step_, sizes_[dim_] - first));
    std::int64_t index = chunk / inner_;
    for (std::size_t dim = dim_; dim-- > 0; index /= sizes_[dim])
      tensor = cut(tensor, dim, index % sizes_[dim], 1);
    return tensor;
  }

 private:
  static at::Tensor cut(const at::Tensor& tensor, std::size_t dim, std::int64_t first,
                        std::int64_t size) {
    const auto at = static_cast<std::int64_t>(dim);
    return tensor.size(at) == 1 ? tensor : part_of(tensor, at, first, size);
  }
  std::int64_t elements_after(std::size_t dim) const {
    return std::accumulate(sizes_.begin() + static_cast<std::ptrdiff_t>(dim) + 1, sizes_.end(),
                           std::int64_t{1}, std::multiplies<>());
  }

  std::vector<std::int64_t> sizes_;
  std::size_t dim_ = 0;  // the dim of which a chunk has a range
  std::int64_t outer_ = 1, inner_ = 1, step_ = 1;
};

// Several tensors of a chunk exist at once, and malloc asks the system for 128 KiB and more each
// time: half a chunk of other kernels is less than that.
std::int64_t elements_of_chunk(const at::Tensor& like) {
  return like.is_cpu() ? chunk_bytes / 2 / wide_element(static_cast<int>(like.element_size()))
                       : like.numel() + 1;
}

// The type of the plan's reals, beside which operands may be wider.
at::ScalarType narrowest(const std::vector<at::Tensor>& inputs) {
  return std::min_element(inputs.begin(), inputs.end(),
                          [](const at::Tensor& a, const at::Tensor& b) {
                            return a.element_size() < b.element_size();
                          })
      ->scalar_type();
}

class Map final : public OpType {
 public:
  explicit Map(const std::string& text) {
    Expressions f;
    root_ = f.parse(text);
    count_ = f.operands(root_);
    draws_ = f.draws_in(root_);
    given_ = draws_ ? Expressions::training + 1 : count_;
    for (int i = 0; i < count_; ++i) {
      slopes_.push_back(f.derivative(root_, i));
      gradients_.push_back(f.gradient(root_, i, given_));
    }
    fused_ = std::make_unique<Fused>(std::move(f), given_ + 1);
  }

  std::string kind() const override { return "map"; }
  OpClass op_class() const override { return OpClass::elementwise; }

  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_output = {false};
    for (int i = 0; i < count_; ++i) {
      const bool read = std::any_of(gradients_.begin(), gradients_.end(),
                                    [&](int gradient) { return f().mentions(gradient, i); });
      traits.backward_reads_input.push_back(read);
      const bool whole = op.inputs[static_cast<std::size_t>(i)].dims == op.output_dims[0];
      traits.gradient_passes.push_back(whole &&
                                       f().is_number(slopes_[static_cast<std::size_t>(i)], 1));
      if (whole) traits.forward_in_place = i;
    }
    if (draws_) {
      traits.backward_reads_input.push_back(true);
      traits.gradient_passes.push_back(false);
    }
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const std::size_t rows = rows_stored_as_one(op, call.inputs);
    const Beside beside(op.output_dims[0], rows);
    std::vector<at::Tensor> inputs;
    std::vector<std::int64_t> sizes(op.output_dims[0].size() - rows, 1);
    for (std::size_t i = 0; i < operands(); ++i) {
      inputs.push_back(beside.view(call.inputs[i], op.inputs[i].dims));
      for (std::size_t dim = 0; dim < sizes.size(); ++dim) {  // none where there are no rows
        const std::int64_t size = inputs[i].size(static_cast<std::int64_t>(dim));
        if (size != 1) sizes[dim] = size;
      }
    }
    const int reused = call.in_place ? traits(op).forward_in_place : -1;
    at::Tensor output = reused >= 0
                            ? call.inputs[static_cast<std::size_t>(reused)]
                            : at::empty(sizes, call.inputs[0].options().dtype(narrowest(inputs)));
    set_outputs(call, {output});
    const std::optional<Draws> draws = draws_of(op, call, beside);
    if (Fused::serves(output)) {
      std::vector<at::Tensor> all = inputs;
      add_draws(
          {root_}, draws, [](const at::Tensor& whole) { return whole; }, wide(output), all);
      if (fused_->run({root_}, {{output}}, all)) return;
    }
    const MapChunks chunks(sizes, elements_of_chunk(output));
    rows_on_threads(chunks.count(), chunks.elements(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        chunks.of(output, chunk)
            .copy_(f().compute({root_}, parts({root_}, draws, chunks, chunk, inputs))[0]);
      }
    });
  }

  void backward(const Op& op, OpCall& call) const override {
    const at::Tensor& given = call.grad_outputs[0];
    const std::size_t rows = op.output_dims[0].size() - static_cast<std::size_t>(given.dim());
    const Beside beside(op.output_dims[0], rows);
    std::vector<at::Tensor> operands;
    for (std::size_t i = 0; i < this->operands(); ++i)
      operands.push_back(beside.view(call.inputs[i], op.inputs[i].dims));
    const std::optional<Draws> draws = draws_of(op, call, beside);
    operands.resize(static_cast<std::size_t>(given_));
    operands.push_back(given);
    std::vector<Gradient> wanted_gradients;
    std::vector<int> roots;
    bool sums = false;
    for (std::size_t i = 0; i < this->operands(); ++i) {
      if (!wanted(call, i)) continue;
      Gradient one = gradient(op, call, beside, i);
      sums = sums || one.sum.defined();
      wanted_gradients.push_back(std::move(one));
      roots.push_back(gradients_[i]);
    }
    if (roots.empty()) return;
    if (Fused::serves(given)) {
      std::vector<at::Tensor> all = operands;
      add_draws(
          roots, draws, [](const at::Tensor& whole) { return whole; }, wide(given), all);
      if (fused_backward(roots, wanted_gradients, all)) return;
    }
    const MapChunks chunks(given.sizes().vec(), elements_of_chunk(given));
    const auto work = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        const auto made = f().compute(roots, parts(roots, draws, chunks, chunk, operands));
        for (std::size_t i = 0; i < roots.size(); ++i)
          wanted_gradients[i].take(chunks, chunk, made[i]);
      }
    };
    // Sums are added up chunk by chunk, in one order whatever the number of threads.
    if (sums) {
      work(0, chunks.count());
    } else {
      rows_on_threads(chunks.count(), chunks.elements(), work);
    }
    for (Gradient& one : wanted_gradients) one.finish();
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const bool backward = piece != Piece::forward;
    const std::int64_t out = dims.count(op.output_dims[0]);
    std::int64_t passed = out;
    for (int i = 0; i < count_; ++i) {
      const std::int64_t of = dims.count(op.inputs[static_cast<std::size_t>(i)].dims);
      passed += backward ? 2 * of : of;
    }
    const std::vector<int> roots = backward ? gradients_ : std::vector{root_};
    Cost cost;
    cost.executed = static_cast<double>(f().operations(roots)) * static_cast<double>(out);
    cost.bytes = static_cast<double>(passed) * element;
    // The larger of two needs. Without a fused kernel, all elements at once: what the nodes make,
    // and copies of operands of a half type. With one, gradients that are summed over dims.
    const int copies = element < wide_element(element) ? count_ + (backward ? 1 : 0) : 0;
    const std::int64_t tokens = draws_ ? dims.count({"batch", "seq"}) : 0;
    for (int draw = 0; draws_ && draw < Expressions::draws; ++draw)
      if (mentioned(roots, Expressions::first_draw + draw))
        cost.bytes += Draws::bytes(draw, out, tokens);
    int summed = 0;
    for (const Use& use : op.inputs)
      summed += backward && use.dims.size() != op.output_dims[0].size() ? 1 : 0;
    cost.accelerator_workspace =
        std::max(f().tensors(roots) + copies, summed) * out * wide_element(element);
    if (draws_)  // the integers of a draw, and their numbers
      *cost.accelerator_workspace += out * (3 * 8 + wide_element(element));
    return cost;
  }

 private:
  // The gradient of an operand: written chunk by chunk, or, where the operand lacks dims of the
  // output, summed first.
  struct Gradient {
    Target to;
    at::Tensor view, sum, summed;  // `summed`: `sum` with the output's dims
    void take(const MapChunks& chunks, std::int64_t chunk, const at::Tensor& made) {
      const at::Tensor place = chunks.of(sum.defined() ? summed : view, chunk);
      sum.defined() ? add(place, made) : put({place, to.add}, made);
    }
    static void add(const at::Tensor& place, const at::Tensor& made) {
      std::vector<std::int64_t> over;
      for (std::int64_t dim = 0; dim < place.dim(); ++dim) {
        if (place.size(dim) == 1 && made.size(dim) > 1) over.push_back(dim);
      }
      place.add_(over.empty() ? made : made.sum(over, true));
    }
    void finish() const {
      if (sum.defined()) put(to, sum);
    }
  };

  const Expressions& f() const { return fused_->f(); }

  bool fused_backward(const std::vector<int>& roots, const std::vector<Gradient>& gradients,
                      const std::vector<at::Tensor>& operands) const {
    const at::Tensor& given = operands.back();
    std::vector<Target> to;
    for (const Gradient& one : gradients) {
      to.push_back(one.sum.defined() ? Target{at::empty(given.sizes(), one.sum.options())}
                                     : Target{one.view, one.to.add});
    }
    if (!fused_->run(roots, to, operands)) return false;
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!gradients[i].sum.defined()) continue;
      Gradient::add(gradients[i].summed, to[i].tensor);
      gradients[i].finish();
    }
    return true;
  }

  static Gradient gradient(const Op& op, OpCall& call, const Beside& beside, std::size_t i) {
    const Dims& dims = op.inputs[i].dims;
    const at::Tensor& given = call.grad_outputs[0];
    const at::Tensor& input = call.inputs[i];
    const std::vector<std::int64_t> shape = input.defined()      ? input.sizes().vec()
                                            : beside.whole(dims) ? given.sizes().vec()
                                                                 : call.dims.shape(dims);
    const at::ScalarType type = (input.defined() ? input : given).scalar_type();
    Gradient one;
    one.to = target(call, i, shape, given.options().dtype(type));
    if (dims.size() == op.output_dims[0].size()) {
      one.view = beside.view(one.to.tensor, dims);
    } else {
      one.sum = at::zeros(shape, given.options().dtype(wide(given)));
      one.summed = beside.view(one.sum, dims);
    }
    return one;
  }

  std::vector<at::Tensor> parts(const std::vector<int>& roots, const std::optional<Draws>& draws,
                                const MapChunks& chunks, std::int64_t chunk,
                                const std::vector<at::Tensor>& operands) const {
    std::vector<at::Tensor> some;
    for (const at::Tensor& operand : operands) {
      at::Tensor part = chunks.of(operand, chunk);
      some.push_back(part.defined() ? part.to(wide(part)) : part);
    }
    add_draws(
        roots, draws, [&](const at::Tensor& whole) { return chunks.of(whole, chunk); },
        some[0].defined() ? some[0].scalar_type() : some.back().scalar_type(), some);
    return some;
  }

  bool mentioned(const std::vector<int>& roots, int place) const {
    return std::any_of(roots.begin(), roots.end(),
                       [&](int root) { return f().mentions(root, place); });
  }
  std::size_t operands() const { return static_cast<std::size_t>(count_); }

  // What the op draws by; nothing, if it draws nothing in this call.
  std::optional<Draws> draws_of(const Op& op, const OpCall& call, const Beside& beside) const {
    if (!draws_ || !call.draws) return std::nullopt;
    return Draws(op, call.dims, beside.view(call.inputs[operands()], op.inputs[operands()].dims),
                 op.output_dims[0]);
  }

  // Sets the operands that are drawn, of a part of the elements.
  template <class Part>
  void add_draws(const std::vector<int>& roots, const std::optional<Draws>& draws, const Part& part,
                 at::ScalarType real, std::vector<at::Tensor>& all) const {
    if (!draws_) return;
    all.resize(std::max(all.size(), static_cast<std::size_t>(Expressions::training) + 1));
    const auto any = std::find_if(all.begin(), all.end(),
                                  [](const at::Tensor& tensor) { return tensor.defined(); });
    const auto number = [&](double value) {
      return at::full({1}, value, any->options().dtype(real));
    };
    for (int draw = 0; draw <= Expressions::draws; ++draw) {
      const int place = Expressions::first_draw + draw;
      if (!mentioned(roots, place)) continue;
      all[static_cast<std::size_t>(place)] = place == Expressions::training ? number(draws ? 1 : 0)
                                             : draws ? draws->draw(draw, part, real)
                                                     : number(Draws::mean(draw));
    }
  }

  std::unique_ptr<const Fused> fused_;  // has the expressions
  int root_ = 0, count_ = 0, given_ = 0;
  bool draws_ = false;
  std::vector<int> slopes_, gradients_;  // for each operand
};

}  // namespace

bool is_linear_map(const std::string& f) {
  Expressions read;
  const int root = read.parse(f);
  return read.operands(root) == 1 && read.is_multiple(root);
}

OpTypePtr map(const std::string& f) {
  constexpr std::size_t many = 256;
  static std::mutex mutex;
  static std::unordered_map<std::string, std::weak_ptr<const OpType>> known;
  const std::lock_guard lock(mutex);
  if (known.size() > many)
    std::erase_if(known, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<const OpType>& weak = known[f];
  OpTypePtr type = weak.lock();
  if (type == nullptr) weak = type = std::make_shared<Map>(f);
  return type;
}

}  // namespace mw
