// Built for another plugin ABI: everything behind the head is rubbish that must not be touched.
#include "../forged.h"

FORGED_PLUGIN(wrong_abi, descriptor.head.abi = 999; descriptor.torch = nullptr;
              descriptor.registrations = nullptr;)
