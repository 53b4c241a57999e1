// Joins the processes by MPI and the shared memory of each machine, and moves messages and streams
// between them.
#include "link.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "meshwright/error.h"

namespace mpi {
namespace {

constexpr int message_tag = 1, first_data_tag = 2;

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw mw::Error(mw::Stage::environment, "process.join", "",
                  fmt::format("MPI: {} failed: {}", what, std::string(text.data())),
                  "Try `mpirun -n 2 hostname` and a small MPI program.");
}

}  // namespace

MpiLink::MpiLink() {
  // Open MPI uses these defaults where nobody has set the variables. Reading the memory of another
  // process is forbidden in most containers and gains nothing here: processes of one machine do not
  // talk by MPI.
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  int there = 0;
  MPI_Initialized(&there);
  if (there != 0) {
    throw mw::Error(mw::Stage::environment, "process.join", "",
                    "MPI is in use in this process already.", "Make one carrier a process.");
  }
  int level = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  int count = 1;
  MPI_Comm_size(world_, &count);
  MPI_Comm_rank(world_, &process_);
  void* most = nullptr;
  int known = 0;
  MPI_Comm_get_attr(world_, MPI_TAG_UB, static_cast<void*>(&most), &known);
  if (known != 0) most_tag_ = *static_cast<int*>(most);
  const auto n = static_cast<std::size_t>(count);
  all_.resize(n);
  places_.assign(n, 0);
  outbox_.resize(n);
  written_.assign(n, 0);
  partial_.resize(n);
  gone_.assign(n, 0);
  join_machine();

  struct Card {
    int pid, machine;
    char host[MPI_MAX_PROCESSOR_NAME];
  };
  Card mine{getpid(), at(process_).machine, {}};
  int length = 0;
  MPI_Get_processor_name(mine.host, &length);
  std::vector<Card> cards(n);
  check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, cards.data(), sizeof mine, MPI_BYTE, world_),
        "MPI_Allgather");
  int place = 0;
  for (std::size_t p = 0; p < n; ++p) {
    all_[p] = {cards[p].pid, cards[p].machine, cards[p].host};
    if (cards[p].machine == mine.machine) {
      places_[p] = place++;
    } else {
      any_far_ = true;
    }
  }
}

void MpiLink::join_machine() {
  MPI_Comm machine = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, process_, MPI_INFO_NULL, &machine),
        "MPI_Comm_split_type");
  int count = 1;
  MPI_Comm_size(machine, &count);
  MPI_Comm_rank(machine, &place_);
  int first = process_;
  MPI_Bcast(&first, 1, MPI_INT, 0, machine);
  auto& me = all_[static_cast<std::size_t>(process_)];
  me.machine = first;
  // MESHWRIGHT_MPI_SHARED = 0 is for sites where sharing memory does harm, and for tests of what
  // goes between machines.
  const char* wish = std::getenv("MESHWRIGHT_MPI_SHARED");
  const std::string_view word = wish == nullptr ? "1" : wish;
  if (word != "0" && word != "1") {
    throw mw::Error(mw::Stage::environment, "environment.value", "",
                    fmt::format("MESHWRIGHT_MPI_SHARED is \"{}\".", word), "Set it to 0 or 1.");
  }
  const bool wanted = word == "1";
  if (count > 1) {
    const auto capacity = SharedArea::capacity_for(count);
    std::array<char, 128> name{};
    if (place_ == 0 && wanted) {
      std::strncpy(name.data(), SharedArea::create(count, capacity).c_str(), name.size() - 1);
    }
    MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, machine);
    auto area = std::make_unique<SharedArea>(name.data(), count, capacity);
    int mine = area->valid() && wanted ? 1 : 0, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, machine);
    // No other process will open the memory: nameless, it is not left behind, however the processes
    // end.
    if (place_ == 0 && name[0] != 0) SharedArea::remove_name(name.data());
    if (all != 0) {
      area_ = std::move(area);
    } else {
      me.machine = process_;  // as if each process had a machine of its own
    }
  }
  MPI_Comm_free(&machine);
}

MpiLink::~MpiLink() = default;

std::string MpiLink::name_of(int process) const {
  return fmt::format("process {} (pid {} on {})", process, at(process).pid, at(process).host);
}

void MpiLink::watch(const std::function<void(int)>& died) {
  deaths_.reset();
  if (!died) return;
  std::vector<std::pair<int, int>> watched;
  for (int p = 0; p < processes(); ++p) {
    if (p != process_ && near(p)) watched.emplace_back(p, at(p).pid);
  }
  deaths_ = std::make_unique<Deaths>(watched, died);
}

bool MpiLink::in_flight(const Traffic& traffic) const {
  const auto waits = [&](const mw::transport::Stream& stream) {
    const auto found = requests_.find(&stream);
    return found != requests_.end() && !found->second.empty();
  };
  return std::any_of(traffic.peers.begin(), traffic.peers.end(), [&](const Traffic::Peer& peer) {
    return std::any_of(peer.out, peer.out + 2, waits) || std::any_of(peer.in, peer.in + 2, waits);
  });
}

void MpiLink::finalize() {
  MPI_Comm_free(&world_);
  MPI_Finalize();
}

void MpiLink::forget(int process) {
  const auto p = static_cast<std::size_t>(process);
  gone_[p] = 1;
  outbox_[p].clear();
  written_[p] = 0;
}

void MpiLink::send(int to, std::string bytes) {
  const auto p = static_cast<std::size_t>(to);
  if (gone_[p] != 0) return;
  if (near(to)) {
    outbox_[p].push_back(std::move(bytes));
    return;
  }
  auto& one = sending_.emplace_back(Sending{std::move(bytes), MPI_REQUEST_NULL});
  MPI_Isend(one.bytes.data(), static_cast<int>(one.bytes.size()), MPI_BYTE, to, message_tag, world_,
            &one.request);
}

bool MpiLink::all_sent() const {
  return sending_.empty() &&
         std::all_of(outbox_.begin(), outbox_.end(), [](const auto& list) { return list.empty(); });
}

bool MpiLink::receive(const Receiver& receiver) {
  bool moved = false;
  for (int p = 0; p < processes(); ++p) {
    if (p != process_ && near(p)) moved |= receive_near(p, receiver);
  }
  if (!any_far_) return moved;
  for (;;) {
    int flag = 0;
    MPI_Message message;
    MPI_Status status;
    if (MPI_Improbe(MPI_ANY_SOURCE, message_tag, world_, &flag, &message, &status) != MPI_SUCCESS ||
        flag == 0) {
      break;
    }
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    std::string bytes(static_cast<std::size_t>(size), '\0');
    MPI_Mrecv(bytes.data(), size, MPI_BYTE, &message, &status);
    receiver.message(status.MPI_SOURCE, bytes);
    moved = true;
  }
  for (auto one = sending_.begin(); one != sending_.end();) {
    int flag = 0;
    MPI_Test(&one->request, &flag, MPI_STATUS_IGNORE);
    one = flag != 0 ? sending_.erase(one) : std::next(one);
  }
  return moved;
}

bool MpiLink::receive_last(int from, const Receiver& receiver) {
  return near(from) && receive_near(from, receiver);
}

bool MpiLink::receive_near(int from, const Receiver& receiver) {
  Ring& ring = area_->ring(place_of(from), place_);
  bool moved = false;
  constexpr int at_once = 64;  // frames in a row; then other processes have their turn
  for (int k = 0; k < at_once && !ring.empty(); ++k) {
    const FrameHead head = ring.front();
    std::string message;
    if (head.type == FrameType::data) {
      if (Traffic* const traffic = receiver.traffic(head.handle)) {
        const auto copy = [&](std::int64_t offset, std::byte* to, std::int64_t count) {
          ring.copy(offset, to, count);
        };
        take(*traffic, from, static_cast<StreamKind>(head.stream), head.bytes, copy, receiver);
      }
    } else {
      auto& text = partial_[static_cast<std::size_t>(from)];
      const auto before = text.size();
      text.resize(before + head.bytes);
      ring.copy(0, reinterpret_cast<std::byte*>(text.data() + before), head.bytes);
      if (head.type == FrameType::message) message = std::exchange(text, {});
    }
    if (ring.pop()) area_->doorbell(place_of(from)).ring();
    if (!message.empty()) receiver.message(from, message);
    moved = true;
  }
  return moved;
}

bool MpiLink::pump(std::span<Traffic* const> all, const Receiver& receiver) {
  bool moved = false;
  for (int p = 0; p < processes(); ++p) {
    if (p != process_ && near(p) && gone_[static_cast<std::size_t>(p)] == 0) {
      moved |= pump_near(p, all);
    }
  }
  if (!any_far_) return moved;
  for (Traffic* const traffic : all) {
    for (auto& peer : traffic->peers) {
      if (peer.arrived && !near(peer.process)) moved |= pump_far(*traffic, peer, receiver);
    }
  }
  return moved;
}

bool MpiLink::pump_near(int to, std::span<Traffic* const> all) {
  Ring& ring = area_->ring(place_, place_of(to));
  Doorbell& bell = area_->doorbell(place_of(to));
  const std::int64_t most = ring.capacity() / 4;
  // write() returns the bytes written, -1 if there is no room worth a frame.
  bool moved = false;
  const auto write = [&](FrameHead head, const std::byte* at, std::int64_t left) -> std::int64_t {
    const auto wanted = std::min(left, most);
    const auto room = ring.room(wanted);
    if (room < std::min<std::int64_t>(wanted, most / 4)) return -1;
    head.bytes = static_cast<std::uint32_t>(std::min(room, wanted));
    if (head.type == FrameType::message && head.bytes < left) head.type = FrameType::message_part;
    ring.write(head, at);
    bell.ring();
    moved = true;
    return head.bytes;
  };
  auto& outbox = outbox_[static_cast<std::size_t>(to)];
  auto& written = written_[static_cast<std::size_t>(to)];
  while (!outbox.empty()) {
    const auto& bytes = outbox.front();
    const auto count = write({0, FrameType::message, 0, 0},
                             reinterpret_cast<const std::byte*>(bytes.data() + written),
                             static_cast<std::int64_t>(bytes.size() - written));
    if (count < 0) return moved;
    written += static_cast<std::size_t>(count);
    if (written < bytes.size()) continue;
    outbox.pop_front();
    written = 0;
  }
  for (Traffic* const traffic : all) {
    Traffic::Peer* const peer = traffic->peer_of(to);
    if (peer == nullptr || !peer->arrived) continue;
    for (const auto kind : {mw::transport::parts, mw::transport::plain}) {
      auto& out = peer->out[kind];
      while (out.done < out.allowed) {
        const auto& piece = out.pieces[out.done];
        const auto count = write({0, FrameType::data, peer->handle, kind}, piece.at + out.offset,
                                 piece.bytes - out.offset);
        if (count < 0) return moved;
        out.offset += count;
        if (out.offset < piece.bytes) continue;
        out.offset = 0;
        ++out.done;
      }
    }
  }
  return moved;
}

int MpiLink::tag_of(std::uint32_t handle, StreamKind kind) const {
  const auto tags = static_cast<std::uint64_t>(most_tag_ - first_data_tag);
  return first_data_tag + static_cast<int>((std::uint64_t{handle} * 2 + kind) % tags);
}

bool MpiLink::tested(MPI_Request& request, int process, const Receiver& receiver) {
  int flag = 0;
  if (MPI_Test(&request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS) return flag != 0;
  receiver.lost(process, "MPI reports an error in a transfer with it");
  return false;
}

bool MpiLink::pump_far(Traffic& traffic, Traffic::Peer& peer, const Receiver& receiver) {
  constexpr std::size_t under_way = 4;
  bool moved = false;
  // Begins the transfers that are allowed, and returns how many transfers have ended.
  const auto progress = [&](mw::transport::Stream& stream, const auto& begin) {
    auto& requests = requests_[&stream];
    while (requests.size() < under_way && stream.done + requests.size() < stream.allowed) {
      const auto& piece = stream.pieces[stream.done + requests.size()];
      begin(piece, requests.emplace_back());
      moved = true;
    }
    std::size_t over = 0;
    for (; !requests.empty() && tested(requests.front(), peer.process, receiver); ++over)
      requests.pop_front();
    if (requests.empty()) requests_.erase(&stream);
    moved |= over > 0;
    return over;
  };
  for (const auto kind : {mw::transport::parts, mw::transport::plain}) {
    peer.out[kind].done += progress(peer.out[kind], [&](const auto& piece, MPI_Request& request) {
      MPI_Isend(piece.at, static_cast<int>(piece.bytes), MPI_BYTE, peer.process,
                tag_of(peer.handle, kind), world_, &request);
    });
    const auto came = progress(peer.in[kind], [&](const auto& piece, MPI_Request& request) {
      MPI_Irecv(piece.at, static_cast<int>(piece.bytes), MPI_BYTE, peer.process,
                tag_of(traffic.handle, kind), world_, &request);
    });
    for (std::size_t k = 0; k < came; ++k) receiver.came(traffic, peer, kind);
  }
  return moved;
}

}  // namespace mpi
