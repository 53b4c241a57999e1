// The keys of an experiment that name something registered, with options of its own.
#pragma once

#include <utility>

#include "meshwright/registration.h"

namespace mw {

inline constexpr std::pair<const char*, Kind> made_keys[] = {
    {"model", Kind::model},           {"data", Kind::data},
    {"optimizer", Kind::optimizer},   {"schedule", Kind::lr_schedule},
    {"microbatch", Kind::microbatch}, {"recompute", Kind::recompute}};

}  // namespace mw
