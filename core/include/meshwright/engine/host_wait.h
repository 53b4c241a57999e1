// Marks where a rank's thread waits for its accelerator on purpose. docs/gpu.md lists these places;
// anywhere else inside a step such a wait is a fault, which tests look for.
#pragma once

namespace mw {

class HostWait {
 public:
  // `why`: as docs/gpu.md has it; a literal.
  explicit HostWait(const char* why);
  ~HostWait();
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

  // Of the calling thread; null outside of all.
  static const char* current();

 private:
  const char* const before_;
};

}  // namespace mw
