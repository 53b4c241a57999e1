// A plugin whose native code tries to leave a sandbox: each act is a system call, or a bomb. What
// came of it is the message of the error that it ends with: "done", or why not.
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
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
#include <thread>
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

bool fills_memory_without_a_first_thread() {
  std::thread([] {
    ::usleep(300'000);
    fills_memory(MAP_PRIVATE | MAP_GROWSDOWN);
    ::syscall(SYS_exit_group, 0);
  }).detach();
  ::syscall(SYS_exit, 0);
  return false;
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

bool shares_memory() {
  void* const block =
      ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return block != MAP_FAILED && ::munmap(block, 8192) == 0;
}

// A page that stays in memory when it is in no process's table.
bool keeps_a_page_in_a_pipe() {
  int ends[2];
  if (::pipe(ends) != 0) return false;
  char byte = 1;
  const iovec bytes{&byte, 1};
  const bool kept = ::vmsplice(ends[1], &bytes, 1, 0) == 1;
  for (const int end : ends) ::close(end);
  return kept;
}

bool makes_pair_of_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) return false;
  for (const int end : ends) ::close(end);
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

// What all users may ask of System V's things, and of a process of their own.
bool asks_of_messages() {
  msginfo all{};
  return ::msgctl(0, MSG_INFO, reinterpret_cast<msqid_ds*>(&all)) >= 0;
}
bool asks_of_semaphores() {
  seminfo all{};
  return ::semctl(0, 0, SEM_INFO, &all) >= 0;
}
bool asks_of_segments() {
  shm_info all{};
  return ::shmctl(0, SHM_INFO, reinterpret_cast<shmid_ds*>(&all)) >= 0;
}
bool sets_priority() {
  return ::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0)) == 0;
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
      {"share memory", [](auto, auto) { return shares_memory(); }},
      {"keep a page", [](auto, auto) { return keeps_a_page_in_a_pipe(); }},
      {"pair of sockets", [](auto, auto) { return makes_pair_of_sockets(); }},
      {"watch", [](auto path, auto) { return watches(path); }},
      {"set marks", [](auto path, auto) { return sets_marks_of(path); }},
      {"namespace", [](auto, auto) { return makes_namespace(); }},
      {"messages", [](auto, auto) { return asks_of_messages(); }},
      {"semaphores", [](auto, auto) { return asks_of_semaphores(); }},
      {"segments", [](auto, auto) { return asks_of_segments(); }},
      {"priority", [](auto, auto) { return sets_priority(); }},
      {"untie", [](auto, auto) { return ::prctl(PR_SET_PDEATHSIG, 0) == 0; }},
      {"hide", [](auto, auto) { return ::prctl(PR_SET_DUMPABLE, 1) == 0; }},
      {"memory", [](auto, auto) { return fills_memory(MAP_PRIVATE); }},
      {"stack memory", [](auto, auto) { return fills_memory(MAP_PRIVATE | MAP_GROWSDOWN); }},
      {"tables", [](auto, auto) { return fills_tables(); }},
      {"threads", [](auto, auto) { return starts_threads(); }},
      {"no first thread", [](auto, auto) { return fills_memory_without_a_first_thread(); }},
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
