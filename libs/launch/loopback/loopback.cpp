// A library that is loaded into mpirun before its own libraries (LD_PRELOAD), as mpirun has no
// option for this: sockets that would listen on all addresses of this machine listen on the
// loopback address, which no other machine reaches. Links nothing but the C library.
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

using Bind = int(int, const sockaddr*, socklen_t);

// Restores LD_PRELOAD for the processes that mpirun starts: the earlier value stands behind this
// library's name.
__attribute__((constructor)) void keep_to_this_program() {
  const char* const all = std::getenv("LD_PRELOAD");
  if (all == nullptr) return;
  const char* const rest = std::strchr(all, ':');
  if (rest == nullptr) {
    ::unsetenv("LD_PRELOAD");
  } else {
    char* const before = ::strdup(rest + 1);
    if (before != nullptr) ::setenv("LD_PRELOAD", before, 1);
    std::free(before);
  }
}

int bind_to_loopback6(Bind* bind, int socket, sockaddr_in6 address) {
  address.sin6_addr = in6addr_loopback;
  const auto* const given = reinterpret_cast<const sockaddr*>(&address);
  if (bind(socket, given, sizeof address) == 0) return 0;
  if (errno != EADDRNOTAVAIL) return -1;
  // A machine without IPv6's loopback address: 127.0.0.1, as IPv6 writes it.
  address.sin6_addr = {};
  address.sin6_addr.s6_addr[10] = address.sin6_addr.s6_addr[11] = 0xff;
  address.sin6_addr.s6_addr[12] = 127;
  address.sin6_addr.s6_addr[15] = 1;
  return bind(socket, given, sizeof address);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int bind(int socket, const sockaddr* address,
                                                           socklen_t length) noexcept {
  static Bind* real = nullptr;  // no lock: every thread finds the same address
  if (real == nullptr) real = reinterpret_cast<Bind*>(::dlsym(RTLD_NEXT, "bind"));
  if (real == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  if (address != nullptr && address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in own{};
    std::memcpy(&own, address, sizeof own);
    if (own.sin_addr.s_addr == htonl(INADDR_ANY)) {
      own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      return real(socket, reinterpret_cast<const sockaddr*>(&own), sizeof own);
    }
  }
  if (address != nullptr && address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    sockaddr_in6 own{};
    std::memcpy(&own, address, sizeof own);
    if (IN6_IS_ADDR_UNSPECIFIED(&own.sin6_addr)) return bind_to_loopback6(real, socket, own);
  }
  return real(socket, address, length);
}
