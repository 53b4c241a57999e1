// Runs an op on the parts of its operands, one rank after the other, and compares with the whole.
#include "prove/lemmas/parts.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "meshwright/engine/plugin_call.h"

namespace mw::lemmas {

Bound bound_of(at::ScalarType type) {
  return type == at::kDouble ? Bound{} : Bound{1e-4, 1e-6};
}

double largest(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  return tensor.abs().max().to(at::kDouble).item<double>();
}

Piece piece_of(const OpTraits& traits, std::size_t input) {
  if (!traits.splits) return Piece::backward;
  return input == 0 ? Piece::dgrad : Piece::wgrad;
}

std::string words_of_thrown() {
  try {
    throw;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return thrown_text();
  }
}

namespace {

// The indices of the `flat`-th element of a tensor: "[1, 3]".
std::string place_of(const at::Tensor& tensor, std::int64_t flat) {
  std::vector<std::int64_t> place(static_cast<std::size_t>(tensor.dim()));
  for (std::size_t d = place.size(); d-- > 0;) {
    place[d] = flat % tensor.size(static_cast<std::int64_t>(d));
    flat /= tensor.size(static_cast<std::int64_t>(d));
  }
  return fmt::format("[{}]", fmt::join(place, ", "));
}

}  // namespace

std::string difference(const at::Tensor& found, const at::Tensor& needed, double scale,
                       const Bound& bound, double& error) {
  error = 0;
  if (!found.defined()) return "nothing is there";
  if (found.sizes() != needed.sizes()) {
    error = 1;
    return fmt::format("it has the shape [{}] where [{}] is needed", fmt::join(found.sizes(), ", "),
                       fmt::join(needed.sizes(), ", "));
  }
  if (needed.numel() == 0) return "";
  const at::Tensor f = found.to(at::kDouble).contiguous().flatten(),
                   n = needed.to(at::kDouble).contiguous().flatten();
  if (at::equal(f, n)) return "";
  at::Tensor bad = (f - n).abs();
  bad.masked_fill_(at::isfinite(bad).logical_not(), std::numeric_limits<double>::max());
  bad.masked_fill_(f.eq(n), 0);
  const auto [worst, at] = bad.max(0);
  const double most = worst.item<double>();
  const double of = std::max({scale, largest(n), std::numeric_limits<double>::min()});
  if (most <= std::max(bound.relative * of, bound.floor)) return "";
  error = most / of;
  const std::int64_t k = at.item<std::int64_t>();
  std::string text =
      fmt::format("found {:.6g} where {:.6g} is needed", f[k].item<double>(), n[k].item<double>());
  if (needed.dim() > 0) text += " at " + place_of(needed, k);
  const double square = n.dot(n).item<double>();
  if (square > 0 && std::isfinite(most)) {
    const double factor = f.dot(n).item<double>() / square;
    const bool scaled = std::abs(factor) > 1e-6 &&
                        largest(f - n * factor) <= std::max(1e-6 * largest(n), bound.floor);
    if (scaled && n.numel() > 1) text += fmt::format(", {:.6g} times that everywhere", factor);
    if (scaled && n.numel() == 1) text += fmt::format(", {:.6g} times that", factor);
  }
  if (!std::isfinite(error) || error > 1e300) return text;
  return text + fmt::format(" (relative error {:.2g})", error);
}

namespace {

struct Rank {
  Coordinates at;
  OpCase c;
  Made made;
};

class Parts {
 public:
  Parts(WholeOp& whole, CutOp& cut, bool backward, const Bound& bound)
      : whole_(whole), cut_(cut), backward_(backward), bound_(bound) {}

  std::vector<Fault> check() {
    const bool ring = cut_.ring_ways() > 1;
    for (const Coordinates& at : cut_.ranks()) ranks_.push_back({at, {}, {}});
    for (Rank& rank : ranks_) {
      const bool ran = attempt([&] {
        if (ring) {
          ring_steps(rank);
        } else {
          once(rank);
        }
      });
      if (!ran) return std::move(faults_);
    }
    for (std::size_t k = 0; k < whole_.op().outputs.size(); ++k) output(k);
    if (!backward_) return std::move(faults_);
    for (std::size_t i = 0; i < whole_.op().inputs.size(); ++i) {
      if (whole_.wants(i)) gradient(i);
    }
    return std::move(faults_);
  }

 private:
  template <class Body>
  bool attempt(const Body& body) {
    try {
      body();
      return true;
    } catch (const NotChecked&) {
      throw;
    } catch (...) {
      faults_.push_back(
          {piece_, "it fails on a part of what it takes whole: " + words_of_thrown()});
      return false;
    }
  }

  Tensors seeds(const Rank& rank) const {
    Tensors seeds;
    for (std::size_t k = 0; k < whole_.op().outputs.size(); ++k) {
      const at::Tensor& seed = whole_.seeds()[k];
      seeds.push_back(
          seed.defined() ? cut_.part(whole_.op().outputs[k], seed, cut_.table().arrives[k], rank.at)
                         : at::Tensor());
    }
    return seeds;
  }

  void once(Rank& rank) {
    piece_ = Piece::forward;
    rank.c = cut_.at(rank.at);
    if (!backward_) {
      rank.made = lemmas::forward(rank.c);
      return;
    }
    try {
      rank.made = run(rank.c, seeds(rank), Into::fresh);
    } catch (...) {
      lemmas::forward(rank.c);  // throws here if forward is what failed
      piece_ = piece_of(whole_.traits(), 0);
      throw;
    }
  }

  // Runs the ring steps of one rank. Gradients of rotating operands are summed at the rank that
  // owns the shard.
  void ring_steps(Rank& rank) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const int ways = cut_.ring_ways();
    piece_ = Piece::forward;
    std::vector<OpCase> steps;
    for (int t = 0; t < ways; ++t) steps.push_back(cut_.at(rank.at, t));
    Tensors outputs, saved;
    for (int t = 0; t < ways; ++t) {
      OpCall call =
          call_of(steps[static_cast<std::size_t>(t)], steps[static_cast<std::size_t>(t)].inputs);
      if (t > 0) {
        call.outputs = outputs;
        call.saved = saved;
      }
      call.ring_steps = ways;
      whole_.op().type->forward(whole_.op(), call);
      outputs = call.outputs;
      saved = call.saved;
    }
    rank.c = steps.front();
    rank.made.outputs = outputs;
    rank.made.inputs.resize(whole_.op().inputs.size());
    if (!backward_) return;
    piece_ = piece_of(whole_.traits(), 0);
    const Tensors seeds = this->seeds(rank);
    for (int t = 0; t < ways; ++t) {
      const OpCase& c = steps[static_cast<std::size_t>(t)];
      OpCall call = call_of(c, c.inputs);
      call.outputs = outputs;
      call.saved = saved;
      keep_for_backward(whole_.traits(), call);
      call.grad_outputs = seeds;
      call.grad_inputs.resize(c.inputs.size());
      call.ring_steps = ways;
      for (std::size_t i = 0; t > 0 && i < c.inputs.size(); ++i) {
        if (!c.wants[i] || cut_.rotates(i)) continue;
        call.grad_inputs[i] = rank.made.inputs[i];
        call.accumulate[i] = true;
      }
      run_backward(c, whole_.traits(), call);
      for (std::size_t i = 0; i < c.inputs.size(); ++i) {
        if (!c.wants[i]) continue;
        if (cut_.rotates(i)) {
          come_home(cut_.before(rank.at, t), i, call.grad_inputs[i]);
        } else {
          rank.made.inputs[i] = call.grad_inputs[i];
        }
      }
    }
  }

  void come_home(const Coordinates& owner, std::size_t input, const at::Tensor& gradient) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [&](const Rank& one) { return one.at == owner; });
    rank->made.inputs.resize(whole_.op().inputs.size());
    at::Tensor& sum = home_[{rank - ranks_.begin(), input}];
    sum = sum.defined() ? sum + gradient : gradient.clone();
  }

  // Compares a value or gradient of the ranks, with Partial shares added up, with the whole op's.
  // Reports the worst difference.
  template <class Of>
  void compare(int value, const at::Tensor& whole, const Layout& layout, Piece piece,
               const std::string& name, const Of& of) {
    Layout lies = layout;
    bool sum = false;
    for (Placement& place : lies) {
      sum = sum || place.is_partial();
      if (place.is_partial()) place = Placement::replicate();
    }
    Fault worst{piece, "", 0};
    for (const Rank& first : ranks_) {
      const auto begins = [&](std::size_t a) {
        return !layout[a].is_partial() || first.at[a] == 0;
      };
      bool is_first = true;
      for (std::size_t a = 0; a < layout.size(); ++a) is_first = is_first && begins(a);
      if (!is_first) continue;
      double scale = 0;
      const at::Tensor found = joined(first, layout, of, scale);
      const at::Tensor needed = this->needed(value, whole, lies, first.at);
      double error = 0;
      const std::string text = difference(found, needed, scale, bound_, error);
      if (text.empty() || (!worst.text.empty() && error <= worst.error)) continue;
      worst.error = error;
      const bool part =
          std::any_of(lies.begin(), lies.end(), [](const Placement& p) { return p.is_shard(); });
      worst.text = fmt::format("what {} of {} {} {}: {}", sum ? "the ranks make" : "a rank makes",
                               name, sum ? "does not add up to" : "is not",
                               part ? "the part of the whole's" : "what one rank makes", text);
    }
    if (!worst.text.empty()) faults_.push_back(worst);
  }

  template <class Of>
  at::Tensor joined(const Rank& first, const Layout& layout, const Of& of, double& scale) const {
    at::Tensor joined;
    for (const Rank& rank : ranks_) {
      bool same = true, max = false;
      for (std::size_t a = 0; a < layout.size(); ++a) {
        same = same && (layout[a].is_partial() || rank.at[a] == first.at[a]);
        max = max || (layout[a].is_partial() && layout[a].reduction == Reduction::max);
      }
      if (!same) continue;
      const at::Tensor& share = of(rank);
      if (!share.defined()) return {};
      if (share.is_floating_point()) {
        const double most = largest(share);
        if (std::isfinite(most)) scale = std::max(scale, most);
      }
      if (!joined.defined()) {
        joined = share.clone();
      } else if (share.sizes() != joined.sizes()) {
        return share;
      } else {
        joined = max ? at::maximum(joined, share) : joined + share;
      }
    }
    return joined;
  }

  at::Tensor needed(int value, const at::Tensor& whole, const Layout& layout,
                    const Coordinates& at) const {
    if (value != whole_.rows().places || value < 0) return cut_.part(value, whole, layout, at);
    return at::tensor(cut_.rows(layout, at).choices, at::kLong);
  }

  void output(std::size_t k) {
    const int value = whole_.op().outputs[k];
    compare(value, whole_.made().outputs[k], cut_.table().out[k], Piece::forward,
            whole_.graph().value(value).name,
            [&](const Rank& rank) -> const at::Tensor& { return rank.made.outputs.at(k); });
  }

  void gradient(std::size_t i) {
    const int value = whole_.op().inputs[i].value;
    const at::Tensor& whole = whole_.made().inputs[i];
    const Piece piece = piece_of(whole_.traits(), i);
    if (!whole.defined()) return;
    compare(value, whole, cut_.table().gradient[i], piece,
            "the gradient of " + whole_.input_name(i), [&](const Rank& rank) -> const at::Tensor& {
              if (!cut_.rotates(i)) return rank.made.inputs.at(i);
              return home_.at({&rank - ranks_.data(), i});
            });
  }

  WholeOp& whole_;
  CutOp& cut_;
  const bool backward_;
  const Bound bound_;
  Piece piece_ = Piece::forward;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::ptrdiff_t, std::size_t>, at::Tensor> home_;
  std::vector<Fault> faults_;
};

}  // namespace

std::vector<Fault> check_parts(WholeOp& whole, CutOp& cut, bool backward, const Bound& bound) {
  return Parts(whole, cut, backward, bound).check();
}

}  // namespace mw::lemmas
