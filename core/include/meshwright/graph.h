// The model graph: ops over values with named dims. It knows no mesh axes; rules of strategies
// refer to these.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "meshwright/op.h"

namespace mw {

// The initial distribution of a parameter. Initial weights are a function of (seed, name, global
// element index) alone, so that every rank can make its slice of the same tensor.
struct Init {
  enum class Kind : std::uint8_t { normal, ones, zeros };
  Kind kind = Kind::normal;
  double std = 0.02;
};

// The tensor of a Hugging Face checkpoint that holds a parameter.
struct HfName {
  std::string name;         // "model.layers.0.self_attn.q_proj.weight"
  bool transposed = false;  // stored [..., in, out] (GPT-2's Conv1D)
  // The parameter is part `part` of `parts` equal parts of a fused tensor, after transposing, along
  // the dim `part_dim`. Interleaved parts have every `parts`-th row each.
  int part = 0, parts = 1, part_dim = 0;
  bool interleaved = false;
  // Each entry of the first dim (an expert) is a tensor of its own, whose number replaces "{}" in
  // `name`.
  bool apart = false;
  bool optional = false;  // may be missing in the checkpoint, and is then initialised by Init
  int out_dims = 0;       // of a linear's weight: how many dims are those that it makes; else 0
};

struct Value {
  enum class Source : std::uint8_t { op, parameter, data };
  std::string name;
  Dims dims;
  Scalar scalar = Scalar::real;
  bool fp32_at_least = false;  // kept in fp32 if the plan computes in bf16 or fp16 (OpTraits)
  Source source = Source::op;
  bool needs_grad = true;
  int producer = -1, output = 0;  // Source::op: the op that makes the value, and which output it is
  Init init;                      // Source::parameter: the initial distribution
  HfName hf;                      // Source::parameter: the place in a Hugging Face checkpoint
  // Whether the value is a counter: a parameter that no optimizer trains, whose "gradient" is no
  // derivative but a count over the global batch, such as the tokens that chose each expert. At the
  // end of a step, the op `moved_by` updates the counter by the count, which is
  // UpdateCall::gradient; null: the counter stays as it is.
  bool counts = false;
  std::shared_ptr<const class ElementOp> moved_by;
  // Whether nothing trains the parameter: it has no gradient and no optimizer state, and what needs
  // no other gradient has no backward.
  bool frozen = false;
};

// A dim's global size. For "batch" it is the sequences of one microbatch over all ranks.
struct DimInfo {
  std::int64_t size = 0;
  bool even = true;  // every part must be of one size (batch, heads); seq, vocab and ffn need not
  // A rule for the dim `like` holds for this dim too, if the axis divides it (as for a narrower ffn
  // in some layers). Invalid: none.
  Dim like = {};
  std::string from = {};  // where the size comes from, for people: "hidden / heads"
};

class Graph {
 public:
  void set_dim(Dim dim, std::int64_t size, bool even = true, Dim like = {}, std::string from = "");
  // The global size of a dim. Throws std::out_of_range, with the dim's name, if there is none.
  std::int64_t size(Dim dim) const {
    return dim.id() < sizes_.size() && sizes_[dim.id()] >= 0 ? sizes_[dim.id()] : no_dim(dim);
  }
  const std::map<Dim, DimInfo>& dims() const { return dims_; }

  // Each adds a value and returns its index.
  int add_data(std::string name, Dims dims, Scalar scalar);
  int add_parameter(std::string name, Dims dims, Init init, HfName hf, bool frozen = false);
  // Adds a counter (Value::counts), which starts from zeros.
  int add_counter(std::string name, Dims dims, std::shared_ptr<const ElementOp> moved_by,
                  HfName hf);

  // One output of an op that is being added.
  struct Output {
    std::string name;  // "" : the op's name
    Dims dims;
    Scalar scalar = Scalar::real;
    bool needs_grad = true;
  };
  // Appends an op; returns its outputs' indices. Ops run in the order they are added. An output
  // needs a gradient only if an input does.
  std::vector<int> add(Op op, const std::vector<Output>& outputs);

  const std::vector<Op>& ops() const { return body_->ops; }
  const std::vector<Value>& values() const { return body_->values; }
  const Value& value(int index) const { return body_->values.at(index); }
  // OpType::traits of an op, which is asked once for all ops of a kind.
  const OpTraits& traits(int op) const { return *body_->traits.at(op); }
  // The first op of the same kind: with the same type and dims, and with values of the same dims
  // and scalars; `op` itself if it is the first. A model's layers repeat ops, so that results that
  // depend on these alone are computed once for a kind.
  int kind(int op) const { return body_->kinds.at(op); }
  // A copy of this graph with another size of a dim; it shares the ops and values.
  Graph with_size(Dim dim, std::int64_t size) const;
  // A copy of this graph in which the ops that are keys of `parts` are computed part by part
  // (OpType::in_parts). The value of a key is the dim of its parts, which this graph must have.
  // Values keep their indices.
  Graph with_parts(const std::map<int, Dim>& parts) const;
  // A copy of this graph in which losses that have a masked form (OpType::masked_form) are of this
  // form, with the divisors as data values.
  Graph with_masked_losses() const;
  // A copy of this graph for rows of documents that must not see each other, in which each op has
  // its form of OpType::in_documents. Throws Error (plan, "model.documents") with the ops that have
  // none.
  Graph with_documents() const;
  // A copy of such a graph for rows whose documents are parted over `ways` ranks
  // (parted_by_documents), with OpType::in_parted_documents of each op. Throws as with_documents().
  Graph with_parted_documents(int ways) const;
  std::vector<int> parameters() const;  // indices of values, in the order in which they were added
  std::int64_t count(int value) const;  // global elements of a value
  std::int64_t parameter_count() const;
  int find(const std::string& value) const;  // index of the value of that name; -1: none

  int layers = 0;  // transformer layers
  // The scalar value that is trained: the loss summed over the microbatch's tokens and divided by
  // the tokens of a whole step.
  int loss = -1;
  // Further scalars that are added to the loss (the balancing losses of experts).
  std::vector<int> other_losses;
  std::vector<int> losses() const;  // `loss` and `other_losses`
  Sparse sparse;                    // which values are sparse; no dims: none
  std::string family;               // "llama", "gpt", ...

 private:
  // The part that copies of a graph share until an op or value is added to one of them.
  struct Body {
    std::vector<Op> ops;
    std::vector<std::shared_ptr<const OpTraits>> traits;  // for each op
    std::vector<int> kinds;                               // kind() of each op
    std::unordered_multimap<std::size_t, int> first;      // the first op of each kind, by digest
    std::vector<Value> values;
  };
  Body& own();
  [[noreturn]] static std::int64_t no_dim(Dim dim);
  int kind_of(const Op& op, const std::vector<Output>& outputs, std::size_t digest) const;
  // Whether gradients go back through the op to any of its inputs; an op without inputs counts.
  bool goes_back(const Op& op) const;
  // Finds the kind and the traits of an op that is to be the next one.
  void add_kind(const Op& op, const std::vector<Output>& outputs);
  void keep(Op op);  // appends an op that makes values of this graph
  // A copy of this graph in which each op is replaced by what `form` (index, op, copy) returns. The
  // function may append ops to the copy. Values keep their indices.
  template <class Form>
  Graph replaced(const Form& form) const {
    Graph other = *this;
    other.body_ = std::make_shared<Body>();
    other.body_->values = body_->values;
    for (std::size_t index = 0; index < body_->ops.size(); ++index)
      other.keep(form(static_cast<int>(index), body_->ops[index], other));
    return other;
  }
  // As replaced(), by a `form` of (op, copy) that may be nothing: such ops are refused, with what
  // they `mix`.
  template <class Form>
  Graph in_forms(const Form& form, const std::string& mix, const std::string& hint) const;

  std::map<Dim, DimInfo> dims_;
  std::vector<std::int64_t> sizes_;  // by Dim::id(); -1: the graph has no such dim
  std::shared_ptr<Body> body_ = std::make_shared<Body>();
};

// Whether an op reads a data value of this kind.
bool reads(const Graph& graph, const Op& op, DataValue kind);

}  // namespace mw
