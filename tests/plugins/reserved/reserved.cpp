// Registers a thing of a kind that has a number and nothing behind it.
#include "../forged.h"

inline constexpr mw::Registration early[] = {
    {mw::Kind::cluster, "racks", "a hall of them", nullptr, nullptr}};

FORGED_PLUGIN(reserved, descriptor.registrations = early;)
