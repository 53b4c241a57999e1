// Reports: repeats as one row, the fastest that is right, the edge, and curves that lose no spike.
#include <catch2/catch.hpp>

#include <cmath>
#include <tuple>

#include "draw/page.h"
#include "draw/timeline.h"
#include "record/groups.h"

using namespace mw;

namespace {

void set_speed(ReportCell& cell, double tokens) {
  cell.tokens_per_second.measured = tokens;
  cell.step_seconds.measured = 1000 / tokens;
  cell.timing.error = cell.timing.cpu_error = 1e-3;  // of many steps
}

ReportCell cell(const std::string& plan, const std::string& policy, int seed, double tokens,
                double peak, const std::string& status = "done") {
  ReportCell one;
  one.name = one.label = plan + ", " + policy + " seed=" + std::to_string(seed);
  one.status = status;
  one.sweep = "mixes";
  take_value(one, "plan", plan);
  take_value(one, "recompute", policy);
  take_value(one, "seed", std::to_string(seed));
  one.steps = tokens > 0 ? 10 : 0;
  set_speed(one, tokens);
  one.peak.measured = peak;
  return one;
}

ReportRuns sweep() {
  ReportRuns runs;
  runs.name = "mixes";
  runs.axes = {"plan", "recompute"};
  runs.baseline = "dp";
  runs.same_loss_as = "dp";
  for (int seed = 0; seed < 3; ++seed) {
    runs.cells.push_back(cell("dp", "none", seed, 1000 + 10 * seed, 400));
    runs.cells.push_back(cell("dp", "full", seed, 800, 200));
    runs.cells.push_back(cell("tp", "none", seed, 1212, 300));
    runs.cells.push_back(cell("tp", "full", seed, 900, 150));
    runs.cells.push_back(cell("pp", "none", seed, 5000, 100, seed == 1 ? "failed" : "done"));
  }
  runs.cells.push_back(cell("ep", "none", 0, 0, 0, "skipped"));
  return runs;
}

}  // namespace

TEST_CASE("repeats are one row with mean and spread, against the baseline of their policy") {
  const ReportGroups found = group_cells(sweep());
  REQUIRE(found.groups.size() == 6);
  const ReportGroup &dp = found.groups[0], &full = found.groups[1], &tp = found.groups[2];
  CHECK(dp.name == "dp, none");
  CHECK(dp.tokens_per_second.n == 3);
  CHECK(dp.tokens_per_second.mean == Approx(1010));
  CHECK(dp.tokens_per_second.deviation == Approx(10));  // of a sample
  CHECK(tp.delta == Approx(0.2));
  CHECK(tp.baseline == 0);
  CHECK(found.groups[3].baseline == 1);  // of the same policy
  CHECK(full.delta == 0);
  CHECK(found.of_cell[5] == 0);
}

TEST_CASE("the fastest is one that is right, and so is the edge") {
  ReportRuns runs = sweep();
  const ReportGroups found = group_cells(runs);
  CHECK(found.groups[4].verdict == GroupVerdict::failed);  // 5000 tokens/s, one seed of three wrong
  CHECK(found.groups[4].tokens_per_second.n == 2);
  CHECK(found.groups[5].verdict == GroupVerdict::left_out);
  CHECK(found.fastest == 2);
  CHECK(found.headline.find("Fastest correct mix: tp, none, 1,212 tokens/s") == 0);
  CHECK(found.headline.find("+20.0 % against dp, none") != std::string::npos);
  std::vector<bool> edge;
  for (const ReportGroup& group : found.groups) edge.push_back(group.on_edge);
  CHECK(edge == std::vector<bool>{false, false, true, true, false, false});

  runs.cells[2].compared = false;  // tp, none: its loss was held to nothing
  const ReportGroups fewer = group_cells(runs);
  CHECK(fewer.groups[2].verdict == GroupVerdict::unproven);
  CHECK(fewer.fastest == 0);

  runs.cells.clear();
  CHECK(group_cells(runs).fastest == -1);
}

TEST_CASE("speeds that intervals do not tell apart decide nothing, and the headline says so") {
  ReportRuns runs;
  runs.name = "close";
  for (int seed = 0; seed < 2; ++seed) {
    runs.cells.push_back(cell("a", "none", seed, 1000 + 40 * seed, 1));
    runs.cells.push_back(cell("b", "none", seed, 1005 + 40 * seed, 1));
  }
  const ReportGroups found = group_cells(runs);
  CHECK(found.fastest == -1);
  CHECK(found.headline.find("Undecided: b, none, a, none are not told apart") == 0);
  CHECK(found.groups[0].contends);
  for (int seed = 0; seed < 2; ++seed) runs.cells.push_back(cell("c", "none", seed, 2000, 1));
  const ReportGroups clear = group_cells(runs);
  CHECK(clear.fastest == 2);
  CHECK(clear.headline.find("Fastest mix: c, none, 2,000 tokens/s ± ") == 0);
  CHECK(clear.headline.find("No losses were compared") != std::string::npos);
}

TEST_CASE("what follows from times is of the runs that count for speeds, the rest of all") {
  ReportRuns runs;
  runs.name = "disturbed";
  for (int seed = 0; seed < 3; ++seed) {
    ReportCell& one = runs.cells.emplace_back(cell("dp", "none", seed, 1000 + 100 * seed, 1));
    one.timing.steps = 10;
    one.timing.disturbed = seed == 2;
    one.mfu = one.bubble = 0.1 * (seed + 1);
    one.loss = seed;
  }
  const ReportGroups found = group_cells(runs);
  const ReportGroup& dp = found.groups.front();
  CHECK(dp.tokens_per_second.mean == Approx(1050));
  CHECK(dp.mfu.mean == Approx(0.15));
  CHECK(dp.bubble.mean == Approx(0.15));
  CHECK(dp.loss.mean == Approx(1));
  CHECK((dp.tokens_per_second.n == 2 && dp.mfu.n == 2 && dp.bubble.n == 2));
  CHECK((dp.loss.n == 3 && dp.ran == 3));
}

TEST_CASE("the fastest of predictions is named as predicted, with their error") {
  ReportRuns runs;
  runs.name = "predicted";
  for (const auto& [plan, tokens, fits] :
       {std::tuple{"dp", 1000.0, true}, {"tp", 1500.0, true}, {"pp", 9000.0, false}}) {
    ReportCell& one = runs.cells.emplace_back(cell(plan, "none", 0, 0, 0, "predicted"));
    one.tokens_per_second = {not_known, tokens};
    one.fits = fits;
    one.step_error = 0.08;
  }
  const ReportGroups found = group_cells(runs);
  const std::string speed =
      "tp, none, 1,500 tokens/s (predictions of this machine err by 8 % on average)";
  CHECK(found.answer() == "predicted fastest: " + speed);
  CHECK(found.headline.find("Predicted fastest: " + speed) == 0);
  const Json json = found.answer_json(/*numbers=*/false);
  CHECK(json["fastest"] == "tp, none");
  CHECK(json["predicted"] == true);
  CHECK(json["answer"] == found.answer());
  runs.cells.erase(runs.cells.begin());
  CHECK(group_cells(runs).answer().empty());  // one alone is the fastest of nothing
}

TEST_CASE("a headline says that CPU seconds decided, and what cannot be") {
  ReportRuns runs;
  runs.name = "disturbed";
  const auto add = [&](const std::string& plan, const std::string& policy, double tokens,
                       double cpu, double flops, bool disturbed) {
    ReportCell& one = runs.cells.emplace_back(cell(plan, policy, 0, tokens, 1));
    one.timing.cpu = cpu;
    one.timing.steps = 10;
    one.timing.disturbed = disturbed;
    one.flops = flops;
  };
  add("dp", "none", 2000, 1, 1e9, true);
  add("tp", "none", 1000, 2, 1e9, false);
  add("tp", "full", 1500, 1.4, 2e9, false);
  const ReportGroups found = group_cells(runs);
  CHECK(found.fastest == 0);
  CHECK(found.headline.find("CPU seconds say so") != std::string::npos);
  CHECK(found.headline.find("Cannot be: tp, full does more work than tp, none in less time") !=
        std::string::npos);
}

TEST_CASE("each pair that cannot be has a sentence of its own") {
  ReportRuns runs;
  runs.name = "impossible";
  for (const char* plan : {"dp", "tp"}) {
    runs.cells.push_back(cell(plan, "none", 0, 1000, 1));
    runs.cells.back().flops = 1e9;
    runs.cells.push_back(cell(plan, "full", 0, 2000, 1));
    runs.cells.back().flops = 2e9;
  }
  const std::string headline = group_cells(runs).headline;
  CHECK(headline.find('\n') == std::string::npos);
  CHECK(headline.find(". Cannot be: dp, full does more work than dp, none") != std::string::npos);
  CHECK(headline.find(". Cannot be: tp, full does more work than tp, none") != std::string::npos);
}

TEST_CASE("what was compared with nothing is not right") {
  ReportRuns runs = sweep();
  for (ReportCell& one : runs.cells) {
    one.held_to = "dp";
    if (one.values[0].second == "pp") one.compared = true;
  }
  const ReportGroups found = group_cells(runs);
  CHECK(found.groups[0].verdict == GroupVerdict::right);  // the others are compared with it
  CHECK(found.groups[2].verdict == GroupVerdict::unproven);
  CHECK(found.fastest == 0);
}

TEST_CASE("other work is neither slower nor faster") {
  ReportRuns runs = sweep();
  for (ReportCell& one : runs.cells)
    one.work = {{"model.layers", one.values[1].second == "full" ? "8" : "1"}};
  const ReportGroups found = group_cells(runs);
  CHECK(found.races.size() == 2);
  CHECK(found.fastest == -1);
  CHECK(found.groups[2].fastest);
  CHECK(found.groups[3].fastest);  // of the larger model
  CHECK(found.headline.find("There are 2 kinds of work") == 0);
  CHECK(found.headline.find(" none: fastest tp, none, 1,212 tokens/s") != std::string::npos);
  CHECK(found.headline.find(" full: fastest tp, full, 900 tokens/s") != std::string::npos);
  REQUIRE(found.races.size() == 2);
  CHECK(found.races[0].fastest == 2);
  CHECK(found.races[1].groups.size() == 2);
  // Undecided is an answer too, for each kind.
  for (ReportCell& one : runs.cells)
    if (one.values[1].second == "full") set_speed(one, 800);
  CHECK(group_cells(runs).headline.find(" full: undecided: ") != std::string::npos);
  // Nothing was run: each kind has a mix that is predicted to be its fastest.
  for (ReportCell& one : runs.cells) {
    one.tokens_per_second.predicted = one.tokens_per_second.measured;
    one.tokens_per_second.measured = NAN;
    one.steps = 0;
    if (one.status == "done") one.status = "predicted";
  }
  const ReportGroups predicted = group_cells(runs);
  CHECK(predicted.headline.find(" none: predicted fastest tp, none") != std::string::npos);
  CHECK(predicted.races[1].name == "full");
}

TEST_CASE("repeats are runs whose experiments differ in the seed alone, whatever they are called") {
  ReportRuns runs;
  for (int run = 0; run < 3; ++run) {
    ReportCell& one = runs.cells.emplace_back(cell("dp", "none", run, 1000 + run, 1));
    one.sweep.clear();
    one.values.clear();
    one.settings = "{\"timeout\":" + std::to_string(run) + "}";
    one.repeats = run < 2 ? "0123" : "4567";
  }
  const ReportGroups found = group_cells(runs);
  REQUIRE(found.groups.size() == 2);
  CHECK(found.groups[0].tokens_per_second.n == 2);
}

TEST_CASE("a speed and its interval are of the same runs") {
  ReportRuns runs = sweep();
  for (ReportCell& one : runs.cells) {
    one.timing.steps = 10;
    one.timing.disturbed = one.seed == "0";
    if (one.seed == "0") set_speed(one, one.tokens_per_second.measured / 2);
  }
  const ReportGroups found = group_cells(runs);
  CHECK(found.groups[0].tokens_per_second.n == 2);  // the disturbed run does not count
  CHECK(found.groups[0].tokens_per_second.mean == Approx(1015));
  CHECK(found.groups[0].disturbed == 1);
  CHECK(found.groups[0].ran == 3);
}

TEST_CASE("one value of two axes, or of two sweeps, is two rows") {
  ReportRuns runs;
  runs.name = "s";
  runs.cells = {cell("1", "", 0, 1000, 1), cell("1", "", 0, 1100, 1), cell("1", "", 0, 1200, 1)};
  runs.cells[0].values = runs.cells[2].values = {{"microbatch", "1"}};
  runs.cells[1].values = {{"layers", "1"}};
  runs.cells[0].label = runs.cells[2].label = "microbatch=1";
  runs.cells[1].label = "layers=1";
  runs.cells[2].sweep = "other";
  const ReportGroups found = group_cells(runs);
  REQUIRE(found.groups.size() == 3);
  CHECK(found.groups[1].name == "layers=1");
  CHECK(found.groups[0].name == "mixes: microbatch=1");
  CHECK(found.headline.find("once") != std::string::npos);
}

TEST_CASE("cells of one sweep with the same values that train otherwise are called as they are") {
  ReportRuns runs;
  runs.name = "s";
  for (int seed = 0; seed < 2; ++seed) {
    ReportCell& one = runs.cells.emplace_back(cell("dp", "none", seed, 1000, 1));
    one.repeats = std::to_string(seed);
    one.file = "/home/me/runs/s/" + std::to_string(seed) + "/run.h5";
  }
  const ReportGroups found = group_cells(runs);
  REQUIRE(found.groups.size() == 2);
  CHECK(found.groups[0].name == "dp, none seed=0");
  CHECK(found.groups[1].name == "dp, none seed=1");
}

TEST_CASE("an interval that is wider than the speed is no number") {
  ReportRuns runs;
  runs.name = "s";
  for (const char* plan : {"a", "b"}) {
    runs.cells.push_back(cell(plan, "none", 0, 1000, 1));
    runs.cells.push_back(cell(plan, "none", 1, 100, 1));
  }
  const ReportGroups found = group_cells(runs);
  REQUIRE(found.groups[0].interval.known());
  CHECK(std::isnan(found.groups[0].half()));
  CHECK(found.fastest == -1);
  const Json json = found.answer_json(false);
  CHECK(json["speeds"][0]["half"].is_null());
  CHECK(json["undecided"].size() == 2);
}

TEST_CASE("a mix that ran alone is the fastest of nothing") {
  ReportRuns runs;
  runs.name = "s";
  runs.same_loss_as = "dp";
  runs.cells = {cell("dp", "none", 0, 1000, 1), cell("tp", "none", 0, 2000, 1, "failed")};
  ReportGroups found = group_cells(runs);
  CHECK(found.fastest == -1);
  CHECK(found.answer_json(false)["kinds"][0]["fastest"].is_null());
  CHECK(found.headline.find("The only mix that is done and right: dp, none, 1,000 tokens/s") == 0);
  runs.cells[1] = cell("tp", "none", 0, 500, 1);
  runs.cells[1].work = {{"batch", "2"}};
  found = group_cells(runs);
  CHECK(found.races.size() == 2);
  const Json numbers = found.answer_json(true);
  for (const Json& kind : numbers["kinds"]) CHECK(kind["fastest"].is_null());
  for (const ReportGroup& group : found.groups) CHECK_FALSE(group.fastest);
}

TEST_CASE("the answer is one in the terminal, in JSON and in reports") {
  ReportRuns runs;
  runs.name = "s";
  const auto add = [&](const char* model, const char* plan, double tokens, bool right = true) {
    for (int seed = 0; seed < 2; ++seed) {
      ReportCell& one = runs.cells.emplace_back(cell(plan, model, seed, tokens + seed, 1));
      one.values = {{"model", model}, {"plan", plan}};
      one.label = one.name = std::string(model) + " " + plan;
      one.work = {{"model.layers", model}};
      if (!right) one.status = "failed";
    }
  };
  add("deep", "dp", 300);
  add("deep", "tp", 200);
  add("small", "dp", 1000);
  add("small", "tp", 1000);
  const ReportGroups found = group_cells(runs);
  CHECK(found.answer().find("deep: fastest: deep dp, as") == 0);
  CHECK(found.answer().find("\nsmall: undecided: small dp, small tp are") != std::string::npos);
  const Json json = found.answer_json(false);
  CHECK(json["fastest"].is_null());
  CHECK(json["kinds"][0]["fastest"] == "deep dp");
  CHECK(json["kinds"][1]["undecided"] == Json({"small dp", "small tp"}));
  CHECK(json["kinds"][1]["mixes"].size() == 2);
  CHECK(json["speeds"].size() == 4);
  CHECK(found.answer_json(true)["kinds"][0]["fastest"]["name"] == "deep dp");
}

TEST_CASE("a thinned curve keeps its ends, its spikes and where it breaks") {
  Curve curve;
  for (int step = 0; step < 10000; ++step) curve.emplace_back(step, 5.0 - 1e-4 * step);
  curve[4321].second = 99;
  curve[7777].second = -3;
  curve[5000].second = NAN;
  const Curve thin = thinned(curve, 200);
  CHECK(thin.size() <= 200);
  CHECK(thin.front() == curve.front());
  CHECK(thin.back() == curve.back());
  const auto has = [&](std::int64_t step) {
    return std::any_of(thin.begin(), thin.end(), [&](auto& one) { return one.first == step; });
  };
  CHECK(has(4321));
  CHECK(has(7777));
  CHECK(has(5000));
  CHECK(
      std::is_sorted(thin.begin(), thin.end(), [](auto& a, auto& b) { return a.first < b.first; }));
  CHECK(thinned(Curve(curve.begin(), curve.begin() + 150), 200).size() == 150);
}

TEST_CASE("numbers and texts of a page") {
  CHECK(page_number(NAN).is_null());
  CHECK(page_number(1.0 / 3).dump() == "0.333333");
  CHECK(page_number(123456789).dump() == "123456789");
  CHECK(page_text("abc", 3) == "abc");
  CHECK(page_text("äöüß", 2) == "äö … (4 characters)");
  CHECK(page_text("a\xff", 9) == "a\\xff");
}
