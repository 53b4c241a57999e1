// Collectives of one rank along one group (the ranks of one mesh axis, or of a run of atoms), over
// a c10d::Backend. Every call posts its bytes to the rank's ledger.
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
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  recv,
  barrier
};
const char* name_of(Collective op);  // "all-reduce", ...

// The bytes that one rank of `ways` sends with a bandwidth-optimal algorithm for a buffer of
// `bytes`: 2(n-1)/n of it for all-reduce, (n-1)/n for all-gather (of the gathered buffer),
// reduce-scatter (of the input) and all-to-all (of the input, even splits), 1 for send (0 for
// recv), broadcast (n-1)/n. Rounded down. Predicted and measured bytes both come from here.
std::int64_t wire_bytes(Collective op, std::int64_t bytes, int ways);

class Communicator;

// A collective under way. Its tensors live, and stay untouched by the caller, until wait() returns.
// Destroying it without wait() is allowed only after an error: it ends the collective for the other
// ranks too. Waited for on the thread that began it, before its Communicator goes.
class Pending {
 public:
  Pending();  // nothing under way
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();
  // Returns when this rank's result is there. Throws Error (run) naming ranks, ops and axis if the
  // ranks disagree, one does not come or one has failed (then Aborted, see world.h). May be
  // repeated.
  void wait();
  bool valid() const;  // begun and not waited for

 private:
  friend class Communicator;
  Pending(c10::intrusive_ptr<c10d::Work> work, const Communicator* communicator,
          Ledger::Entry entry);

  c10::intrusive_ptr<c10d::Work> work_;
  const Communicator* communicator_ = nullptr;
  Ledger::Entry entry_ = 0;  // where the ledger books it
  std::int64_t call_ = -1;   // its number in the rank's record of calls
};

// What a call is for: goes into the ledger and into error messages.
struct Purpose {
  // "forward", "backward", "gradients", "optimizer", "report", ...; a literal: it is kept by
  // address.
  const char* phase = "forward";
  // The op or bucket it serves, e.g. "layers.0.attention.o". Ranks of a collective must agree on
  // it.
  const std::string* label = nullptr;
};

class Communicator {
 public:
  // `group`: global ranks in order; `index`: this rank's place in it; `axis`: for ledger and
  // errors.
  Communicator(std::string axis, std::vector<int> group, int index,
               c10::intrusive_ptr<c10d::Backend> backend, Ledger* ledger);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& axis() const { return axis_; }
  int ways() const { return static_cast<int>(group_.size()); }
  int index() const { return index_; }
  const std::vector<int>& group() const { return group_; }

  // All tensors contiguous. Calls return at once; any number may be under way, and they may be
  // waited for in any order. The ranks of a group make the same calls in the same order; sends and
  // recvs are matched by (from, to, tag) instead, first to first. A send may complete only when its
  // recv has been posted: post both before waiting where two ranks send to each other.
  Pending all_reduce(at::Tensor inout, Reduction op, Purpose purpose);
  // `out` is the `ways` inputs one after the other (dim 0 of flattened tensors).
  Pending all_gather(at::Tensor out, at::Tensor in, Purpose purpose);
  Pending reduce_scatter(at::Tensor out, at::Tensor in, Reduction op, Purpose purpose);
  // Splits count rows of dim 0; empty: even. The ledger gets the bytes that go to other ranks.
  Pending all_to_all(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_splits,
                     std::vector<std::int64_t> in_splits, Purpose purpose);
  Pending broadcast(at::Tensor inout, int root_index, Purpose purpose);
  Pending send(at::Tensor tensor, int to_index, int tag, Purpose purpose);
  Pending recv(at::Tensor tensor, int from_index, int tag, Purpose purpose);
  Pending barrier(Purpose purpose);

 private:
  friend class Pending;
  // Issues by `call()`, which returns the Work, and posts `sent` bytes and the time it took.
  template <class Call>
  Pending issue(Collective op, std::int64_t sent, const Purpose& purpose, Call&& call);
  int checked_peer(int index, Collective op) const;
  Ledger::Entry entry_of(Collective op, const char* phase);

  std::string axis_;
  std::vector<int> group_;
  int index_ = 0;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Ledger* ledger_ = nullptr;
  // Where the ledger books an op's calls for a phase: of those that were made.
  struct Booked {
    Collective op;
    const char* phase;
    Ledger::Entry entry;
  };
  std::vector<Booked> booked_;
};

}  // namespace mw
