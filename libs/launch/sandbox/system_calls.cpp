// A filter of system calls: a list of those that no training needs and that lead out of a sandbox.
// A refused call fails as if it were not permitted, and the process goes on.
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
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

constexpr unsigned other_numbers = 0x40000000;  // of x86-64's calls with 32-bit pointers

constexpr long refused[] = {
    // Other machines and processes. An io_uring does all of these past a filter.
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_io_uring_setup, SYS_pidfd_getfd,
    SYS_process_madvise, SYS_perf_event_open, SYS_bpf, SYS_userfaultfd,
    // Memory and messages that no process need hold, so that nobody counts them; those of System V
    // also reach processes outside, and are left when this one ends.
    SYS_memfd_create, 447 /* memfd_secret */, SYS_shmget, SYS_shmat, SYS_msgget, SYS_semget,
    SYS_mq_open,
    // Rights, owners, marks and times of files, which Landlock leaves alone.
    SYS_fchmodat, 452 /* fchmodat2 */, SYS_fchown, SYS_fchownat, SYS_setxattr, SYS_lsetxattr,
    SYS_fsetxattr, 463 /* setxattrat */, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
    466 /* removexattrat */, 469 /* file_setattr */, SYS_utimensat, SYS_open_by_handle_at,
#if defined(__x86_64__)
    SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat,
#endif
    // What administrators do, and keys of the user's.
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_move_mount, SYS_fsopen, SYS_open_tree,
    SYS_mount_setattr, SYS_unshare, SYS_setns, SYS_add_key, SYS_request_key, SYS_keyctl,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot, SYS_swapon,
    SYS_swapoff, SYS_sethostname, SYS_setdomainname, SYS_settimeofday, SYS_clock_settime,
    SYS_adjtimex, SYS_clock_adjtime, SYS_quotactl, SYS_acct, SYS_syslog};

class Filter {
 public:
  void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)); }
  void keep_bits(unsigned bits) { add(BPF_ALU | BPF_AND | BPF_K, bits); }
  void answer(unsigned what) { add(BPF_RET | BPF_K, what); }
  void answer_error(int number) { answer(SECCOMP_RET_ERRNO | static_cast<unsigned>(number)); }
  // Goes past the next instruction unless the comparison holds.
  void unless(unsigned short comparison, unsigned value) {
    code_.push_back(
        BPF_JUMP(static_cast<unsigned short>(BPF_JMP | comparison | BPF_K), value, 0, 1));
  }
  // Goes past the next instruction if it holds.
  void if_so(unsigned short comparison, unsigned value) {
    code_.push_back(
        BPF_JUMP(static_cast<unsigned short>(BPF_JMP | comparison | BPF_K), value, 1, 0));
  }
  void pass_over(unsigned instructions) { add(BPF_JMP | BPF_JA, instructions); }
  std::vector<sock_filter>& code() { return code_; }

 private:
  void add(int code, unsigned value) {
    code_.push_back(BPF_STMT(static_cast<unsigned short>(code), value));
  }
  std::vector<sock_filter> code_;
};

constexpr std::size_t number_at = offsetof(seccomp_data, nr);
constexpr std::size_t architecture_at = offsetof(seccomp_data, arch);
constexpr std::size_t argument_at(int n) {  // its lower half
  return offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(n);
}

// CUDA's driver listens at a socket of its own kind, for processes that it shares memory with, and
// does not begin without it. As none may be connected, nobody is reached by one.
void allow_drivers_socket(Filter& filter) {
  filter.if_so(BPF_JEQ, SYS_socket);
  filter.pass_over(7);
  filter.load(argument_at(0));
  filter.if_so(BPF_JEQ, AF_UNIX);
  filter.answer_error(EPERM);
  filter.load(argument_at(1));
  filter.keep_bits(0xf);
  filter.if_so(BPF_JEQ, SOCK_SEQPACKET);
  filter.answer_error(EPERM);
  filter.load(number_at);
}

Filter filter_of(bool may_fork, bool drives_gpus) {
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
  error_of(drives_gpus ? SYS_connect : SYS_socket, EPERM);
  if (drives_gpus) allow_drivers_socket(filter);
  // As if it were done: the C++ library's copy of a file is not one without it.
  error_of(SYS_fchmod, 0);
  if (!may_fork) {
    // The C library then makes threads by clone, whose flags are an argument and can be looked at.
    error_of(SYS_clone3, ENOSYS);
    error_of(SYS_execve, EPERM);
    error_of(SYS_execveat, EPERM);
#if defined(__x86_64__)
    error_of(SYS_fork, EPERM);
    error_of(SYS_vfork, EPERM);
#endif
  }
  // A limit of 0 CPU seconds ends any process of the user. The C library names its own by 0.
  filter.if_so(BPF_JEQ, SYS_prlimit64);
  filter.pass_over(4);
  filter.load(argument_at(0));
  filter.if_so(BPF_JEQ, 0);
  filter.answer_error(EPERM);
  filter.load(number_at);
  // A terminal takes characters as if they had been typed, for the shell that reads them next.
  filter.if_so(BPF_JEQ, SYS_ioctl);
  filter.pass_over(5);
  filter.load(argument_at(1));
  filter.unless(BPF_JEQ, TIOCSTI);
  filter.answer_error(EPERM);
  filter.unless(BPF_JEQ, TIOCLINUX);
  filter.answer_error(EPERM);
  if (!may_fork) {
    filter.load(number_at);
    filter.if_so(BPF_JEQ, SYS_clone);
    filter.answer(SECCOMP_RET_ALLOW);
    filter.load(argument_at(0));
    filter.if_so(BPF_JSET, CLONE_THREAD);
    filter.answer_error(EPERM);
  }
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

void restrict_calls(bool may_fork, bool drives_gpus) {
  if (architecture == 0) return;
  Filter filter = filter_of(may_fork, drives_gpus);
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
