// What an op's kernel allocates for itself: measured by a trial with operands of its shapes, and
// estimated where the op is too large for one.
#include "meshwright/engine/scratch.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <catch2/catch.hpp>
#include <stdexcept>

using namespace mw;

namespace {

// Allocates so many bytes for each element, so many for each thread, and results.
class Known final : public OpType {
 public:
  Known(std::int64_t of_element, std::int64_t of_thread)
      : of_element_(of_element), of_thread_(of_thread) {}
  std::string kind() const override { return "known"; }
  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true};
    traits.backward_reads_output = {false};
    return traits;
  }
  void forward(const Op&, OpCall& call) const override {
    ++tried;
    seen = call.inputs[0].numel();
    call.outputs = {at::empty_like(call.inputs[0])};
    at::empty({of_element_ * seen}, at::kByte);
    at::empty({of_thread_ * at::get_num_threads()}, at::kByte);
    const at::Tensor buffer = at::empty_like(call.inputs[0]);
  }
  Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }

  mutable int tried = 0;
  mutable std::int64_t seen = 0;  // elements, in the last trial

 private:
  const std::int64_t of_element_, of_thread_;
};

LocalDims dims_of(const std::vector<std::pair<const char*, std::int64_t>>& sizes) {
  LocalDims dims;
  for (const auto& [name, size] : sizes) dims.set({name, 0, size, size, {}});
  return dims;
}

Op op_of(std::shared_ptr<const OpType> type, const std::vector<Dims>& inputs,
         const std::vector<Dims>& outputs) {
  Op op;
  op.type = std::move(type);
  for (const Dims& dims : inputs) op.inputs.push_back({-1, dims});
  op.output_dims = outputs;
  return op;
}

struct KnownTrial {
  KnownTrial(std::int64_t of_element, std::int64_t of_thread, std::int64_t x, std::int64_t y,
             at::ScalarType type = at::kFloat, int threads = 1)
      : known(std::make_shared<Known>(of_element, of_thread)),
        op(op_of(known, {{"x", "y"}}, {{"x", "y"}})),
        trial{op, Piece::forward, dims_of({{"x", x}, {"y", y}}), type, threads, {{type}}, {type}} {}
  std::shared_ptr<const Known> known;
  Op op;
  KernelTrial trial;
};

// Throws where a kernel is not called as an executor would call it.
class Particular final : public OpType {
 public:
  std::string kind() const override { return "particular"; }
  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.splits = splits;
    traits.backward_reads_input = {true, true, false};
    traits.backward_reads_output = {false, true};
    traits.saved = {{"sums", {"x"}, 2, true}};
    return traits;
  }
  void forward(const Op&, OpCall& call) const override {
    must(call.inputs[0].scalar_type() == at::kBFloat16 && call.inputs[0].size(1) == 6);
    must(call.inputs[2].scalar_type() == at::kLong && call.inputs[2].max().item<int>() == 0);
    must(call.real == at::kBFloat16 && !call.in_place);
    must(call.outputs[1].defined() == (call.dims.ring_step() > 0));
    must(call.saved[0].defined() == (call.dims.ring_step() > 0));
    must(call.dims.ring_step() < call.ring_steps);
  }
  void backward(const Op&, OpCall& call) const override {
    backward_pieces(call);
    must(call.wants == std::vector<bool>{true, true, false});
  }
  void dgrad(const Op&, OpCall& call) const override {
    backward_pieces(call);
    must(call.wants == std::vector<bool>{true, false, false});
  }
  void wgrad(const Op&, OpCall& call) const override {
    backward_pieces(call);
    must(call.wants == std::vector<bool>{false, true, false});
    must(call.accumulate[1] && call.grad_inputs[1].sizes() == at::IntArrayRef({6}));
  }
  Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }

  bool splits = false;

 private:
  static void must(bool holds) {
    if (!holds) throw std::logic_error("called amiss");
  }
  static void backward_pieces(const OpCall& call) {
    must(call.inputs[0].defined() && !call.inputs[2].defined());
    must(!call.outputs[0].defined() && call.outputs[1].defined());
    must(call.saved[0].scalar_type() == at::kFloat);
    must(call.saved[0].sizes() == at::IntArrayRef({5, 2}));
    must(!call.grad_outputs[0].defined() && call.grad_outputs[1].scalar_type() == at::kFloat);
    must(!call.accumulate[0] && !call.grad_inputs[0].defined());
  }
};

// Rows of each group that a trial gives to its kernel.
std::vector<std::int64_t> rows_given;

class TakesRows final : public OpType {
 public:
  std::string kind() const override { return "takes_rows"; }
  OpTraits traits(const Op&) const override { return {}; }
  void forward(const Op&, OpCall& call) const override {
    rows_given = call.rows;
    if (call.inputs[0].size(0) != 7) throw std::logic_error("other rows");
  }
  Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }
};

}  // namespace

TEST_CASE("A kernel's scratch is what it takes beyond its results") {
  // What it has for each element is let go of before the rest is made.
  CHECK(try_scratch(KnownTrial(9, 100, 20, 30).trial) == 9 * 600);
  CHECK(try_scratch(KnownTrial(0, 100, 20, 30).trial) == 4 * 600);
  CHECK(try_scratch(KnownTrial(0, 0, 20, 30, at::kDouble).trial) == 8 * 600);
  CHECK(try_scratch(KnownTrial(0, 5000, 20, 30, at::kFloat, 2).trial) == 10000);
  const Scratch scratch = scratch_of(KnownTrial(9, 100, 20, 30).trial);
  CHECK(scratch.bytes == 9 * 600);
  CHECK(scratch.measured);
  CHECK(scratch.estimated == 0);
}

TEST_CASE("A piece is tried once, and anew for other sizes, types and threads") {
  KnownTrial one(9, 0, 20, 30);
  for (int k = 0; k < 3; ++k) CHECK(scratch_of(one.trial).bytes == 5400);
  CHECK(one.known->tried == 1);
  one.trial.threads = 2;
  CHECK(scratch_of(one.trial).bytes == 5400);
  one.trial.dims = dims_of({{"x", 30}, {"y", 20}});
  CHECK(scratch_of(one.trial).bytes == 5400);
  one.trial.real = at::kDouble;
  one.trial.inputs = {{at::kDouble}};
  CHECK(scratch_of(one.trial).bytes == 5400);
  CHECK(one.known->tried == 4);
  // Another op, though it is of the same kind and sizes.
  CHECK(scratch_of(KnownTrial(10, 0, 20, 30).trial).bytes == 6000);
}

TEST_CASE("A piece that is too large is tried with smaller dims, and the rest is an estimate") {
  const std::int64_t large = 1 << 15;
  const KnownTrial grows(9, 0, large, large), stays(0, 200 << 20, large, large);
  const Scratch grown = scratch_of(grows.trial);
  CHECK(grown.bytes == 9 * large * large);
  CHECK_FALSE(grown.measured);
  CHECK(grown.estimated == grown.bytes);
  CHECK(grows.known->tried == 2);
  CHECK(grows.known->seen < 1 << 22);
  // What a kernel takes for each thread does not grow with its operands.
  CHECK(scratch_of(stays.trial).bytes == 200 << 20);
  // A dim that lies in several runs stays as it is.
  KnownTrial runs(9, 0, 1 << 14, 1 << 14);
  runs.trial.dims.set({"y", 0, 1 << 14, 1 << 15, {{0, 1 << 13}, {3 << 13, 1 << 13}}});
  CHECK(scratch_of(runs.trial).bytes == std::int64_t{9} << 28);
  CHECK(runs.known->seen % (1 << 14) == 0);
}

TEST_CASE("A kernel that fails in a trial has no scratch, which is an estimate") {
  const Op op = op_of(std::make_shared<Particular>(), {{"x"}, {"x"}, {"x"}}, {{"x"}, {"x"}});
  const KernelTrial trial{op,
                          Piece::forward,
                          dims_of({{"x", 3}}),
                          at::kFloat,
                          1,
                          {{at::kFloat}, {at::kFloat}, {at::kFloat}},
                          {at::kLong, at::kFloat}};
  CHECK_FALSE(try_scratch(trial).has_value());
  const Scratch scratch = scratch_of(trial);
  CHECK(scratch.bytes == 0);
  CHECK_FALSE(scratch.measured);
}

TEST_CASE("A trial calls a kernel as an executor does") {
  const auto type = std::make_shared<Particular>();
  const Op op = op_of(type, {{"x", "y"}, {"y"}, {"x"}}, {{"x"}, {"x", "y"}});
  KernelTrial trial{op,
                    Piece::forward,
                    dims_of({{"x", 5}, {"y", 6}}),
                    at::kBFloat16,
                    1,
                    {{at::kBFloat16, true}, {at::kBFloat16, true, true}, {at::kLong}},
                    {at::kLong, at::kFloat}};
  CHECK(try_scratch(trial).has_value());
  trial.piece = Piece::backward;
  CHECK(try_scratch(trial).has_value());
  type->splits = true;
  for (const Piece piece : {Piece::dgrad, Piece::wgrad}) {
    INFO(name_of(piece));
    trial.piece = piece;
    CHECK(try_scratch(trial).has_value());
  }
  trial.piece = Piece::forward;
  trial.dims.set_ring_step(2);
  CHECK(try_scratch(trial).has_value());
}

TEST_CASE("Rows of a trial are shared out evenly") {
  const Op op = op_of(std::make_shared<TakesRows>(), {{"experts", "tokens", "x"}}, {});
  KernelTrial trial{op,
                    Piece::forward,
                    dims_of({{"experts", 3}, {"tokens", 14}, {"x", 2}}),
                    at::kFloat,
                    1,
                    {{at::kFloat}},
                    {}};
  trial.sparse = {{"experts", "tokens"}, 1.0 / 6};
  trial.dims.set_sparse(trial.sparse);
  REQUIRE(try_scratch(trial).has_value());
  CHECK(rows_given == std::vector<std::int64_t>{3, 2, 2});
}
