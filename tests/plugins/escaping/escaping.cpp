// A plugin whose native code tries to leave a sandbox: each act is a system call, or a bomb. What
// came of it is the message of the error that it ends with: "done", or why not.
#include <fcntl.h>
#include <linux/fs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

using Act = std::function<bool(const char* path, const char* other)>;

bool opens(const char* path, int flags) {
  const int file = ::open(path, flags | O_CLOEXEC, 0666);
  if (file >= 0) ::close(file);
  return file >= 0;
}

bool connects(int family, const void* address, socklen_t size) {
  const int file = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool done = ::connect(file, static_cast<const sockaddr*>(address), size) == 0;
  const int reason = errno;
  ::close(file);
  errno = reason;
  return done;
}

// A TCP port of this machine.
bool connects_to_port(const char* port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connects(AF_INET, &address, sizeof address);
}

sockaddr_un local_address(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  return address;
}

bool connects_to_path(const char* path) {
  const sockaddr_un address = local_address(path);
  return connects(AF_UNIX, &address, sizeof address);
}

// A socket that has a name, and no file.
bool connects_to_name(const char* name) {
  sockaddr_un address = local_address((" " + std::string(name)).c_str());
  address.sun_path[0] = '\0';
  const std::size_t size = offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name);
  return connects(AF_UNIX, &address, static_cast<socklen_t>(size));
}

// A pair of local sockets sends datagrams to any socket that has a path.
bool sends_to_path(const char* path) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) return false;
  const sockaddr_un address = local_address(path);
  const bool done = ::sendto(ends[0], "x", 1, 0, reinterpret_cast<const sockaddr*>(&address),
                             sizeof address) == 1;
  const int reason = errno;
  for (const int end : ends) ::close(end);
  errno = reason;
  return done;
}

// A process of its own that outlives this one, and locks a file as long as it is there.
bool leaves_a_process(const char* path) {
  const pid_t process = ::fork();
  if (process != 0) return process > 0;
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, 0);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::signal(number, SIG_IGN);
  for (int file = 0; file < 3; ++file) ::close(file);  // which somebody reads to their end
  const int file = ::open(path, O_WRONLY | O_CREAT, 0666);
  if (::flock(file, LOCK_EX) == 0 && ::write(file, "locked", 6) == 6)
    while (true) ::pause();
  ::_exit(1);
}

bool runs(const char* program) {
  const pid_t process = ::fork();
  if (process == 0) {
    ::execl(program, program, nullptr);
    ::_exit(127);
  }
  int status = -1;
  return process > 0 && ::waitpid(process, &status, 0) == process && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

bool reads_limit_of(pid_t process) {
  rlimit limit{};
  return ::prlimit(process, RLIMIT_CPU, nullptr, &limit) == 0;
}

bool fills_memory(int flags) {
  constexpr std::size_t size = std::size_t{64} << 20;
  for (int i = 0; i < 64; ++i) {
    void* const block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return false;
    std::memset(block, 1, size);
  }
  ::sleep(1);
  return true;
}

// 1.2 GiB of tables of pages, of which each says that a page of zeros is read.
bool fills_tables() {
  constexpr std::size_t size = std::size_t{600} << 30, of_a_table = std::size_t{2} << 20;
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const block = ::mmap(nullptr, size, PROT_READ, flags, -1, 0);
  if (block == MAP_FAILED || ::madvise(block, size, MADV_NOHUGEPAGE) != 0) return false;
  const auto* const bytes = static_cast<const volatile char*>(block);
  for (std::size_t at = 0; at < size; at += of_a_table) (void)bytes[at];
  ::sleep(1);
  return true;
}

bool starts_threads() {
  constexpr std::size_t stack = 64 << 10;
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, stack);
  const auto sleeps = [](void*) -> void* {
    ::sleep(60);
    return nullptr;
  };
  pthread_t thread{};
  for (int i = 0; i < 5000; ++i)
    if (::pthread_create(&thread, &attributes, sleeps, nullptr) != 0) return false;
  ::sleep(30);
  return true;
}

bool watches(const char* folder) {
  const int file = ::inotify_init1(IN_CLOEXEC);
  const bool done = file >= 0 && ::inotify_add_watch(file, folder, IN_CREATE) >= 0;
  if (file >= 0) ::close(file);
  return done;
}

// Marks of a file that is open for reading.
bool sets_marks_of(const char* path) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  int marks = 0;
  const bool done =
      ::ioctl(file, FS_IOC_GETFLAGS, &marks) == 0 && ::ioctl(file, FS_IOC_SETFLAGS, &marks) == 0;
  ::close(file);
  return done;
}

bool makes_namespace() {
  const long process = ::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
  if (process == 0) ::_exit(0);
  return process > 0 && ::waitpid(static_cast<pid_t>(process), nullptr, 0) == process;
}

bool has_key(const char* name) {
  return ::syscall(SYS_request_key, "user", name, nullptr, 0) >= 0;
}

bool sets_priority_of(pid_t process) {
  return ::setpriority(PRIO_PROCESS, static_cast<id_t>(process),
                       ::getpriority(PRIO_PROCESS, static_cast<id_t>(process))) == 0;
}

// In the acts on processes and on System V's objects, `path` is a number.
const std::map<std::string, Act>& acts() {
  static const std::map<std::string, Act> all = {
      {"read", [](auto path, auto) { return opens(path, O_RDONLY); }},
      {"list", [](auto path, auto) { return opens(path, O_RDONLY | O_DIRECTORY); }},
      {"write", [](auto path, auto) { return opens(path, O_WRONLY); }},
      {"create", [](auto path, auto) { return opens(path, O_WRONLY | O_CREAT | O_EXCL); }},
      {"truncate", [](auto path, auto) { return ::truncate(path, 0) == 0; }},
      {"remove", [](auto path, auto) { return ::unlink(path) == 0; }},
      {"make folder", [](auto path, auto) { return ::mkdir(path, 0777) == 0; }},
      {"move", [](auto path, auto other) { return ::rename(path, other) == 0; }},
      {"link", [](auto path, auto other) { return ::link(path, other) == 0; }},
      {"write behind a link",
       [](auto path, auto other) {
         return ::symlink(path, other) == 0 && opens(other, O_WRONLY | O_CREAT);
       }},
      {"change mode", [](auto path, auto) { return ::chmod(path, 0777) == 0; }},
      {"change owner", [](auto path, auto) { return ::chown(path, ::getuid(), ::getgid()) == 0; }},
      {"change times",
       [](auto path, auto) { return ::utimensat(AT_FDCWD, path, nullptr, 0) == 0; }},
      {"mark", [](auto path, auto) { return ::setxattr(path, "user.x", "y", 1, 0) == 0; }},
      {"connect", [](auto path, auto) { return connects_to_port(path); }},
      {"local socket", [](auto path, auto) { return connects_to_path(path); }},
      {"named socket", [](auto path, auto) { return connects_to_name(path); }},
      {"datagram", [](auto path, auto) { return sends_to_path(path); }},
      {"trace",
       [](auto path, auto) { return ::ptrace(PTRACE_SEIZE, std::atoi(path), nullptr, 0) == 0; }},
      {"limit", [](auto path, auto) { return reads_limit_of(std::atoi(path)); }},
      {"signal", [](auto path, auto) { return ::kill(std::atoi(path), SIGCONT) == 0; }},
      {"environment",
       [](auto path, auto) {
         const std::string file = "/proc/" + std::string(path) + "/environ";
         return opens(file.c_str(), O_RDONLY);
       }},
      {"priority", [](auto path, auto) { return sets_priority_of(std::atoi(path)); }},
      {"fork", [](auto path, auto) { return leaves_a_process(path); }},
      {"run", [](auto path, auto) { return runs(path); }},
      {"keys", [](auto path, auto) { return has_key(path); }},
      {"watch", [](auto path, auto) { return watches(path); }},
      {"set marks", [](auto path, auto) { return sets_marks_of(path); }},
      {"namespace", [](auto, auto) { return makes_namespace(); }},
      {"messages",
       [](auto path, auto) {
         msqid_ds found{};
         return ::msgctl(std::atoi(path), IPC_STAT, &found) == 0;
       }},
      {"semaphores", [](auto path, auto) { return ::semctl(std::atoi(path), 0, GETVAL) >= 0; }},
      {"segments",
       [](auto path, auto) {
         shmid_ds found{};
         return ::shmctl(std::atoi(path), IPC_STAT, &found) == 0;
       }},
      {"memory", [](auto, auto) { return fills_memory(MAP_PRIVATE); }},
      {"stack memory", [](auto, auto) { return fills_memory(MAP_PRIVATE | MAP_GROWSDOWN); }},
      {"shared memory", [](auto, auto) { return fills_memory(MAP_SHARED); }},
      {"tables", [](auto, auto) { return fills_tables(); }},
      {"threads", [](auto, auto) { return starts_threads(); }},
      {"crash", [](auto, auto) { return ::raise(SIGSEGV) == 0; }},
      {"compute",
       [](auto, auto) {
         volatile bool goes_on = true;
         while (goes_on) {
         }
         return false;
       }},
      {"wait",
       [](auto, auto) {
         sigset_t signals;
         ::sigfillset(&signals);
         ::pthread_sigmask(SIG_SETMASK, &signals, nullptr);
         for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGALRM, SIGXCPU})
           ::signal(number, SIG_IGN);
         while (true) ::pause();
         return false;
       }},
  };
  return all;
}

class Escaping : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .text("act", "what it tries")
        .text("path", "of what")
        .fallback("")
        .text("other", "and where to")
        .fallback("");
  }
  explicit Escaping(const mw::Values& values) {
    const std::string path = values.text("path"), other = values.text("other");
    errno = 0;
    const bool done = acts().at(values.text("act"))(path.c_str(), other.c_str());
    throw mw::Error(mw::Stage::plan, "escaping.tried", "",
                    done ? "done" : std::string("not done: ") + std::strerror(errno));
  }
  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft&) const override {}
};

}  // namespace

MESHWRIGHT_PLUGIN("escaping", "1.0.0", "tries to leave a sandbox", mw::strategy<Escaping>())
