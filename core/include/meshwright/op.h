// What an op is: its iteration space over named dims, its kernels (forward; backward, or dgrad and
// wgrad apart), and what they cost. An op knows no mesh, no rank and no collective.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/placement.h"

namespace mw {

// The element type of a value: `real` is the plan's precision, `index` is int64 (tokens,
// positions).
enum class Scalar : std::uint8_t { real, index };

// The schedulable pieces of an op. An op that splits (a GEMM) has dgrad and wgrad; every other
// differentiable op has backward, which yields all input gradients at once.
enum class Piece : std::uint8_t { forward, backward, dgrad, wgrad };
const char* name_of(Piece piece);

// What work an op does. Prices, the choice of what is computed again, optimizers of whole matrices
// and `compare` go by the class. An op's kind is its name alone: two kinds of one class are treated
// alike. Inputs and outputs that a class speaks of must be there.
enum class OpClass : std::uint8_t {
  other,  // priced by its Cost alone
  // Output 0 is input 0 times the weight, input 1, summed over the dims that output 0 lacks. Dims
  // that all three have number matrices (experts).
  matrix_product,
  attention,    // inputs 0, 1, 2: queries, keys, values, each (batch, seq, heads, width)
  embedding,    // output 0: rows of the table, input 1, that the indices, input 0, name
  norm,         // each row is scaled by a statistic of its own
  elementwise,  // an element of the output needs one of each operand
  loss,         // reads the logits, input 0; what a stack says of a loss is said of this op
  loss_part,    // does the rest of a loss, and is priced with the op that reads the logits
  routing,      // output 0 of indices are choices (of experts), whose order says nothing
  dispatch,     // tokens become rows of the experts that they chose
  combine,      // rows of experts are summed to tokens again
};
const char* name_of(OpClass op_class);

// The part of one dim of an op's iteration space that a rank computes.
struct LocalDim {
  Dim dim;
  std::int64_t offset = 0, size = 0;  // this rank's part
  std::int64_t global = 0;            // of the whole dim
  // Where a strategy permutes the dim's elements (Draft::permute_tokens): which ranges of the whole
  // dim are here, in the order in which they lie. Empty: [offset, offset + size).
  std::vector<Range> runs;
};

// Which tensors are sparse: those that have all of these dims. Only a share of their cells exists
// (of all pairs of expert and token, those where the token chose the expert). They are kept as rows
// over the other dims, the rows of one expert after those of another.
struct Sparse {
  Dims dims;         // the first: that by which rows are grouped
  double share = 1;  // of the cells that exist; on average, where a rank holds a part
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
  // An op that runs in ring steps has other dims in each of them: the rotating dim is that of the
  // shard that is here in this step. 0 for all other ops.
  int ring_step() const { return ring_step_; }
  void set_ring_step(int step) { ring_step_ = step; }

 private:
  Sparse sparse_;
  std::vector<LocalDim> list_;
  int ring_step_ = 0;
};

// A tensor that forward keeps for backward beside inputs and outputs (a norm's 1/rms, attention's
// log-sum-exp). Dims are the op's own; a size-`extra` dim may follow them (0: none).
struct SavedValue {
  std::string name;
  Dims dims;
  std::int64_t extra = 0;
  bool fp32_at_least = false;  // kept in fp32 where the plan computes in less
};

// What of its operands an op's backward reads, so that the program keeps just that.
struct OpTraits {
  bool differentiable = true;
  bool splits = false;                      // has dgrad and wgrad apart
  std::vector<bool> backward_reads_input;   // one for each input
  std::vector<bool> backward_reads_output;  // one for each output
  std::vector<SavedValue> saved;
  // One for each output, or none: kept in fp32 where the plan computes in less, its gradient too.
  std::vector<bool> fp32_outputs;
  // Input that forward may overwrite with output 0 when nobody reads it later (-1: none).
  int forward_in_place = -1;
  // Whether the gradient of output 0 is that of an input, unchanged (a residual add), by input.
  std::vector<bool> gradient_passes;
  // Backward makes an input's gradient as a tensor of its own even where it is to be added to one
  // that is there (memory only).
  bool gradients_apart = false;
  // A dim that the op needs whole, unless it takes one shard of it after the other, in ring steps;
  // none: it cannot do that.
  Dim rotates;
  // Backward may overwrite what it reads of an input by its gradient (memory only; a hint).
  bool backward_may_overwrite_saved = false;
};

// One call of a kernel. Shapes are local. Spans are indexed as the op's inputs and outputs are.
struct OpCall {
  const LocalDims& dims;                 // of the op's iteration space on this rank
  std::vector<at::Tensor> inputs;        // backward: undefined where not read
  std::vector<at::Tensor> outputs;       // forward fills them; backward: undefined where not read
  std::vector<at::Tensor> saved;         // forward fills them in the order of OpTraits::saved
  std::vector<at::Tensor> grad_outputs;  // backward pieces: undefined where no gradient came
  // Backward pieces. `wants[i]`: this piece must yield input i's gradient. Where `grad_inputs[i]`
  // is defined, the kernel writes there: it adds if `accumulate[i]`, else overwrites. Where it is
  // undefined, the kernel sets it to a fresh tensor.
  std::vector<at::Tensor> grad_inputs;
  std::vector<bool> wants, accumulate;
  bool in_place = false;             // forward: OpTraits::forward_in_place is granted
  at::ScalarType real = at::kFloat;  // the plan's precision, for ops whose inputs are all indices
  // How many rows each group has here, in order, of sparse tensors. An op that makes the
  // rows (dispatch) fills it in forward.
  std::vector<std::int64_t> rows;
  // How many ring steps there are, of an op that runs in such; `dims` says which of them this is.
  // Forward: from step 1 on, `outputs` and `saved` hold what the steps before made, and are brought
  // up to date in place. Backward: each step adds to the gradients of what does not go round.
  int ring_steps = 1;
};

// What one piece costs, of the local shapes.
struct Cost {
  // Model flops by the field's convention: 2mnk for a GEMM, attention scores in full even if
  // causal, nothing for elementwise work (Narayanan et al. 2021, appendix; PaLM, appendix B).
  double flops = 0;
  double executed = 0;  // floating-point operations that the kernel really does
  double bytes = 0;     // memory traffic: what it reads and writes once
  // Bytes that the piece allocates and frees itself, outputs and gradients not counted. Left out,
  // they are measured: the piece runs once on this machine, on operands of zeros
  // (engine/scratch.h). An op that calls a library leaves the workspace out, because a library
  // allocates other bytes on another CPU.
  std::optional<std::int64_t> workspace;
  // The workspace of the piece on an accelerator. Left out, it is `workspace`, or 0 where that is
  // left out too. A kernel of an accelerator may take all rows at once that a CPU takes in chunks.
  std::optional<std::int64_t> accelerator_workspace;
  int kernels = 1;  // that it calls one after the other, each on a part of its operands
};

// A number that is built into an op and must be the step's own: "tokens", those of a step over all
// of its microbatches, by which a loss divides; "sequences", likewise.
struct StepConstant {
  std::string name;
  double value = 0;
};

class Op;

class OpType {
 public:
  virtual ~OpType() = default;
  // The op's name, as "linear" or "rms_norm"; what a rule may name.
  virtual std::string kind() const = 0;
  virtual OpClass op_class() const { return OpClass::other; }
  virtual OpTraits traits(const Op& op) const = 0;  // asked once of all ops of a Graph::kind
  // Kernels are called below torch's autograd, which records nothing of what they compute:
  // autograd_op.h has the op whose derivative torch is to find, and RecordGradients.
  virtual void forward(const Op& op, OpCall& call) const = 0;
  // All wanted gradients. Ops that split implement dgrad and wgrad instead.
  virtual void backward(const Op& op, OpCall& call) const;
  virtual void dgrad(const Op& op,
                     OpCall& call) const;  // gradient of input 0, which it does not read
  // Gradients of the other inputs; it reads no parameter.
  virtual void wgrad(const Op& op, OpCall& call) const;
  // What of the step is built into the op, so that a plan with another step is refused before it
  // runs (prove/constants.cpp). An op with none is not looked at.
  virtual std::vector<StepConstant> constants(const Op&) const { return {}; }
  // `element` is the bytes of one real.
  virtual Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const = 0;
};

// One use of a value by an op: its index in the graph and its dims under the names that this op
// has for them (attention says "keys" for the "seq" of keys and values).
struct Use {
  int value = -1;
  Dims dims;
  // The output is a sum to which this operand is added (a bias): where the output is Partial, so is
  // the operand, so that it counts once.
  bool additive = false;
  // The op is linear in this operand: where the operand is Partial on ranks that cut nothing of the
  // op, it may stay so, and the output is Partial too.
  bool linear = false;
};

// An op of the graph: a type, its operands, and the dims that must be whole.
class Op {
 public:
  std::shared_ptr<const OpType> type;
  std::string name;  // "layers.3.attention.q"
  int layer = -1;    // transformer layer; -1: before the first, `layers`: after the last
  std::vector<Use> inputs;
  std::vector<int> outputs;       // values
  std::vector<Dims> output_dims;  // as this op calls them
  Dims whole;                     // dims that no axis may cut in this op
  // Pairs {a, b}: where b is cut, a may be cut by the same axis if a rule says so, else a is whole.
  // kv_heads follow heads: tp cuts both, or it cuts the queries while the keys are replicated.
  std::vector<std::pair<Dim, Dim>> follows;
  // The ledger counts the rows of each group that this op works on.
  bool counts_rows = false;
  // What the outputs are Partial by where an axis cuts a dim that the op contracts.
  Reduction contraction = Reduction::sum;

  std::string kind() const { return type->kind(); }
  OpClass op_class() const { return type->op_class(); }
  Dims space() const;  // every dim of the inputs and outputs, in order of appearance
  bool has(Dim dim) const;
};

}  // namespace mw
