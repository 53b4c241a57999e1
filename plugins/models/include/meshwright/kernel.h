// The second layer of the SDK: what models are made of. op.h says what an op is and what its author
// must provide; autograd_op.h is for ops that torch differentiates; ops.h has the built-in ops;
// builder.h makes graphs (graph.h) of ops; model.h registers models, block_op.h ops that a script's
// model calls by name. None of it knows a mesh, a rank or a collective.
//
// An op of one's own, differentiated by torch, and where a model uses it:
//
//   class SquaredRelu final : public mw::AutogradOp {
//    public:
//     std::string kind() const override { return "squared_relu"; }
//     std::vector<at::Tensor> compute(const mw::Op&, const mw::LocalDims&,
//                                     const std::vector<at::Tensor>& in) const override {
//       return {at::relu(in[0]).square()};
//     }
//   };
//   const int y = b.append(b.op(b.name("act"), std::make_shared<SquaredRelu>(), {b.use(x)}),
//                          {{"", b.dims(x)}})[0];
#pragma once

#include "meshwright/autograd_op.h"
#include "meshwright/block_op.h"
#include "meshwright/builder.h"
#include "meshwright/graph.h"
#include "meshwright/model.h"
#include "meshwright/op.h"
#include "meshwright/ops.h"
