// An op whose forward and backward a test writes, in a graph around it, and what its lemmas say.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/kernel.h"
#include "prove/lemmas/lemmas.h"
#include "prove/prove.h"

namespace mw::test {

// Its backward reads all inputs and no output.
class Written : public OpType {
 public:
  std::string kind() const override { return "written"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input.assign(op.inputs.size(), true);
    traits.backward_reads_output.assign(op.output_dims.size(), false);
    traits.gradient_passes.assign(op.inputs.size(), false);
    return traits;
  }
  Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }

 protected:
  static void put(OpCall& call, std::size_t i, const at::Tensor& gradient) {
    if (!call.wants[i]) return;
    if (!call.grad_inputs[i].defined()) {
      call.grad_inputs[i] = gradient.clone();
    } else if (call.accumulate[i]) {
      call.grad_inputs[i].add_(gradient);
    } else {
      call.grad_inputs[i].copy_(gradient);
    }
  }
};

// y = x w, over rows; what a test makes of its gradients.
class Scaled : public Written {
 public:
  void forward(const Op&, OpCall& call) const override {
    call.outputs[0] = call.inputs[0] * call.inputs[1];
  }
  void backward(const Op&, OpCall& call) const override {
    const at::Tensor& dy = call.grad_outputs[0];
    put(call, 0, dy * call.inputs[1]);
    put(call, 1, (dy * call.inputs[0]).sum(at::IntArrayRef{0, 1}));
  }
};

// One op on the tokens' embedding (batch, seq, hidden), with a weight (hidden), and the loss of it.
struct WithOp {
  Graph graph;
  int op = -1;
};
inline WithOp graph_with(std::shared_ptr<const OpType> type, bool weight = true, Dims whole = {}) {
  Builder b("test", 4, 10, 160);
  b.decoder_dims(50, 16, 4, 2, 24);
  const int x = b.embed();
  std::vector<Use> inputs{b.use(x)};
  if (weight) inputs.push_back(b.use(b.parameter("written.weight", {"hidden"})));
  const int y = b.append(b.op("written", std::move(type), std::move(inputs), std::move(whole)),
                         {{"", b.dims(x)}})[0];
  b.head_and_loss(y);
  const int op = b.graph.value(y).producer;
  return {std::move(b.graph), op};
}

inline std::vector<Lemma> cut_by(const WithOp& made, const std::vector<std::string>& cut,
                                 const std::vector<std::string>& follow = {}, bool ring = false) {
  std::vector<Lemma> lemmas;
  const std::string kind = made.graph.ops()[static_cast<std::size_t>(made.op)].kind();
  for (const Piece piece : {Piece::forward, Piece::backward})
    lemmas.push_back({made.op, kind, piece, cut, follow, false, ring});
  return lemmas;
}

// The one failure of the op under these lemmas.
inline Problem refusal(const WithOp& made, const std::vector<Lemma>& lemmas) {
  const LemmaReport report = check_lemmas(made.graph, lemmas);
  for (const Problem& failure : report.failures) {
    CHECK(failure.stage == Stage::plan);
    CHECK(failure.code == "prove.lemma");
    UNSCOPED_INFO(failure.message);
  }
  REQUIRE(!report.failures.empty());
  return report.failures.front();
}
// Whether one of the failures says this.
inline bool one_says(const WithOp& made, const std::vector<Lemma>& lemmas,
                     const std::string& text) {
  const LemmaReport report = check_lemmas(made.graph, lemmas);
  for (const Problem& failure : report.failures) UNSCOPED_INFO(failure.message);
  return std::any_of(report.failures.begin(), report.failures.end(), [&](const Problem& failure) {
    return failure.message.find(text) != std::string::npos;
  });
}
inline bool says(const Problem& problem, const std::string& text) {
  return problem.message.find(text) != std::string::npos;
}

inline void must_hold(const WithOp& made, const std::vector<Lemma>& lemmas) {
  const LemmaReport report = check_lemmas(made.graph, lemmas);
  for (const Problem& failure : report.failures) FAIL_CHECK(failure.message);
  CHECK(report.checked >= static_cast<int>(lemmas.size()));
}

}  // namespace mw::test
