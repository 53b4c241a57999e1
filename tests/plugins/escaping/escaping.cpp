// A plugin whose native code tries to leave a sandbox: each act is a system call, or a bomb. What
// came of it is the message of the error that it ends with: "done", or why not.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
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

bool makes(long made) {
  if (made >= 0) ::close(static_cast<int>(made));
  return made >= 0;
}

// A process of its own that outlives this one, and says its number in a file.
bool leaves_a_process(const char* path) {
  const pid_t process = ::fork();
  if (process != 0) return process > 0;
  ::setsid();
  for (int file = 0; file < 3; ++file) ::close(file);  // which somebody reads to their end
  std::ofstream(path) << ::getpid() << std::flush;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::signal(number, SIG_IGN);
  while (true) ::pause();
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

// Memory that would be left after the process.
bool keeps_memory() {
  const int segment = ::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  return segment >= 0 && ::shmctl(segment, IPC_RMID, nullptr) == 0;
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
      {"connect", [](auto, auto) { return makes(::socket(AF_INET, SOCK_STREAM, 0)); }},
      {"datagram", [](auto, auto) { return makes(::socket(AF_INET6, SOCK_DGRAM, 0)); }},
      {"local socket", [](auto, auto) { return makes(::socket(AF_UNIX, SOCK_STREAM, 0)); }},
      {"io_uring",
       [](auto, auto) {
         char parameters[120] = {};
         return makes(::syscall(SYS_io_uring_setup, 4, parameters));
       }},
      {"trace", [](auto, auto) { return ::ptrace(PTRACE_SEIZE, ::getppid(), nullptr, 0) == 0; }},
      {"memory file", [](auto, auto) { return makes(::memfd_create("x", MFD_CLOEXEC)); }},
      {"kept memory", [](auto, auto) { return keeps_memory(); }},
      {"limit", [](auto, auto) { return reads_limit_of(::getppid()); }},
      {"signal", [](auto, auto) { return ::kill(::getppid(), SIGCONT) == 0; }},
      {"environment",
       [](auto, auto) {
         const std::string file = "/proc/" + std::to_string(::getppid()) + "/environ";
         return opens(file.c_str(), O_RDONLY);
       }},
      {"fork", [](auto path, auto) { return leaves_a_process(path); }},
      {"run", [](auto path, auto) { return runs(path); }},
      {"memory", [](auto, auto) { return fills_memory(MAP_PRIVATE); }},
      {"shared memory", [](auto, auto) { return fills_memory(MAP_SHARED); }},
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
