// Simulates a run that fails, writes checkpoints and restarts, and finds how often it should write
// them.
#include "predict/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "meshwright/engine/text.h"
#include "predict/fields.h"

namespace mw {
namespace {

constexpr double day = 86400;
// The least number of failures in a simulation, so that its shares err by less than a per cent.
constexpr double least_failures = 4000;

// The share of the time in which some device is slow, if all slow spells last equally long.
double slow_share(const GoodputRequest& r) {
  if (r.slow_mtbf <= 0) return 0;
  return 1 - std::exp(-r.devices * r.slow_seconds / r.slow_mtbf);
}

// Simulates a run: failures and slow devices come at random, and a clock goes through them.
class RunSimulation {
 public:
  RunSimulation(const GoodputRequest& request, std::int64_t steps)
      : request_(request),
        steps_(static_cast<double>(steps)),
        random_(request.seed),
        causes_(request.causes.size()),
        next_failure_(draw(request.mtbf / request.devices)),
        next_slow_(request.slow_mtbf > 0 ? draw(request.slow_mtbf / request.devices) : INFINITY) {}

  GoodputShares run() {
    const double failure = request_.mtbf / request_.devices;
    const double end = std::max(request_.days * day, least_failures * failure);
    while (clock_ < end) {
      if ((++rounds_ & 1023) == 0) throw_if_stopped();
      const double before = clock_;
      const bool works = work(steps_ * request_.step);
      const double worked = clock_ - before;
      if (!works || !pass(request_.checkpoint)) {
        shares_.repeated += clock_ - before;
        restart(clock_ - before);
        continue;
      }
      shares_.useful += steps_ * request_.step;
      shares_.slow += worked - steps_ * request_.step;
      shares_.checkpoints += request_.checkpoint;
    }
    for (double* share : {&shares_.useful, &shares_.repeated, &shares_.checkpoints,
                          &shares_.restarts, &shares_.slow})
      *share /= clock_;
    for (Goodput::OfCause& cause : causes_) cause.lost /= clock_;
    return shares_;
  }

  std::int64_t failures() const { return failures_; }
  const std::vector<Goodput::OfCause>& causes() const { return causes_; }

 private:
  double draw(double mean) { return -mean * std::log(1 - uniform_(random_)); }

  // Moves the clock; false if a failure comes first, at which the clock then stands.
  bool pass(double seconds) {
    if (clock_ + seconds < next_failure_) {
      clock_ += seconds;
      return true;
    }
    clock_ = next_failure_;
    return false;
  }

  // Does `left` seconds of work, which take longer while a device is slow. False if a failure comes
  // first.
  bool work(double left) {
    while (left > 0) {
      while (next_slow_ <= clock_) {
        slow_until_ = std::max(slow_until_, next_slow_ + request_.slow_seconds);
        next_slow_ += draw(request_.slow_mtbf / request_.devices);
      }
      const bool slow = clock_ < slow_until_;
      const double rate = slow ? 1 / request_.slowdown : 1;
      const double until = slow ? slow_until_ : next_slow_;
      const double seconds = std::min(left / rate, until - clock_);
      if (!pass(seconds)) return false;
      left -= seconds * rate;
      if (left <= 1e-9 * request_.step) return true;
      if (seconds == 0) clock_ = std::nextafter(clock_, INFINITY);
    }
    return true;
  }

  // Restarts the run; a failure meanwhile begins the restart anew. A slow device stays, as it may
  // not have been the one that failed.
  // `repeated`: seconds of work that the first failure has lost. Where another failure comes
  // meanwhile, the run goes on when the longer of both restarts is over, and the time counts to the
  // cause of that restart.
  void restart(double repeated) {
    double end = 0;
    std::size_t holds = 0;
    for (bool done = false; !done;) {
      ++failures_;
      const std::size_t cause = draw_cause();
      next_failure_ = clock_ + draw(request_.mtbf / request_.devices);
      const double own =
          clock_ + (causes_.empty() ? request_.restart : request_.causes[cause].restart);
      if (own > end) {
        end = own;
        holds = cause;
      }
      const double before = clock_;
      done = pass(end - clock_);
      shares_.restarts += clock_ - before;
      if (causes_.empty()) continue;
      ++causes_[cause].failures;
      causes_[holds].lost += clock_ - before + std::exchange(repeated, 0);
    }
  }

  // Draws the cause of a failure: a cause comes the more often, the shorter the time between its
  // own failures.
  std::size_t draw_cause() {
    if (causes_.empty()) return 0;
    double left = uniform_(random_) / request_.mtbf;
    std::size_t cause = 0;
    while (cause + 1 < causes_.size() && left > 1 / request_.causes[cause].mtbf)
      left -= 1 / request_.causes[cause++].mtbf;
    return cause;
  }

  const GoodputRequest& request_;
  const double steps_;
  std::mt19937_64 random_;
  std::vector<Goodput::OfCause> causes_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  double clock_ = 0, next_failure_ = 0, next_slow_ = 0, slow_until_ = 0;
  std::int64_t failures_ = 0;
  std::uint64_t rounds_ = 0;
  GoodputShares shares_;
};

// The steps between checkpoints, near `around` seconds, with the most useful time. The same
// failures come in each simulation, so that intervals are told apart by their own merits.
std::int64_t best_steps(const GoodputRequest& r, double around) {
  const auto steps_of = [&](double interval) {
    return std::max<std::int64_t>(1, std::llround(interval / r.step));
  };
  std::int64_t best = steps_of(around);
  double highest = simulate_goodput(r, best).useful;
  for (const double factor : {0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.4, 1.7, 2.0, 3.0}) {
    const std::int64_t steps = steps_of(around * factor);
    const double useful = simulate_goodput(r, steps).useful;
    if (useful > highest) {
      highest = useful;
      best = steps;
    }
  }
  return best;
}

// Mean seconds from a failure until the run goes on, with failures that come meanwhile: those of
// causes whose restart is no shorter make it longer.
double restart_seconds(const GoodputRequest& r) {
  const auto away = [](double restart, double rate) { return std::expm1(restart * rate) / rate; };
  if (r.causes.empty()) return away(r.restart, r.devices / r.mtbf);
  double seconds = 0;
  for (const GoodputRequest::Cause& cause : r.causes) {
    double rate = 0;
    for (const GoodputRequest::Cause& other : r.causes)
      if (other.restart >= cause.restart) rate += r.devices / other.mtbf;
    seconds += r.mtbf / cause.mtbf * away(cause.restart, rate);
  }
  return seconds;
}

// Reads the causes of failures, and sets mtbf and restart of all causes together; false if
// something is wrong.
bool read_causes(const Json& table, const std::string& path, Problems& problems,
                 GoodputRequest& request) {
  using Cause = GoodputRequest::Cause;
  static const Fields<Cause> fields = [] {
    Fields<Cause> f;
    f.add("mtbf", "mean seconds between such failures of one device", &Cause::mtbf)
        .range(1.0, 1e15);
    f.add("restart_seconds", "from such a failure to the first step after it", &Cause::restart)
        .range(0.0, 1e7);
    return f;
  }();
  double rate = 0;
  for (const auto& [name, given] : table.items()) {
    Cause cause{name};
    if (!fields.read(given, path + "." + name, problems, cause)) return false;
    rate += 1 / cause.mtbf;
    request.causes.push_back(std::move(cause));
  }
  if (request.causes.empty()) return true;
  request.mtbf = 1 / rate;
  request.restart = 0;
  for (const Cause& cause : request.causes)
    request.restart += request.mtbf / cause.mtbf * cause.restart;
  return true;
}

const Fields<GoodputRequest>& straggler_fields() {
  using R = GoodputRequest;
  static const Fields<R> fields = [] {
    Fields<R> f;
    f.add("mtbf", "mean seconds between slow spells of one device", &R::slow_mtbf).range(1.0, 1e15);
    f.add("seconds", "that one lasts, until the device is found and replaced", &R::slow_seconds)
        .range(0.0, 1e9);
    f.add("slowdown", "what a step then takes, over what it takes else", &R::slowdown)
        .range(1.0, 1e3);
    return f;
  }();
  return fields;
}

const Fields<GoodputRequest>& goodput_fields() {
  using R = GoodputRequest;
  static const Fields<R> fields = [] {
    Fields<R> f;
    f.add("step_seconds", "of a step where nothing fails", &R::step).range(1e-6, 1e6);
    f.add("devices", "that the run needs", &R::devices).range(1.0, 1e9);
    f.add("mtbf", "mean seconds between failures of one device", &R::mtbf)
        .range(1.0, 1e15)
        .optional();
    f.add("checkpoint_seconds", "for which training stops at each checkpoint", &R::checkpoint)
        .range(1e-6, 1e6);
    f.add("restart_seconds", "from a failure to the first step after it", &R::restart)
        .range(0.0, 1e7)
        .optional();
    f.add("interval_seconds", "between checkpoints; left out: the best", &R::interval)
        .range(1e-6, 1e9)
        .optional();
    f.add("days", "to simulate, at least", &R::days).range(1.0, 1e5).fallback(30.0);
    f.add("seed", "of the simulated failures", &R::seed).at_least(0).fallback(1);
    f.options()
        .table("causes",
               "of failures, instead of mtbf and restart_seconds: { gpu = { mtbf, restart_seconds "
               "}, network = { … } }")
        .optional();
    f.options().table("stragglers", "slow devices: { mtbf, seconds, slowdown }").optional();
    return f;
  }();
  return fields;
}

// Refuses a run that fails again and again in a restart, or before it has made one step: a
// simulation of so little progress would tell nothing. Against a restart only those failures count
// whose own restart takes as long or longer: others do not lengthen it.
void check_gets_on(const GoodputRequest& r, const std::string& key, Problems& problems) {
  constexpr double most = 10;  // most failures in a restart, or in a step
  double seconds = r.checkpoint + r.step, failure = r.mtbf / r.devices;
  bool restarts = false;
  const auto look = [&](double restart, double between) {
    if (restart / between <= seconds / failure) return;
    seconds = restart;
    failure = between;
    restarts = true;
  };
  if (r.causes.empty()) look(r.restart, failure);
  for (const GoodputRequest::Cause& cause : r.causes) {
    double rate = 0;
    for (const GoodputRequest::Cause& other : r.causes)
      if (other.restart >= cause.restart) rate += r.devices / other.mtbf;
    look(cause.restart, 1 / rate);
  }
  if (seconds <= most * failure) return;
  const std::string least = fmt::format("{:.4g}", seconds * r.devices / most * (1 + 1e-3));
  problems.add(
      Stage::options, "goodput.never", key,
      fmt::format("{}: a failure comes every {:.3g} s, and {} takes {:.3g} s", key, failure,
                  restarts ? "a restart" : "a step with its checkpoint", seconds),
      r.causes.empty()
          ? fmt::format("no such run gets on; nearest: mtbf = {}, or fewer devices", least)
          : fmt::format("no such run gets on; causes {}whose mtbf together make {} or more (1 over "
                        "the sum of 1 / mtbf), or fewer devices",
                        restarts ? "with as long a restart " : "", least));
}

}  // namespace

double young_interval(double checkpoint, double failure_seconds) {
  return std::sqrt(2 * checkpoint * failure_seconds);
}

double daly_interval(double checkpoint, double failure_seconds) {
  if (checkpoint >= 2 * failure_seconds) return failure_seconds;
  const double part = std::sqrt(checkpoint / (2 * failure_seconds));
  return young_interval(checkpoint, failure_seconds) * (1 + part / 3 + part * part / 9) -
         checkpoint;
}

double expected_goodput(const GoodputRequest& r, double interval) {
  const double slow = slow_share(r);
  const double speed = 1 - slow + slow / r.slowdown;
  const double failure = r.mtbf / r.devices, worked = interval / speed;
  const double seconds =
      (failure + restart_seconds(r)) * std::expm1((worked + r.checkpoint) / failure);
  return interval / seconds;
}

GoodputShares simulate_goodput(const GoodputRequest& request, std::int64_t interval_steps,
                               std::int64_t* failures, std::vector<Goodput::OfCause>* causes) {
  RunSimulation simulation(request, interval_steps);
  const GoodputShares shares = simulation.run();
  if (failures != nullptr) *failures = simulation.failures();
  if (causes != nullptr) *causes = simulation.causes();
  return shares;
}

Goodput goodput(const GoodputRequest& r) {
  Goodput g;
  g.failure_seconds = r.mtbf / r.devices;
  g.young = young_interval(r.checkpoint, g.failure_seconds);
  g.daly = daly_interval(r.checkpoint, g.failure_seconds);
  const std::int64_t best = best_steps(r, std::max(g.daly, r.step));
  g.best = static_cast<double>(best) * r.step;
  g.interval_steps =
      r.interval > 0 ? std::max<std::int64_t>(1, std::llround(r.interval / r.step)) : best;
  g.interval = static_cast<double>(g.interval_steps) * r.step;
  g.closed_form = expected_goodput(r, g.interval);
  g.simulated = simulate_goodput(r, g.interval_steps, &g.failures, &g.causes);
  return g;
}

GoodputRequest read_goodput(const Json& table, const std::string& path, Problems& problems) {
  GoodputRequest r;
  const auto v = goodput_fields().read(table, path, problems, r);
  if (!v) return r;
  const bool causes = v->has("causes") && !v->at("causes").empty();
  for (const char* key : {"mtbf", "restart_seconds"}) {
    if (v->has(key) != causes) continue;
    problems.add(Stage::options, causes ? "option.conflict" : "option.missing", path + "." + key,
                 causes ? fmt::format("{}.{} beside causes, and each cause has its own", path, key)
                        : fmt::format("{}.{} is missing", path, key),
                 "give mtbf and restart_seconds, or causes = { gpu = { mtbf = …, restart_seconds = "
                 "… }, … }");
  }
  if (!problems.empty()) return r;
  if (causes && !read_causes(v->at("causes"), path + ".causes", problems, r)) return r;
  if (v->has("stragglers") &&
      !straggler_fields().read(v->at("stragglers"), path + ".stragglers", problems, r))
    return r;
  check_gets_on(r, path + (causes ? ".causes" : ".mtbf"), problems);
  return r;
}

Json to_json(const Goodput& g, const GoodputRequest& r) {
  const GoodputShares& s = g.simulated;
  Json causes = Json::object();
  for (std::size_t k = 0; k < g.causes.size(); ++k)
    causes[r.causes[k].name] = {{"failures", g.causes[k].failures}, {"lost", g.causes[k].lost}};
  return {{"kind", "goodput"},
          {"causes", causes},
          {"effective", s.useful},
          {"closed_form", g.closed_form},
          {"lost",
           {{"repeated", s.repeated},
            {"checkpoints", s.checkpoints},
            {"restarts", s.restarts},
            {"stragglers", s.slow}}},
          {"interval_seconds", g.interval},
          {"interval_steps", g.interval_steps},
          {"young_seconds", g.young},
          {"daly_seconds", g.daly},
          {"best_seconds", g.best},
          {"failure_seconds", g.failure_seconds},
          {"failures_per_day", day / g.failure_seconds},
          {"steps_per_day", day * s.useful / r.step},
          {"simulated_failures", g.failures}};
}

std::string text_of(const Goodput& g, const GoodputRequest& r) {
  const GoodputShares& s = g.simulated;
  const auto share = [](double part) { return fmt::format("{:.1f} %", 100 * part); };
  std::string text = fmt::format(
      "goodput of {:.0f} {}: {} of the time in steps that are kept ({} in closed form)\n"
      "  lost         {} to repeated work, {} to checkpoints, {} to restarts",
      r.devices, r.devices == 1 ? "device" : "devices", share(s.useful), share(g.closed_form),
      share(s.repeated), share(s.checkpoints), share(s.restarts));
  if (r.slow_mtbf > 0) text += fmt::format(", {} to slow devices", share(s.slow));
  for (std::size_t k = 0; k < g.causes.size(); ++k) {
    text += fmt::format("\n  by {:<9} {} of the time, {:.0f} % of the failures", r.causes[k].name,
                        share(g.causes[k].lost),
                        100.0 * static_cast<double>(g.causes[k].failures) /
                            static_cast<double>(std::max<std::int64_t>(1, g.failures)));
  }
  return text + fmt::format(
                    "\n  checkpoints  every {:.0f} s, {} ({:.0f} s would be best, {:.0f} by Young, "
                    "{:.0f} by Daly)\n"
                    "  failures     every {:.3g} hours\n",
                    g.interval, plural(g.interval_steps, "step"), g.best, g.young, g.daly,
                    g.failure_seconds / 3600);
}

}  // namespace mw
