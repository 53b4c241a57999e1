// Updates of matrices that an optimizer orthogonalises (Muon):
// which parameters, and their instructions.
#pragma once

#include <vector>

#include "meshwright/program.h"

namespace mw {

// Sets ProgramParameter::stacked and rows of the weights of linears and experts in transformer
// layers, the router's too. Not of the head, embeddings, norms and biases.
void mark_matrices(Program& program);

// Appends a bucket's update by the ops of its rule. Where that is for whole matrices, every rank
// makes the directions of its own shard, these are gathered until the rank has whole matrices (but
// only those experts that it holds), then each is treated whole and applied to the rank's shard of
// the parameter. Each matrix after the other, so that one is whole at a time; where the bucket lies
// in shards, its directions are gathered together.
void add_updates(Program& program, int bucket, std::vector<Instruction>& code);

}  // namespace mw
