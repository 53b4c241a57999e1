// The verbs that passes are made of: who uses which slots, and what is put in where.
#include <catch2/catch.hpp>

#include <stdexcept>
#include <string>
#include <vector>

#include "meshwright/passes.h"

namespace mw::test {
namespace {

Instruction named(const std::string& label, const std::vector<int>& inputs = {},
                  const std::vector<int>& outputs = {}) {
  Instruction i;
  i.code = Code::copy;
  i.label = label;
  i.inputs = inputs;
  i.outputs = outputs;
  return i;
}

std::string labels(const Segment& segment) {
  std::string all;
  for (const Instruction& i : segment.code) all += i.label;
  return all;
}

Segment letters() {
  Segment segment;
  segment.code = {named("a"), named("b"), named("c")};
  return segment;
}

}  // namespace

TEST_CASE("Spans are the first and last use of each group, by first use") {
  Segment segment;
  segment.code = {named("a", {3, -1}, {9}), named("b", {1}, {3}), named("c", {2}, {4}),
                  named("d", {1, 1}, {8})};
  const std::vector<Span> list = spans(segment, {{1, 70}, {3, 50}, {4, 70}, {5, 60}});
  REQUIRE(list.size() == 2);
  CHECK((list[0].group == 50 && list[0].first == 0 && list[0].last == 1));
  CHECK((list[1].group == 70 && list[1].first == 1 && list[1].last == 3));
  CHECK(spans(segment, {}).empty());
}

TEST_CASE("Insertions stand before what was at their place, in the order given") {
  Segment segment = letters();
  Insertions list;
  list.before(3, named("z"));
  list.before(1, named("1"));
  list.before(1, std::vector<Instruction>{named("2"), named("3")});
  list.before(0, named("0"));
  list.into(segment);
  CHECK(labels(segment) == "0a123bcz");
  list.into(segment);
  CHECK(labels(segment) == "0a123bcz");
}

TEST_CASE("Insertions into a copy leave the segment as it is") {
  const Segment segment = letters();
  Insertions list;
  list.before(3, named("z"));
  list.before(1, named("1"));
  Segment copy;
  copy.code = list.into_copy(segment);
  CHECK(labels(copy) == "a1bcz");
  CHECK(labels(segment) == "abc");
  copy.code = list.into_copy(segment);
  CHECK(labels(copy) == "abc");
  list.before(4, named("x"));
  CHECK_THROWS_AS(list.into_copy(segment), std::out_of_range);
}

TEST_CASE("Insertions at no place of the segment throw, and change nothing") {
  const int place = GENERATE(-1, 4);
  Segment segment = letters();
  Insertions list;
  list.before(1, named("1"));
  list.before(place, named("x"));
  CHECK_THROWS_AS(list.into(segment), std::out_of_range);
  CHECK(labels(segment) == "abc");
}

}  // namespace mw::test
