// Operands for an op at small sizes: whole ones that its kernels can take, and the parts of them
// that the ranks of a small mesh hold.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Generator.h>

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/program.h"
#include "prove/lemmas/op_case.h"
#include "prove/tables.h"

namespace mw::lemmas {

// An axis of the small mesh on which a lemma is tried.
struct SmallAxis {
  Dim cut;     // the dim that the axis cuts; none: the op carries a sum over the axis
  Dim follow;  // the dim that is cut along with it; may be none
  int ways = 2;
  bool ring = false;  // shards of `follow` go round the ranks of the axis
};

// How a lemma makes dims small. An op's own numbers (how many choices a token has) have to fit its
// dims, and nobody but its author knows which. So an op that refuses one way is tried in the next.
enum class Shrink : std::uint8_t {
  all,   // makes all dims small that are not already
  cut,   // makes all dims small but those that must be whole
  none,  // changes only sizes that the axes cannot cut evenly
};

// A small size for each dim of these ops; nothing where none are found or a tensor would be large.
// What holds for the sizes in the graph holds for the small ones: which are equal (but for batch
// and seq), which is larger, which is odd, which divides the one that it follows, and which are
// sums of others. A dim that need not be cut evenly is cut unevenly.
std::optional<std::map<Dim, std::int64_t>> small_sizes(const Graph& graph,
                                                       const std::vector<int>& ops,
                                                       const std::vector<SmallAxis>& axes,
                                                       Shrink shrink);

// Sizes of an op's dims with one dim so large that kernels may treat it otherwise than small ones,
// and the others as small as they can be. The large sizes are 137, 1097 (521 where that is too
// expensive) and the dim's size in the graph, each only where the op stays cheap. Where the order
// of sizes in the graph need not hold, there are two choices, the cheaper one first.
struct LargeSizes {
  Dim dim;
  std::vector<std::map<Dim, std::int64_t>> choices;
};
std::vector<LargeSizes> large_sizes(const Graph& graph, int op, const std::vector<int>& ops,
                                    const std::vector<SmallAxis>& axes, Shrink shrink);

// Thrown where an op cannot be checked, though it may be right. The message says why.
struct NotChecked : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown before anything is compared where an op makes other results than it declares, in number,
// shape or dtype.
struct WrongResults : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where an op's real operands come from. `random`: all are drawn. `made`: those that other ops make
// are computed by them, as they may be special (the statistics of a loss are positive). Indices and
// values without a gradient are computed in any case.
enum class Draw : std::uint8_t { random, made };

// The op, and the ops that make those of its operands that cannot be drawn: indices, rows of
// experts.
std::vector<int> with_makers(const Graph& graph, int op, Draw draw);

// The op on one rank, over small sizes.
class WholeOp {
 public:
  // Draws from a generator of its own: the same numbers for the same op and sizes.
  // `type`: the type of reals.
  WholeOp(const Graph& graph, int op, const std::map<Dim, std::int64_t>& sizes, Draw draw,
          at::ScalarType type);

  const Graph& graph() const { return graph_; }
  int index() const { return op_; }
  const Op& op() const { return graph_.ops()[static_cast<std::size_t>(op_)]; }
  const OpTraits& traits() const { return graph_.traits(op_); }
  const OpCase& whole() const { return whole_; }   // the op with its whole operands
  const Made& made() const { return made_; }       // results of forward, and of backward (fresh)
  const Tensors& seeds() const { return seeds_; }  // gradients of the outputs
  at::Generator& generator() { return generator_; }
  at::Tensor normal(at::IntArrayRef shape);

  // wants(): backward makes a gradient of input `i`. passes(): the gradient of input `i` is that of
  // the output, unchanged.
  bool wants(std::size_t i) const { return whole_.wants[i]; }
  bool passes(std::size_t i) const;
  // "input 1 (layers.0.mlp.up.weight)".
  std::string input_name(std::size_t i) const;

  // Rows of experts: where each row's choice stands among those of all tokens, and its group.
  // Both are empty where there are no rows.
  struct Rows {
    int maker = -1;                     // the op that makes them
    int places = -1;                    // the value that says which choice each row is of
    std::int64_t top = 1;               // number of choices per token
    std::vector<std::int64_t> counts;   // by group: number of rows
    std::vector<std::int64_t> choices;  // by row: index among the choices of all tokens
    std::vector<std::int64_t> groups;   // by row: its group
  };
  const Rows& rows() const { return rows_; }
  // A value that was drawn or made.
  const at::Tensor& value(int index) const { return values_.at(index); }
  OpCase case_of(int op);

 private:
  const at::Tensor& draw(int value, int depth);
  at::Tensor draw_index(const Value& value);
  void make(int op);
  void find_rows(int value);
  std::vector<std::int64_t> shape_of(const Dims& dims) const;

  Graph graph_;
  int op_;
  Draw how_;
  at::ScalarType type_;
  at::Generator generator_;
  std::map<int, at::Tensor> values_;
  Rows rows_;
  Program one_;  // a program of one rank
  OpCase whole_;
  Made made_;
  Tensors seeds_;
};

// The sparse rows on one rank. `from`: their places among all rows; `counts`: the number of rows in
// each local group; `choices`: each row's place among the choices of the local tokens.
struct LocalRows {
  std::vector<std::int64_t> from, counts, choices;
};

// The op of a WholeOp, cut over the ranks of a small mesh.
class CutOp {
 public:
  // `carried`: linear operands are sums over one more axis. `permuted`: dims whose tokens are
  // permuted.
  CutOp(WholeOp& whole, const std::vector<SmallAxis>& axes, bool carried,
        const std::vector<Dim>& permuted);

  const Program& program() const { return program_; }
  const proving::OpTable& table() const { return *table_; }
  std::vector<Coordinates> ranks() const;
  // The part of a value that the rank holds under a layout in which no atom is Partial.
  at::Tensor part(int value, const at::Tensor& whole, const Layout& layout,
                  const Coordinates& at) const;
  LocalRows rows(const Layout& layout, const Coordinates& at) const;
  // The op with the operands of the rank at these coordinates, in this ring step.
  OpCase at(const Coordinates& at, int ring_step = 0);
  Coordinates before(const Coordinates& at, int ring_step) const;
  bool rotates(std::size_t input) const;
  int ring_ways() const { return ring_ways_; }
  // How the op is cut, in words: "seq over 3 ranks (3 + 2 + 2)".
  std::string text() const;

 private:
  OpCase case_of(int op, const proving::OpTable& table, const Coordinates& at, int ring_step);
  at::Tensor operand(int op, std::size_t input, const Layout& need, const Coordinates& at);
  at::Tensor made_there(int value, const Layout& layout, const Coordinates& at);
  const at::Tensor& share(int value, const Layout& need, const Coordinates& at);
  std::vector<Range> ranges(Dim dim, const Layout& layout, const Coordinates& at) const;

  WholeOp& whole_;
  const std::vector<SmallAxis> axes_;
  Program program_;
  std::unique_ptr<proving::OpTables> tables_;
  const proving::OpTable* table_ = nullptr;
  proving::Atoms carried_ = 0;
  std::map<std::pair<int, int>, at::Tensor> shares_;  // by value and rank on its Partial atoms
  int ring_ways_ = 1;
};

}  // namespace mw::lemmas
