// Every redistribution there is on a small mesh, carried out by ranks: what each holds afterwards
// is what its layout says, uneven parts and nested cuts included.
#include <catch2/catch.hpp>

#include <mutex>
#include <stdexcept>

#include "meshwright/ledger.h"
#include "meshwright/world.h"
#include "run/redistribute.h"

using namespace mw;

namespace {

const Dims dims{"x", "y"};
const std::vector<std::int64_t> sizes{7, 12};

// The part of `global` that a rank holds; where it is Partial, a share that adds up to the whole.
at::Tensor local(const at::Tensor& global, const Layout& layout, const Mesh& mesh,
                 const Coordinates& at) {
  at::Tensor part = global;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const Range range = local_range(dims[d], sizes[d], layout, mesh, at);
    part = part.narrow(static_cast<std::int64_t>(d), range.offset, range.size);
  }
  part = part.clone();
  for (std::size_t a = 0; a < layout.size(); ++a) {
    const int ways = mesh.atoms()[a].ways;
    if (layout[a].is_partial()) part *= 2.0 * (at[a] + 1) / (ways * (ways + 1));
  }
  return part;
}

class Rank {
 public:
  Rank(const Mesh& mesh, RankContext& context) : mesh_(mesh), context_(context), watch_(ledger_) {}

  int otherwise() const { return otherwise_; }  // moves that allocated something else than was said

  at::Tensor move(at::Tensor tensor, Layout now, const Layout& to) {
    static const std::string label = "test";
    const Coordinates at = mesh_.coordinates(context_.rank);
    for (const Move& m : moves(now, to, mesh_)) {
      const Layout next = after(now, m);
      const MoveSteps steps = move_steps(
          m, dims, tensor.sizes().vec(), now, next, mesh_, at,
          [](Dim dim) { return sizes[std::find(dims.begin(), dims.end(), dim) - dims.begin()]; });
      Communicator& ranks = group(m.atoms);
      const auto allocates = [&](std::int64_t elements, const auto& act) {
        const std::int64_t before = ledger_.bytes();
        act();
        if (ledger_.bytes() - before != elements * 8) ++otherwise_;
      };
      const ReadyMove ready(steps);
      Underway underway;
      at::Tensor moved;
      allocates(steps.held(), [&] {
        if (communicates(m.kind)) underway = start_move(m, ready, tensor, ranks, {"test", &label});
      });
      const std::int64_t kept = steps.joins      ? steps.joined()
                                : steps.receives ? steps.arrived.elements()
                                                 : steps.held();
      allocates(kept - steps.held(), [&] {
        moved = communicates(m.kind) ? finish_move(underway, ready) : local_move(m, ready, tensor);
        underway = {};
      });
      tensor = moved;
      now = next;
    }
    return now == to ? tensor : at::Tensor();
  }

 private:
  Communicator& group(const std::vector<int>& atoms) {
    auto& g = groups_[atoms];
    if (!g) {
      g = make_communicator(*context_.source,
                            {mesh_.name_of(atoms), mesh_.group(context_.rank, atoms)},
                            mesh_.index_in_group(context_.rank, atoms), nullptr);
    }
    return *g;
  }

  const Mesh& mesh_;
  RankContext& context_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
  Ledger ledger_;
  MemoryWatch watch_;
  int otherwise_ = 0;
};

// Every layout of the mesh's atoms.
std::vector<Layout> layouts(std::size_t atoms) {
  const std::vector<Placement> one{Placement::replicate(), Placement::partial(),
                                   Placement::shard("x"), Placement::shard("y")};
  std::vector<Layout> all{{}};
  for (std::size_t a = 0; a < atoms; ++a) {
    std::vector<Layout> longer;
    for (const Layout& head : all) {
      for (const Placement& p : one) {
        longer.push_back(head);
        longer.back().push_back(p);
      }
    }
    all = longer;
  }
  return all;
}

void check_all(const Mesh& mesh) {
  const at::Tensor global = at::arange(1, 85, at::kDouble).view(sizes);
  const Layout whole(mesh.atoms().size());
  std::mutex mutex;
  int wrong = 0, pairs = 0, otherwise = 0;
  std::string first;
  run_ranks(mesh.size(), [&](RankContext& context) {
    Rank rank(mesh, context);
    const Coordinates at = mesh.coordinates(context.rank);
    for (const Layout& from : layouts(whole.size())) {
      for (const Layout& to : layouts(whole.size())) {
        at::Tensor got = rank.move(local(global, from, mesh, at), from, to);
        Layout end = to;
        const bool partial =
            std::any_of(to.begin(), to.end(), [](auto& p) { return p.is_partial(); });
        if (partial && got.defined()) {  // the shares are free; their sum is not
          got = rank.move(got, to, whole);
          end = whole;
        }
        const at::Tensor want = local(global, end, mesh, at);
        const bool same =
            got.defined() && got.sizes() == want.sizes() && at::allclose(got, want, 1e-12, 1e-12);
        std::lock_guard lock(mutex);
        ++pairs;
        if (same) continue;
        if (wrong++ == 0) first = to_string(from, mesh) + " -> " + to_string(to, mesh);
      }
    }
    std::lock_guard lock(mutex);
    otherwise += rank.otherwise();
  });
  INFO(mesh.describe() << ": " << wrong << " of " << pairs << " wrong, the first " << first);
  CHECK(wrong == 0);
  CHECK(otherwise == 0);
}

}  // namespace

TEST_CASE("Every change of layout on two atoms") {
  check_all(Mesh({{"a", 2}, {"b", 3}}));
}

TEST_CASE("Every change of layout on three atoms") {
  check_all(Mesh({{"a", 2}, {"b", 2}, {"c", 2}}));
}

TEST_CASE("Rows go to the ranks of their groups, but not past another axis that cuts the groups") {
  const Placement groups = Placement::shard("experts"), rows = Placement::shard("batch"),
                  tokens = Placement::shard("seq");
  const auto exchanges = [](const Layout& from, const Layout& to) {
    return sparse_moves(from, to, "experts").size();
  };
  CHECK(exchanges({rows}, {groups}) == 1);
  CHECK(exchanges({groups}, {rows}) == 1);
  CHECK(exchanges({rows, tokens}, {groups, groups}) == 1);
  CHECK(exchanges({groups, rows}, {groups, groups}) == 1);  // the axis inside is exchanged over
  CHECK_THROWS_AS(exchanges({rows, groups}, {groups, groups}), std::invalid_argument);
  CHECK_THROWS_AS(exchanges({groups, groups}, {rows, groups}), std::invalid_argument);
}
