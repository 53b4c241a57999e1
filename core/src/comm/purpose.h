// Notes what the collective that this thread is about to issue is for. c10d's calls carry no
// label, so Communicator leaves it here and the local backend picks it up for its messages.
#pragma once

#include "meshwright/communicator.h"

namespace mw::comm {

class PurposeScope {
 public:
  explicit PurposeScope(const Purpose& purpose) : before_(current_) { current_ = &purpose; }
  ~PurposeScope() { current_ = before_; }
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

  static const Purpose* current() { return current_; }  // null outside any scope

 private:
  const Purpose* before_;
  static inline thread_local const Purpose* current_ = nullptr;
};

}  // namespace mw::comm
