// Updates of matrices that the optimizer orthogonalises: program/matrices.h says what they take.
#include "engine/executor.h"
#include "program/matrices.h"

namespace mw {

void Executor::direct(const Instruction& i, Microbatch& m) {
  const Bucket& bucket = program_.buckets[i.bucket];
  Storage::Flat& flat = storage_.flats()[i.bucket];
  // Of one parameter of a bucket that is whole, or of the rank's part of all.
  const auto own = [&](const at::Tensor& tensor) {
    return i.parameter < 0 ? tensor : storage_.slice(i.parameter, tensor).view(-1);
  };
  const at::Tensor gradient = own(flat.own_gradients);
  OptimizerState state{{own(flat.state.tensors.front())}};
  const at::Tensor made = gradient.to(state.tensors.front().options());
  if (!outcome_.left_out) input_.optimizer->matrices()->direct(made, state, scale_);
  const at::Tensor direction = made.to(device_);
  if (i.parameter >= 0) {
    m.slots[i.outputs[0]] = direction.view(program_.local_shape(program_.slots[i.outputs[0]], at_));
    return;
  }
  const bool inside = direction.is_same(gradient) && flat.gradients.defined();
  const at::Tensor whole =
      inside ? flat.gradients : at::empty({storage_.size(i.bucket)}, direction.options());
  group({bucket.parts, {}}).all_gather(whole, direction, {i.phase, &bucket.name}).wait();
  for (std::size_t k = 0; k < i.outputs.size(); ++k)
    m.slots[i.outputs[k]] = storage_.slice(bucket.parameters[k], whole);
}

void Executor::update_matrix(const Instruction& i, const Microbatch& m) {
  const MatrixUpdate size = matrix_update(sizes_.of_kind(0), i);
  if (size.begin >= size.end || outcome_.left_out) return;
  const at::Tensor& direction = tensor(m, i.inputs[0]);
  at::Tensor turn =
      orthogonalised(direction.view({size.stacked, size.rows, size.columns}), program_.ns_steps)
          .view(direction.sizes());
  for (std::size_t d = 0; d < size.own.size(); ++d)
    turn = turn.narrow(static_cast<std::int64_t>(d), size.own[d].offset, size.own[d].size);
  turn = turn.reshape(-1).narrow(0, size.begin, size.end - size.begin);

  Storage::Flat& flat = storage_.flats()[i.bucket];
  // Where it lies in the rank's part.
  const std::int64_t first = size.first + size.begin - storage_.part_begin(i.bucket);
  const auto piece = [&](const at::Tensor& part) { return part.narrow(0, first, turn.numel()); };
  const at::Tensor own = piece(flat.own_parameters);
  const at::Tensor updated =
      flat.master.defined() ? piece(flat.master) : own.to(flat.state.tensors.front().device());
  input_.optimizer->matrices()->step(updated, turn.to(updated.device()), outcome_.lr, size.rows,
                                     size.columns);
  if (!updated.is_same(own)) own.copy_(updated);
}

}  // namespace mw
