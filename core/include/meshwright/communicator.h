// Collectives of one rank in one group of ranks (those along one mesh axis, or along several atoms)
// over a c10d::Backend. Every call posts its bytes to the rank's ledger.
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
// `bytes`. On n ranks these are 2(n-1)/n of the buffer for all-reduce; (n-1)/n for all-gather (of
// the gathered buffer), reduce-scatter (of the input), all-to-all (of the input, even splits) and
// broadcast; all of it for send; 0 for recv and barrier. Rounded down. Predicted and measured bytes
// both come from this function.
std::int64_t wire_bytes(Collective op, std::int64_t bytes, int ways);

class Communicator;

// A collective under way. The caller must not touch its tensors until wait() returns. Destroying a
// Pending without wait() is allowed only after an error, and ends the collective for the other
// ranks too. wait() is called on the thread that began the collective, before its Communicator is
// destroyed.
class Pending {
 public:
  Pending();  // nothing under way
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();
  // Returns when this rank's result is complete. Throws Error (run), with ranks, ops and axis, if
  // the ranks disagree or one does not come (WaitedInVain, world.h), and Aborted if one has failed.
  // A repeated call does nothing.
  void wait();
  bool valid() const;  // whether a collective was begun and not yet waited for

 private:
  friend class Communicator;
  Pending(c10::intrusive_ptr<c10d::Work> work, const Communicator* communicator,
          Ledger::Entry entry);

  c10::intrusive_ptr<c10d::Work> work_;
  const Communicator* communicator_ = nullptr;
  Ledger::Entry entry_ = 0;  // the ledger's entry for the collective's time
  std::int64_t call_ = -1;   // number of the collective in the rank's RankCalls; -1: no record
};

// What a collective is for, as the ledger and error messages say it.
struct Purpose {
  // "forward", "backward", "gradients", "optimizer", "report", ...; a string literal, since it is
  // kept and compared as a pointer.
  const char* phase = "forward";
  // The op or bucket that needs the collective, as "layers.0.attention.o". The ranks of a
  // collective must agree on the label.
  const std::string* label = nullptr;
};

class Communicator {
 public:
  // `group`: global ranks in order; `index`: this rank's place in `group`; `axis`: a name for the
  // ledger and for errors.
  Communicator(std::string axis, std::vector<int> group, int index,
               c10::intrusive_ptr<c10d::Backend> backend, Ledger* ledger);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& axis() const { return axis_; }
  int ways() const { return static_cast<int>(group_.size()); }
  int index() const { return index_; }
  const std::vector<int>& group() const { return group_; }

  // All tensors must be contiguous. Calls return at once. Any number of collectives may be under
  // way, and may be waited for in any order. The ranks of a group make the same calls in the same
  // order; only sends and recvs are matched by (from, to, tag) instead, in the order of their
  // calls. A send may complete only when its recv has been posted: two ranks that send to each
  // other must post both before they wait.
  Pending all_reduce(at::Tensor inout, Reduction op, Purpose purpose);
  // `out` receives the inputs of all ranks, flattened, one after the other in the group's order.
  Pending all_gather(at::Tensor out, at::Tensor in, Purpose purpose);
  Pending reduce_scatter(at::Tensor out, at::Tensor in, Reduction op, Purpose purpose);
  // Splits are numbers of rows of dim 0, one for each rank; empty: even. The ledger books the bytes
  // that go to other ranks.
  Pending all_to_all(at::Tensor out, at::Tensor in, std::vector<std::int64_t> out_splits,
                     std::vector<std::int64_t> in_splits, Purpose purpose);
  Pending broadcast(at::Tensor inout, int root_index, Purpose purpose);
  Pending send(at::Tensor tensor, int to_index, int tag, Purpose purpose);
  Pending recv(at::Tensor tensor, int from_index, int tag, Purpose purpose);
  Pending barrier(Purpose purpose);

 private:
  friend class Pending;
  // Issues a collective by `call()`, which returns the c10d::Work, and posts `sent` bytes and the
  // seconds of the call to the ledger.
  template <class Call>
  Pending issue(Collective op, std::int64_t sent, const Purpose& purpose, Call&& call);
  int checked_peer(int index, Collective op) const;
  Ledger::Entry entry_of(Collective op, const char* phase);

  std::string axis_;
  std::vector<int> group_;
  int index_ = 0;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Ledger* ledger_ = nullptr;
  // The ledger's entries for this communicator's calls, so that each is looked up once.
  struct Booked {
    Collective op;
    const char* phase;
    Ledger::Entry entry;
  };
  std::vector<Booked> booked_;
};

}  // namespace mw
