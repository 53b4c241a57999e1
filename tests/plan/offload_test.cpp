// The pass that sends activations to the host: each once, back once where it is read,
// no sooner than asked.
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
