// Sleeps on the file descriptors of processes until one of them ends.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "link.h"
#include "meshwright/threads.h"

namespace mpi {

Deaths::Deaths(const std::vector<std::pair<int, int>>& watched, std::function<void(int)> died)
    : stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  std::vector<pollfd> files;
  std::vector<int> numbers;
  for (const auto& [number, pid] : watched) {
    // Kernels before 5.3 have no such file: then what started the processes ends them.
    const int file = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (file < 0) continue;
    files.push_back({file, POLLIN, 0});
    numbers.push_back(number);
  }
  files.push_back({stop_, POLLIN, 0});
  thread_ = mw::start_thread([files, numbers, died = std::move(died)]() mutable {
    for (;;) {
      if (poll(files.data(), files.size(), -1) < 0) continue;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (files[i].fd < 0 || files[i].revents == 0) continue;
        close(files[i].fd);
        files[i].fd = -1;  // poll() ignores it
        died(numbers[i]);
      }
      if (files.back().revents != 0) break;
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (files[i].fd >= 0) close(files[i].fd);
    }
  });
}

Deaths::~Deaths() {
  const std::uint64_t one = 1;
  if (write(stop_, &one, sizeof one) < 0) thread_.detach();
  if (thread_.joinable()) thread_.join();
  close(stop_);
}

}  // namespace mpi
