// Faults of the field with rows of several documents, each as an op that is refused: positions that
// do not begin anew, windows and losses across documents, divisors of one rank alone.
#include <catch2/catch.hpp>

#include "lemma_graphs.h"
#include "meshwright/autograd_op.h"
#include "meshwright/error.h"
#include "support/setup.h"
#include "written_op.h"

using namespace mw;
using namespace mw::test;

namespace {

// The mean of each token and those before it, of its document or across documents. Tokens may lie
// in another order than that of their places; `document_as_it_lies` overlooks it.
class MeanSoFar final : public AutogradOp {
 public:
  enum class Sees { document, row, document_as_it_lies };
  explicit MeanSoFar(Sees sees) : sees_(sees) {}
  std::string kind() const override { return "mean_so_far"; }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    const std::int64_t tokens = inputs[0].size(1);
    const bool places = inputs.size() > 2 && sees_ != Sees::document_as_it_lies;
    const at::Tensor place = places ? inputs[2] : at::arange(tokens, at::kLong).unsqueeze(0);
    at::Tensor seen = place.unsqueeze(2).ge(place.unsqueeze(1));
    if (sees_ != Sees::row) seen = seen.logical_and(place.unsqueeze(1).ge(inputs[1].unsqueeze(-1)));
    const at::Tensor weights = seen.to(inputs[0].scalar_type());
    return {at::matmul(weights / weights.sum(-1, true), inputs[0])};
  }

 private:
  const Sees sees_;
};

// A loss that divides by the labels that it has itself: an average of averages.
class OwnMean final : public AutogradOp {
 public:
  std::string kind() const override { return "own_mean"; }
  OpClass op_class() const override { return OpClass::loss; }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    const at::Tensor counts = inputs[1].gt(0).to(inputs[0].scalar_type());
    return {(inputs[0].square().sum(-1) * counts).sum() / counts.sum().clamp_min(1)};
  }
};

// A builder after an op of x and the places of documents.
struct Packed {
  Builder b{"test", 4, 12, 160};
  int x = -1, starts = -1;
  Packed() {
    b.decoder_dims(50, 16, 4, 2, 24);
    x = b.embed();
    starts = b.graph.add_data("starts", {"batch", "seq"}, Scalar::index);
  }
};

LemmaReport report_of(MeanSoFar::Sees sees, bool parted = false) {
  Packed p;
  std::vector<Use> inputs{p.b.use(p.x), p.b.use(p.starts)};
  if (parted)
    inputs.push_back(
        p.b.use(p.b.graph.add_data(places_of_tokens, {"batch", "seq"}, Scalar::index)));
  const int made = p.b.append(p.b.op("mean", std::make_shared<MeanSoFar>(sees), inputs, {"seq"}),
                              {{"", p.b.dims(p.x)}})[0];
  p.b.head_and_loss(made);
  return check_lemmas(p.b.graph, every_lemma(p.b.graph));
}

std::string refusal(const Graph& graph) {
  try {
    graph.with_documents();
  } catch (const Error& error) {
    return error.problems().front().code + ": " + error.problems().front().message;
  }
  return "none";
}

}  // namespace

TEST_CASE("An op whose tokens see other documents is refused") {
  CHECK(report_of(MeanSoFar::Sees::document).failures.empty());
  const LemmaReport report = report_of(MeanSoFar::Sees::row);
  REQUIRE(!report.failures.empty());
  CHECK(says(report.failures[0], "a token's result changes with tokens of another document"));
}

TEST_CASE("An op that takes parted documents for rows in order is refused") {
  CHECK(report_of(MeanSoFar::Sees::document, true).failures.empty());
  const LemmaReport report = report_of(MeanSoFar::Sees::document_as_it_lies, true);
  REQUIRE(!report.failures.empty());
  CHECK(says(report.failures[0], "results change with the order in which tokens lie"));
}

TEST_CASE("A loss that divides by the labels of one rank or one microbatch is refused") {
  Packed p;
  const int divisors = p.b.graph.add_data(LossDivisor{}.name(), {"batch", "seq"}, Scalar::index);
  p.b.graph.loss = p.b.append(
      p.b.op("own", std::make_shared<OwnMean>(), {p.b.use(p.x), p.b.use(divisors)}), {{"", {}}})[0];
  CHECK(!check_lemmas(p.b.graph, every_lemma(p.b.graph)).failures.empty());
}

TEST_CASE("Ops without a form for documents are refused, by name") {
  Packed p;
  const auto across = std::make_shared<MeanSoFar>(MeanSoFar::Sees::row);
  const int mixed =
      p.b.append(p.b.op("mixes", across, {p.b.use(p.x)}, {"seq"}), {{"", p.b.dims(p.x)}})[0];
  p.b.dim("places", 12);
  const int table = p.b.parameter("table", {"places", "hidden"});
  const int places = p.b.lookup("positions", p.b.positions, table);
  p.b.head_and_loss(p.b.map("sum", "a + b", {mixed, places}));
  const std::string text = refusal(p.b.graph);
  CHECK(text.find("model.documents: ") == 0);
  CHECK(text.find("mixes") != std::string::npos);
  CHECK(text.find("positions") != std::string::npos);
}
