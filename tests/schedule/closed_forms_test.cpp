// The papers' closed forms, with F = I = W = 1.
#include "schedules.h"

using namespace mw;

namespace {

constexpr double exact = 1e-9;

}  // namespace

TEST_CASE("GPipe and 1F1B idle (p-1)/(m+p-1) of the time") {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int p = 2; p <= 32; ++p) {
      for (const int m : {1, p, 2 * p + 3}) {
        INFO(name << " p " << p << " m " << m);
        const auto request = request_of(p, 1, m);
        const auto timeline = simulate(made(name, request), request);
        CHECK(timeline.makespan == Approx(3.0 * (m + p - 1)).epsilon(exact));
        CHECK(timeline.bubble == Approx((p - 1.0) / (m + p - 1)).epsilon(exact));
      }
    }
  }
}

TEST_CASE("Chunks divide 1F1B's bubble, whether or not stages divide the microbatches") {
  for (const int chunks : {1, 2, 3, 5}) {
    for (int p = 2; p <= 32; p += p < 9 ? 1 : 8) {
      for (const int m : {p, p + 1, 2 * p - 1, 3 * p, 4 * p + p / 2}) {
        INFO("chunks " << chunks << " p " << p << " m " << m);
        auto request = request_of(p, chunks, m);
        // A stage's work on a microbatch takes 3 in all.
        request.times = {{1.0 / chunks, 1.0 / chunks, 1.0 / chunks, 0}};
        for (const char* name : {"interleaved", "looped-bfs"}) {
          const auto timeline = simulate(made(name, request), request);
          CHECK(timeline.makespan - 3 * m == Approx(3.0 * (p - 1) / chunks).epsilon(exact));
        }
      }
    }
  }
}

TEST_CASE("ZB-H1 idles a third of 1F1B's time, in 1F1B's memory") {
  for (int p = 2; p <= 32; ++p) {
    for (const int m : {p, 2 * p, 3 * p + 1}) {
      INFO("p " << p << " m " << m);
      const auto request = request_of(p, 1, m);
      const auto schedule = made("zb-h1", request);
      const auto timeline = simulate(schedule, request);
      CHECK(timeline.makespan - 3 * m == Approx(p - 1.0).epsilon(exact));
      CHECK(largest(timeline.microbatches_peak) == std::min(m, p));
      for (int s = 0; s < p; ++s) CHECK(most_in_flight(schedule.order[s]) == std::min(m, p - s));
    }
  }
}

TEST_CASE("ZB-H2 idles nowhere once begun, in less than twice 1F1B's memory") {
  for (int p = 2; p <= 32; ++p) {
    for (const int m : {2 * p - 1, 2 * p, 4 * p}) {
      INFO("p " << p << " m " << m);
      const auto request = request_of(p, 1, m);
      const auto schedule = made("zb-h2", request);
      const auto timeline = simulate(schedule, request);
      CHECK(largest(timeline.inner_idle) == Approx(0).margin(exact));
      CHECK(timeline.makespan == Approx(3.0 * m + p - 1).epsilon(exact));
      CHECK(largest(timeline.microbatches_peak) == 2 * p - 1);
      for (int s = 0; s < p; ++s)
        CHECK(most_in_flight(schedule.order[s]) == std::min(m, 2 * (p - s) - 1));
    }
  }
}

TEST_CASE("ZBV idles nowhere once begun, in 1F1B's memory") {
  for (int p = 2; p <= 32; ++p) {
    for (const int m : {2 * p, 2 * p + 1, 4 * p}) {
      INFO("p " << p << " m " << m);
      const auto request = request_of(p, 2, m);
      const auto timeline = simulate(made("zbv", request), request);
      CHECK(largest(timeline.inner_idle) == Approx(0).margin(exact));
      CHECK(timeline.makespan == Approx(6.0 * m + p - 1).epsilon(exact));
      CHECK(largest(timeline.microbatches_peak) <= 2 * p);  // halves of a stage
    }
  }
}

TEST_CASE(
    "V-Half has half of 1F1B's bubble in half of its memory, and V-Min two thirds in a third") {
  for (int p = 3; p <= 32; ++p) {
    for (const int m : {2 * p, 4 * p}) {
      INFO("p " << p << " m " << m);
      const auto request = request_of(p, 2, m);
      const auto half = simulate(made("v-half", request), request);
      CHECK(half.makespan <= 6.0 * m + 3 * (p - 1));
      CHECK(largest(half.microbatches_peak) <= p + 2);  // halves of a stage
      const auto least = simulate(made("v-min", request), request);
      CHECK(least.makespan <= 6.0 * m + 4 * (p - 1) + 1);
      CHECK(largest(least.microbatches_peak) <= 2.0 * p / 3 + 3);
    }
  }
}

TEST_CASE("DualPipeV idles less than 1F1B in one chunk's memory more") {
  for (int p = 2; p <= 16; ++p) {
    const int m = 3 * p;
    INFO("p " << p);
    const auto request = request_of(p, 2, m);
    const auto timeline = simulate(made("dualpipev", request), request);
    CHECK(timeline.makespan < 6.0 * (m + p - 1));
    CHECK(largest(timeline.microbatches_peak) == 2 * p + 1);
  }
}

TEST_CASE(
    "Activations at their highest: all of GPipe's, those ahead of 1F1B's, Megatron's when "
    "interleaved") {
  for (const int p : {2, 3, 4, 8, 16, 32}) {
    for (const int groups : {2, 3}) {
      const int m = groups * p;
      INFO("p " << p << " m " << m);
      const auto request = request_of(p, 1, m), chunked = request_of(p, 3, m);
      const auto gpipe = simulate(made("gpipe", request), request);
      const auto ours = simulate(made("1f1b", request), request);
      const auto interleaved = simulate(made("interleaved", chunked), chunked);
      for (int s = 0; s < p; ++s) {
        CHECK(gpipe.microbatches_peak[s] == m);
        CHECK(ours.microbatches_peak[s] == std::min(m, p - s));
        CHECK(interleaved.microbatches_peak[s] == std::min(3 * m, 2 * p + 2 * (p - 1 - s) + 1));
      }
    }
  }
}

TEST_CASE("A timeline counts bytes by what F, I and W leave, and sends between stages only") {
  auto request = request_of(1, 2, 1);
  request.bytes = {{4, 1}, {8, 3}};
  request.times = {{1, 1, 1, 10}};
  const auto schedule = schedule_from_text("0F0 1F0 1I0 0I0 0W0 1W0", "own");
  const auto timeline = simulate(schedule, request);
  CHECK(timeline.bytes_peak == std::vector<double>{12});
  CHECK(timeline.microbatches_peak == std::vector<double>{2});
  CHECK(timeline.makespan == 6);

  auto two = request_of(2, 1, 1);
  two.times = {{1, 2, 4, 0.5}, {8, 16, 32, 0.25}};
  const auto sent = simulate(schedule_from_text("0F0 0B0\n1F0 1I0 1W0", "own"), two);
  CHECK(sent.stages[1][0].start == 1.5);
  CHECK(sent.stages[0][1].start == 1.5 + 24 + 0.25);
  CHECK(sent.stages[1][2].end == 57.5);
  CHECK(sent.makespan == 57.5);
  CHECK(sent.busy == std::vector<double>{7, 56});
  CHECK(sent.bubble == Approx(1 - 63 / 115.0));
  CHECK(sent.inner_idle[0] == Approx((31.75 - 7) / 57.5));
  CHECK(sent.inner_idle[1] == 0);
  CHECK(sent.stages[1][1].name == "I");
  CHECK(sent.stages[1][1].rank == 1);
  CHECK(sent.stages[1][1].vstage == 1);
}
