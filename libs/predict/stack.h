// Facts of the software that trains, which change the time of a step on the same devices: what is
// one kernel and what several, what overlaps, what the host does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/op.h"
#include "meshwright/options.h"
#include "predict/measured.h"
#include "predict/runs.h"

namespace mw {

// An op that streams through memory: how often its output's elements are read or written, by how
// many kernels and by how many ops of the host; forward, then backward.
struct StreamedOp {
  struct Way {
    double passes = -1;  // below 0: the bytes that the program's op says
    double kernels = 1, host = 1;
  } forward, backward;
};

struct Stack {
  std::string name;
  std::string changed;                  // keys that are other than in the description of that name
  SoftwareRuns runs;                    // what it can run
  std::vector<PublishedStep> measured;  // published steps under this stack
  bool fitted = false;  // steps of it are among those that devices' shares were fitted on
  int flash = 0;        // generation of attention's kernel; 0: products and softmax apart
  // Attention in parts: bytes of a score, and what is added where heads of a rank times
  // sequences are no multiple of `fused_heads` (0: always fused).
  double scores_forward = 4, scores_backward = 6;
  int fused_heads = 0;
  double unfused_forward = 0, unfused_backward = 0;
  std::map<std::string, StreamedOp> ops;  // by an op's kind
  bool joined_projections = false;        // linears of one input are one product
  bool whole_recompute = false;           // a layer that is computed again is so to its end
  double gradient_sum = 0;  // bytes of a parameter and microbatch to add its gradient up
  double loss_forward = 0, loss_backward = 0;  // bytes of a logit in the loss; 0: the program's
  bool whole_rows = false;  // an op of several kernels has buffers for all its rows between them
  double logit_memory = 0;  // bytes of a logit that the loss holds beside the program's
  double second_gradients = 0;    // bytes of a parameter that gradients are kept in besides
  double reserve = 0;             // of what the allocator has reserved, what it has not given out
  double embedding_backward = 0;  // bytes of each element of the embedding's gradient
  double optimizer_bytes =
      0;                 // of a parameter in a step, norm and casts among them; 0: the program's
  int product_bits = 0;  // of linears' operands; 0: the program's
  bool narrow_gathers =
      false;                 // operands are narrowed before they are gathered over the model's axes
  double product_casts = 0;  // bytes of memory for each element that is narrowed for them
  double products = 1;       // times the device's share of its peak that products reach
  double grouped = 1;        // of a product's rate, products of many experts at once
  double exchanged = 1;      // of an exchange's bytes, by numbers narrower than the program's
  int exchange_nodes = 0;    // that a token's copies go to; 0: any
  bool by_node = false;      // a token goes once to each node, which hands it on
  // Ranks that have the same rows, or sums of them, exchange a part each, and gather it.
  bool scattered_exchanges = false;
  double exchange_slowed = -1;  // compute loses so much of each second of theirs; below 0: device's
  // Times the program's bytes that attention sends over the sequence's axes: keys and values of
  // more heads, gradients in more bits.
  double sequence_forward = 1, sequence_backward = 1;
  bool sequence_beside = false;  // these go beside transfers of data axes, and not behind them
  double hidden_model = 0;       // share of collectives of model axes that products hide
  bool reduced_whole = false;    // gradients of a sharded update are all-reduced
  double backward_gathers = 1;   // how often parameters kept in shards are gathered for backward
  double data_share = 1;         // of a node's NICs that a collective of data axes gets
  double data_slowed =
      -1;  // compute loses so much of each second beside them; below 0: the device's
  bool hierarchical = true;      // gathers and scatters over nodes take the best of both algorithms
  bool scattered_sends = false;  // a stage's ranks send a part each, and gather it
  bool stages_wait = false;      // a stage spends the time of each send and receive on it
  double host = 1;               // of the device's `launch`
  double bucket_host = 1;        // ops of the host for each transfer of a bucket
  // Ops of the host for each microbatch's data, masks and loss; backward takes 0.3 of them again.
  double microbatch_host = 0;
};

// The declared keys of a stack.
const Options& stack_keys();

Stack read_stack(const Json& table, const std::string& path, Problems& problems);

}  // namespace mw
