// Braids priced: what pairs hide of exchanges, weaves that go by predicted seconds, and pictures.
#include <catch2/catch.hpp>

#include "draw/braids.h"
#include "meshwright/engine/rank_view.h"
#include "predict/pipeline.h"
#include "predict/prediction.h"
#include "predict/price.h"
#include "predict/step_counts.h"
#include "search_setups.h"
#include "support/problems.h"

using namespace mw;
using namespace mw::test;

namespace {

// Two stages in a V of two layers with experts each; exchanges take about what a layer computes.
Setup in_pairs(bool pair, const Json& weave = "switch") {
  Setup setup = small_experts();
  setup.options["layers"] = 4;
  setup.batch = 32;
  setup.microbatch = 1;
  setup.plan = {strategy("pp",
                         {{"ways", 2},
                          {"schedule", {{"kind", "dualpipev"}, {"pair", pair}}},
                          {"layout", {1, 1, 1, 1}},
                          {"weave", weave}},
                         [](std::int64_t, const std::vector<Json>& request) {
                           Json order = Json::array();  // one lane after the other
                           std::size_t number = 0;
                           for (const Json& lane : request.at(0).at("lanes")) {
                             ++number;
                             for (std::size_t n = 0; n < lane.at("code").size(); ++n)
                               order.push_back(number);
                           }
                           return order;
                         }),
                dp(4), ep(4)};
  return setup;
}

const Json in_sequence = {{"kind", "weave"}, {"name", "apart"}, {"order", {{function_key, 1}}}};

std::shared_ptr<const Plan> planned(const Setup& setup, bool knows_times = true) {
  PlanRequest request = experiment(in_pairs(false)).plan->request;
  request.strategies = setup.plan;
  if (knows_times) request.seconds = seconds_on(std::make_shared<ClusterMachine>(two_nodes()));
  Problems problems;
  auto plan = make_plan(request, problems);
  problems.throw_if_any();
  return plan;
}

double exposed_exchange(const Prediction& prediction) {
  double seconds = 0;
  for (const CommunicationForecast& c : prediction.communication)
    if (c.key.axis == "ep") seconds += c.mean_exposed_seconds;
  return seconds;
}

}  // namespace

TEST_CASE("Pairs hide exchanges, and a weave that goes by seconds hides no less", "[braids_test]") {
  const ClusterMachine machine = two_nodes();
  const auto priced = [&](const Setup& setup) { return predict(*planned(setup), machine); };
  const Prediction apart = priced(in_pairs(false)), sequence = priced(in_pairs(true, in_sequence)),
                   switched = priced(in_pairs(true)), hidden = priced(in_pairs(true, "hide"));
  REQUIRE(exposed_exchange(apart) > 0.1 * apart.step_seconds);  // there is something to hide
  CHECK(exposed_exchange(sequence) == Approx(exposed_exchange(apart)));
  CHECK(exposed_exchange(switched) < 0.75 * exposed_exchange(apart));
  CHECK(exposed_exchange(hidden) <= exposed_exchange(switched) * (1 + 1e-9));
  CHECK(switched.step_seconds < apart.step_seconds);
  CHECK(hidden.step_seconds <= switched.step_seconds * (1 + 1e-9));
  // They do the same, and send the same.
  for (const Prediction* other : {&sequence, &switched, &hidden}) {
    CHECK(other->flops_per_step == apart.flops_per_step);
    CHECK(other->hardware_flops_per_step == apart.hardware_flops_per_step);
    REQUIRE(other->communication.size() == apart.communication.size());
    for (std::size_t c = 0; c < apart.communication.size(); ++c) {
      CHECK(other->communication[c].key == apart.communication[c].key);
      CHECK(other->communication[c].calls == apart.communication[c].calls);
      CHECK(other->communication[c].bytes == apart.communication[c].bytes);
      CHECK(other->communication[c].seconds == Approx(apart.communication[c].seconds));
    }
  }
}

TEST_CASE("A braid takes what its works take, less what they hide", "[braids_test]") {
  const ClusterMachine machine = two_nodes();
  const std::map<std::string, std::vector<BraidPicture>> all = {
      {"apart", braid_pictures(*planned(in_pairs(true, in_sequence)), machine, 0)},
      {"switch", braid_pictures(*planned(in_pairs(true)), machine, 0)},
      {"hide", braid_pictures(*planned(in_pairs(true, "hide")), machine, 0)}};
  for (const auto& [weave, pictures] : all) {
    REQUIRE(pictures.size() >= 2);
    for (std::size_t p = 0; p < pictures.size(); ++p) {
      const BraidPicture& picture = pictures[p];
      INFO(weave << " " << picture.name);
      CHECK(picture.weave == weave);
      double computes = 0;
      for (std::size_t row = 0; row < 2; ++row)
        for (const TimedAction& action : picture.rows[row]) computes += action.end - action.start;
      CHECK(computes + picture.waited == Approx(picture.seconds));
      CHECK(picture.row_names.size() >= 3);
      CHECK(picture.row_names[2] == "ep");
      if (weave == "apart") {
        CHECK(picture.seconds == Approx(picture.apart));
        CHECK(picture.waited == Approx(picture.apart_waited));
      } else {
        CHECK(picture.seconds < 0.96 * picture.apart);
        CHECK(picture.seconds >= picture.apart - picture.apart_waited - 1e-12);
      }
      if (weave == "hide") CHECK(picture.seconds <= all.at("switch")[p].seconds * (1 + 1e-9));
    }
    const std::string text = braids_text(pictures, 80);
    CHECK_THAT(text, Catch::Contains(pictures[0].name + " on stage ") &&
                         Catch::Contains("by " + weave) && Catch::Contains("\n  ep "));
    CHECK_THAT(braids_svg(pictures, "braids"), Catch::Contains(pictures[1].name + ": ep"));
    CHECK(braids_json(pictures).size() == pictures.size());
  }
}

TEST_CASE("What a braid gains is told as less, as long or more", "[braids_test]") {
  BraidPicture picture{"0F1+1B0", "switch"};
  picture.apart = 1;
  for (const auto& [seconds, told] :
       {std::pair{0.97, "(3.0 % less)"}, {1.0004, "(as long)"}, {1.03, "(3.0 % more)"}}) {
    picture.seconds = seconds;
    CHECK_THAT(braids_text({picture}, 80), Catch::Contains(told));
  }
}

TEST_CASE("Each lane of a braid has its action, and is priced for its own microbatch",
          "[braids_test]") {
  const auto plan = planned(in_pairs(true));
  const Prediction p = predict(*plan, two_nodes(), 0, /*traced=*/true);
  std::map<std::string, int> seen;
  for (const auto& stage : p.actions) {
    for (std::size_t a = 0; a < stage.size(); ++a) {
      const TimedAction& action = stage[a];
      if (action.name != "F" && action.name != "B" && action.name != "I" && action.name != "W")
        continue;
      ++seen[std::to_string(action.vstage) + action.name];
      if (action.lanes == 1) continue;
      ++seen["of groups"];
      // Its group's works go on between the same ends.
      const TimedAction& first = stage[a - static_cast<std::size_t>(action.lane)];
      CHECK(first.lane == 0);
      CHECK(action.start < first.end);
      CHECK(first.start < action.end);
    }
  }
  for (int v = 0; v < 4; ++v) {
    CHECK(seen[std::to_string(v) + "F"] == 8);
    CHECK(seen[std::to_string(v) + "B"] + seen[std::to_string(v) + "I"] == 8);
  }
  CHECK(seen["of groups"] >= 2 * 2 * 8);
  // Played instruction by instruction or as runs that are known, a step takes as long.
  double last = 0;
  for (const auto& stage : p.instructions)
    for (const InstructionTime& time : stage) last = std::max(last, time.end);
  CHECK(last == Approx(p.step_seconds));
}

TEST_CASE("A weave that goes by seconds wants a device", "[braids_test]") {
  CHECK(thrown([] { planned(in_pairs(true, "hide"), /*knows_times=*/false); }) ==
        "weave.times plan.weave");
  // Only waits for transfers of the axes that it is told count.
  const Json none = {{"kind", "hide"}, {"axes", {"dp"}}};
  const ClusterMachine machine = two_nodes();
  const double all = exposed_exchange(predict(*planned(in_pairs(true, "hide")), machine));
  CHECK(exposed_exchange(predict(*planned(in_pairs(true, none)), machine)) > all);
}
