// `mw.synthetic`: endless tokens that cost no file and can be learned.
#pragma once

#include "meshwright/data.h"

namespace mw {

// A random Markov chain. Each id has four successors, chosen by the seed, taken with probability
// 1/2, 1/4, 1/8 and 1/8. A model that has learned it reaches a mean loss of at most 1.75 ln 2
// = 1.213 nats (less where successors of an id coincide, as they must in a tiny vocab). Sample k is
// a function of (seed, k).
class SyntheticSource final : public TokenSource {
 public:
  static Options options();
  SyntheticSource(std::int64_t vocab, std::int64_t seed);
  SyntheticSource(const Values& values, const DataContext& context);
  std::int64_t vocab() const override { return vocab_; }
  std::int64_t tokens() const override { return 0; }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;

 private:
  std::int64_t vocab_;
  std::uint64_t seed_;
};

}  // namespace mw
