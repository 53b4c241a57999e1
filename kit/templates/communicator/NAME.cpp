// The communicator @NAME@: connects the ranks of a run that are in several processes of one
// machine, over Unix sockets. A thread for each other process reads what that sends; all that makes
// collectives of these bytes is the SDK's.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meshwright/plugin.h"
#include "meshwright/store_link.h"
#include "meshwright/transport.h"

namespace {

constexpr std::chrono::seconds patience{60};  // for the others to come

bool write_all(int socket, const void* data, std::size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t sent = ::send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool read_all(int socket, void* data, std::size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t got = ::recv(socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

// Another process, as this one is connected to it.
struct Peer {
  int socket = -1;
  std::mutex writing;  // one message at a time
  std::thread reader;
  ~Peer() {
    if (socket >= 0) ::shutdown(socket, SHUT_RDWR);  // the reader's recv returns
    if (reader.joinable()) reader.join();
    if (socket >= 0) ::close(socket);
  }
};

class @CLASS@ final : public mw::TransportCarrier {
 public:
  // The launcher's environment says how many processes there are and which one this is.
  @CLASS@() : @CLASS@(mw::rendezvous()) {}
  explicit @CLASS@(const mw::Rendezvous& at)
      : TransportCarrier("@NAME@", at.processes, at.process),
        job_(fmt::format("{}-{}", at.port, at.attempt)),
        peers_(static_cast<std::size_t>(at.processes)) {
    Peer listening;  // to those with higher numbers; this one goes to the others
    listening.socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto [own, length] = address(process());
    if (::bind(listening.socket, reinterpret_cast<const sockaddr*>(&own), length) != 0 ||
        ::listen(listening.socket, processes()) != 0)
      fail(std::string("cannot open a socket: ") + std::strerror(errno));
    for (int p = 0; p < process(); ++p) call(p);
    for (int p = process() + 1; p < processes(); ++p) accept_from(listening.socket);
    for (int p = 0; p < processes(); ++p) {
      if (p != process())
        peer(p).reader = std::thread([this, p, socket = peer(p).socket] { read(p, socket); });
    }
  }

  void send(int to, const std::string& message) override {
    const std::lock_guard lock(peer(to).writing);
    const std::uint64_t size = message.size();
    if (write_all(peer(to).socket, &size, sizeof size))
      write_all(peer(to).socket, message.data(), message.size());  // else its reader says so
  }

 private:
  Peer& peer(int process) { return peers_.at(static_cast<std::size_t>(process)); }

  // In the abstract namespace: no file stays behind, whoever is killed.
  std::pair<sockaddr_un, socklen_t> address(int process) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = fmt::format("meshwright-@NAME@-{}-{}", job_, process);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw mw::Error(mw::Stage::environment, "@NAME@.join", "",
                    fmt::format("process {} of {} {}", process(), processes(), why),
                    "@NAME@ connects processes of one machine, which one launcher has started");
  }

  void call(int p) {
    const auto [there, length] = address(p);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    peer(p).socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (::connect(peer(p).socket, reinterpret_cast<const sockaddr*>(&there), length) != 0) {
      if (std::chrono::steady_clock::now() > deadline)
        fail(fmt::format("does not find process {}: {}", p, std::strerror(errno)));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const int own = process();
    write_all(peer(p).socket, &own, sizeof own);
  }

  void accept_from(int listening) {
    pollfd waiting{listening, POLLIN, 0};
    const int milliseconds = static_cast<int>(std::chrono::milliseconds(patience).count());
    int p = -1;
    const int socket = ::poll(&waiting, 1, milliseconds) > 0
                           ? ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC)
                           : -1;
    if (socket < 0 || !read_all(socket, &p, sizeof p)) fail("waited in vain for the others");
    if (p <= process() || p >= processes() || peer(p).socket >= 0)
      fail(fmt::format("was called by a process {}, which is none that it waits for", p));
    peer(p).socket = socket;
  }

  // Takes what comes whatever the ranks are about: nobody waits for room for ever.
  void read(int from, int socket) {
    std::uint64_t size = 0;
    while (read_all(socket, &size, sizeof size)) {
      std::string message(size, '\0');
      if (!read_all(socket, message.data(), size)) break;
      arrived(from, std::move(message));
    }
    gone(from, "its socket was closed");
  }

  const std::string job_;
  std::vector<Peer> peers_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "ranks in several processes of one machine, over Unix sockets",
                  mw::communicator<@CLASS@>())
