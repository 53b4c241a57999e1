// The device mesh: ranks and groups, axes that borrow ranks, uneven parts of a dim.
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/mesh.h"
#include "meshwright/placement.h"
#include "support/problems.h"

using namespace mw;

TEST_CASE("Ranks count row-major: the last axis is adjacent") {
  const Mesh mesh({{"pp", 2}, {"dp", 3}, {"tp", 2}});
  CHECK(mesh.size() == 12);
  CHECK(mesh.coordinates(7) == Coordinates{1, 0, 1});
  for (int r = 0; r < mesh.size(); ++r) CHECK(mesh.rank(mesh.coordinates(r)) == r);
  CHECK(mesh.group(7, mesh.axis("tp").atoms) == std::vector<int>{6, 7});
  CHECK(mesh.group(7, mesh.axis("dp").atoms) == std::vector<int>{7, 9, 11});
  CHECK(mesh.group(7, mesh.axis("pp").atoms) == std::vector<int>{1, 7});
  CHECK(mesh.index_in_group(9, mesh.axis("dp").atoms) == 1);
  CHECK(mesh.describe() == "pp 2 x dp 3 x tp 2 = 12 ranks");
}

TEST_CASE("Every rank is in one group of each axis, and groups agree on their order") {
  Mesh mesh({{"dp", 8}, {"tp", 2}});
  mesh.borrow("ep", 4, {"dp"});
  for (const Axis& axis : mesh.axes()) {
    for (int r = 0; r < mesh.size(); ++r) {
      const auto group = mesh.group(r, axis.atoms);
      CHECK(static_cast<int>(group.size()) == axis.ways);
      CHECK(group[mesh.index_in_group(r, axis.atoms)] == r);
      for (int other : group) CHECK(mesh.group(other, axis.atoms) == group);
    }
  }
}

TEST_CASE("A borrowed axis takes the inner ranks of its lenders") {
  Mesh mesh({{"dp", 4}, {"tp", 2}});
  mesh.borrow("ep", 2, {"dp"});
  CHECK(mesh.size() == 8);
  CHECK(mesh.axis("dp").atoms == std::vector<int>{0, 1});
  CHECK(mesh.axis("ep").atoms == std::vector<int>{1});
  CHECK(mesh.axis("tp").atoms == std::vector<int>{2});
  CHECK(mesh.atoms()[0].name == "dp.0");
  CHECK(mesh.group(0, mesh.axis("ep").atoms) == std::vector<int>{0, 2});
  CHECK(mesh.group(0, mesh.axis("dp").atoms) == std::vector<int>{0, 2, 4, 6});
  CHECK(mesh.name_of({1}) == "ep");
  CHECK(mesh.name_of({0, 2}) == "dp.0*tp");

  SECTION("and may run on into a second one") {
    Mesh wide({{"dp", 4}, {"tp", 2}});
    wide.borrow("ep", 4, {"tp", "dp"});  // all of tp, then half of dp
    CHECK(wide.axis("ep").atoms == std::vector<int>{1, 2});
    CHECK(wide.group(0, wide.axis("ep").atoms) == std::vector<int>{0, 1, 2, 3});
  }
}

TEST_CASE("Each lender gives what it has in common with what is missing") {
  const auto borrowed = [](const std::vector<OwnAxis>& axes, int ways,
                           const std::vector<std::string>& from) {
    Mesh mesh(axes);
    mesh.borrow("ep", ways, from);
    std::string text;
    CHECK(mesh.ways(mesh.axis("ep").atoms) == ways);
    for (const auto& [name, size, role] : axes) {
      const auto& own = mesh.axis(name).atoms;
      CHECK(mesh.ways(own) == size);
      std::vector<int> lent;
      for (int atom : mesh.axis("ep").atoms) {
        const auto at = std::find(own.begin(), own.end(), atom);
        if (at == own.end()) continue;
        lent.push_back(atom);
        CHECK(std::all_of(at, own.end(), [&](int inner) {  // the innermost ranks
          const auto& ep = mesh.axis("ep").atoms;
          return std::find(ep.begin(), ep.end(), inner) != ep.end();
        }));
      }
      if (!lent.empty()) text += name + std::to_string(mesh.ways(lent)) + " ";
    }
    return text;
  };
  CHECK(borrowed({{"dp", 3}, {"tp", 2}}, 2, {"dp", "tp"}) == "tp2 ");
  CHECK(borrowed({{"dp", 3}, {"tp", 2}}, 3, {"dp", "tp"}) == "dp3 ");
  CHECK(borrowed({{"dp", 3}, {"tp", 2}}, 6, {"dp", "tp"}) == "dp3 tp2 ");
  CHECK(borrowed({{"dp", 6}, {"tp", 2}}, 4, {"dp", "tp"}) == "dp2 tp2 ");
  CHECK(borrowed({{"dp", 4}, {"tp", 2}}, 4, {"dp", "tp"}) == "dp4 ");
  CHECK(borrowed({{"dp", 4}, {"tp", 2}}, 4, {"tp", "dp"}) == "dp2 tp2 ");
  CHECK(borrowed({{"dp", 3}, {"cp", 5}, {"tp", 4}}, 10, {"dp", "cp", "tp"}) == "cp5 tp2 ");
  CHECK(borrowed({{"tp", 6}, {"dp", 6}}, 4, {"dp", "tp"}) == "tp2 dp2 ");

  SECTION("and what one has lent can be lent again, in other parts") {
    Mesh mesh({{"zero", 12}, {"tp", 2}});
    mesh.borrow("parts", 6, {"zero"});
    mesh.borrow("ep", 4, {"zero", "tp"});
    CHECK(mesh.ways(mesh.axis("parts").atoms) == 6);
    CHECK(mesh.ways(mesh.axis("ep").atoms) == 4);
    CHECK(mesh.ways(mesh.axis("zero").atoms) == 12);
    CHECK(mesh.group(0, mesh.axis("ep").atoms).size() == 4);
  }

  SECTION("so every divisor of their product is possible, and no other") {
    for (int ways = 1; ways <= 24; ++ways) {
      Mesh mesh({{"dp", 6}, {"tp", 4}});
      const std::vector<int> possible = mesh.borrowable({"dp", "tp"}, ways);
      CHECK(possible == std::vector<int>{1, 2, 3, 4, 6, 8, 12, 24});
      if (24 % ways == 0) {
        CHECK_NOTHROW(mesh.borrow("ep", ways, {"dp", "tp"}));
      } else {
        CHECK(mw::test::thrown([&] {
                mesh.borrow("ep", ways, {"dp", "tp"});
              }) == "axis.cannot-borrow ways");
        CHECK(mesh.borrowable({"dp", "tp"}, ways) == std::vector<int>{1, 2, 3, 4, 6, 8, 12, 24});
      }
    }
  }
}

TEST_CASE("Axes with ranks of their own are found by their role") {
  Mesh mesh({{"a", 2, Role::data}, {"b", 2, Role::model}, {"c", 2, Role::data}, {"d", 2}});
  mesh.borrow("e", 2, {"a"}, Role::data);
  const auto names = [&](Role role) {
    std::string list;
    for (const Axis& axis : mesh.with_role(role)) list += axis.name;
    return list;
  };
  CHECK(names(Role::data) == "ac");  // as the mesh has them, without what borrows
  CHECK(names(Role::model) == "b");
  CHECK(names(Role::experts).empty());
  CHECK(mesh.axis("e").role == Role::data);
  for (const std::string& name : names_of_roles()) CHECK(name_of(role_of(name).value()) == name);
  CHECK_FALSE(role_of("none").has_value());
}

TEST_CASE("What cannot be borrowed is refused with what can") {
  Mesh mesh({{"dp", 4}, {"tp", 2}});
  CHECK(mw::test::thrown([&] { mesh.borrow("ep", 3, {"dp"}); }) == "axis.cannot-borrow ways");
  CHECK(mw::test::thrown([&] { mesh.borrow("ep", 2, {"cp"}); }) == "axis.unknown");
  CHECK(mw::test::thrown([] { Mesh({{"dp", 2}, {"dp", 2}}); }) == "axis.twice");
}

TEST_CASE("A mesh beyond all machines is refused with the product, which no int holds") {
  CHECK(mw::test::thrown([] { Mesh({{"dp", 65536}, {"tp", 65536}}); }) == "plan.ranks");
  CHECK(mw::test::thrown([] { Mesh({{"dp", 1 << 24}, {"tp", 2}}); }) == "plan.ranks");
  const int most = std::numeric_limits<int>::max();
  CHECK_THROWS_AS(Mesh({{"a", most}, {"b", most}, {"c", most}}), Error);  // 2^93
  CHECK(Mesh({{"dp", 1 << 20}, {"tp", 16}}).size() == Mesh::most_ranks);
}

TEST_CASE("Parts of a dim differ by one at most and cover it") {
  for (std::int64_t size : {1, 7, 12, 50}) {
    for (int ways : {1, 2, 3, 4, 8}) {
      std::int64_t next = 0;
      for (int i = 0; i < ways; ++i) {
        const Range part = shard_range(size, ways, i);
        CHECK(part.offset == next);
        CHECK((part.size == size / ways || part.size == size / ways + 1));
        next += part.size;
      }
      CHECK(next == size);
    }
  }
}

TEST_CASE("Atoms that cut the same dim nest, the outer first") {
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const Layout both{Placement::shard("x"), Placement::shard("x")};
  CHECK(local_range("x", 10, both, mesh, {1, 0}).offset == 5);
  CHECK(local_range("x", 10, both, mesh, {1, 0}).size == 3);
  CHECK(local_range("x", 10, both, mesh, {1, 1}).offset == 8);
  CHECK(local_range("y", 10, both, mesh, {1, 1}).size == 10);
  CHECK(to_string(both, mesh) == "a: S(x), b: S(x)");
}

TEST_CASE("Each document is parted over all ranks, which have nearly equal tokens and work") {
  const std::vector<std::int64_t> documents{0, 1, 3, 40, 41, 90, 97};
  for (const std::int64_t tokens : {101, 128}) {
    for (const int ways : {1, 2, 3, 8}) {
      const std::vector<Range> order = mw::parted_by_documents(documents, tokens, ways);
      std::vector<int> seen(static_cast<std::size_t>(tokens), 0);
      std::vector<double> work;  // each rank's work in the document that begins at 41
      for (int rank = 0; rank < ways; ++rank) {
        work.push_back(0);
        std::int64_t own = 0;
        for (const Range& run : mw::lying_at(order, shard_range(tokens, ways, rank))) {
          own += run.size;
          for (std::int64_t place = run.offset; place < run.offset + run.size; ++place) {
            ++seen[static_cast<std::size_t>(place)];
            if (place >= 41 && place < 90) work.back() += static_cast<double>(place - 40);
          }
        }
        CHECK(own == shard_range(tokens, ways, rank).size);
      }
      CHECK(seen == std::vector<int>(seen.size(), 1));
      const auto [least, most] = std::minmax_element(work.begin(), work.end());
      CHECK(*most - *least <= 49);  // the work of a token
    }
  }
}
