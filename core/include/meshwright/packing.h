// The interface of policies that lay documents into rows, the `into` of mw.pack { … }, which
// plugins may implement; "balanced" is a built-in one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "meshwright/registration.h"

namespace mw {

// The documents of a window of samples, which are to be laid into as many rows.
struct PackingRequest {
  std::vector<std::int64_t> lengths;  // tokens of each document, in the order of the samples
  std::vector<double> work;           // pairs of a token and one that it sees, of each document
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // the length of a row; rows * tokens is the sum of `lengths`
};

// A packing policy. All ranks call it, in their own threads and processes, and it must answer a
// request in the same way on each of them.
class Packing {
 public:
  virtual ~Packing() = default;
  // The documents of each row, by their index in `lengths`, in the order in which they lie there;
  // each document is in one row. Rows at the end may be left out. What does not fit its row goes on
  // in others, as a document of its own.
  virtual std::vector<std::vector<std::size_t>> rows(const PackingRequest& request) const = 0;
  // Whether, by default, a step's rows go to microbatches and ranks so that these have equal work.
  virtual bool balances() const { return false; }
};

// A policy's constructor takes (const Values&).
template <>
struct KindOf<Packing> {
  static constexpr Kind kind = Kind::packing;
  using Make = std::unique_ptr<Packing>(const Values& values);
};
template <class Class>
constexpr Registration packing(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Packing, Class>(name, doc);
}

}  // namespace mw
