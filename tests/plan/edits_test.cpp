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
  Program program;
  program.segments = {letters()};
  program.segments[0].name = "backward";
  Insertions list;
  list.before(3, named("z"));
  list.before(1, named("1"));
  CHECK(add_copy(program, 0, "last", list) == 1);
  CHECK(add_copy(program, 0, "last", list) == 2);
  CHECK(labels(program.segments[0]) == "abc");
  CHECK(labels(program.segments[1]) == "a1bcz");
  CHECK(labels(program.segments[2]) == "abc");
  CHECK(program.segments[1].name == "backward.last");
  CHECK(program.segments[2].name == "backward.last.2");
  CHECK(program.segments[2].copy_of == 0);
  list.before(4, named("x"));
  CHECK_THROWS_AS(add_copy(program, 0, "last", list), std::out_of_range);
  CHECK(program.segments.size() == 3);
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

TEST_CASE("Neighbours may change places where neither writes what the other uses") {
  Program program;
  program.slots.resize(12);
  program.slots[5].alias_of = 4;
  const auto both = [&](const Instruction& a, const Instruction& b) {
    CHECK(may_swap(program, a, b) == may_swap(program, b, a));
    return may_swap(program, a, b);
  };
  CHECK(both(named("a", {1}, {2}), named("b", {1}, {3})));        // both read
  CHECK_FALSE(both(named("a", {1}, {2}), named("b", {2}, {3})));  // one reads what is written
  CHECK_FALSE(both(named("a", {1}, {2}), named("b", {3}, {1})));  // one writes what is read
  CHECK_FALSE(both(named("a", {1}, {2}), named("b", {3}, {2})));  // both write
  CHECK_FALSE(both(named("a", {4}, {2}), named("b", {3}, {5})));  // under another name
  Instruction lets_go = named("a", {1}, {2});
  lets_go.release = {6};
  CHECK(both(lets_go, named("b", {3}, {7})));
  CHECK_FALSE(both(lets_go, named("b", {6}, {7})));

  Instruction wgrad;
  wgrad.piece = Piece::wgrad;
  wgrad.inputs = {1};
  wgrad.grad_outputs = {2};
  wgrad.grad_inputs = {3};
  CHECK(both(wgrad, named("b", {2}, {7})));
  CHECK_FALSE(both(wgrad, named("b", {3}, {7})));  // a gradient's reduction
  CHECK_FALSE(both(wgrad, named("b", {7}, {2})));
  CHECK_FALSE(both(wgrad, named("b", {7}, {1})));
}

TEST_CASE("What is begun stays before its wait, and transfers over the same ranks in order") {
  Program program;
  program.slots.resize(12);
  const auto transfer = [](Code code, int pending, int from, int to, std::vector<int> atoms) {
    Instruction i = named("t", {from}, {to});
    i.code = code;
    i.pending = pending;
    i.move.atoms = std::move(atoms);
    return i;
  };
  const Instruction start = transfer(Code::start, 0, 1, 2, {0}),
                    wait = transfer(Code::wait, 0, 1, 2, {0});
  CHECK_FALSE(may_swap(program, start, wait));
  CHECK_FALSE(may_swap(program, start, transfer(Code::start, 1, 3, 4, {0})));
  CHECK(may_swap(program, start, transfer(Code::start, 1, 3, 4, {1})));
  CHECK(may_swap(program, wait, transfer(Code::start, 1, 3, 4, {0})));
  CHECK_FALSE(may_swap(program, wait, named("w", {5}, {1})));  // what is still being sent
  CHECK(may_swap(program, wait, named("r", {1}, {5})));
}

TEST_CASE("An instruction goes as far as its neighbours let it, and no further than asked") {
  Program program;
  program.slots.resize(12);
  std::vector<Instruction> code = {named("a", {1}, {2}), named("b", {3}, {4}), named("c", {5}, {6}),
                                   named("d", {2}, {7}), named("e", {8}, {9})};
  CHECK(latest(program, code, 0, code.size()) == 2);
  CHECK(latest(program, code, 0, 1) == 1);
  CHECK(latest(program, code, 4, code.size()) == 4);
  CHECK(earliest(program, code, 3, 0) == 1);
  CHECK(earliest(program, code, 4, 2) == 2);
  CHECK(earliest(program, code, 0, 0) == 0);
  Segment segment;
  segment.code = code;
  move_to(segment.code, 0, 2);
  CHECK(labels(segment) == "bcade");
  move_to(segment.code, 4, 0);
  CHECK(labels(segment) == "ebcad");
  move_to(segment.code, 1, 1);
  CHECK(labels(segment) == "ebcad");

  segment.code = code;
  CHECK(moved(program, segment.code, 0, 4) == 2);
  CHECK(labels(segment) == "bcade");
  CHECK(moved(program, segment.code, 4, 1) == 1);
  CHECK(labels(segment) == "becad");
  const auto past_c = [](const Instruction& i) { return i.label == "c"; };
  CHECK(moved(program, segment.code, 3, 0, past_c) == 2);
  CHECK(labels(segment) == "beacd");
}

TEST_CASE("What is ordered takes along what it depends on, or what depends on it, and no more") {
  Program program;
  program.slots.resize(12);
  // b and d depend on a; e depends on d.
  const std::vector<Instruction> code = {named("x", {1}, {2}), named("a", {3}, {4}),
                                         named("b", {4}, {5}), named("y", {6}, {7}),
                                         named("d", {4}, {8}), named("e", {8}, {9})};
  Segment segment;
  std::vector<std::size_t> places;
  const auto ordered = [&](const std::vector<std::size_t>& first,
                           const std::vector<std::size_t>& then, Moves moves) {
    segment.code = code;
    const auto pair = order_before(program, segment.code, first, then, moves, places);
    CHECK(pair == std::pair(-1, -1));
    for (std::size_t n = 0; n < places.size(); ++n)
      CHECK(segment.code[n].label == code[places[n]].label);
    return labels(segment);
  };
  CHECK(ordered({5}, {0}, Moves::first) == "adexby");
  CHECK(ordered({5}, {0}, Moves::then) == "abydex");
  CHECK(ordered({3}, {1}, Moves::then) == "xyabde");
  CHECK(ordered({0, 1}, {4}, Moves::first) == "xabyde");  // it is so
  CHECK(ordered({3, 5}, {0, 2}, Moves::first) == "aydexb");

  segment.code = code;
  for (const Moves moves : {Moves::first, Moves::then}) {
    CHECK(order_before(program, segment.code, {5}, {1}, moves, places) == std::pair(1, 5));
    CHECK(order_before(program, segment.code, {3, 4}, {1, 2}, moves, places) == std::pair(1, 4));
    CHECK(order_before(program, segment.code, {2}, {2}, moves, places) == std::pair(2, 2));
    CHECK(labels(segment) == "xabyde");
  }
}

TEST_CASE("Transfers of one stream keep their order, and those of two have none") {
  Program program;
  program.slots.resize(12);
  const auto start = [](int pending, int from, int to, std::vector<int> atoms, int stream) {
    Instruction i = named("t", {from}, {to});
    i.code = Code::start;
    i.pending = pending;
    i.move.atoms = std::move(atoms);
    i.move.stream = stream;
    return i;
  };
  CHECK_FALSE(may_swap(program, start(0, 1, 2, {0}, 3), start(1, 3, 4, {1}, 3)));
  CHECK(may_swap(program, start(0, 1, 2, {0}, 3), start(1, 3, 4, {0}, 4)));
  CHECK(may_swap(program, start(0, 1, 2, {0}, 3), start(1, 3, 4, {0}, -1)));
  CHECK_FALSE(may_swap(program, start(0, 1, 2, {0}, -1), start(1, 3, 4, {0}, -1)));
  CHECK(stream_named(program, "exchange") == 0);
  CHECK(stream_named(program, "background") == 1);
  CHECK(stream_named(program, "exchange") == 0);
}

TEST_CASE("A pass may choose the order of a stage's transfers, and of no others") {
  Program program;
  program.slots.resize(12);
  const auto begin = [](const char* label, int pending, int from, std::vector<int> stages) {
    Instruction i = named(label, {from}, {from + 1});
    i.code = Code::start;
    i.pending = pending;
    i.move.atoms = {0};
    i.move.stages = std::move(stages);
    return i;
  };
  const auto ordered = [&](std::vector<int> stages) {
    Segment segment;
    segment.code = {begin("a", 0, 1, stages), begin("b", 1, 3, stages), named("x", {5}, {6}),
                    begin("c", 2, 7, stages)};
    std::vector<std::size_t> places;
    const auto pair = order_before(program, segment.code, {3}, {0}, Moves::first, places);
    return std::pair{pair, labels(segment)};
  };
  CHECK(ordered({}) == std::pair{std::pair{-1, -1}, std::string("cabx")});
  CHECK(ordered({0, 1}) == std::pair{std::pair{0, 3}, std::string("abxc")});

  // What is not asked for keeps its order: b goes along.
  Segment segment;
  segment.code = {named("x", {5}, {6}), begin("b", 1, 3, {}), begin("c", 2, 7, {})};
  std::vector<std::size_t> places;
  CHECK(order_before(program, segment.code, {2}, {0}, Moves::first, places) == std::pair(-1, -1));
  CHECK(labels(segment) == "bcx");
}

}  // namespace mw::test
