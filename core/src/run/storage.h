// The tensors that a rank keeps from step to step, or that come and go once for all microbatches:
// one for each persistent slot of its program.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "meshwright/engine/rank_view.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"

namespace mw {

class Storage {
 public:
  // Allocates the slots that last from step to step; parameters are not yet filled. `other`: the
  // storage of another program of the stage, whose tensors this one shares. Keeps the references.
  Storage(const RankView& rank, at::Device device, Ledger& ledger, const Storage* other = nullptr);

  // The slot's tensor; undefined while a transient slot is not there.
  const at::Tensor& operator[](int slot) const { return tensors_[slot]; }
  const at::Tensor& parameter(int index) const { return tensors_[program_.parameters[index].slot]; }
  const at::Tensor& gradient(int index) { return open(program_.parameters[index].gradient_slot); }
  // The slot's tensor. If it is not there, it is allocated, or the slot that it is a view of.
  const at::Tensor& open(int slot);
  // Sets a transient slot to this tensor, with all its views; an undefined one releases them.
  void set(int slot, at::Tensor tensor);

  // After begin_sum() the next addition to the slot, or to any view of it, overwrites what it held.
  // settle() writes zeros where nobody has added anything since. A slot that is allocated anew
  // begins a sum.
  void begin_sum(int slot);
  void settle(int slot);
  bool written(int slot) const { return written_[slot]; }
  void write(int slot) { written_[slot] = true; }
  void add(int slot, const at::Tensor& tensor);
  // The slot's tensor, to parts of which the caller adds. It is set to zero first where nothing has
  // been written to it yet.
  const at::Tensor& summed(int slot);

  // A parameter's view into a whole flat tensor of its bucket.
  at::Tensor slice(int parameter, const at::Tensor& whole) const {
    return view(program_.parameters[parameter].slot, whole);
  }
  // What the rank keeps of a parameter's reduced gradient: 1-D, empty where it keeps none.
  at::Tensor own_gradient(int parameter) const;
  // Writes a parameter's numbers, from local element `first` on, to all slots that keep them.
  void fill(int parameter, std::int64_t first, const at::Tensor& numbers);
  const Bucket& bucket_of(int parameter) const;

 private:
  // Where a view lies in the slot that it is a view of.
  struct View {
    Range range;
    std::vector<std::int64_t> shape;
  };
  at::Tensor view(int slot, const at::Tensor& whole) const;
  at::Tensor room(int slot) const;  // a new tensor for a slot, not initialized
  // The elements of a flat slot that lie in the bucket's `range`, and which elements of the bucket
  // they are.
  std::pair<at::Tensor, Range> among(int slot, Range range) const;

  const RankView& rank_;
  const Program& program_;
  const at::Device device_;
  Ledger& ledger_;
  // The next four are by slot.
  std::vector<at::Tensor> tensors_;
  std::vector<View> places_;             // of slots that are views
  std::vector<std::vector<int>> views_;  // the slots that are views of it
  std::vector<bool> written_;
  std::vector<int> lasting_;  // persistent slots that are not transient
};

}  // namespace mw
