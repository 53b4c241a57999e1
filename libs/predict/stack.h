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
    double passes = -1;  // passes over the output; below 0: the bytes that the op declares
    double kernels = 1, host = 1;
  } forward, backward;
};

struct Stack {
  std::string name;
  // Keys whose values differ from the description of that name.
  std::string changed;
  SoftwareRuns runs;
  std::vector<PublishedStep> measured;  // published steps under this stack
  // Devices' shares were fitted to steps of this stack, among others.
  bool fitted = false;
  int flash = 0;  // generation of the flash attention kernel; 0: separate products and softmax
  // Attention in separate kernels: bytes for each score. Softmax is not fused, and takes more
  // launches, where a rank's heads times sequences are no multiple of `fused_heads` (0: always
  // fused).
  double scores_forward = 4, scores_backward = 6;
  int fused_heads = 0;
  std::map<std::string, StreamedOp> ops;  // by an op's kind
  bool joined_projections = false;        // linears that read one input are one product
  // A layer that is recomputed is recomputed to its end.
  bool whole_recompute = false;
  // Bytes for each parameter and microbatch to add up gradients.
  double gradient_sum = 0;
  // Bytes for each logit in the loss; 0: as the program's op declares.
  double loss_forward = 0, loss_backward = 0;
  // An op of several kernels has buffers for all its rows between them.
  bool whole_rows = false;
  double logit_memory = 0;  // bytes for each logit that the loss holds beside the program's
  // Bytes for each parameter in which gradients are kept a second time.
  double second_gradients = 0;
  // Share of the allocator's reserved memory that it has not given out.
  double reserve = 0;
  // Bytes for each parameter in an optimizer step, norm and casts included; 0: the program's.
  double optimizer_bytes = 0;
  int product_bits = 0;  // bits of linears' operands; 0: the program's
  // Linears' operands are narrowed before they are gathered over the model's axes.
  bool narrow_gathers = false;
  // Bytes of memory traffic for each element that is narrowed for products.
  double product_casts = 0;
  double products = 1;  // factor on the device's share of its peak that products reach
  double grouped = 1;   // share of a product's rate that grouped products of many experts reach
  // Factor on the bytes of an expert exchange, for numbers narrower than the program's.
  double exchanged = 1;
  int exchange_nodes = 0;  // most nodes that a token's copies go to; 0: any
  bool by_node = false;    // a token goes once to each node, which hands it on
  // Ranks that have the same rows, or partial sums of them, exchange one part each and gather the
  // parts.
  bool scattered_exchanges = false;
  // Seconds that compute loses for each second of an exchange beside it; below 0: the device's.
  double exchange_slowed = -1;
  // Factors on the bytes that attention sends over the sequence's axes: keys and values of more
  // heads, gradients in more bits.
  double sequence_forward = 1, sequence_backward = 1;
  // Transfers of sequence axes go beside those of data axes, and not behind them.
  bool sequence_beside = false;
  double hidden_model = 0;      // share of collectives of model axes that products hide
  bool reduced_whole = false;   // gradients of a sharded update are all-reduced
  double backward_gathers = 1;  // how often parameters kept in shards are gathered for backward
  double data_share = 1;        // share of a node's NICs that a collective of data axes gets
  // Seconds that compute loses for each second of a data axis's collective beside it; below 0: the
  // device's.
  double data_slowed = -1;
  // Gathers and scatters over nodes take the better of ring and hierarchy.
  bool hierarchical = true;
  // A stage's ranks send one part each, and the receivers gather the parts.
  bool scattered_sends = false;
  bool stages_wait = false;  // a stage spends the time of each send and receive
  double host = 1;           // factor on the device's `launch`
  // Ops of the host for each microbatch's data, masks and loss; backward takes 0.3 of them again.
  double microbatch_host = 0;
};

const Options& stack_keys();

Stack read_stack(const Json& table, const std::string& path, Problems& problems);

}  // namespace mw
