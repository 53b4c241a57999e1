// A filter that refuses the system calls that no training needs and that lead out of a sandbox. A
// refused call mostly fails with EPERM, and the process goes on.
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <vector>

#include "launch/sandbox/sandbox.h"

namespace mw {
namespace {

#if defined(__x86_64__)
constexpr unsigned architecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr unsigned architecture = AUDIT_ARCH_AARCH64;
#else
constexpr unsigned architecture = 0;
#endif

constexpr unsigned other_numbers = 0x40000000;  // from here on: x86-64's calls with 32-bit pointers

constexpr long refused[] = {
    // Calls that reach into other processes or the kernel. An io_uring makes calls past a filter.
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_io_uring_setup, SYS_pidfd_getfd,
    SYS_process_madvise, SYS_perf_event_open, SYS_bpf, SYS_userfaultfd,
    // A pair of local sockets sends datagrams to any socket that has a path.
    SYS_socketpair,
    // Calls that change how much of the processor other processes of the user get.
    SYS_setpriority, SYS_ioprio_set, SYS_sched_setparam, SYS_sched_setscheduler, SYS_sched_setattr,
    // Memory and messages that belong to no process, so that nobody counts them. Those of System V
    // also reach processes outside, and remain when this process ends. A pipe holds the 2 MiB
    // around each byte that is spliced into it.
    SYS_memfd_create, 447 /* memfd_secret */, SYS_vmsplice, SYS_shmget, SYS_shmat, SYS_shmctl,
    SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_semget, SYS_semop, SYS_semtimedop,
    SYS_semctl, SYS_mq_open, SYS_mq_unlink,
    // Calls that tell names of files in folders that Landlock does not let a process list.
    SYS_inotify_init1, SYS_fanotify_init,
    // Changes to the rights, owners, attributes and times of files, which Landlock does not limit.
    SYS_fchmodat, 452 /* fchmodat2 */, SYS_fchown, SYS_fchownat, SYS_setxattr, SYS_lsetxattr,
    SYS_fsetxattr, 463 /* setxattrat */, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
    466 /* removexattrat */, 469 /* file_setattr */, SYS_utimensat, SYS_open_by_handle_at,
#if defined(__x86_64__)
    SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat, SYS_inotify_init,
#endif
    // Calls of administrators, and the user's keyrings.
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_move_mount, SYS_fsopen, SYS_open_tree,
    SYS_mount_setattr, SYS_unshare, SYS_setns, SYS_add_key, SYS_request_key, SYS_keyctl,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot, SYS_swapon,
    SYS_swapoff, SYS_sethostname, SYS_setdomainname, SYS_settimeofday, SYS_clock_settime,
    SYS_adjtimex, SYS_clock_adjtime, SYS_quotactl, SYS_acct, SYS_syslog};

constexpr std::size_t number_at = offsetof(seccomp_data, nr);
constexpr std::size_t architecture_at = offsetof(seccomp_data, arch);
constexpr std::size_t argument_at(int n) {  // offset of the argument's lower half
  return offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(n);
}

// Builds a BPF program for seccomp, instruction by instruction.
class Filter {
 public:
  void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)); }
  void keep_bits(unsigned bits) { add(BPF_ALU | BPF_AND | BPF_K, bits); }
  void answer(unsigned what) { add(BPF_RET | BPF_K, what); }
  void answer_error(int number) { answer(SECCOMP_RET_ERRNO | static_cast<unsigned>(number)); }
  // Skips the next instruction unless the comparison holds.
  void unless(unsigned short comparison, unsigned value) {
    code_.push_back(
        BPF_JUMP(static_cast<unsigned short>(BPF_JMP | comparison | BPF_K), value, 0, 1));
  }
  // Skips the next instruction if the comparison holds.
  void if_so(unsigned short comparison, unsigned value) {
    code_.push_back(
        BPF_JUMP(static_cast<unsigned short>(BPF_JMP | comparison | BPF_K), value, 1, 0));
  }
  // Runs the instructions that `body` adds for this system call only. If they give no answer, the
  // instructions after them follow.
  template <class Body>
  void for_call(long call, const Body& body) {
    if_so(BPF_JEQ, static_cast<unsigned>(call));
    const std::size_t over = code_.size();
    add(BPF_JMP | BPF_JA, 0);
    body();
    load(number_at);
    code_[over].k = static_cast<unsigned>(code_.size() - over - 1);
  }
  std::vector<sock_filter>& code() { return code_; }

 private:
  void add(int code, unsigned value) {
    code_.push_back(BPF_STMT(static_cast<unsigned short>(code), value));
  }
  std::vector<sock_filter> code_;
};

// Flags of new namespaces, in which a process would have the rights of an administrator.
constexpr unsigned namespaces = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET |
                                CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

constexpr unsigned shared_at_most = 4096;  // bytes of one shared mapping

// The kinds (second byte of the number) of ioctl() that file systems have. They change attributes
// of files that a process may only read, and make folders past Landlock.
constexpr unsigned of_file_systems[] = {'f', 'v', 'X', 0x94, 0xf5};

// Allows the kind of socket at which a driver of GPUs listens for processes that it shares memory
// with, and without which it does not start. As connect() is refused, it reaches nobody.
void allow_drivers_socket(Filter& filter) {
  filter.for_call(SYS_socket, [&] {
    filter.load(argument_at(0));
    filter.if_so(BPF_JEQ, AF_UNIX);
    filter.answer_error(EPERM);
    filter.load(argument_at(1));
    filter.keep_bits(0xf);
    filter.if_so(BPF_JEQ, SOCK_SEQPACKET);
    filter.answer_error(EPERM);
  });
}

// Allows clone() for threads, and with `may_fork` for processes, but not in new namespaces.
void bound_clone(Filter& filter, bool may_fork) {
  filter.for_call(SYS_clone, [&] {
    filter.load(argument_at(0));
    filter.unless(BPF_JSET, namespaces);
    filter.answer_error(EPERM);
    if (may_fork) return;
    filter.if_so(BPF_JSET, CLONE_THREAD);
    filter.answer_error(EPERM);
  });
}

// Refuses shared anonymous memory, whose pages nobody counts once a process has taken them out of
// its page table. With `may_fork` allows a page, in which a sweep's processes count their work.
void bound_shared_memory(Filter& filter, bool may_fork) {
  filter.for_call(SYS_mmap, [&] {
    filter.load(argument_at(3));
    filter.keep_bits(MAP_SHARED | MAP_ANONYMOUS);
    filter.if_so(BPF_JEQ, MAP_SHARED | MAP_ANONYMOUS);
    filter.answer(SECCOMP_RET_ALLOW);
    if (may_fork) {
      filter.load(argument_at(1) + 4);
      filter.if_so(BPF_JEQ, 0);
      filter.answer_error(EPERM);
      filter.load(argument_at(1));
      filter.unless(BPF_JGT, shared_at_most);
    }
    filter.answer_error(EPERM);
  });
}

void bound_ioctl(Filter& filter) {
  filter.for_call(SYS_ioctl, [&] {
    filter.load(argument_at(1));
    // Refuses the ioctls that put characters into a terminal as if a user had typed them, for the
    // shell to read next.
    for (const unsigned typed : {TIOCSTI, TIOCLINUX}) {
      filter.unless(BPF_JEQ, typed);
      filter.answer_error(EPERM);
    }
    filter.keep_bits(0xff00);
    for (const unsigned kind : of_file_systems) {
      filter.unless(BPF_JEQ, kind << 8);
      filter.answer_error(EPERM);
    }
  });
}

Filter filter_of(bool may_fork, bool drives_devices) {
  Filter filter;
  const auto error_of = [&](long call, int number) {
    filter.unless(BPF_JEQ, static_cast<unsigned>(call));
    filter.answer_error(number);
  };
  filter.load(architecture_at);
  filter.if_so(BPF_JEQ, architecture);
  filter.answer_error(ENOSYS);
  filter.load(number_at);
  filter.unless(BPF_JGE, other_numbers);
  filter.answer_error(ENOSYS);
  for (const long call : refused) error_of(call, EPERM);
  error_of(drives_devices ? SYS_connect : SYS_socket, EPERM);
  if (drives_devices) allow_drivers_socket(filter);
  // fchmod() does nothing and reports success, as the C++ library's copy of a file fails without
  // it.
  error_of(SYS_fchmod, 0);
  // Without clone3() the C library makes threads by clone(), whose flags a filter can see.
  error_of(SYS_clone3, ENOSYS);
  bound_clone(filter, may_fork);
  if (!drives_devices) bound_shared_memory(filter, may_fork);
  if (!may_fork) {
    error_of(SYS_execve, EPERM);
    error_of(SYS_execveat, EPERM);
#if defined(__x86_64__)
    error_of(SYS_fork, EPERM);
    error_of(SYS_vfork, EPERM);
#endif
  }
  filter.for_call(SYS_prctl, [&] {
    filter.load(argument_at(0));
    // A process that is not dumpable would hide its files below /proc from the process outside.
    filter.unless(BPF_JEQ, PR_SET_DUMPABLE);
    filter.answer_error(EPERM);
    if (may_fork) return;
    // PDEATHSIG must stay set, so that this process ends with the one outside.
    filter.unless(BPF_JEQ, PR_SET_PDEATHSIG);
    filter.answer_error(EPERM);
  });
  // prlimit64() only for this process (0, as the C library has it): a limit of 0 CPU seconds would
  // end any process of the user.
  filter.for_call(SYS_prlimit64, [&] {
    filter.load(argument_at(0));
    filter.if_so(BPF_JEQ, 0);
    filter.answer_error(EPERM);
  });
  bound_ioctl(filter);
  filter.answer(SECCOMP_RET_ALLOW);
  return filter;
}

}  // namespace

void drop_capabilities() {
  constexpr unsigned kept = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return;
  for (__user_cap_data_struct& half : data) {
    const unsigned mask = &half == data ? kept : 0;
    half.effective &= mask;
    half.permitted &= mask;
    half.inheritable = 0;
  }
  if (::syscall(SYS_capset, &header, data) == 0) return;
  throw Error(Stage::environment, "sandbox.kernel", "",
              fmt::format("the kernel lets no process give up its capabilities: {}",
                          std::generic_category().message(errno)),
              "run the script without --sandbox only if you trust it");
}

void restrict_calls(bool may_fork, bool drives_devices) {
  if (architecture == 0) return;
  Filter filter = filter_of(may_fork, drives_devices);
  sock_fprog program{static_cast<unsigned short>(filter.code().size()), filter.code().data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
    return;
  throw Error(Stage::environment, "sandbox.kernel", "",
              fmt::format("the kernel takes no filter of system calls: {}",
                          std::generic_category().message(errno)),
              "run the script without --sandbox only if you trust it");
}

}  // namespace mw
