// Registers a thing of a kind that has a number and nothing behind it.
#include "../forged.h"

inline constexpr mw::Registration early[] = {
    {mw::Kind::communicator, "wire", "sends by itself", nullptr, nullptr}};

FORGED_PLUGIN(reserved, descriptor.registrations = early;)
