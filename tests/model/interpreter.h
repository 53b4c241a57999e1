// Runs a whole graph on one rank: the least that a program must do.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "meshwright/graph.h"

namespace mw::test {

struct Outcome {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;  // of parameters, by name
};

// `given`: data and parameters by name. Gradients are added where a value is used more than once.
Outcome interpret(const Graph& graph, const std::map<std::string, at::Tensor>& given);

// Initial parameters of `type` and random tokens.
std::map<std::string, at::Tensor> start(const Graph& graph, std::uint64_t seed,
                                        at::ScalarType type);

}  // namespace mw::test
