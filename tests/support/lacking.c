// Preloaded: a system that lacks what the variable LACKING names. "locks": its file systems have
// none. "threads=N": it starts N more threads, and no other.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char* lacking(const char* what) {
  const char* all = getenv("LACKING");
  return all == NULL ? NULL : strstr(all, what);
}

int flock(int file, int operation) {
  if (lacking("locks") != NULL) {
    errno = ENOSYS;
    return -1;
  }
  return (int)syscall(SYS_flock, file, operation);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  static int started = 0;
  static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  const char* const limit = lacking("threads=");
  if (limit != NULL && __atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST) >= atoi(limit + 8))
    return EAGAIN;
  if (real == NULL) real = (int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*))
                        dlsym(RTLD_NEXT, "pthread_create");
  return real(thread, attributes, start, argument);
}
