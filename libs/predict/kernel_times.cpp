// Prices kernels on a described device: products in tiles, streams through memory, attention.
#include <algorithm>
#include <cmath>

#include "predict/on_cluster.h"

namespace mw {
namespace {

// Seconds of products in whole tiles. A unit that works has at least one tile, so a small product
// leaves units idle.
double tiled(const DeviceType& device, double peak, double m, double n, double k, double batch) {
  double best = INFINITY;
  for (const GemmTile& tile : device.tiles) {
    for (const bool turned : {false, true}) {
      const double rows = turned ? tile.columns : tile.rows,
                   columns = turned ? tile.rows : tile.columns;
      const double tiles = std::ceil(m / rows) * std::ceil(n / columns) * batch / device.units;
      best = std::min(best, std::max(tiles, 1.0) * 2 * rows * columns * (k + device.tile_k) /
                                (peak / device.units * tile.rate));
    }
  }
  return best;
}

}  // namespace

double gemm_seconds(const DeviceType& device, Dtype dtype, double m, double n, double k,
                    double batch, double share, int bits) {
  if (m <= 0 || n <= 0 || k <= 0 || batch <= 0) return 0;
  const double peak = bits == 8 ? device.peak8 : device.peak(dtype);
  const double work =
      device.tiles.empty() ? 2 * m * n * k * batch / peak : tiled(device, peak, m, n, k, batch);
  const double bytes = bytes_of(dtype) * batch * (m * k + k * n + m * n);
  return std::max(work / (device.gemm * share),
                  bytes / (device.bandwidth * device.bandwidth_share)) +
         device.kernel;
}

double stream_seconds(const DeviceType& device, double bytes, double kernels) {
  return bytes / (device.bandwidth * device.bandwidth_share) + kernels * device.kernel;
}

double flash_seconds(const DeviceType& device, Dtype dtype, int generation, double flops,
                     double kernels) {
  return flops / (device.peak(dtype) * device.flash.at(static_cast<std::size_t>(generation))) +
         kernels * device.kernel;
}

double phase_seconds(const DeviceType& device, double own, double host) {
  const double most = std::max(own, host), least = std::min(own, host);
  if (least <= 0) return most;
  return most * std::pow(1 + std::pow(least / most, device.smooth), 1 / device.smooth);
}

}  // namespace mw
