// Collectives out of messages: each rank sends the others what they need of its tensor at once, and
// puts together what has come when it waits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "meshwright/error.h"
#include "transport/transport_state.h"

namespace mw::comm {
namespace {

using Bytes = std::vector<const std::byte*>;

std::byte* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
}

std::int64_t sum_before(const std::vector<std::int64_t>& rows, std::size_t end) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < end; ++i) sum += rows[i];
  return sum;
}

// What a rank's call on a group comes to: its tensors, and who is to send it something.
struct Part {
  Call call;
  at::Tensor in, out;
  std::vector<at::Tensor> results;
  std::string axis, name;         // "collective 3"
  std::vector<int> group;         // of a send or recv: the sender and the receiver
  std::size_t index = 0;          // of this rank
  std::vector<std::string> from;  // by member: the name of what it sends; empty: nothing

  std::int64_t item() const { return static_cast<std::int64_t>(c10::elementSize(call.dtype)); }
  // What member `to` needs of this rank's tensor.
  std::string_view for_member(std::size_t to) const {
    const auto elements = call.elements;
    std::int64_t first = 0, count = 0;
    switch (call.op) {
      case Collective::all_reduce:
      case Collective::all_gather:
      case Collective::send:
        count = elements;
        break;
      case Collective::reduce_scatter:
        first = static_cast<std::int64_t>(to) * elements;
        count = elements;
        break;
      case Collective::all_to_all:
        first = sum_before(call.in_splits, to) * elements;
        count = call.in_splits[to] * elements;
        break;
      case Collective::broadcast:
        count = static_cast<std::size_t>(call.root) == index ? elements : 0;
        break;
      case Collective::recv:
      case Collective::barrier:
        break;
    }
    if (count == 0) return {};
    return {reinterpret_cast<const char*>(data_of(in) + first * item()),
            static_cast<std::size_t>(count * item())};
  }

  // What this rank is to get of member `sender`, in bytes.
  std::size_t bytes_from(std::size_t sender) const {
    std::int64_t count = 0;
    switch (call.op) {
      case Collective::all_reduce:
      case Collective::all_gather:
      case Collective::reduce_scatter:
      case Collective::recv:
        count = call.elements;
        break;
      case Collective::all_to_all:
        count = call.out_splits[sender] * call.elements;
        break;
      case Collective::broadcast:
        count = static_cast<std::size_t>(call.root) == sender ? call.elements : 0;
        break;
      case Collective::send:
      case Collective::barrier:
        break;
    }
    return static_cast<std::size_t>(count * item());
  }

  void check(const Call& other, std::size_t member) const {
    bool fits = call.agrees_with(other);
    if (fits && call.op == Collective::all_to_all) {
      fits = call.in_splits[member] == other.out_splits[index] &&
             call.out_splits[member] == other.in_splits[index];
    }
    if (!fits) throw Error(disagreement(axis, name, group[member], other, group[index], call));
  }

  void put_together(const std::vector<std::optional<Received>>& got) const {
    Bytes parts;
    for (std::size_t m = 0; m < group.size(); ++m) {
      const std::string_view bytes = got[m] ? got[m]->bytes() : for_member(m);
      parts.push_back(reinterpret_cast<const std::byte*>(bytes.data()));
    }
    std::byte* const to = data_of(out);
    const auto copy = [&](std::size_t member, std::int64_t first, std::int64_t count) {
      if (count > 0)
        std::memcpy(to + first * item(), parts[member], static_cast<std::size_t>(count * item()));
    };
    const auto elements = call.elements;
    const std::vector<std::byte*> outs{to};
    switch (call.op) {
      case Collective::all_reduce:
      case Collective::reduce_scatter:
        reduce(call.dtype, call.combine, parts, outs, 0, elements);
        break;
      case Collective::all_gather:
        for (std::size_t m = 0; m < group.size(); ++m)
          copy(m, static_cast<std::int64_t>(m) * elements, elements);
        break;
      case Collective::all_to_all:
        for (std::size_t m = 0; m < group.size(); ++m)
          copy(m, sum_before(call.out_splits, m) * elements, call.out_splits[m] * elements);
        break;
      case Collective::broadcast:
        if (static_cast<std::size_t>(call.root) != index)
          copy(static_cast<std::size_t>(call.root), 0, elements);
        break;
      case Collective::recv:
        copy(0, 0, elements);
        break;
      case Collective::send:
      case Collective::barrier:
        break;
    }
  }
};

class TransportWork final : public c10d::Work {
 public:
  TransportWork(TransportSource& source, Part part, c10d::OpType type,
                std::chrono::milliseconds timeout)
      : Work(part.group[part.index], type),
        source_(source),
        part_(std::move(part)),
        got_(part_.group.size()),
        timeout_(timeout) {}

  bool isCompleted() override {
    return over_ || std::all_of(part_.from.begin(), part_.from.end(), [&](const auto& name) {
             return name.empty() || source_.state().is_there(name);
           });
  }
  bool isSuccess() const override { return over_; }
  std::vector<at::Tensor> result() override { return part_.results; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (over_) return true;
    const auto limit = timeout.count() > 0 ? timeout : timeout_;
    Patience patience(limit);
    const std::string told =
        fmt::format("{} on axis '{}' ({})", part_.call.describe(), part_.axis, part_.name);
    source_.state().check();
    for (std::size_t m = 0; m < part_.from.size(); ++m) {
      if (part_.from[m].empty() || got_[m]) continue;
      got_[m] = source_.state().part(part_.from[m], part_.group[m], patience, told);
      if (!got_[m]) late(limit);
      part_.check(got_[m]->head.call, m);
      check_whole(got_[m]->bytes().size(), m);
    }
    part_.put_together(got_);
    got_.clear();
    part_.in = part_.out = at::Tensor();
    return over_ = true;
  }

 private:
  // A transport that cuts messages off is not to be read beyond their ends.
  void check_whole(std::size_t bytes, std::size_t member) const {
    const std::size_t due = part_.bytes_from(member);
    if (bytes == due) return;
    throw Error(Stage::run, "process.message", "",
                fmt::format("{} delivered {} bytes from rank {}, which sent {}", source_.name(),
                            bytes, part_.group[member], due),
                "send() and arrived() must have the same bytes");
  }

  [[noreturn]] void late(std::chrono::milliseconds limit) const {
    std::vector<int> missing, waiting;
    std::string where;
    for (std::size_t m = 0; m < part_.from.size(); ++m) {
      const int rank = part_.group[m];
      const bool here = part_.from[m].empty() || got_[m] || source_.state().is_there(part_.from[m]);
      (here ? waiting : missing).push_back(rank);
      if (!here) where += fmt::format(" Rank {} is in process {}.", rank, source_.process_of(rank));
    }
    const Problem problem =
        lateness(part_.axis, part_.name, part_.call.describe(),
                 std::chrono::duration<double>(limit).count(), missing, waiting, where);
    throw WaitedInVain(std::vector{problem});
  }

  TransportSource& source_;
  Part part_;
  std::vector<std::optional<Received>> got_;
  const std::chrono::milliseconds timeout_;
  bool over_ = false;
};

class TransportBackend final : public CheckedBackend {
 public:
  TransportBackend(TransportSource& source, const std::string& axis, std::vector<int> group,
                   int index, std::chrono::milliseconds timeout)
      : CheckedBackend(axis, group, index, timeout),
        source_(source),
        group_(std::move(group)),
        index_(static_cast<std::size_t>(index)),
        name_(fmt::format("{}/{}", axis, fmt::join(group_, "-"))) {}
  const std::string getBackendName() const override { return source_.name(); }

 protected:
  WorkPtr issue(Issue issue) override {
    const auto number = source_.count(fmt::format("{}/{}", name_, index_));
    Part part = part_of(issue, fmt::format("collective {}", number));
    part.group = group_;
    part.index = index_;
    const std::string all = fmt::format("{}/{}", name_, number);
    for (std::size_t m = 0; m < group_.size(); ++m) {
      part.from.push_back(m == index_ ? "" : fmt::format("{}/{}>{}", all, m, index_));
      if (m != index_)
        source_.send_part(group_[m], fmt::format("{}/{}>{}", all, index_, m), global_rank(),
                          part.call, part.for_member(m));
    }
    return c10::make_intrusive<TransportWork>(source_, std::move(part), issue.type, issue.timeout);
  }

  WorkPtr issue_pair(Issue issue, int peer, int tag) override {
    const bool sends = issue.call.op == Collective::send;
    const auto other = static_cast<std::size_t>(peer);
    const std::size_t from = sends ? index_ : other, to = sends ? other : index_;
    const std::string pair = fmt::format("{}/{}>{}/{}", name_, from, to, tag);
    const auto number = source_.count(fmt::format("{}/{}", pair, sends ? "send" : "recv"));
    Part part = part_of(issue, fmt::format("{} {} -> {}, tag {}", sends ? "send" : "recv",
                                           group_[from], group_[to], tag));
    part.group = {group_[from], group_[to]};
    part.index = sends ? 0 : 1;
    const std::string name = fmt::format("{}#{}", pair, number);
    part.from = {sends ? "" : name, ""};
    if (sends) source_.send_part(group_[to], name, global_rank(), part.call, part.for_member(1));
    return c10::make_intrusive<TransportWork>(source_, std::move(part), issue.type, issue.timeout);
  }

 private:
  Part part_of(const Issue& issue, std::string name) const {
    source_.state().check();
    Part part;
    part.call = issue.call;
    part.in = issue.in;
    part.out = issue.out;
    part.results = issue.results;
    part.axis = axis();
    part.name = std::move(name);
    return part;
  }

  TransportSource& source_;
  const std::vector<int> group_;
  const std::size_t index_;
  const std::string name_;
};

}  // namespace

TransportSource::TransportSource(TransportCarrier& carrier, std::string name, TransportState& state,
                                 const std::vector<std::vector<int>>& ranks,
                                 std::chrono::milliseconds timeout)
    : carrier_(carrier),
      name_(std::move(name)),
      state_(state),
      timeout_(timeout),
      process_of_(process_of_ranks(ranks)) {
  const Beyond beyond;  // nobody knows what ranks of other processes wait for
  threads_ = thread_source(static_cast<int>(process_of_.size()), timeout, &beyond);
  run_ = state_.begin(process_of_, threads_.get());
}

TransportSource::~TransportSource() {
  state_.over();
}

c10::intrusive_ptr<c10d::Backend> TransportSource::backend(const Connection& connection,
                                                           int index) {
  const std::vector<int>& group = connection.ranks;
  const bool here = std::all_of(group.begin(), group.end(), [&](int rank) {
    return rank < 0 || rank >= ranks() || process_of(rank) == carrier_.process();
  });
  if (here || index < 0 || index >= static_cast<int>(group.size()))
    return threads_->backend(connection, index);  // which refuses what is no group
  return c10::make_intrusive<TransportBackend>(*this, connection.name(), group, index, timeout_);
}

void TransportSource::abort(int rank, const std::string& reason) {
  if (!state_.stop(rank, reason)) return;
  MessageHead head;
  head.sort = MessageHead::Sort::aborted;
  head.rank = rank;
  head.text = reason;
  tell_all(head);
}

void TransportSource::ended(int rank) {
  threads_->ended(rank);
  state_.rank_ended(rank);
  MessageHead head;
  head.sort = MessageHead::Sort::ended;
  head.rank = rank;
  tell_all(head);
}

void TransportSource::tell_all(const MessageHead& head) {
  MessageHead of_run = head;
  of_run.run = run_;
  const std::string message = message_of(of_run, "");
  for (int p = 0; p < carrier_.processes(); ++p) {
    if (p == carrier_.process()) continue;
    try {
      carrier_.send(p, message);
    } catch (const std::exception&) {
      // It is gone, or cannot be told: then it waits in vain, and says so.
    }
  }
}

std::int64_t TransportSource::count(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return counts_[name]++;
}

void TransportSource::send_part(int to, const std::string& name, int from, const Call& call,
                                std::string_view bytes) {
  MessageHead head;
  head.sort = MessageHead::Sort::part;
  head.run = run_;
  head.rank = from;
  head.text = name;
  head.call = call;
  const int process = process_of(to);
  std::string message = message_of(head, bytes);
  if (process == carrier_.process()) {
    state_.arrived(process, std::move(message));
  } else {
    carrier_.send(process, message);
  }
}

}  // namespace mw::comm
