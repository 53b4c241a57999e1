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
  // Allocates what lasts; parameters are not yet filled. `other`: that of another program of the
  // stage, whose tensors it shares. Keeps the references.
  Storage(const RankView& rank, at::Device device, Ledger& ledger, const Storage* other = nullptr);

  // By slot; undefined while one that comes and goes is not there.
  const at::Tensor& operator[](int slot) const { return tensors_[slot]; }
  const at::Tensor& parameter(int index) const { return tensors_[program_.parameters[index].slot]; }
  const at::Tensor& gradient(int index) { return open(program_.parameters[index].gradient_slot); }
  // Makes it, or what it is a view of, if it is not there; lets it go with all its views.
  const at::Tensor& open(int slot);
  // One that comes and goes is there as this, or, if it is undefined, goes.
  void set(int slot, at::Tensor tensor);

  // What is added to the slot, or to any view of it, next after begin_sum() overwrites what it
  // held; settle() brings zeros to where nobody has added anything since. What is made anew begins
  // a sum.
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
  // Takes a parameter's numbers, from local element `first` on, into all that holds of them.
  void fill(int parameter, std::int64_t first, const at::Tensor& numbers);
  const Bucket& bucket_of(int parameter) const;

 private:
  // Where a view lies in what it is of.
  struct View {
    Range range;
    std::vector<std::int64_t> shape;
  };
  at::Tensor view(int slot, const at::Tensor& whole) const;
  at::Tensor room(int slot) const;  // its own, of unspecified numbers
  // Those of the bucket's elements `range` that lie in a flat slot; and which these are.
  std::pair<at::Tensor, Range> among(int slot, Range range) const;

  const RankView& rank_;
  const Program& program_;
  const at::Device device_;
  Ledger& ledger_;
  // By slot.
  std::vector<at::Tensor> tensors_;
  std::vector<View> places_;             // of views
  std::vector<std::vector<int>> views_;  // which there are
  std::vector<bool> written_;
  std::vector<int> lasting_;  // slots that it allocated, or another did
};

}  // namespace mw
