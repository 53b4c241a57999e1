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
  Dim cut;     // none: it cuts nothing of the op, which carries a sum over it
  Dim follow;  // the dim that is cut along with it; may be none
  int ways = 2;
  bool ring = false;  // `follow` goes round the axis
};

// How far sizes are changed. An op's own numbers (how many choices a token has) have to fit its
// dims, and nobody but its author knows which; so what refuses one way is tried in the next.
enum class Shrink : std::uint8_t {
  all,   // all but those that are small already
  cut,   // dims that must be whole stay as they are
  none,  // only what cannot be cut as it is
};

// The size of each dim of these ops, or nothing where there are none or they would be large. What
// holds for the sizes in the graph holds for the small ones: which are equal (but for batch and
// seq), which is larger, what is odd, which divides the one that it follows, and which are sums of
// others. A dim that need not be cut evenly is cut unevenly.
std::optional<std::map<Dim, std::int64_t>> small_sizes(const Graph& graph,
                                                       const std::vector<int>& ops,
                                                       const std::vector<SmallAxis>& axes,
                                                       Shrink shrink);

// One dim at a size that kernels treat otherwise than small ones, the others as small as they can
// be: 137, 1097 (521 where that would be dear), and the size that the dim has in the graph; each
// where the op stays cheap. Dims need not be in the order of their sizes in the graph: so there may
// be two choices of sizes, the cheaper one first.
struct LargeSizes {
  Dim dim;
  std::vector<std::map<Dim, std::int64_t>> choices;
};
std::vector<LargeSizes> large_sizes(const Graph& graph, int op, const std::vector<int>& ops,
                                    const std::vector<SmallAxis>& axes, Shrink shrink);

// Why an op is not looked at; nothing is wrong with it.
struct NotChecked : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What is wrong with an op before anything of it is compared: it makes other results than it
// declares, in number or in shape.
struct WrongResults : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How whole operands are drawn: reals at random, or those that ops make by these ops, of operands
// that are drawn (the statistics of a loss are positive). Indices and what has no gradient are made
// in any case.
enum class Draw : std::uint8_t { random, made };

// An op whose operands are drawn, and the ops that make what cannot be drawn: indices, the rows of
// experts.
std::vector<int> with_makers(const Graph& graph, int op, Draw draw);

// The op on one rank, over small sizes.
class WholeOp {
 public:
  // Draws from a generator of its own: the same numbers for the same op and sizes.
  // `type`: of reals.
  WholeOp(const Graph& graph, int op, const std::map<Dim, std::int64_t>& sizes, Draw draw,
          at::ScalarType type);

  const Graph& graph() const { return graph_; }
  int index() const { return op_; }
  const Op& op() const { return graph_.ops()[static_cast<std::size_t>(op_)]; }
  const OpTraits& traits() const { return graph_.traits(op_); }
  const OpCase& whole() const { return whole_; }   // its operands
  const Made& made() const { return made_; }       // forward, and backward in fresh tensors
  const Tensors& seeds() const { return seeds_; }  // gradients of the outputs
  at::Generator& generator() { return generator_; }
  at::Tensor normal(at::IntArrayRef shape);

  // Whether input `i` is to get a gradient by backward, or gets the output's.
  bool wants(std::size_t i) const { return whole_.wants[i]; }
  bool passes(std::size_t i) const;
  // "input 1 (layers.0.mlp.up.weight)".
  std::string input_name(std::size_t i) const;

  // Rows of experts: where each row's choice stands among those of all tokens, and its group.
  // Both are empty where there are no rows.
  struct Rows {
    int maker = -1;                     // the op that makes them
    int places = -1;                    // the value that says which choices they are
    std::int64_t top = 1;               // choices of a token
    std::vector<std::int64_t> counts;   // of each group
    std::vector<std::int64_t> choices;  // of each row
    std::vector<std::int64_t> groups;   // of each row
  };
  const Rows& rows() const { return rows_; }
  // A value that was drawn or made.
  const at::Tensor& value(int index) const { return values_.at(index); }
  OpCase case_of(int op);

 private:
  const at::Tensor& draw(int value, int depth);
  at::Tensor draw_index(const Value& value);
  void make(int op, int depth);
  void find_rows(int value);
  std::vector<std::int64_t> shape_of(const Dims& dims) const;

  Graph graph_;
  int op_;
  Draw how_;
  at::ScalarType type_;
  at::Generator generator_;
  std::map<int, at::Tensor> values_;
  Rows rows_;
  Program one_;  // of one rank
  OpCase whole_;
  Made made_;
  Tensors seeds_;
};

// Where a rank's rows come from: their places among all rows, how many each group has here, and
// each row's place among the choices that are here.
struct LocalRows {
  std::vector<std::int64_t> from, counts, choices;
};

// The same op on the ranks of a small mesh.
class CutOp {
 public:
  // `permuted`: dims whose tokens lie in another order.
  CutOp(WholeOp& whole, const std::vector<SmallAxis>& axes, bool carried,
        const std::vector<Dim>& permuted);

  const Program& program() const { return program_; }
  const proving::OpTable& table() const { return *table_; }
  std::vector<Coordinates> ranks() const;
  // The part of a value, as the rank holds it under a layout, where no atom is Partial.
  at::Tensor part(int value, const at::Tensor& whole, const Layout& layout,
                  const Coordinates& at) const;
  LocalRows rows(const Layout& layout, const Coordinates& at) const;
  // The op's operands there; in a ring step those of that step.
  OpCase at(const Coordinates& at, int ring_step = 0);
  Coordinates before(const Coordinates& at, int ring_step) const;
  bool rotates(std::size_t input) const;
  int ring_ways() const { return ring_ways_; }
  // "seq over 3 ranks (3 + 2 + 2)".
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
  std::map<std::pair<int, int>, at::Tensor> shares_;  // of a value, by the rank on Partial atoms
  int ring_ways_ = 1;
};

}  // namespace mw::lemmas
