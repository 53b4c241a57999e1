// What recording costs a run: the time to add a step's rows, and the time of one flush, as the file
// grows. Prints microseconds per step at one flush a second and steps of 50 ms.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "record/run_writer.h"

int main() {
  using Clock = std::chrono::steady_clock;
  constexpr int ranks = 8, keys = 6, steps = 20000, steps_per_flush = 20;
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("meshwright-bench-{}.h5", ::getpid());
  double add_seconds = 0, flush_seconds = 0, slowest = 0;
  {
    mw::RunWriter writer(path, mw::RunInfo{});
    for (int step = 0; step < steps; ++step) {
      const auto begin = Clock::now();
      writer.add(mw::StepRow{});
      for (int rank = 0; rank < ranks; ++rank)
        for (int key = 0; key < keys; ++key)
          writer.add(mw::CommunicationRow{step, rank, "dp", "reduce_scatter", "backward", key, 8});
      const auto added = Clock::now();
      add_seconds += std::chrono::duration<double>(added - begin).count();
      if (step % steps_per_flush != 0) continue;
      writer.flush();
      const double seconds = std::chrono::duration<double>(Clock::now() - added).count();
      flush_seconds += seconds;
      slowest = std::max(slowest, seconds);
    }
    writer.finish(mw::RunStatus::done);
  }
  const double megabytes = static_cast<double>(std::filesystem::file_size(path)) / 1e6;
  std::filesystem::remove(path);
  fmt::print(
      "record: {} steps of {} rows, {:.0f} MB: add {:.1f} us/step, flush {:.2f} ms (at most "
      "{:.2f} ms), {:.0f} us/step in all\n",
      steps, 1 + ranks * keys, megabytes, add_seconds / steps * 1e6,
      flush_seconds / (steps / steps_per_flush) * 1e3, slowest * 1e3,
      (add_seconds + flush_seconds) / steps * 1e6);
}
