// Two things go to host memory. Activations go there once and come back once where they are read,
// no sooner than asked. Gradients go there for updates, which are made beside what is computed.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

Program offloaded(int prefetch, std::vector<std::string> ops = {}, bool split = true) {
  Setup setup;
  setup.options["layers"] = 3;
  if (split) setup.plan = {delayed_wgrads()};
  setup.offload.kind = ops.empty() ? OffloadPolicy::Kind::full : OffloadPolicy::Kind::ops;
  setup.offload.ops = std::move(ops);
  setup.offload.prefetch = prefetch;
  return experiment(setup).plan->programs.front();
}

Memory memory_of(const Program& program, int slot) {
  return program.slots[slot].memory;
}
bool offloads(const Program& program, const Instruction& i) {
  return i.code == Code::copy && memory_of(program, i.outputs[0]) == Memory::host;
}
bool fetches(const Program& program, const Instruction& i) {
  return i.code == Code::copy && memory_of(program, i.inputs[0]) == Memory::host;
}

// Where the slot of that name is fetched from the host; -1.
int fetch(const Program& program, const Segment& segment, const std::string& label) {
  const auto found =
      std::find_if(segment.code.begin(), segment.code.end(),
                   [&](const Instruction& i) { return fetches(program, i) && i.label == label; });
  return found == segment.code.end() ? -1 : static_cast<int>(found - segment.code.begin());
}

int first_of_layer(const Program& program, const Segment& segment, int layer) {
  for (std::size_t n = 0; n < segment.code.size(); ++n) {
    const Instruction& i = segment.code[n];
    if (i.code == Code::compute && program.graph->ops()[i.op].layer == layer)
      return static_cast<int>(n);
  }
  return -1;
}

}  // namespace

TEST_CASE("A tensor goes to the host once, and comes back once in each segment that reads it") {
  const Program program = offloaded(0);
  std::map<int, int> host_of;  // slot of forward -> its host copy
  for (const Segment& segment : program.segments) {
    std::set<int> there, fetched;
    for (const Instruction& i : segment.code) {
      if (offloads(program, i)) {
        const Slot &from = program.slots[i.inputs[0]], &to = program.slots[i.outputs[0]];
        INFO(from.name);
        CHECK(segment.kind == SegmentKind::forward);
        CHECK(host_of.emplace(i.inputs[0], i.outputs[0]).second);
        CHECK(!from.persistent);
        CHECK((from.value < 0 || program.graph->value(from.value).source == Value::Source::op));
        CHECK(to.memory == Memory::host);
        // Nobody of the device's reads it after.
        CHECK(std::count(i.release.begin(), i.release.end(), i.inputs[0]) == 1);
      }
      if (fetches(program, i)) {
        INFO(i.label);
        CHECK(fetched.insert(i.inputs[0]).second);
        there.insert(i.outputs[0]);
      }
      if (segment.kind == SegmentKind::forward || i.op < 0) continue;
      for (const auto* list : {&i.inputs, &i.outputs, &i.saved}) {
        for (int slot : *list) CHECK(host_of.count(slot) == 0);
      }
    }
  }
  CHECK(host_of.size() > 30);
}

TEST_CASE("I and W each fetch what they read, and nothing else waits for W on the device") {
  const Program program = offloaded(0);
  const Segment& dgrad = program.segments[program.segment("dgrad")];
  const Segment& wgrad = program.segments[program.segment("wgrad")];
  // What the projection's W and attention's own backward read.
  CHECK(fetch(program, dgrad, "layers.1.attention") >= 0);
  CHECK(fetch(program, wgrad, "layers.1.attention") >= 0);
  CHECK(fetch(program, dgrad, "layers.1.mlp.gate") >= 0);
  CHECK(fetch(program, wgrad, "layers.1.mlp.gate") == -1);
  CHECK(fetch(program, wgrad, "layers.1.mlp.swiglu") >= 0);
}

TEST_CASE("Tensors are back as their layer's backward begins, or earlier") {
  const std::string name = "layers.0.attention.q_rope";
  for (const int prefetch : {0, 1, 2, 9}) {
    const Program program = offloaded(prefetch, {}, /*split=*/false);
    const Segment& backward = program.segments[program.segment("backward")];
    const int at = fetch(program, backward, name);
    REQUIRE(at >= 0);
    const int begins = first_of_layer(program, backward, std::min(prefetch, 3));
    const int next = prefetch == 0 ? static_cast<int>(backward.code.size())
                                   : first_of_layer(program, backward, std::min(prefetch, 3) - 1);
    INFO("prefetch " << prefetch << " at " << at << " of " << begins << " " << next);
    CHECK(at < begins);
    // Only other fetches stand between.
    for (int n = at; n < begins; ++n) CHECK(fetches(program, backward.code[n]));
    CHECK(begins < next);
  }
}

TEST_CASE("Only what the chosen ops' backward reads goes") {
  const Program program = offloaded(0, {"swiglu"});
  std::set<std::string> names;
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) {
      if (offloads(program, i)) names.insert(i.label);
    }
  }
  CHECK(names == std::set<std::string>{"layers.0.mlp.gate", "layers.0.mlp.up", "layers.1.mlp.gate",
                                       "layers.1.mlp.up", "layers.2.mlp.gate", "layers.2.mlp.up"});
}

namespace {

Program updated_on_host(int stage, bool overlaps, bool may_leave_out,
                        const char* optimizer = "adamw") {
  Setup setup;
  setup.microbatch = 2;
  setup.plan = {zero_on_host(2, stage, "optimizer", overlaps)};
  setup.may_leave_out = may_leave_out;
  setup.optimizer = optimizer;
  setup.optimizer_options = {{"lr", 1e-3}};
  setup.precision = Precision::bf16;
  return experiment(setup).plan->programs.front();
}

// The name of the segment in which the instruction of each bucket stands for which `which` is true.
// A bucket may have it once in a step.
template <class Which>
std::map<int, std::string> where(const Program& program, const Which& which) {
  std::map<int, std::string> found;
  for (const SegmentRun& run : program.timeline) {
    const Segment& segment = program.segments[run.segment];
    for (const Instruction& i : segment.code) {
      if (!which(i)) continue;
      INFO("bucket " << i.bucket);
      CHECK(found.emplace(i.bucket, segment.name).second);  // once in a step
    }
  }
  return found;
}

bool is_update(const Instruction& i) {
  return i.update == Update::apply;
}

}  // namespace

TEST_CASE("Updates in host memory stand in the next step's first forward, ahead of their readers") {
  const int stage = GENERATE(1, 2, 3);
  const Program program = updated_on_host(stage, true, true);
  const auto updates = where(program, is_update);
  const auto gradients = where(program, [&](const Instruction& i) {
    return i.code == Code::copy && i.outputs[0] == program.buckets[i.bucket].flat.gradients_on_host;
  });
  REQUIRE(updates.size() == program.buckets.size());
  REQUIRE(program.buckets.size() > 2);
  REQUIRE(gradients.size() == updates.size());
  int behind = 0;  // copies that stand outside of the last backward
  for (const auto& [bucket, segment] : gradients) behind += segment != "backward.last";
  CHECK(behind <= 1);  // the copy of the last sum, as nothing is left to hide it
  for (const auto& [bucket, segment] : updates) {
    INFO("bucket " << bucket);
    CHECK(segment == "forward.first");
    CHECK(program.buckets[bucket].update_overlaps_forward);
  }
  // Each begins before what reads the bucket before.
  const Segment& first = program.segments[program.segment("forward.first")];
  std::vector<int> order;
  std::size_t awaited = 0;
  for (const Instruction& i : first.code) {
    if (is_update(i)) order.push_back(i.bucket);
    if (stage == 3 || i.code != Code::wait) continue;
    CHECK(i.bucket == order.at(awaited++));
    CHECK(order.size() == std::min(awaited + 1, updates.size()));
  }
  CHECK(program.segment("update") < 0);
}

TEST_CASE("Updates in host memory stand at the end where they are told to, or need no norm") {
  const auto updates = where(updated_on_host(2, false, true), is_update);
  CHECK(updates.size() > 2);
  for (const auto& [bucket, segment] : updates) CHECK(segment == "update");
  // Beside the backward: before the host waits for the totals.
  const Program program = updated_on_host(2, true, false);
  for (const auto& [bucket, segment] : where(program, is_update)) CHECK(segment == "host update");
  CHECK(program.segment("host update") >= 0);
  std::vector<std::string> names;
  for (const SegmentRun& run : program.timeline)
    names.push_back(program.segments[run.segment].name);
  const auto at = std::find(names.begin(), names.end(), "host update");
  REQUIRE(at + 1 < names.end());
  CHECK(*(at + 1) == "totals");
  // Directions of matrices are gathered on the device, so matrices have no place in the forward.
  const Program muon = updated_on_host(2, true, true, "muon");
  for (const Bucket& bucket : muon.buckets) CHECK(bucket.update_overlaps_forward == !bucket.matrix);
}
