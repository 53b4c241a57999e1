// A bucket as a reduction hook sees it, on one rank.
#pragma once

#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

BucketShape shape_of(const Program& program, const Bucket& bucket, const Coordinates& at);

}  // namespace mw
