// What a calibration makes of measured points: curves between them, fits without negative rates,
// and the same numbers after it was written and read.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "predict/calibration.h"
#include "predict/prediction.h"
#include "predict/shared_cores.h"
#include "setups.h"
#include "support/problems.h"
#include "support/temporary_folder.h"

using namespace mw;
using namespace mw::test;

namespace {

// Every instruction takes 10 us, every collective of a rank 1 us and 1 ns a byte.
Calibration flat() {
  Calibration c;
  c.date = "2026-11-22T12:00:00Z";
  c.cpu = cpu_model();
  c.cores = core_count();
  c.kernels = kernels_key();
  c.version = version_line();
  c.device = round_device();
  for (const char* kind : {"product", "other"}) {
    c.work[4][kind].call = 1e-5;
    c.work[4][kind].samples = 1;
  }
  for (const Collective op :
       {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
        Collective::all_to_all, Collective::send, Collective::recv})
    c.transfers[name_of(op)][2] = LogCurve({{1, 1e-6}, {1e3, 2e-6}});
  c.step_error = 0.07;
  return c;
}

}  // namespace

TEST_CASE("A curve goes through its points and straight in logarithms between them") {
  const LogCurve curve({{100, 1}, {1, 100}, {10, 10}});
  CHECK(curve.at(1) == Approx(100));
  CHECK(curve.at(10) == Approx(10));
  CHECK(curve.at(std::sqrt(10.0)) == Approx(100 / std::sqrt(10.0)));
  CHECK(curve.at(0.1) == 100);
  CHECK(curve.at(0) == 100);
  CHECK(curve.at(1000) == 1);
  CHECK(curve.at(1000, /*grows=*/true) == 10);
  CHECK(LogCurve().at(5) == 1);
  CHECK(LogCurve({{3, 7}}).at(6) == 7);
  CHECK(LogCurve::from_json(curve.to_json()).points() == curve.points());
  CHECK_THROWS(LogCurve({{1, 0}}));
  CHECK_THROWS(LogCurve({{-1, 1}}));
  CHECK_THROWS(LogCurve({{1, std::nan("")}}));
}

TEST_CASE("A fit finds the overhead and the rates that made the samples") {
  std::vector<WorkSample> samples;
  for (const double size : {1e3, 1e4, 1e5, 1e6, 1e7})
    for (const double reuse : {1.0, 10.0, 100.0})
      samples.push_back({{size * reuse, size, 0}, 5e-6 + size * reuse * 2e-11 + size * 1e-10});
  const WorkFit fit = fit_work(samples);
  CHECK(fit.call == Approx(5e-6));
  CHECK(fit.flop == Approx(2e-11));
  CHECK(fit.byte == Approx(1e-10));
  CHECK(fit.error < 1e-6);
  CHECK(fit.samples == 15);
  CHECK(fit.seconds({1e6, 1e5, 0}) == Approx(5e-6 + 2e-5 + 1e-5));
  const WorkFit again = WorkFit::from_json(fit.to_json());
  CHECK(again.seconds({3e6, 2e5, 1e3}) == fit.seconds({3e6, 2e5, 1e3}));
}

TEST_CASE("No fitted rate is negative, and one sample is met") {
  // Larger ones that take less: no rate explains it.
  const WorkFit fit = fit_work({{{1e3, 1e3}, 2e-5}, {{1e6, 1e6}, 1e-5}, {{1e7, 1e7}, 1e-5}});
  CHECK(fit.call > 0);
  CHECK(fit.flop == 0);
  CHECK(fit.byte == 0);
  CHECK(fit_work({{{1e6, 1e4}, 3e-4}}).seconds({1e6, 1e4}) == Approx(3e-4));
  CHECK(fit_work({}).samples == 0);
  const std::vector<double> factors = fit_factors({{1, 2}, {2, 1}}, {5, 4});
  CHECK(factors.at(0) == Approx(1));
  CHECK(factors.at(1) == Approx(2));
  CHECK(fit_factors({{1, 2}, {2, 1}}, {-5, -4}, {1, 1}) == std::vector<double>{0, 0});
}

TEST_CASE("What a library does at some sizes alone stands in the ratio") {
  std::vector<WorkSample> samples;
  for (double flops = 1e4; flops < 1e9; flops *= 1.5)
    samples.push_back({{flops, 0, 0}, flops * (flops > 1e7 ? 1e-11 : 3e-11)});
  const WorkFit fit = fit_work(samples);
  CHECK(fit.seconds({1e5}) == Approx(3e-6).epsilon(0.1));
  CHECK(fit.seconds({1e8}) == Approx(1e-3).epsilon(0.1));
}

TEST_CASE("Short dot products cost what each of them costs, and one odd sample bends no curve") {
  std::vector<WorkSample> samples;
  for (const double width : {8.0, 16.0, 32.0, 64.0})
    for (double dots = 1e3; dots < 1e7; dots *= 4)
      samples.push_back({{dots * width, 0, dots}, 1e-5 + dots * (1e-9 + width * 2e-11)});
  const WorkFit fit = fit_work(samples);
  CHECK(fit.dot == Approx(1e-9));
  CHECK(fit.flop == Approx(2e-11));
  samples[10].seconds *= 3;
  const WorkFit bent = fit_work(samples);
  for (const WorkSample& s : {samples[9], samples[11], samples[20]})
    CHECK(bent.seconds(s.size) == Approx(s.seconds).epsilon(0.03));
  const std::vector<std::vector<double>> rows{{1}, {1}, {1}, {1}, {1}};
  CHECK(fit_robustly(rows, {1, 1, 1, 1, 9}, {1, 1, 1, 1, 1}).at(0) == Approx(1).epsilon(0.05));
}

TEST_CASE("A calibration is written and read as it is, and priced for") {
  const Calibration c = flat();
  const Calibration read = Calibration::from_json(c.to_json());
  CHECK(read.to_json() == c.to_json());
  CHECK(read.transfer_seconds(Collective::all_reduce, 2, 1e3) == Approx(2e-6));
  CHECK(read.transfer_seconds(Collective::all_reduce, 8, 1e3) == Approx(8e-6));
  CHECK(read.transfer_seconds(Collective::send, 8, 1e3) == Approx(2e-6));
  CHECK(read.transfer_seconds(Collective::broadcast, 2, 1e3) == 0);
  CHECK(read.fit_of("linear forward", "", 8, true, {1e3, 1e3})->call == 1e-5);
  CHECK(read.fit_of("alias", "", 4, false, {}) == nullptr);
  const SharedCores machine(round_device(), std::make_shared<Calibration>(c));
  CHECK(machine.name().find("calibrated 2026-11-22") != std::string::npos);
  CHECK(machine.error() == 0.07);
}

TEST_CASE("Products of several ranks bring from memory what a core's own cache has no place for") {
  Calibration c = flat();
  c.cores = c.device.cores = 2;
  const auto seconds = [&](const std::vector<StrategyChoice>& plan, double at_once, double cache) {
    c.device.bandwidth_at_once = at_once;
    c.device.own_cache = cache;
    const SharedCores machine(c.device, std::make_shared<Calibration>(c));
    return predict(*experiment(llama(plan)).plan, machine, 1).cpu_seconds;
  };
  const auto difference = [&](const std::vector<StrategyChoice>& plan, double cache) {
    return seconds(plan, 1e9, cache) - seconds(plan, 1e10, cache);
  };
  for (const int ranks : {2, 4}) {
    const std::vector<StrategyChoice> plan{dp(ranks)};
    const Experiment e = experiment(llama(plan));
    const Program& program = e.plan->programs.front();
    const RankView rank(program, program.first());
    double bytes = 0, weights = 0;
    for (const SegmentRun& run : program.timeline) {
      for (const Instruction& i : program.segments[run.segment].code) {
        const SizedWork sized = sized_work(rank, i, footprint(rank, i, FootprintParts::work));
        if (sized.product) bytes += sized.size.bytes;
      }
    }
    for (const Bucket& bucket : program.buckets)
      weights +=
          static_cast<double>(program.elements(bucket, program.first())) * bytes_of(program.dtype);
    REQUIRE(bytes > 0);
    // Weights and gradients, of two ranks on each core where four take turns on two.
    const double used = 2 * weights * ranks / 2;
    const double all = ranks * bytes * (1e-9 - 1e-10);
    CHECK(difference(plan, used / 4) == Approx(all * 3 / 4));
    CHECK(difference(plan, used) == Approx(0).margin(1e-12));
    CHECK(difference(plan, 0) == Approx(0).margin(1e-12));  // how large it is is not known
  }
  CHECK(difference({}, 1) == Approx(0).margin(1e-12));
}

TEST_CASE("A calibration of another machine is refused, and a damaged one") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "calibration.json";
  const auto write = [&](const Json& json) { std::ofstream(file) << json.dump(); };
  CHECK(read_calibration(file) == nullptr);
  Calibration c = flat();
  write(c.to_json());
  CHECK(read_calibration(file)->to_json() == c.to_json());
  const auto refused = [&](const Calibration& other) {
    write(other.to_json());
    return thrown([&] { read_calibration(file); });
  };
  Calibration other = c;
  other.cpu = "Z80";
  CHECK(refused(other) == "calibration.other-machine");
  other = c;
  ++other.cores;
  CHECK(refused(other) == "calibration.other-machine");
  other = c;
  other.version = "meshwright 0.0.1 (torch 1.0)";
  CHECK(refused(other) == "calibration.other-machine");
  Json json = c.to_json();
  json["work"]["4"]["other"]["call"] = -1;
  write(json);
  CHECK(thrown([&] { read_calibration(file); }) == "calibration.broken");
  for (const char* lacking : {"/transfers/all-reduce", "/work/4/other"}) {
    json = c.to_json();
    const Json::json_pointer place(lacking);
    json.at(place.parent_pointer()).erase(place.back());
    write(json);
    CHECK(thrown([&] { read_calibration(file); }) == "calibration.broken");
  }
  json = c.to_json();
  json["others_cores"] = nullptr;
  write(json);
  CHECK(SharedCores(round_device(), read_calibration(file)).name().ends_with("is not known"));
  json = c.to_json();
  json["schema"] = "meshwright.calibration/1";
  write(json);
  try {
    read_calibration(file);
    FAIL("an older file was read");
  } catch (const Error& error) {
    CHECK(error.problems().front().message.find("schema: got \"meshwright.calibration/1\"") !=
          std::string::npos);
  }
  std::ofstream(file) << "{";
  CHECK(thrown([&] { read_calibration(file); }) == "calibration.broken");
}

TEST_CASE("What keeps libraries to an instruction set is another set of kernels") {
  const std::string own = kernels_key();
  const char* before = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string kept = before != nullptr ? before : "";
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI", 1);
  CHECK(kernels_key() != own);
  before != nullptr ? setenv("ONEDNN_MAX_CPU_ISA", kept.c_str(), 1)
                    : unsetenv("ONEDNN_MAX_CPU_ISA");
  CHECK(kernels_key() == own);
}
