// What it takes to make, check and simulate a schedule of 64 stages and 512 microbatches.
// Milliseconds, the least of several rounds.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "meshwright/engine/registry.h"
#include "meshwright/schedule.h"

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

int main() {
  constexpr int rounds = 7;
  fmt::print("{:12} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "schedule", "works", "make", "check",
             "simulate", "all, ms");
  mw::PluginRegistry plugins(mw::PluginRegistry::search_path({}));
  plugins.plugin("pp");
  for (const mw::Registration* one : plugins.list(mw::Kind::scheduler)) {
    const auto scheduler = mw::make<mw::Scheduler>(*one, mw::Values());
    mw::ScheduleRequest request;
    request.stages = 64;
    request.microbatches = 512;
    request.chunks = scheduler->name() == "interleaved" || scheduler->name() == "looped-bfs"
                         ? 2
                         : scheduler->fixed_chunks();
    double make = 1e9, check = 1e9, simulate = 1e9;
    std::size_t works = 0;
    for (int round = 0; round < rounds; ++round) {
      auto begin = Clock::now();
      const mw::Schedule schedule = scheduler->make(request);
      make = std::min(make, since(begin));
      begin = Clock::now();
      mw::Problems problems;
      mw::check(schedule, request, problems);
      check = std::min(check, since(begin));
      problems.throw_if_any();
      begin = Clock::now();
      const auto timeline = mw::simulate(schedule, request);
      simulate = std::min(simulate, since(begin));
      works = 0;
      for (const auto& stage : timeline.stages) works += stage.size();
    }
    fmt::print("{:12} {:8} {:8.1f} {:8.1f} {:8.1f} {:8.1f}\n", scheduler->name(), works, make,
               check, simulate, make + check + simulate);
  }
}
