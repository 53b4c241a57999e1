// Reads how a script wants its loss scaled for fp16: by a fixed factor, by one that grows until
// gradients overflow, or by a function.
#include "script/read_loss_scale.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

constexpr double usual_first = 65536;
constexpr double largest = 0x1p100;  // gradients are in fp32 at least when it is divided out

class Fixed final : public LossScale {
 public:
  explicit Fixed(double scale) : scale_(scale) {}
  double first() const override { return scale_; }
  double next(std::int64_t, double, bool, std::int64_t) const override { return scale_; }

 private:
  double scale_;
};

const Options& dynamic_options() {
  static const Options options = Options()
                                     .number("init", "the first factor")
                                     .fallback(usual_first)
                                     .range(std::ldexp(1, -40), largest)
                                     .number("growth", "what it is multiplied by")
                                     .fallback(2.0)
                                     .at_least(1)
                                     .number("backoff", "... after a step that overflowed")
                                     .fallback(0.5)
                                     .range(std::ldexp(1, -20), 1)
                                     .integer("interval", "good steps before it grows")
                                     .fallback(2000)
                                     .at_least(1)
                                     .unit("steps");
  return options;
}

class Dynamic final : public LossScale {
 public:
  explicit Dynamic(const Values& values)
      : init_(values.number("init")),
        growth_(values.number("growth")),
        backoff_(values.number("backoff")),
        interval_(values.integer("interval")) {}
  double first() const override { return init_; }
  double next(std::int64_t, double scale, bool overflowed, std::int64_t good) const override {
    if (overflowed) return scale * backoff_;
    const double grown = scale * growth_;
    return good >= interval_ && grown <= largest ? grown : scale;
  }

 private:
  double init_, growth_, backoff_;
  std::int64_t interval_;
};

class Function final : public LossScale {
 public:
  using Call = std::function<Json(const std::vector<Json>&)>;
  explicit Function(Call call) : call_(std::move(call)) {}
  double first() const override { return next(0, usual_first, false, 0); }
  double next(std::int64_t step, double scale, bool overflowed, std::int64_t) const override {
    const std::lock_guard lock(mutex_);
    const auto [known, fresh] = known_.try_emplace({step, scale, overflowed}, 0);
    if (!fresh) return known->second;
    const Json result = call_({Json(step), Json(scale), Json(overflowed)});
    const double next = result.is_number() ? result.get<double>() : std::nan("");
    if (!(next > 0 && next <= largest)) {
      known_.erase(known);
      throw Error(
          Stage::run, "function.result", "loss_scale",
          fmt::format("loss_scale: the function returned {} for step {}", json_text(result), step),
          "return a number above 0, of 2^100 at most");
    }
    return known->second = next;
  }

 private:
  const Call call_;
  mutable std::mutex mutex_;
  mutable std::map<std::tuple<std::int64_t, double, bool>, double> known_;
};

}  // namespace

std::shared_ptr<const LossScale> read_loss_scale(Json& given,
                                                 std::function<Json(const std::vector<Json>&)> call,
                                                 Problems& problems) {
  if (is_function(given)) return std::make_shared<Function>(std::move(call));
  const bool empty = given.is_array() && given.empty();  // Lua's {} may be a list or a table
  if (given == "dynamic" || given.is_object() || empty) {
    Problems found;
    const Values values =
        dynamic_options().read(given.is_object() ? given : Json::object(), "loss_scale", found);
    problems.add(found);
    given = values.json();
    return found.empty() ? std::make_shared<Dynamic>(values) : nullptr;
  }
  if (given.is_number() && given.get<double>() > 0 && given.get<double>() <= largest)
    return std::make_shared<Fixed>(given.get<double>());
  problems.add(
      Stage::options, "option.value", "loss_scale",
      fmt::format("loss_scale: got {}", describe(given)),
      "\"dynamic\", a number above 0 (2^100 at most), { init = 65536, growth = 2, backoff = 0.5, "
      "interval = 2000 }, or a function(step, scale, overflowed)");
  return nullptr;
}

}  // namespace mw
