// Lists that lie in the object: they do what std::vector does, within their room and beyond it.
#include "meshwright/few.h"

#include <catch2/catch.hpp>
#include <iterator>
#include <list>
#include <random>

using mw::Few;

TEST_CASE("A list of few does what a vector does, whatever is done to it") {
  std::mt19937 random(7);
  Few<int, 4> list;
  std::vector<int> vector;
  const auto below = [&](std::size_t end) { return static_cast<std::ptrdiff_t>(random() % end); };
  for (int step = 0; step < 4000; ++step) {
    const int value = static_cast<int>(random() % 100);
    const std::ptrdiff_t at = below(vector.size() + 1);
    switch (random() % 9) {
      case 0:
      case 1:
        list.push_back(value);
        vector.push_back(value);
        break;
      case 2:
        list.insert(list.begin() + at, value);
        vector.insert(vector.begin() + at, value);
        break;
      case 3: {  // of another
        const std::vector<int> same = vector;
        list.insert(list.begin() + at, same.begin(), same.end());
        vector.insert(vector.begin() + at, same.begin(), same.end());
        break;
      }
      case 4:
        list.erase(list.begin() + at, list.end());
        vector.erase(vector.begin() + at, vector.end());
        break;
      case 5:
        list.resize(static_cast<std::size_t>(at) + 3, value);
        vector.resize(static_cast<std::size_t>(at) + 3, value);
        break;
      case 6:
        erase_if(list, [](int each) { return each % 2 == 0; });
        std::erase_if(vector, [](int each) { return each % 2 == 0; });
        break;
      case 7: {
        Few<int, 4> other = std::move(list);
        list = other;
        break;
      }
      default:
        list.assign(static_cast<std::size_t>(at), value);
        vector.assign(static_cast<std::size_t>(at), value);
        break;
    }
    if (vector.size() > 20) {
      list.clear();
      vector.clear();
    }
    REQUIRE(list == vector);
    REQUIRE(std::vector<int>(list) == vector);
  }
}

TEST_CASE("A list of few within its room and beyond it") {
  Few<int, 2> a{1, 2};
  CHECK(a.capacity() == 2);
  a.push_back(a.front());  // of itself, while it moves
  CHECK(a == Few<int, 2>{1, 2, 1});
  const Few<int, 2> copy = a;
  a[0] = 9;
  CHECK(copy.front() == 1);
  Few<int, 2> b;
  b = std::move(a);
  CHECK(b == Few<int, 2>{9, 2, 1});
  b = Few<int, 2>{3};
  CHECK((b.size() == 1 && b.back() == 3));
  const Few<int, 2>& self = b;
  b = self;
  CHECK(b == Few<int, 2>{3});
  CHECK_THROWS_AS(b.at(1), std::out_of_range);
  CHECK((copy < Few<int, 2>{1, 3} && !(copy < copy)));
  const std::list<int> words{4, 5, 6};
  CHECK(Few<int, 2>(words.begin(), words.end()) == std::vector<int>{4, 5, 6});
  using Once = std::istream_iterator<int>;
  CHECK(!std::is_constructible_v<Few<int, 2>, Once, Once>);
}
