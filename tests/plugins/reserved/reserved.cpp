// Registers a thing of a kind that this version has no number for.
#include "../forged.h"

inline constexpr mw::Registration early[] = {
    {static_cast<mw::Kind>(99), "racks", "a hall of them", nullptr, nullptr}};

FORGED_PLUGIN(reserved, descriptor.registrations = early;)
