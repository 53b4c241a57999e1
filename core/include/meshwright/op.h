// Ops: an iteration space over named dims, kernels (forward; backward, or dgrad and wgrad
// separately), and costs. An op knows no mesh, no rank and no collective.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/inputs.h"
#include "meshwright/placement.h"

namespace mw {

// The element type of a value: `real` is the plan's precision, `index` is int64 (tokens,
// positions).
enum class Scalar : std::uint8_t { real, index };

// The schedulable pieces of an op. An op that splits (a GEMM) has dgrad and wgrad. Any other
// differentiable op has backward, which computes all input gradients at once.
enum class Piece : std::uint8_t { forward, backward, dgrad, wgrad };
const char* name_of(Piece piece);

// The class of an op's work, on which predicted times, recompute policies, optimizers of whole
// matrices and `compare` depend. An op's kind is only a name: two kinds of one class are treated
// alike. An op must have the inputs and outputs that the comment on its class mentions.
enum class OpClass : std::uint8_t {
  other,  // priced by its Cost alone
  // Output 0 is input 0 times the weight, input 1, summed over the dims that output 0 lacks. Dims
  // that all three have number matrices (experts).
  matrix_product,
  attention,    // inputs 0, 1, 2: queries, keys, values, each (batch, seq, heads, width)
  embedding,    // output 0: rows of the table, input 1, that the indices, input 0, name
  norm,         // each row is scaled by a statistic of its own
  elementwise,  // an element of the output needs one of each operand
  loss,         // reads the logits, input 0; a stack's numbers for a loss are used for this op
  loss_part,    // a further op of a loss, whose time is counted at the op that reads the logits
  routing,      // output 0, indices, has the chosen experts of a token, in any order
  dispatch,     // tokens become rows of the experts that they chose
  combine,      // rows of experts are summed to tokens again
};
const char* name_of(OpClass op_class);

// The part of one dim of an op's iteration space that a rank computes.
struct LocalDim {
  Dim dim;
  std::int64_t offset = 0, size = 0;  // this rank's part
  std::int64_t global = 0;            // size of the whole dim
  // If a strategy permutes the dim's elements (Draft::permute_tokens): the ranges of the whole dim
  // that the rank has, in the order in which they lie. Empty: [offset, offset + size).
  std::vector<Range> runs;
};

// Says which tensors are sparse: those that have all of `dims`. Of their cells only a share exists
// (the pairs of expert and token in which the token chose the expert). A sparse tensor is stored as
// one row per cell, over the other dims, grouped by the first of `dims` (all rows of one expert,
// then those of the next).
struct Sparse {
  Dims dims;         // the first one groups the rows
  double share = 1;  // share of cells that exist; on a rank's part, the average share
  bool has(const Dims& dims) const;
  std::int64_t rows(double cells) const;
};

class LocalDims {
 public:
  void set(const LocalDim& local);
  const LocalDim& at(Dim dim) const;  // throws std::out_of_range
  bool has(Dim dim) const;
  std::vector<std::int64_t> shape(const Dims& dims) const;
  std::int64_t count(const Dims& dims) const;  // elements: product of the local sizes; 1 for none
  void set_sparse(const Sparse& sparse) { sparse_ = sparse; }
  // The ring step; 0 for ops without ring steps. The rotating dim has the range of the shard with
  // which the rank computes in this step.
  int ring_step() const { return ring_step_; }
  void set_ring_step(int step) { ring_step_ = step; }

 private:
  Sparse sparse_;
  std::vector<LocalDim> list_;
  int ring_step_ = 0;
};

// A tensor that forward saves for backward beside inputs and outputs (a norm's 1/rms, attention's
// log-sum-exp). `dims` are dims of the op; a dim of size `extra` follows them (0: none).
struct SavedValue {
  std::string name;
  Dims dims;
  std::int64_t extra = 0;
  bool fp32_at_least = false;  // kept in fp32 if the plan computes in bf16 or fp16
};

// Properties of an op for the planner: what its backward reads, so that only that is kept, and what
// its kernels allow.
struct OpTraits {
  bool differentiable = true;
  bool splits = false;                      // has dgrad and wgrad instead of backward
  std::vector<bool> backward_reads_input;   // one for each input
  std::vector<bool> backward_reads_output;  // one for each output
  std::vector<SavedValue> saved;
  // For each output, whether it and its gradient are kept in fp32 if the plan computes in bf16 or
  // fp16; empty: none is.
  std::vector<bool> fp32_outputs;
  // The input that forward may overwrite with output 0 if nothing reads it later (-1: none).
  int forward_in_place = -1;
  // For each input, whether its gradient is the unchanged gradient of output 0 (a residual add).
  std::vector<bool> gradient_passes;
  // Whether backward allocates an input's gradient even if it is to be added to an existing tensor
  // (matters for memory only).
  bool gradients_apart = false;
  // A dim that the op needs whole, but whose shards it can also take one after the other, in ring
  // steps; invalid: none.
  Dim rotates;
  // A dim that the op needs whole, along which other ops can compute it part by part
  // (OpType::in_parts); invalid: none.
  Dim divides;
  // Whether backward may overwrite an input that it reads with the input's gradient (a hint, for
  // memory only).
  bool backward_may_overwrite_saved = false;
};

// The arguments of a kernel. Shapes are local. Vectors are indexed as the op's inputs and outputs.
struct OpCall {
  const LocalDims& dims;                 // the op's iteration space on this rank
  std::vector<at::Tensor> inputs;        // backward: undefined if backward does not read the input
  std::vector<at::Tensor> outputs;       // set by forward; backward: undefined if not read
  std::vector<at::Tensor> saved;         // set by forward, in the order of OpTraits::saved
  std::vector<at::Tensor> grad_outputs;  // backward pieces: undefined if there is no gradient
  // Backward pieces. `wants[i]`: the piece must compute input i's gradient. If `grad_inputs[i]` is
  // defined, the kernel writes there: it adds if `accumulate[i]`, else it overwrites. If undefined,
  // the kernel sets it to a new tensor.
  std::vector<at::Tensor> grad_inputs;
  std::vector<bool> wants, accumulate;
  bool in_place = false;             // forward: OpTraits::forward_in_place is granted
  at::ScalarType real = at::kFloat;  // the plan's precision, for ops whose inputs are all indices
  // For sparse tensors: the number of rows of each group on this rank, in order. An op that makes
  // the rows (dispatch) sets it in forward.
  std::vector<std::int64_t> rows;
  // The number of ring steps of the op; dims.ring_step() is the current one. Forward: from step 1
  // on, `outputs` and `saved` hold the results of earlier steps, and are updated in place.
  // Backward: each step adds to the gradients of operands that do not rotate.
  int ring_steps = 1;
  bool draws = true;  // false: nothing is drawn at random, as in an evaluation
};

// The cost of one piece for local shapes.
struct Cost {
  // Model flops by the field's convention: 2mnk for a GEMM, attention scores in full even if
  // causal, nothing for elementwise work (Narayanan et al. 2021, appendix; PaLM, appendix B).
  double flops = 0;
  double executed = 0;  // floating-point operations that the kernel really does
  double bytes = 0;     // memory traffic: bytes that the piece reads and writes, each once
  // Bytes that the piece allocates and frees itself, without outputs and gradients. If left out,
  // they are measured: the piece runs once on this machine, on operands of zeros
  // (engine/scratch.h). An op that calls a library should leave the workspace out, because a
  // library may allocate other bytes on another CPU.
  std::optional<std::int64_t> workspace;
  // The workspace of the piece on an accelerator, where a kernel may process all rows at once that
  // a CPU processes in chunks. If left out, it is `workspace`, or 0 if that is left out too.
  std::optional<std::int64_t> accelerator_workspace;
  int kernels = 1;  // number of kernels, called one after the other on parts of the operands
  // Kernels that an accelerator starts beside these, as to finish a sum over rows, and bytes that
  // are read and written for them. They are counted (forecast_kernels), and not priced.
  int further_kernels = 0;
  double further_bytes = 0;
};

// A number that is built into an op and must match the step: "tokens", the number of tokens of all
// microbatches of a step, by which a loss divides; "sequences", the number of sequences of a step.
struct StepConstant {
  std::string name;
  double value = 0;
};

class Graph;
class Op;
class OpType;

// The form of a loss for data in which not all labels count: the divisors of the labels' losses are
// a further operand.
struct MaskedLoss {
  std::shared_ptr<const OpType> type;
  LossDivisor divisor;
};

class OpType {
 public:
  virtual ~OpType() = default;
  // The name of the type, as "linear" or "rms_norm", by which rules may select ops.
  virtual std::string kind() const = 0;
  virtual OpClass op_class() const { return OpClass::other; }
  virtual OpTraits traits(const Op& op) const = 0;  // called once for all ops of a Graph::kind
  // Kernels run with torch's autograd switched off. For an op whose derivative torch is to compute,
  // see AutogradOp and RecordGradients (autograd_op.h).
  virtual void forward(const Op& op, OpCall& call) const = 0;
  // Computes all wanted gradients. Ops that split implement dgrad and wgrad instead.
  virtual void backward(const Op& op, OpCall& call) const;
  virtual void dgrad(const Op& op,
                     OpCall& call) const;  // computes the gradient of input 0, without input 0
  // Computes the gradients of the other inputs, without reading parameters.
  virtual void wgrad(const Op& op, OpCall& call) const;
  // Numbers of the step that are built into the op. A plan whose step has other numbers is refused
  // before it runs (libs/prove/constants.cpp).
  virtual std::vector<StepConstant> constants(const Op&) const { return {}; }
  // A loss of labels (batch, seq) may have a form for data in which not all labels count.
  virtual std::optional<MaskedLoss> masked_form() const { return {}; }
  // Called where axes cut OpTraits::divides. Appends ops to `graph` that compute `op` part by
  // part, and returns the op that makes op's outputs from their results. `parts`: a dim of the
  // graph that has one element for each part. No part is smaller than an even share, rounded
  // down. An op over both dims says that `parts` follows the divided dim, so that a rank has the
  // parts in which its elements lie. Nothing: the parts are too small, and the op needs the dim
  // whole after all.
  virtual std::optional<Op> in_parts(const Op& op, Dim parts, Graph& graph) const;
  // Called where rows hold documents that must not see each other. `starts`: the data value of that
  // name (inputs.h). Returns a form of `op` in which a token sees its own document alone; ops that
  // this form reads are appended to `graph`. Nothing: there is no such form. By default, `op`
  // itself, unless it needs tokens whole, sums them for each sample, or reads their positions.
  virtual std::optional<Op> in_documents(const Op& op, int starts, Graph& graph) const;
  // Called on ops of in_documents() where a row's tokens lie in an order of its own, because each
  // document is parted over `ways` ranks. `places`: the data value of that name (inputs.h). Returns
  // a form of `op` that takes a token's place in its row from there; the dims of its outputs may
  // become others, which ops that read these must then take. Nothing: there is no such form. By
  // default, `op` itself, if in_documents() would return it by default, and it does not read where
  // documents begin.
  virtual std::optional<Op> in_parted_documents(const Op& op, int places, int ways,
                                                Graph& graph) const;
  // The share of the operations of its Cost that a form of in_documents() executes for some rows on
  // this rank. `documents`: for each row, the places at which documents begin.
  using DocumentsOfRows = std::vector<std::vector<std::int64_t>>;
  virtual double share_executed(const Op& /*op*/, const LocalDims& /*dims*/,
                                const DocumentsOfRows& /*documents*/) const {
    return 1;
  }
  // `element` is the bytes of one real.
  virtual Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const = 0;
};

// One use of a value by an op: its index in the graph and its dims under the names that this op
// has for them (attention says "keys" for the "seq" of keys and values).
struct Use {
  int value = -1;
  Dims dims;
  // Whether the operand is added to the output (a bias). If the output is Partial, the operand must
  // be Partial too, so that it counts once.
  bool additive = false;
  // Whether the op is linear in this operand. If so, an operand that is Partial on an atom that
  // does not cut the op may stay Partial, and the output is Partial too.
  bool linear = false;
};

// An op of the graph: a type, its operands, and the dims that must be whole.
class Op {
 public:
  std::shared_ptr<const OpType> type;
  std::string name;  // "layers.3.attention.q"
  int layer = -1;    // transformer layer; -1: before the first, Graph::layers: after the last
  std::vector<Use> inputs;
  std::vector<int> outputs;       // indices of values
  std::vector<Dims> output_dims;  // the outputs' dims, under the op's own names
  Dims whole;                     // dims that no axis may cut in this op
  // Pairs {a, b}: an axis that cuts b also cuts a if a rule says so; else a stays whole. For
  // example, kv_heads follow heads: tp cuts both, or cuts the queries while keys are replicated.
  std::vector<std::pair<Dim, Dim>> follows;
  // Whether the ledger counts the rows of each group on which this op works.
  bool counts_rows = false;
  // The reduction of Partial outputs, if an axis cuts a dim that the op contracts.
  Reduction contraction = Reduction::sum;
  // The op of the model that this op computes together with others, part by part
  // (OpType::in_parts); null: this op is the model's. A strategy's rule for the model's op is a
  // rule for all of these.
  std::shared_ptr<const Op> model_op = nullptr;

  const Op& of_model() const { return model_op ? *model_op : *this; }
  // Whether the op makes values of the model. If not, it makes what ops that compute one of the
  // model's in parts exchange.
  bool is_of_model() const { return outputs == of_model().outputs; }
  std::string kind() const { return type->kind(); }
  OpClass op_class() const { return type->op_class(); }
  Dims space() const;  // every dim of the inputs and outputs, in order of appearance
  bool has(Dim dim) const;
};

}  // namespace mw
