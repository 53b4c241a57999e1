// Says of an op that its gradient is meant to be no derivative.
#pragma once

namespace mw {

// A base for an OpType, beside its own: what backward gives is not the derivative of forward, on
// purpose, as where a rounding passes its gradient straight through (Bengio et al. 2013,
// arXiv:1308.3432). A plan that uses the op is then not refused for it (`prove.lemma`), and
// `plugins test` leaves out of its comparison with differences of the loss those parameters whose
// gradients come through such an op, and says so. Nothing else asks: every mix must still equal one
// rank.
//
//   class Rounded final : public mw::OpType, public mw::StraightThrough { … };
class StraightThrough {
 public:
  virtual ~StraightThrough() = default;
};

}  // namespace mw
