// Measures what collectives of thread ranks take of their cores.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "app/calibrate/calibrate.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/world.h"

namespace mw {
namespace {

constexpr Purpose purpose{"calibration"};

// Calls a collective once. `large`: its larger buffer; `same`: another of that size.
void call(Communicator& group, Collective op, const at::Tensor& large, const at::Tensor& same) {
  const std::int64_t share = large.numel() / group.ways();
  switch (op) {
    case Collective::all_reduce:
      group.all_reduce(large, Reduction::sum, purpose).wait();
      break;
    case Collective::all_gather:
      group.all_gather(large, same.narrow(0, 0, share), purpose).wait();
      break;
    case Collective::reduce_scatter:
      group.reduce_scatter(same.narrow(0, 0, share), large, Reduction::sum, purpose).wait();
      break;
    case Collective::all_to_all:
      group.all_to_all(same, large, {}, {}, purpose).wait();
      break;
    default:
      if (group.index() == 0) {
        group.send(large, 1, 0, purpose).wait();
      } else {
        group.recv(same, 0, 0, purpose).wait();
      }
  }
}

}  // namespace

TransferCurves measure_transfers(const CalibrationSizes& sizes) {
  std::vector<std::int64_t> bytes{256, 4096, 32 << 10, 256 << 10, 1 << 20, 8 << 20};
  std::vector<int> ways{2, 4, 8};
  if (sizes.quick) {
    bytes = {256, 32 << 10, 1 << 20};
  } else if (core_count() > 8) {
    ways.push_back(std::min(32, core_count()));
  }
  TransferCurves curves;
  for (const int n : ways) {
    std::map<std::string, std::vector<std::pair<double, double>>> points;
    run_ranks(n,
              [&](RankContext& rank) {
                const at::NoGradGuard no_grad;
                std::vector<int> all(static_cast<std::size_t>(n));
                for (int r = 0; r < n; ++r) all[static_cast<std::size_t>(r)] = r;
                const auto group =
                    make_communicator(*rank.source, {"calibration", all}, rank.rank, nullptr);
                for (const Collective op :
                     {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                      Collective::all_to_all, Collective::send}) {
                  if (op == Collective::send && n != 2) continue;
                  for (const std::int64_t size : bytes) {
                    throw_if_stopped();
                    const std::int64_t count = std::max<std::int64_t>(n, size / 4 / n * n);
                    const at::Tensor large = at::zeros({count}, at::kFloat);
                    const at::Tensor same = at::zeros({count}, at::kFloat);
                    const int calls = static_cast<int>(std::clamp<std::int64_t>(
                        (sizes.quick ? 8 << 20 : 64 << 20) / size / n, 3, sizes.quick ? 40 : 300));
                    std::vector<double> taken;
                    for (int round = 0; round < 4; ++round) {
                      group->barrier(purpose).wait();
                      const double before = cpu_seconds_now();
                      for (int k = 0; k < calls; ++k) call(*group, op, large, same);
                      group->barrier(purpose).wait();
                      taken.push_back((cpu_seconds_now() - before) / calls / n);
                    }
                    if (rank.rank != 0) continue;
                    std::sort(taken.begin() + 1, taken.end());  // the first one warms up
                    points[name_of(op)].emplace_back(static_cast<double>(4 * count),
                                                     std::max(1e-9, taken[2]));
                  }
                }
              },
              {.timeout = std::chrono::milliseconds(120'000), .threads = 1});
    throw_if_stopped();
    for (auto& [op, list] : points) curves[op][n] = LogCurve(std::move(list));
  }
  curves[name_of(Collective::recv)] = curves[name_of(Collective::send)];
  return curves;
}

void least(TransferCurves& of, const TransferCurves& more) {
  for (const auto& [op, by_ways] : more) {
    for (const auto& [ways, curve] : by_ways) {
      LogCurve& known = of[op][ways];
      std::vector<std::pair<double, double>> points;
      for (const auto& [size, seconds] : curve.points())
        points.emplace_back(size, known.empty() ? seconds : std::min(seconds, known.at(size)));
      known = LogCurve(std::move(points));
    }
  }
}

}  // namespace mw
