// Tells when a process of this machine dies, at once and at no cost: the system wakes a thread
// that sleeps on the processes.
#pragma once

#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace mpi {

class Deaths {
 public:
  // `watched`: number and process id of each. `died` is called by a thread of this object, once for
  // each.
  Deaths(const std::vector<std::pair<int, int>>& watched, std::function<void(int)> died);
  ~Deaths();
  Deaths(const Deaths&) = delete;
  Deaths& operator=(const Deaths&) = delete;

 private:
  int stop_ = -1;  // an eventfd
  std::thread thread_;
};

}  // namespace mpi
