// The ops that blocks of mw.model call by name, registered as plugins register theirs.
#pragma once

#include <vector>

#include "meshwright/block_op.h"

namespace mw {

// The weights' options of ops with linears: bias, std.
void add_weight_options(Options& options);
Init weights_of(const Values& values);
// "layers.3.q" + ".weight", or the checkpoint's name that the option `hf` gives, whose "{}" is the
// number of the layer.
HfName hf_of(const Values& values, const Builder& b);
// A dim's name, or a list of names, under the key; empty if it is left out.
Dims dims_of(const Values& values, const char* key);
// x with rotary positions, by a table that the model has once.
int with_rope(Builder& b, const std::string& name, int x, double theta, RopePairs pairs);

}  // namespace mw
