// Predicted activations of a transformer layer beside the forms of Korthikanti et al. 2022
// ("Reducing Activation Recomputation in Large Transformer Models", table 2), in 16 bits, with s
// tokens, b sequences, h wide, a heads, t ways of tp. What `plan` predicts is the paper's form, to
// the byte, less what no layer here makes:
//
//   paper's term                            here   why
//   sbh   mask of dropout after attention   0      there is no dropout
//   sbh   mask of dropout after the mlp     0
//   5as2b scores: softmax, dropout's mask   4asb   a fused kernel keeps the log-sum-exp of each
//         and output                               row, in 4 bytes
//   -     (left out as small)               16sb   two norms' means and reciprocal deviations, in 4
//                                                  bytes each
//
// The masks and the scores are attention's and the mlp's ends: 34 = 32 + 2 masks, 10 = 8 + 2 masks.
// Selective recompute here also makes attention's output again, which the paper keeps for the
// projection: 2sbh / t less.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "predict/prediction.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

struct Shape {
  std::int64_t s, b, h, a, t;
};

enum class Stream { whole, cut };

// The bytes of one layer: what two more of them add, by two.
std::int64_t layer_bytes(const Shape& shape, Stream stream, const RecomputePolicy& recompute,
                         const char* attention = "flash") {
  std::int64_t bytes[2] = {};
  for (const int more : {0, 1}) {
    Setup setup;
    setup.options = {
        {"layers", 2 + 2 * more}, {"hidden", shape.h}, {"heads", shape.a}, {"vocab", 64}};
    setup.make_gpt();
    setup.options["attention"] = attention;
    const int ways = static_cast<int>(shape.t);
    if (stream == Stream::cut) {
      setup.plan = {tp(ways), sp()};  // section 4.2.2
    } else if (ways > 1) {
      setup.plan = {tp(ways)};
    }
    setup.batch = shape.b;
    setup.sequence = shape.s;
    setup.precision = Precision::bf16;
    setup.fp32_gradients = true;  // else the norm widens them, which grows with the layers too
    setup.recompute = recompute;
    const Experiment e = experiment(setup);
    bytes[more] = predict_rank(*e.plan, 0).memory[Category::activations];
  }
  REQUIRE((bytes[1] - bytes[0]) % 2 == 0);
  return (bytes[1] - bytes[0]) / 2;
}

const auto shapes = {
    Shape{128, 2, 64, 4, 2},  Shape{256, 1, 96, 8, 4}, Shape{64, 3, 128, 16, 8},
    Shape{512, 1, 192, 4, 4}, Shape{32, 8, 64, 8, 1},  Shape{2048, 4, 6144, 64, 8},
};

RecomputePolicy kept(RecomputePolicy::Kind kind, bool gathers = false) {
  RecomputePolicy policy;
  policy.kind = kind;
  policy.gathers = gathers;
  return policy;
}

}  // namespace

TEST_CASE("Activations of a layer follow Korthikanti et al. 2022, table 2") {
  using Kind = RecomputePolicy::Kind;
  for (const Shape& shape : shapes) {
    const auto [s, b, h, a, t] = shape;
    const std::int64_t sbh = s * b * h, rows = 4 * a * s * b / t, norms = 16 * s * b;
    INFO(fmt::format("s {} b {} h {} a {} t {}", s, b, h, a, t));
    // sbh (34 + 5 as / h)
    const Shape one{s, b, h, a, 1};
    CHECK(layer_bytes(one, Stream::whole, kept(Kind::none)) == 32 * sbh + rows * t + norms);
    // sbh (10 + 24 / t + 5 as / ht)
    CHECK(layer_bytes(shape, Stream::whole, kept(Kind::none)) ==
          8 * sbh + 24 * sbh / t + rows + norms);
    // sbh (10 + 24 / t), with selective recompute
    CHECK(layer_bytes(shape, Stream::whole, kept(Kind::selective)) ==
          8 * sbh + 22 * sbh / t + norms);
    // 2 sbh, with full
    CHECK(layer_bytes(shape, Stream::whole, kept(Kind::full)) == 2 * sbh);
    if (t == 1) continue;
    // sbh (34 / t + 5 as / ht): linears keep their part of what they read whole
    CHECK(layer_bytes(shape, Stream::cut, kept(Kind::none, true)) ==
          32 * sbh / t + rows + norms / t);
    // or the whole: two inputs, of 2 sbh each
    CHECK(layer_bytes(shape, Stream::cut, kept(Kind::none)) ==
          28 * sbh / t + 4 * sbh + rows + norms / t);
    // sbh 34 / t, with selective recompute
    CHECK(layer_bytes(shape, Stream::cut, kept(Kind::selective, true)) == 30 * sbh / t + norms / t);
    CHECK(layer_bytes(shape, Stream::cut, kept(Kind::full)) == 2 * sbh / t);
  }
}

// With scores that exist, the paper's 5as2b is 2as2b here: the softmax in 16 bits. Dropout's mask
// (as2b) and its output (2as2b) are not there: there is no dropout. Attention's backward reads no
// log-sum-exp, so `rows` are not kept. Each line is the paper's, less 2sbh of masks (those of
// Stream::cut are divided by t) and 3as2b / t, plus the norms' 16sb.
TEST_CASE("With unfused attention a layer keeps the square of the sequence, as table 2 has it") {
  using Kind = RecomputePolicy::Kind;
  for (const Shape& shape : shapes) {
    const auto [s, b, h, a, t] = shape;
    const std::int64_t sbh = s * b * h, scores = 2 * a * s * s * b, norms = 16 * s * b;
    INFO(fmt::format("s {} b {} h {} a {} t {}", s, b, h, a, t));
    const auto bytes = [](const Shape& of, Stream stream, const RecomputePolicy& recompute) {
      return layer_bytes(of, stream, recompute, "unfused");
    };
    CHECK(bytes({s, b, h, a, 1}, Stream::whole, kept(Kind::none)) == 32 * sbh + scores + norms);
    CHECK(bytes(shape, Stream::whole, kept(Kind::none)) ==
          8 * sbh + 24 * sbh / t + scores / t + norms);
    CHECK(bytes(shape, Stream::whole, kept(Kind::selective)) == 8 * sbh + 22 * sbh / t + norms);
    CHECK(bytes(shape, Stream::whole, kept(Kind::full)) == 2 * sbh);
    if (t == 1) continue;
    CHECK(bytes(shape, Stream::cut, kept(Kind::none, true)) ==
          32 * sbh / t + scores / t + norms / t);
    CHECK(bytes(shape, Stream::cut, kept(Kind::selective, true)) == 30 * sbh / t + norms / t);
    CHECK(bytes(shape, Stream::cut, kept(Kind::full)) == 2 * sbh / t);
  }
}

TEST_CASE(
    "... and with the struck terms the paper's figures for 22B parameters, 48 layers on tp 8") {
  using Kind = RecomputePolicy::Kind;
  const Shape shape{2048, 4, 6144, 64, 8};
  const auto [s, b, h, a, t] = shape;
  const std::int64_t sbh = s * b * h, rows = 4 * a * s * b / t, norms = 16 * s * b;
  const auto gib = [](std::int64_t layer) { return 48.0 * static_cast<double>(layer) / (1 << 30); };
  const std::int64_t scores = 5 * a * s * s * b / t;
  CHECK(gib(layer_bytes(shape, Stream::whole, kept(Kind::none)) - rows - norms + 2 * sbh +
            scores) == 59.25);
  CHECK(gib(layer_bytes(shape, Stream::cut, kept(Kind::selective, true)) - norms / t + 2 * sbh / t +
            2 * sbh / t) == 9.5625);
}
