// Every scheduler at all sizes, with unequal times and memory limits; what they refuse.
#include <random>

#include "schedules.h"

using namespace mw;

TEST_CASE("Every schedule passes the check at every size") {
  int seen = 0;
  for (const auto& scheduler : schedulers()) {
    for (const int p : {1, 2, 3, 4, 8}) {
      for (const int chunks : {1, 2, 3}) {
        if (scheduler->fixed_chunks() > 0 && chunks != scheduler->fixed_chunks()) continue;
        for (const int m : {1, 2, 3, 5, 8, 24}) {
          INFO(scheduler->name() << " p " << p << " chunks " << chunks << " m " << m);
          const auto request = request_of(p, chunks, m);
          const auto schedule = scheduler->make(request);
          CHECK(faults(schedule, request) == "none");
          CHECK(schedule.name == scheduler->name());
          CHECK(schedule.stage_of == scheduler->placement(p, chunks));
          // Two stages and eight microbatches show whether it parts backwards at any size
          // (plugins/pp).
          if (schedule.splits()) CHECK(scheduler->make(request_of(2, chunks, 8)).splits());
          const auto timeline = simulate(schedule, request);
          // No stage is done before its own works, none works twice at once.
          CHECK(timeline.makespan >= 3 * m * chunks);
          for (const auto& works : timeline.stages)
            for (std::size_t i = 1; i < works.size(); ++i)
              CHECK(works[i].start >= (works[i].lane > 0 ? works[i - 1].start : works[i - 1].end));
          ++seen;
        }
      }
    }
  }
  CHECK(seen == 420);
}

TEST_CASE("The catalogue has all by name, with a line of text") {
  const std::vector<std::string> names = {"gpipe", "1f1b",     "interleaved", "looped-bfs",
                                          "zb-h1", "zb-h2",    "zbv",         "v-half",
                                          "v-min", "dualpipev"};
  REQUIRE(schedulers().size() == names.size());
  const auto listed = test::registry().list(Kind::scheduler);
  for (std::size_t i = 0; i < names.size(); ++i) {
    CHECK(schedulers()[i]->name() == names[i]);
    CHECK(listed[i]->name == names[i]);
    CHECK(std::string(listed[i]->doc).find('(') != std::string::npos);
  }
  CHECK(test::thrown([] { test::registry().find(Kind::scheduler, "2f2b"); }) == "option.choice");
}

TEST_CASE("Round-robin and V") {
  CHECK(round_robin_placement(3, 2) == std::vector<int>{0, 1, 2, 0, 1, 2});
  CHECK(v_placement(3) == std::vector<int>{0, 1, 2, 2, 1, 0});
  const auto schedule = made("zbv", request_of(3, 2, 2));
  CHECK(schedule.chunks(1) == std::vector<int>{1, 4});
  CHECK(schedule.chunk_of(1) == 0);
  CHECK(schedule.chunk_of(4) == 1);
  CHECK(schedule.splits());
  CHECK_FALSE(made("1f1b", request_of(2, 1, 2)).splits());
  CHECK(to_text(made("1f1b", request_of(2, 1, 3))) ==
        "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2\n");
}

TEST_CASE("With unequal times, zero-bubble schedules are done no later than 1F1B") {
  std::mt19937 generator(11);
  std::uniform_real_distribution<double> any(0.2, 2);
  for (int i = 0; i < 150; ++i) {
    const int p = 1 + static_cast<int>(generator() % 8), m = 1 + static_cast<int>(generator() % 24);
    const double f = any(generator), d = any(generator), w = any(generator);
    const double send = i % 3 == 0 ? 0.1 * any(generator) : 0;
    auto plain = request_of(p, 1, m);
    plain.times = {{f, d, w, send}};
    const double bound = simulate(made("1f1b", plain), plain).makespan;
    INFO("p " << p << " m " << m << " F " << f << " I " << d << " W " << w << " send " << send);
    CHECK(simulate(made("zb-h1", plain), plain).makespan <= bound * (1 + 1e-9));
    CHECK(simulate(made("zb-h2", plain), plain).makespan <= bound * (1 + 1e-9));
    if (send > 0) continue;  // a V sends twice as often
    auto v = request_of(p, 2, m);
    v.times = {{f / 2, d / 2, w / 2, 0}};
    CHECK(simulate(made("zbv", v), v).makespan <= bound * (1 + 1e-9));
  }
}

TEST_CASE("Stages of unequal times and sizes keep to the defaults and are no slower than 1F1B") {
  std::mt19937 generator(5);
  std::uniform_real_distribution<double> any(0.5, 1.5);
  for (int i = 0; i < 40; ++i) {
    const int p = 2 + static_cast<int>(generator() % 5), m = 1 + static_cast<int>(generator() % 16);
    auto request = request_of(p, 1, m);
    for (int v = 0; v < p; ++v) {
      request.times.push_back({any(generator), any(generator), any(generator), 0.05});
      request.bytes.push_back({any(generator), 0.5 * any(generator)});
    }
    const double bound = simulate(made("1f1b", request), request).makespan;
    for (const char* name : {"zb-h1", "zb-h2"}) {
      INFO(name << " p " << p << " m " << m);
      const auto schedule = made(name, request);
      CHECK(faults(schedule, request) == "none");
      CHECK(simulate(schedule, request).makespan <= bound * (1 + 1e-9));
    }
  }
}

TEST_CASE("Zero-bubble schedules keep to a memory limit, down to one microbatch") {
  for (const char* name : {"zb-h1", "zb-h2", "zbv", "v-half", "v-min"}) {
    for (const int p : {1, 2, 4, 5}) {
      for (const int m : {1, 2, 5, 12}) {
        auto request = request_for(name, p, m);
        for (int v = 0; v < p * request.chunks; ++v) {
          request.times.push_back({1.0 + 0.1 * (v % 3), 1.2, 0.7 + 0.05 * v, 0.1});
          request.bytes.push_back({2.0 + v % 2, 1.0 + v % 3});
        }
        double one = 0, last = -1;
        for (int s = 0; s < p; ++s) {
          double sum = 0;
          for (int v = 0; v < p * request.chunks; ++v)
            if (scheduler(name).placement(p, request.chunks)[v] == s)
              sum += std::max(request.bytes_of(v).forward, request.bytes_of(v).dgrad);
          one = std::max(one, sum);
        }
        for (const double factor : {1.0, 1.5, 2.0, 3.0, 100.0}) {
          request.memory_limit = factor * one;
          INFO(name << " p " << p << " m " << m << " limit " << request.memory_limit);
          const auto schedule = made(name, request);
          CHECK(faults(schedule, request) == "none");
          const auto timeline = simulate(schedule, request);
          CHECK(largest(timeline.bytes_peak) <= request.memory_limit * (1 + 1e-9));
          if (factor == 1.0) last = timeline.makespan;
          if (factor == 100.0) CHECK(timeline.makespan <= last * (1 + 1e-9));
        }
        request.memory_limit = 0.99 * one;
        CHECK(test::thrown([&] { made(name, request); }) == "schedule.memory memory");
      }
    }
  }
}

TEST_CASE("What cannot be met is refused with the numbers and what can") {
  auto request = request_of(4, 1, 8);
  request.memory_limit = 4;
  const auto refused = [](const std::string& name, const ScheduleRequest& asked) {
    return test::thrown([&] { made(name, asked); });
  };
  CHECK(refused("gpipe", request) == "schedule.memory memory");
  CHECK_NOTHROW(made("1f1b", request));
  request.memory_limit = 3.5;
  CHECK(refused("1f1b", request) == "schedule.memory memory");
  CHECK(refused("zbv", request_of(4, 1, 8)) == "schedule.chunks chunks");
  CHECK(refused("1f1b", request_of(4, 2, 8)) == "schedule.chunks chunks");
  CHECK(refused("1f1b", request_of(0, 1, 8)) == "schedule.counts");
  CHECK(refused("interleaved", request_of(2, 0, 8)) == "schedule.counts");
  CHECK(refused("1f1b", request_of(2, 1, -3)) == "schedule.counts");
  CHECK(refused("gpipe", request_of(1 << 15, 1, 1 << 15)) == "plan.size");
  auto uneven = request_of(2, 2, 4);
  uneven.times = {{1, 1, 1, 0}, {1, 1, 1, 0}};
  CHECK(refused("interleaved", uneven) == "schedule.lists");
  uneven.times = {{1, -1, 1, 0}};
  CHECK(refused("interleaved", uneven) == "schedule.lists");
  uneven.times = {{1, 1, 1, 0}, {1, 1, 1, 0}};
  CHECK(test::thrown([&] { uneven.times_of(2); }) == "schedule.lists");
}
