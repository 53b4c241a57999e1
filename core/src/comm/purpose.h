// The purpose of the collective that this thread is about to issue. The calls of c10d carry no
// label, so a Communicator sets the purpose here, and backends read it for their messages.
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
