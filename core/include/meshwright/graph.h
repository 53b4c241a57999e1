// The model graph: ops over values with named dims. It names no mesh axis;
// strategies add the rules.
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

// How a parameter starts. Weights are a function of (seed, name, global element index) alone, so
// that every rank makes its slice of the very same tensor.
struct Init {
  enum class Kind : std::uint8_t { normal, ones, zeros };
  Kind kind = Kind::normal;
  double std = 0.02;
};

// Where a parameter lies in a Hugging Face checkpoint.
struct HfName {
  std::string name;         // "model.layers.0.self_attn.q_proj.weight"
  bool transposed = false;  // stored [in, out] (GPT-2's Conv1D)
  int part = 0,
      parts = 1;  // rows [part/parts, (part+1)/parts) of a fused tensor, after transposing
  // The first dim's entries are tensors of their own, numbered where `name` has "{}" (experts).
  bool apart = false;
  bool optional = false;  // may be missing in the checkpoint: it is initialised as if without one
};

struct Value {
  enum class Source : std::uint8_t { op, parameter, data };
  std::string name;
  Dims dims;
  Scalar scalar = Scalar::real;
  bool fp32_at_least = false;  // kept in fp32 where the plan computes in less (OpTraits)
  Source source = Source::op;
  bool needs_grad = true;
  int producer = -1, output = 0;  // of Source::op: the op, and which of its outputs
  Init init;                      // of Source::parameter
  HfName hf;
  // A parameter that no optimizer trains: its "gradient" is no derivative, but counts what happens
  // in a step (tokens that chose an expert), over the global batch. At the end of the step
  // `moved_by` updates it by the count, in UpdateCall::gradient; null: it stays.
  bool counts = false;
  std::shared_ptr<const class ElementOp> moved_by;
};

// A dim's global size. For "batch" it is the sequences of one microbatch over all ranks.
struct DimInfo {
  std::int64_t size = 0;
  bool even = true;  // every part must be of one size (batch, heads); seq, vocab and ffn need not
  // What a strategy says of that dim holds for this one too, as far as its size allows (a narrower
  // ffn in some layers). None: no other.
  Dim like = {};
  std::string from = {};  // where the size comes from, for people: "hidden / heads"
};

class Graph {
 public:
  void set_dim(Dim dim, std::int64_t size, bool even = true, Dim like = {}, std::string from = "");
  // Throws std::out_of_range with the name.
  std::int64_t size(Dim dim) const {
    return dim.id() < sizes_.size() && sizes_[dim.id()] >= 0 ? sizes_[dim.id()] : no_dim(dim);
  }
  const std::map<Dim, DimInfo>& dims() const { return dims_; }

  // Each returns the value's index.
  int add_data(std::string name, Dims dims, Scalar scalar);
  int add_parameter(std::string name, Dims dims, Init init, HfName hf);
  // A parameter of zeros that counts (Value::counts).
  int add_counter(std::string name, Dims dims, std::shared_ptr<const ElementOp> moved_by,
                  HfName hf);

  // One output of an op to be: its dims, and whether a gradient flows through it.
  struct Output {
    std::string name;  // "" : the op's name
    Dims dims;
    Scalar scalar = Scalar::real;
    bool needs_grad = true;
  };
  // Appends an op; returns its outputs' indices. Ops run in the order they are added.
  std::vector<int> add(Op op, const std::vector<Output>& outputs);

  const std::vector<Op>& ops() const { return body_->ops; }
  const std::vector<Value>& values() const { return body_->values; }
  const Value& value(int index) const { return body_->values.at(index); }
  // What the op's type says of it (OpType::traits), asked for once for ops of a kind.
  const OpTraits& traits(int op) const { return *body_->traits.at(op); }
  // The first op that this one is like: of one type, over the same dims, of values of the same dims
  // and scalars; itself where there is none. A model's layers repeat ops, and what follows from
  // these alone is worked out once for all of them.
  int kind(int op) const { return body_->kinds.at(op); }
  // The same ops and values, shared with this graph, over another size of a dim.
  Graph with_size(Dim dim, std::int64_t size) const;
  std::vector<int> parameters() const;  // values, in the order they were added
  std::int64_t count(int value) const;  // global elements
  std::int64_t parameter_count() const;
  int find(const std::string& value) const;  // by name; -1

  int layers = 0;  // transformer layers
  // The scalar value that is trained: the loss summed over the microbatch's tokens and divided by
  // the tokens of a whole step.
  int loss = -1;
  // Further scalars that are added to it (the balancing losses of experts).
  std::vector<int> other_losses;
  std::vector<int> losses() const;  // all of them
  Sparse sparse;                    // of its values; no dims: none are
  std::string family;               // "llama", "gpt", ...

 private:
  // What copies share until one of them is added to.
  struct Body {
    std::vector<Op> ops;
    std::vector<std::shared_ptr<const OpTraits>> traits;  // of ops
    std::vector<int> kinds;                               // of ops
    std::unordered_multimap<std::size_t, int> first;      // the first op of each kind, by digest
    std::vector<Value> values;
  };
  Body& own();
  [[noreturn]] static std::int64_t no_dim(Dim dim);
  int kind_of(const Op& op, const std::vector<Output>& outputs, std::size_t digest) const;

  std::map<Dim, DimInfo> dims_;
  std::vector<std::int64_t> sizes_;  // by a dim's number; -1: there is none
  std::shared_ptr<Body> body_ = std::make_shared<Body>();
};

}  // namespace mw
