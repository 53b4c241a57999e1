// Collectives of one rank along one group (the ranks of one mesh axis, or of a run of atoms), over a
// c10d::Backend. Every call posts its bytes to the rank's ledger.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/ledger.h"
#include "meshwright/mesh.h"
#include "meshwright/placement.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace mw {

enum class Collective : std::uint8_t {
  all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, barrier
};
const char* name_of(Collective op);  // "all-reduce", ...

// The bytes that one rank of `ways` sends with a bandwidth-optimal algorithm for a buffer of
// `bytes`: 2(n-1)/n of it for all-reduce, (n-1)/n for all-gather (of the gathered buffer),
// reduce-scatter (of the input) and all-to-all (of the input, even splits), 1 for send (0 for recv),
// broadcast (n-1)/n. Rounded down. Predicted and measured bytes both come from here.
std::int64_t wire_bytes(Collective op, std::int64_t bytes, int ways);

// A collective under way. Destroying it without wait() is allowed only after an error.
class Pending {
 public:
  Pending() = default;
  explicit Pending(c10::intrusive_ptr<c10d::Work> work);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();
  void wait();  // throws Error (run) naming rank, op and axis; idempotent
  bool valid() const;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// What a call is for: goes into the ledger and into error messages.
struct Purpose {
  const char* phase = "forward";  // "forward", "backward", "gradients", "optimizer", "report", ...
  const std::string* label = nullptr;  // the op or bucket it serves, e.g. "layers.0.attention.o"
};

class Communicator {
 public:
  // `group`: global ranks in order; `index`: this rank's place in it; `axis`: for ledger and errors.
  Communicator(std::string axis, std::vector<int> group, int index,
               c10::intrusive_ptr<c10d::Backend> backend, Ledger* ledger);
  ~Communicator();

  const std::string& axis() const { return axis_; }
  int ways() const { return static_cast<int>(group_.size()); }
  int index() const { return index_; }
  const std::vector<int>& group() const { return group_; }

  // All tensors contiguous. The caller keeps them alive and untouched until wait().
  Pending all_reduce(at::Tensor inout, Reduction op, Purpose purpose);
  // `out` is the `ways` inputs one after the other (dim 0 of flattened tensors).
  Pending all_gather(at::Tensor out, at::Tensor in, Purpose purpose);
  Pending reduce_scatter(at::Tensor out, at::Tensor in, Reduction op, Purpose purpose);
  // Splits count rows of dim 0; empty: even.
  Pending all_to_all(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_splits,
                     std::vector<std::int64_t> in_splits, Purpose purpose);
  Pending broadcast(at::Tensor inout, int root_index, Purpose purpose);
  Pending send(at::Tensor tensor, int to_index, int tag, Purpose purpose);
  Pending recv(at::Tensor tensor, int from_index, int tag, Purpose purpose);
  Pending barrier(Purpose purpose);

 private:
  Pending post(Collective op, std::int64_t bytes, Purpose purpose, c10::intrusive_ptr<c10d::Work> work);

  std::string axis_;
  std::vector<int> group_;
  int index_ = 0;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Ledger* ledger_ = nullptr;
};

}  // namespace mw
