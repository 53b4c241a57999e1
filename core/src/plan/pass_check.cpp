// Holds a pass to what it says that it changes: the order of instructions alone, or where and when
// things are done, or anything.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/reduction_hook.h"
#include "plan/build.h"

namespace mw {
namespace {

// The fields by which equal instructions are looked up.
using Key = std::tuple<int, int, int, int, int, int, Slots, Slots, Slots>;
Key key_of(const Instruction& i) {
  return {static_cast<int>(i.code),
          static_cast<int>(i.piece),
          static_cast<int>(i.update),
          i.op,
          i.pending,
          i.bucket,
          i.inputs,
          i.outputs,
          i.grad_inputs};
}

bool same_but_stream(const Instruction& a, const Instruction& b) {
  Instruction other = b;
  other.move.stream = a.move.stream;
  return a == other;
}

std::string named(const Instruction& i) {
  std::string what = i.op >= 0 ? name_of(i.piece) : name_of(i.code);
  if (i.code == Code::start) what += std::string(" ") + name_of(i.move.kind);
  return fmt::format("{} of {}", what, i.label);
}

// Where each instruction of `now` stood in `was`; nothing if one is new or gone, which `strange`
// says.
std::optional<std::vector<std::size_t>> places_before(const std::vector<Instruction>& was,
                                                      const std::vector<Instruction>& now,
                                                      std::string& strange) {
  std::map<Key, std::vector<std::size_t>> known;  // indices in `was`, the last first
  for (std::size_t n = was.size(); n-- > 0;) known[key_of(was[n])].push_back(n);
  std::vector<std::size_t> places;
  places.reserve(now.size());
  for (const Instruction& i : now) {
    std::vector<std::size_t>& list = known[key_of(i)];
    const auto found = std::find_if(list.rbegin(), list.rend(),
                                    [&](std::size_t n) { return same_but_stream(i, was[n]); });
    if (found == list.rend()) {
      strange = fmt::format("{} is new, or not what it was", named(i));
      return std::nullopt;
    }
    places.push_back(*found);
    list.erase(std::next(found).base());
  }
  for (const auto& [key, list] : known) {
    if (list.empty()) continue;
    strange = fmt::format("{} is gone", named(was[list.back()]));
    return std::nullopt;
  }
  return places;
}

// The dependency that the new order breaks, or the instruction that is new or gone; empty: none.
std::string broken_order(const Program& program, const Segment& was, const Segment& now) {
  std::string strange;
  const auto places = places_before(was.code, now.code, strange);
  if (!places) return strange;
  for (std::size_t n = 0; n < places->size(); ++n) {
    if ((*places)[n] == n) continue;
    for (std::size_t m = n + 1; m < places->size(); ++m) {
      if ((*places)[m] > (*places)[n]) continue;
      if (!depends(program, now.code[m], now.code[n])) continue;
      return fmt::format("the pass puts {} before {}, on which it depends", named(now.code[n]),
                         named(now.code[m]));
    }
  }
  return "";
}

// How often each piece of an op is computed in a step.
std::map<std::pair<int, Piece>, int> computed(const Program& program) {
  std::vector<int> runs(program.segments.size(), 0);
  for (const SegmentRun& run : program.timeline) ++runs[static_cast<std::size_t>(run.segment)];
  std::map<std::pair<int, Piece>, int> times;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Instruction& i : program.segments[s].code) {
      if (i.op >= 0) times[{i.op, i.piece}] += runs[s];
    }
  }
  return times;
}

std::string changed_numbers(const Program& was, const Program& now) {
  const auto before = computed(was), after = computed(now);
  for (const auto* side : {&before, &after}) {
    for (const auto& [key, times] : *side) {
      const auto found = [&, key = key](const auto& map) {
        const auto at = map.find(key);
        return at == map.end() ? 0 : at->second;
      };
      if (found(before) == found(after)) continue;
      return fmt::format("the {} of {} is computed {} times in a step, and was {} times",
                         name_of(key.second), now.graph->ops()[key.first].name, found(after),
                         found(before));
    }
  }
  if (was.dtype != now.dtype || was.gradient_dtype != now.gradient_dtype ||
      was.reduce_dtype != now.reduce_dtype || was.optimizer_dtype != now.optimizer_dtype)
    return "a dtype of the program is another";
  for (std::size_t s = 0; s < was.slots.size(); ++s) {
    if (s >= now.slots.size() || was.slots[s].dtype != now.slots[s].dtype)
      return fmt::format("{} is gone, or has another dtype", was.slots[s].name);
  }
  const auto reduced = [](const Program& program) {  // how each parameter's gradient is reduced
    std::map<int, std::pair<std::string, bool>> how;
    for (const Bucket& bucket : program.buckets) {
      for (const int p : bucket.parameters)
        how[p] = {identity_of(bucket.hook) + " " + identity_of(bucket.gather_hook),
                  bucket.reduce_per_microbatch};
    }
    return how;
  };
  const auto had = reduced(was), has = reduced(now);
  for (const auto& [parameter, how] : had) {
    const auto found = has.find(parameter);
    if (found == has.end() || found->second != how)
      return fmt::format("the gradient of {} is summed otherwise, or the parameter gathered",
                         now.name_of_parameter(parameter));
  }
  return "";
}

std::string changed_beside_order(const Program& was, const Program& now) {
  if (was.segments.size() != now.segments.size()) return "there are other segments";
  if (was.slots != now.slots) return "there are other slots, or slots are other than they were";
  if (was.timeline.size() != now.timeline.size()) return "the timeline has other runs";
  for (std::size_t r = 0; r < was.timeline.size(); ++r) {
    if (was.timeline[r].segment != now.timeline[r].segment ||
        was.timeline[r].microbatch != now.timeline[r].microbatch)
      return "the timeline has other runs";
  }
  for (std::size_t s = 0; s < was.segments.size(); ++s) {
    const std::string broken = broken_order(now, was.segments[s], now.segments[s]);
    if (!broken.empty()) return fmt::format("in {}, {}", now.segments[s].name, broken);
  }
  return changed_numbers(was, now);
}

void hold_to(const Pass& pass, Pass::Changes changes, const Program& was, const Program& now) {
  if (changes == Pass::Changes::numerics) return;
  const bool order = changes == Pass::Changes::order;
  const std::string found = order ? changed_beside_order(was, now) : changed_numbers(was, now);
  if (found.empty()) return;
  throw Error(attributed(
      {pass.strategy, pass.place},
      {Stage::plan, "pass.changes", "",
       fmt::format("the pass \"{}\" declares that it changes only {}, but: {}", pass.name,
                   order ? "the order of instructions" : "where and when things are done", found),
       order ? "mend the pass, or let it say that it changes \"placement\" or \"numerics\""
             : "mend the pass, or let it say that it changes \"numerics\""}));
}

void held(const Pass& pass, const std::function<void(Program&)>& edit, Program& program) {
  if (!edit) return;
  if (pass.changes == Pass::Changes::numerics) return edit(program);
  const Program was = program;
  edit(program);
  hold_to(pass, pass.changes, was, program);
}

}  // namespace

void run_held(const Pass& pass, Program& program) {
  held(pass, pass.run, program);
}

void finish_held(const Pass& pass, Program& program) {
  held(pass, pass.finish, program);
}

void rearrange_held(const Pass& pass, Program& program) {
  if (!pass.rearrange) return;
  const Program was = program;
  pass.rearrange(program);
  hold_to(pass, Pass::Changes::order, was, program);
}

}  // namespace mw
