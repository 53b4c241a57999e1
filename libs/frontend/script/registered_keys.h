// The keys of an experiment whose values are registered choices, with options of their own.
#pragma once

#include <utility>

#include "meshwright/registration.h"

namespace mw {

inline constexpr std::pair<const char*, Kind> registered_keys[] = {
    {"model", Kind::model},           {"data", Kind::data},
    {"optimizer", Kind::optimizer},   {"schedule", Kind::lr_schedule},
    {"microbatch", Kind::microbatch}, {"recompute", Kind::recompute}};

}  // namespace mw
