// Built with a torch that this program does not run.
#include "../forged.h"

FORGED_PLUGIN(other_torch, descriptor.torch = "1.13.1";)
