// Lets a program that GCC 12 built run where libstdc++ is of GCC 11, as on Rocky Linux 9. The
// program calls one function of libstdc++ that has a new version since GCC 12:
// std::condition_variable::wait(lock). This file defines the function under its name in the object
// code, hidden in each library that waits, so that none asks libstdc++ for it.
#include <pthread.h>

#include <condition_variable>
#include <mutex>

extern "C" [[gnu::visibility("hidden")]] void
wait_on_condition(std::condition_variable* condition, std::unique_lock<std::mutex>* lock) __asm__(
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");

void wait_on_condition(std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  ::pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle());
}
