// A shared object that is no plugin; if it is ever loaded, it says so by stopping the program.
#include <cstdlib>

namespace {
struct Tripwire {
  Tripwire() { std::abort(); }
} tripwire;
}  // namespace
