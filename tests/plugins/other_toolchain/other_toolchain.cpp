// Built with a compiler whose objects this program cannot trust.
#include "../forged.h"

FORGED_PLUGIN(other_toolchain, descriptor.toolchain = "gcc7 c++17 cxx11abi0 release";)
