// Reads measured collectives, and finds the curve by which a collective is priced.
#include "predict/collective_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "meshwright/engine/text.h"
#include "meshwright/options.h"

namespace mw {
namespace {

constexpr Collective measured_ops[] = {Collective::all_reduce, Collective::all_gather,
                                       Collective::reduce_scatter, Collective::all_to_all,
                                       Collective::send};

class CurveReader {
 public:
  CurveReader(std::string key, bool over_nodes, Problems& problems)
      : key_(std::move(key)), over_nodes_(over_nodes), problems_(problems) {}

  std::optional<CollectiveCurve> read(const Json& given) {
    if (!given.is_object() || !given.contains("ranks") || !given.contains("points") ||
        !given["points"].is_array() || given["points"].size() < 2) {
      return wrong("", given,
                   fmt::format("{{ {}, points = {{ {{ bytes, seconds }}, … }} }} of at least two "
                               "points",
                               over_nodes_ ? "nodes = 2, ranks = 16" : "ranks = 8"));
    }
    CollectiveCurve curve;
    if (!read_place(given, curve)) return std::nullopt;
    const Json op = given.value("op", Json(name_of(curve.op)));
    const auto found = std::ranges::find_if(
        measured_ops, [&](Collective one) { return op == Json(name_of(one)); });
    if (found == std::end(measured_ops)) {
      return wrong(
          ".op", op,
          "\"all-reduce\", \"all-gather\", \"reduce-scatter\", \"all-to-all\" or \"send\"");
    }
    curve.op = *found;
    std::vector<std::pair<double, double>> points;
    for (const Json& point : given["points"]) {
      const bool pair =
          point.is_array() && point.size() == 2 && is_positive(point[0]) && is_positive(point[1]);
      if (!pair) return wrong(".points", point, "each is { bytes, seconds }, all above 0");
      if (!points.empty() && point[0].get<double>() <= points.back().first)
        return wrong(".points", point, "bytes ascend: sort the points");
      points.emplace_back(point[0].get<double>(), point[1].get<double>());
    }
    curve.times = LogCurve(std::move(points));
    return curve;
  }

 private:
  static bool is_positive(const Json& value) {
    return value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>());
  }

  bool read_place(const Json& given, CollectiveCurve& curve) {
    constexpr std::int64_t most = 65536;  // most ranks, and most nodes
    const Json said = given.value("nodes", Json());
    const auto nodes = over_nodes_ ? whole_number(said) : 1;
    if (!nodes || *nodes < (over_nodes_ ? 2 : 1) || *nodes > most) {
      wrong(".nodes", said, "how many nodes the ranks are on, from 2 on");
      return false;
    }
    const auto ranks = whole_number(given["ranks"]);
    if (!ranks || *ranks < 2 || *ranks > most || *ranks % *nodes != 0) {
      wrong(".ranks", given["ranks"],
            over_nodes_ ? "how many devices take part, the same number of each node"
                        : "how many devices take part, from 2 on");
      return false;
    }
    curve.ranks = static_cast<int>(*ranks);
    curve.nodes = static_cast<int>(*nodes);
    return true;
  }

  std::nullopt_t wrong(const std::string& part, const Json& got, const std::string& hint) {
    problems_.add(Stage::options, "cluster.value", key_ + part,
                  fmt::format("{}{}: got {}", key_, part, describe(got)), hint);
    return std::nullopt;
  }

  const std::string key_;
  const bool over_nodes_;
  Problems& problems_;
};

// A collective whose curve may stand in for another one's, and the factor on its seconds.
struct StandIn {
  Collective op;
  double times;
};

// The collectives whose curves may stand in for this one's, the best first.
std::vector<StandIn> stand_ins(Collective op, bool over_nodes) {
  std::vector<StandIn> all{{op, 1}};
  const bool gathers = op == Collective::all_gather, scatters = op == Collective::reduce_scatter;
  if (gathers || scatters)
    all.push_back({gathers ? Collective::reduce_scatter : Collective::all_gather, 1});
  if (over_nodes) return all;
  if (gathers || scatters) all.push_back({Collective::all_reduce, 0.5});
  if (op == Collective::all_reduce) {
    all.push_back({Collective::all_gather, 2});
    all.push_back({Collective::reduce_scatter, 2});
  }
  return all;
}

CurveTime time_on(const CollectiveCurve& curve, Collective op, double times, double bytes,
                  double least) {
  const auto& points = curve.times.points();
  const bool between = bytes >= points.front().first && bytes <= points.back().first;
  return {times * curve.seconds(bytes, least), curve.op == op, between};
}

// Bus bandwidth over algorithm bandwidth, as nccl-tests define them (doc/PERFORMANCE.md there).
double bus_share(Collective op, double ranks) {
  if (op == Collective::send) return 1;
  return (op == Collective::all_reduce ? 2 : 1) * (ranks - 1) / ranks;
}

}  // namespace

double CollectiveCurve::seconds(double bytes, double least) const {
  const auto [first_bytes, first_seconds] = times.points().front();
  if (bytes > first_bytes) return times.at(bytes, /*grows=*/true);
  const double lowest = std::min(least, first_seconds);
  return lowest + (first_seconds - lowest) * bytes / first_bytes;
}

std::vector<CollectiveCurve> read_curves(const Json& list, const std::string& path, bool over_nodes,
                                         Problems& problems) {
  std::vector<CollectiveCurve> curves;
  for (std::size_t k = 0; k < list.size(); ++k) {
    auto curve =
        CurveReader(fmt::format("{}[{}]", path, k + 1), over_nodes, problems).read(list[k]);
    if (curve) curves.push_back(std::move(*curve));
  }
  std::ranges::stable_sort(curves, {}, &CollectiveCurve::ranks);
  return curves;
}

std::optional<CurveTime> curve_time(const std::vector<CollectiveCurve>& curves, Collective op,
                                    double bytes, int ranks, int nodes, double least) {
  if (curves.empty()) return std::nullopt;
  const std::vector<StandIn> possible = stand_ins(op, nodes > 1);
  for (const StandIn& as : possible) {
    for (const CollectiveCurve& curve : curves) {
      if (curve.op == as.op && curve.ranks == ranks && curve.nodes == nodes)
        return time_on(curve, op, as.times, bytes, least);
    }
  }
  if (nodes > 1) return std::nullopt;
  for (const StandIn& as : possible) {
    const CollectiveCurve* nearest = nullptr;
    for (const CollectiveCurve& curve : curves) {
      if (curve.op == as.op && (nearest == nullptr || nearest->ranks < ranks)) nearest = &curve;
    }
    if (nearest == nullptr) continue;
    const double same = bus_share(op, ranks) / bus_share(op, nearest->ranks);
    CurveTime time = time_on(*nearest, op, as.times, bytes * same, least);
    time.among_ranks = false;
    return time;
  }
  return std::nullopt;
}

}  // namespace mw
