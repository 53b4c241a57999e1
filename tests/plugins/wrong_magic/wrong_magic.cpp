// Exports a symbol of the right name that is something else.
#include "../forged.h"

FORGED_PLUGIN(wrong_magic, descriptor.head.magic[0] = 'X'; descriptor.head.abi = 0;)
