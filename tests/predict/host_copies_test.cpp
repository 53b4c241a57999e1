// Copies between devices and host memory, priced beside computing: what hides them, what waits for
// them, and who shares a link.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "clusters.h"
#include "predict/host_lanes.h"
#include "predict/link_queue.h"
#include "predict/prediction.h"
#include "setups.h"

using namespace mw;
using namespace mw::test;

namespace {

// What enters each layer goes, and nothing else: all else is computed again, and rope is small.
Setup inputs_of_layers(bool go = true, std::vector<StrategyChoice> plan = {},
                       std::int64_t microbatch = 0) {
  Setup setup = llama(std::move(plan), microbatch);
  setup.recompute.kind = RecomputePolicy::Kind::full;
  setup.offload.kind = go ? OffloadPolicy::Kind::full : OffloadPolicy::Kind::none;
  setup.offload.least = 1 << 12;
  return setup;
}
constexpr double input_bytes = 4.0 * 8 * 32 * 64;  // fp32, sequences, tokens, hidden
constexpr int all_layers = 3;

ClusterMachine with_link(double link, double node_link = 0, int devices = 1 << 14) {
  Cluster c = round_cluster(devices);
  c.network.nic = 1e10;
  c.nodes = 8;
  c.host_bandwidth = 1e10;
  c.host_link = link;
  c.host_node_link = node_link;
  return {c, round_stack()};
}

Prediction priced_on(const Setup& setup, const Machine& machine, bool traced = false) {
  const Experiment e = experiment(setup);
  return mw::predict(*e.plan, machine, 0, traced);
}

// The copies of a program, in its order.
std::vector<HostCopy> copies_of(const RankView& rank) {
  std::vector<HostCopy> found;
  for (const Segment& segment : rank.program().segments) {
    for (const Instruction& i : segment.code) {
      const HostCopy copy = footprint(rank, i, FootprintParts::work).host_copy;
      if (copy.bytes > 0) found.push_back(copy);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("A copy that computing outlasts costs nothing") {
  const ClusterMachine fast = with_link(1e12);
  const Prediction stays = priced_on(inputs_of_layers(false), fast),
                   goes = priced_on(inputs_of_layers(), fast);
  CHECK(goes.host_copies.seconds == Approx(2 * all_layers * input_bytes / 1e12));
  CHECK(goes.host_copies.exposed == 0);
  CHECK(goes.step_seconds == Approx(stays.step_seconds));
  CHECK(goes.stages[0].memory[Category::host] ==
        static_cast<std::int64_t>(all_layers * input_bytes));
  CHECK(stays.host_copies.seconds == 0);
}

TEST_CASE("What computing does not outlast is waited for, and is a category of the step") {
  const Prediction stays = priced_on(inputs_of_layers(false), with_link(1e6));
  // So slow that each copy is awaited: the next one of its way, or its reader, comes too early.
  const Prediction slow = priced_on(inputs_of_layers(), with_link(1e6)),
                   slower = priced_on(inputs_of_layers(), with_link(5e5));
  const double copy = input_bytes / 1e6;
  REQUIRE(copy > stays.step_seconds);
  CHECK(slower.step_seconds - slow.step_seconds == Approx(2 * all_layers * copy));
  for (const Prediction& p : {slow, slower}) {
    CHECK(p.compute_seconds == Approx(stays.compute_seconds));
    CHECK(p.step_seconds - stays.step_seconds == Approx(p.host_copies.exposed));
    CHECK(p.host_copies.exposed < p.host_copies.seconds);
    CHECK(p.host_copies.exposed > p.host_copies.seconds - stays.step_seconds);
    CHECK(p.shares.host_copies == Approx(p.host_copies.exposed / p.step_seconds));
    CHECK(p.shares.compute + p.shares.host_copies == Approx(1));
    CHECK(p.bubble_fraction < 1e-9);
    CHECK(p.to_json()["exposed_host_copy_seconds"] == p.host_copies.exposed);
    CHECK(p.to_json()["host_copy_seconds"] == p.host_copies.seconds);
  }
}

TEST_CASE("Copies of one way follow each other, and none waits for the other way") {
  const Experiment e = experiment(inputs_of_layers());
  const Program& program = e.plan->programs.front();
  const RankView rank(program, program.first());
  const std::vector<HostCopy> copies = copies_of(rank);
  REQUIRE(copies.size() == 2 * all_layers);
  std::vector<HostCopy> out, in;
  for (const HostCopy& copy : copies) {
    CHECK(copy.bytes == static_cast<std::int64_t>(input_bytes));
    (copy.leaves ? out : in).push_back(copy);
  }
  REQUIRE(out.size() == all_layers);
  // The last to leave is the first to come back.
  CHECK(in.front().host == out.back().host);

  HostLanes lanes(rank);
  const HostLanes::Copy first = lanes.begin(out[0], 10, 0, 1);
  CHECK(first.begin == 1);
  CHECK(first.end == 11);
  CHECK(lanes.left() == 11);
  const HostLanes::Copy second = lanes.begin(out[1], 10, 0, 2);
  CHECK(second.begin == 11);
  const HostLanes::Copy back = lanes.begin(in[0], 10, 0, 3);  // of another tensor
  CHECK(back.begin == 3);
  CHECK(lanes.begin(in[0], 10, 1, 4).begin == 13);  // behind that
  // What is on its way there comes back once it is there.
  HostLanes other(rank);
  other.begin(out.back(), 10, 0, 0);
  CHECK(other.begin(in.front(), 10, 1, 1).begin == 1);  // another microbatch's
  CHECK(other.begin(in.front(), 1, 0, 2).begin == 11);
}

TEST_CASE("A copy is awaited by the first that comes to its storage, and by the next to leave") {
  const Experiment e = experiment(inputs_of_layers());
  const Program& program = e.plan->programs.front();
  const RankView rank(program, program.first());
  const Prediction p = mw::predict(*e.plan, with_link(1e6), 0, /*traced=*/true);
  REQUIRE(p.instructions.size() == 1);
  int leaving = 0, coming = 0;
  for (const InstructionTime& time : p.instructions[0]) {
    if (time.kind != InstructionTime::Kind::copy_wait) continue;
    const auto& code = program.segments[time.segment].code;
    const HostCopy own = footprint(rank, code[time.index], FootprintParts::work).host_copy;
    if (own.leaves) {
      ++leaving;
      continue;
    }
    ++coming;
    const auto reads = [&](const Instruction& i, int slot) {
      return std::find(i.inputs.begin(), i.inputs.end(), slot) != i.inputs.end() ||
             std::find(i.saved.begin(), i.saved.end(), slot) != i.saved.end();
    };
    // The copy before it, whose tensor nobody between reads and this one does.
    int from = time.index - 1;
    while (from >= 0 && footprint(rank, code[from], FootprintParts::work).host_copy.bytes == 0)
      --from;
    REQUIRE(from >= 0);
    const int slot = code[from].outputs[0];
    CHECK(reads(code[time.index], slot));
    for (int n = from + 1; n < time.index; ++n) CHECK_FALSE(reads(code[n], slot));
  }
  CHECK(leaving == all_layers - 1);  // the first to leave waits for none
  CHECK(coming == all_layers);
}

TEST_CASE("Ranks of a node share what its links carry together") {
  const auto seconds = [](int ranks, double together, int devices) {
    return priced_on(inputs_of_layers(true, {dp(ranks)}), with_link(1e9, together, devices))
        .host_copies.seconds;
  };
  const double alone = seconds(4, 0, 4);
  CHECK(alone == Approx(2 * all_layers * input_bytes / 4 / 1e9));
  CHECK(seconds(4, 4e9, 4) == Approx(alone));
  CHECK(seconds(4, 1e9, 4) == Approx(4 * alone));
  CHECK(seconds(2, 2e9, 4) == Approx(2 * alone));      // twice the rows, and no other ranks
  CHECK(seconds(4, 1e9, 2) == Approx(2 * alone));      // two to a node
  CHECK(seconds(8, 1e9, 4) == Approx(4 * alone / 2));  // half the rows
}

TEST_CASE("Where device and host have one memory, copies are made in it as before") {
  const SharedCores cores(round_device());
  const Prediction stays = priced_on(inputs_of_layers(false), cores),
                   goes = priced_on(inputs_of_layers(), cores);
  CHECK(goes.host_copies.seconds == 0);
  CHECK(goes.shares.host_copies == 0);
  CHECK_FALSE(goes.to_json().contains("host_copy_seconds"));
  CHECK(goes.step_seconds - stays.step_seconds ==
        Approx(2 * all_layers * (1e-6 + 2 * input_bytes / 1e10)));
}

TEST_CASE("A transfer that waits for its copy holds up its own group, and no other") {
  const bool apart = GENERATE(false, true);
  const int gathers = 0, sums = apart ? 1 : 0;
  LinkQueue link;
  const auto goes = [&](int group, double clock, double ready, double seconds, double begin,
                        double end) {
    const LinkQueue::Time time = link.begin(group, group, clock, ready, seconds);
    CHECK(time.begin == begin);
    CHECK(time.end == end);
  };
  goes(gathers, 0, 10, 1, 10, 11);
  if (apart) {
    goes(sums, 2, 0, 2, 2, 4);
    goes(gathers, 3, 20, 1, 20, 21);
    goes(sums, 5, 0, 1, 5, 6);   // the later gather leaves that time free
    goes(sums, 7, 0, 5, 7, 13);  // and goes on behind the first
    goes(2, 8, 0, 1, 13, 14);
    goes(sums, 9, 0, 7, 14, 22);
    CHECK(link.free() == 22);
  } else {
    goes(sums, 2, 0, 2, 11, 13);
    goes(gathers, 3, 20, 1, 20, 21);
    goes(sums, 5, 0, 1, 21, 22);
    CHECK(link.pieces().size() == 4);
    goes(sums, 30, 0, 1, 30, 31);
    CHECK(link.pieces().size() == 1);
  }
}

TEST_CASE("A gather of what lies in host memory waits for its copy, beside the layers before it") {
  const auto priced = [](const char* offload, double link, int prefetch = 1) {
    Setup setup = llama({zero(2, 3, 1, prefetch, false, 1 << 12, offload)}, 1);
    setup.options["layers"] = 6;
    return priced_on(setup, with_link(link));
  };
  const Prediction stays = priced("none", 1e12), fast = priced("parameters", 1e12),
                   slow = priced("parameters", 1e8);
  CHECK(stays.host_copies.seconds == 0);
  CHECK(fast.host_copies.seconds > 0);
  CHECK(slow.host_copies.seconds == Approx(1e4 * fast.host_copies.seconds));
  CHECK(fast.host_copies.exposed < 0.5 * fast.host_copies.seconds + 1e-9);
  CHECK(slow.host_copies.exposed > 0.5 * slow.host_copies.seconds);
  for (int prefetch = 0; prefetch <= 6; ++prefetch) {
    const Prediction p = priced("parameters", 1e8, prefetch);
    INFO("prefetch " << prefetch);
    // No transfer's of the axis is what it waited for itself, or what held it up.
    double parts = p.compute_seconds + p.host_copies.exposed;
    for (const CommunicationForecast& c : p.communication) {
      CHECK(c.exposed_seconds <= c.seconds * (1 + 1e-9));
      parts += c.exposed_seconds;
    }
    CHECK(parts == Approx(p.step_seconds));
    CHECK(p.host_copies.exposed <= p.host_copies.seconds);
  }
}

TEST_CASE(
    "What comes to the device for the update is copied both ways beside other buckets' updates") {
  const auto of = [](bool device) {
    Setup setup = llama({device ? zero_on_device(2, 1, "optimizer")
                                : zero(2, 1, 1, 1, false, 1 << 12, "optimizer")},
                        1);
    setup.options["layers"] = 6;
    setup.precision = Precision::bf16;
    return setup;
  };
  const Prediction host = priced_on(of(false), with_link(1e8)),
                   device = priced_on(of(true), with_link(1e8)),
                   fast = priced_on(of(true), with_link(1e12));
  // Gradients go, and parameters come, in bf16; masters and two averages stay.
  const auto elements = device.host_copies.seconds * 1e8 / 24;
  CHECK(host.host_copies.seconds == Approx(4 * elements / 1e8));
  CHECK(host.host_updates.seconds > 0);
  CHECK(device.host_updates.seconds == 0);
  // AdamW: masters and two averages, 12 bytes an element, there and back.
  const auto bytes =
      static_cast<double>(predict_rank(*experiment(of(true)).plan, 0).memory[Category::host]);
  CHECK(device.host_copies.seconds == Approx(2 * bytes / 1e8));
  // A link carries both ways at once.
  CHECK(device.host_copies.exposed > 0.5 * device.host_copies.seconds);
  CHECK(device.host_copies.exposed < 0.75 * device.host_copies.seconds);
  CHECK(fast.step_seconds < device.step_seconds);
  double parts = device.compute_seconds + device.host_copies.exposed;
  for (const CommunicationForecast& c : device.communication) parts += c.exposed_seconds;
  CHECK(parts == Approx(device.step_seconds));
}

TEST_CASE("Gathers and sums of a group go in their order, beside those inside layers") {
  const bool inside = GENERATE(false, true);
  const int prefetch = GENERATE(1, 3);
  std::vector<StrategyChoice> plan;
  if (inside) plan.push_back(tp(2));
  plan.push_back(zero(2, 3, 1, prefetch, false, 1 << 12, "parameters"));
  Setup setup = llama(std::move(plan), 1);
  setup.options["layers"] = 6;
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  const Prediction p = mw::predict(*e.plan, with_link(1e8), 0, /*traced=*/true);
  int gathers = 0, sums = 0, between = 0;
  double over = 0;  // of the last transfer of the group
  for (const InstructionTime& time : p.instructions.at(0)) {
    if (time.kind != InstructionTime::Kind::transfer) continue;
    const Instruction& i = program.segments[time.segment].code[time.index];
    if (i.bucket < 0) {
      between += time.start < over ? 1 : 0;
      continue;
    }
    if (i.move.kind != Move::Kind::all_gather && i.move.kind != Move::Kind::reduce_scatter)
      continue;
    (i.move.kind == Move::Kind::all_gather ? gathers : sums) += 1;
    CHECK(time.start >= over);
    over = time.end;
  }
  CHECK(gathers > sums);
  CHECK(sums >= 6);
  CHECK((between > 0) == inside);
}

TEST_CASE("Microbatches that repeat each other take what each takes played by itself") {
  const std::string schedule = GENERATE(as<std::string>{}, "1f1b", "gpipe", "zb-h1");
  const double link = GENERATE(1e7, 1e9);
  Setup setup = inputs_of_layers(true, {pp(3, schedule, {1, 1, 1})}, 1);
  setup.recompute.kind = RecomputePolicy::Kind::none;
  setup.batch = 12;
  const Prediction p = priced_on(setup, with_link(link), /*traced=*/true);
  double last = 0;
  for (const auto& stage : p.instructions) {
    REQUIRE(!stage.empty());
    for (const InstructionTime& time : stage) {
      if (time.kind != InstructionTime::Kind::transfer) last = std::max(last, time.end);
    }
  }
  CHECK(p.host_copies.seconds > 0);
  CHECK(last == Approx(p.step_seconds));
}

TEST_CASE("Updates in host memory hide behind the next forward, or behind the backward") {
  const auto priced = [](int stage, bool overlaps, bool may_leave_out) {
    Setup setup = llama({zero_on_host(2, stage, "optimizer", overlaps)}, 1);
    // So large that kernels, and not their launches, take the time.
    setup.options["layers"] = 6;
    setup.options["hidden"] = 1024;
    setup.options["ffn"] = 4096;
    setup.sequence = 1024;
    setup.precision = Precision::bf16;
    setup.may_leave_out = may_leave_out;
    setup.optimizer_options = {{"lr", 1e-3}};
    Prediction p = priced_on(setup, with_link(1e12));
    double parts = p.compute_seconds + p.host_copies.exposed;
    for (const CommunicationForecast& c : p.communication) parts += c.exposed_seconds;
    CHECK(parts == Approx(p.step_seconds));
    CHECK(p.host_updates.exposed <= p.host_updates.seconds * (1 + 1e-9));
    CHECK(p.to_json()["host_update_seconds"] == p.host_updates.seconds);
    return p;
  };
  for (const int stage : {1, 2, 3}) {
    INFO("stage " << stage);
    const Prediction end = priced(stage, false, true), forward = priced(stage, true, true),
                     backward = priced(stage, true, false);
    // The device still has a little work queued when the first update begins.
    CHECK(end.host_updates.exposed == Approx(end.host_updates.seconds).epsilon(1e-3));
    for (const Prediction* p : {&forward, &backward}) {
      CHECK(p->host_updates.seconds == Approx(end.host_updates.seconds));
      CHECK(p->host_updates.exposed < 0.8 * p->host_updates.seconds);
      CHECK(p->step_seconds < end.step_seconds);
    }
    // A backward is longer than a forward.
    CHECK(backward.host_updates.exposed < forward.host_updates.exposed);
  }
}
