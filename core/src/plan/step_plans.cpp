// Makes a plan for each kind of step that a microbatch policy leads to, and the forward-only plan
// of an evaluation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/reduction_hook.h"
#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

constexpr std::size_t most_plans = 256;
constexpr std::int64_t most_steps = 1 << 20;  // steps that are looked at one by one

// Names the first parameter whose shapes differ between the plans; empty: none differs.
std::string other_shape(const Plan& a, const Plan& b) {
  const auto shape = [](const Program& program, int value) {
    std::vector<std::int64_t> sizes;
    for (const Dim dim : program.graph->value(value).dims)
      sizes.push_back(program.graph->size(dim));
    return sizes;
  };
  for (std::size_t s = 0; s < std::min(a.programs.size(), b.programs.size()); ++s) {
    const Program &x = a.programs[s], &y = b.programs[s];
    for (std::size_t p = 0; p < std::min(x.parameters.size(), y.parameters.size()); ++p) {
      const auto first = shape(x, x.parameters[p].value), second = shape(y, y.parameters[p].value);
      if (first != second)
        return fmt::format("{} has the shape [{}] in one plan and [{}] in another",
                           x.graph->value(x.parameters[p].value).name, fmt::join(first, ", "),
                           fmt::join(second, ", "));
    }
  }
  return "";
}

// Whether both plans keep parameters and state in the same tensors.
bool keep_alike(const Plan& a, const Plan& b) {
  if (a.programs.size() != b.programs.size()) return false;
  for (std::size_t s = 0; s < a.programs.size(); ++s) {
    const Program &x = a.programs[s], &y = b.programs[s];
    if (x.parameters.size() != y.parameters.size() || x.buckets.size() != y.buckets.size())
      return false;
    for (std::size_t p = 0; p < x.parameters.size(); ++p) {
      if (x.parameters[p].slot != y.parameters[p].slot ||
          x.parameters[p].gradient_slot != y.parameters[p].gradient_slot ||
          x.parameters[p].stored != y.parameters[p].stored)
        return false;
    }
    for (std::size_t k = 0; k < x.buckets.size(); ++k) {
      const Bucket &a_bucket = x.buckets[k], &b_bucket = y.buckets[k];
      const auto hook = [](const Bucket& bucket) {
        return std::pair(identity_of(bucket.hook), identity_of(bucket.gather_hook));
      };
      const auto kept = [](const Bucket& bucket) {
        return std::tie(bucket.parameters, bucket.reduce_atoms, bucket.parameter_atoms,
                        bucket.stages, bucket.shard_atoms, bucket.sharded_state, bucket.group,
                        bucket.frozen, bucket.counts, bucket.fragment, bucket.offload,
                        bucket.update_on_device, bucket.gather_overlaps_forward,
                        bucket.update_overlaps_forward);
      };
      if (kept(a_bucket) != kept(b_bucket) || hook(a_bucket) != hook(b_bucket)) return false;
    }
  }
  return true;
}

bool is_totals(const Segment& segment) {
  return segment.kind == SegmentKind::finish && !segment.code.empty() &&
         segment.code.back().code == Code::totals;
}

// Whether a forward-only program keeps the segment. The order of the forwards holds without the
// backwards between them: no forward waits for a later one. And where a send is awaited, its
// receive has begun by then.
bool stays(const Segment& segment) {
  switch (segment.kind) {
    case SegmentKind::forward:
    case SegmentKind::begin:
    case SegmentKind::gather:
      return true;
    case SegmentKind::post:
    case SegmentKind::receive:
    case SegmentKind::sent:
      return !segment.gradient;
    case SegmentKind::finish:
      return is_totals(segment);
    default:
      return false;
  }
}

// Drops copies that nobody reads: of activations that went to host memory until backward.
void drop_idle_copies(Program& program) {
  std::set<int> read;
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) read.insert(i.inputs.begin(), i.inputs.end());
  }
  for (Segment& segment : program.segments) {
    std::erase_if(segment.code, [&](const Instruction& i) {
      return i.code == Code::copy && i.release.empty() && !program.slots[i.outputs[0]].persistent &&
             read.count(i.outputs[0]) == 0;
    });
  }
}

// Keeps the loss alone of the step's sums.
void keep_loss(const Program& program, Segment& segment) {
  std::erase_if(segment.code, [&](const Instruction& i) {
    return i.code == Code::settle && i.outputs[0] != program.loss;
  });
  for (Instruction& i : segment.code) {
    if (i.code == Code::begin_sum) i.outputs = {program.loss};
    if (i.code != Code::totals) continue;
    i.inputs = {program.loss};
    i.contributing.resize(1);
  }
}

void keep_forward(Program& program) {
  unweave(program);
  // Gathered parameters that stay until the step's end are released at the totals instead.
  std::set<int> gathered, ending;
  for (const Bucket& bucket : program.buckets) {
    if (bucket.sharded_state == ShardedState::parameters) gathered.insert(bucket.flat.parameters);
  }
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::finish) continue;
    for (const Instruction& i : segment.code) {
      for (int slot : i.release) {
        if (gathered.count(slot) > 0) ending.insert(slot);
      }
    }
  }
  std::erase_if(program.timeline,
                [&](const SegmentRun& run) { return !stays(program.segments[run.segment]); });
  drop_unused(program);
  for (Segment& segment : program.segments) {
    // Updates that a step leaves to the next one's forward are made before this program runs.
    std::erase_if(segment.code, [&](const Instruction& i) { return completes_update(program, i); });
    if (is_totals(segment)) segment.code.back().release.assign(ending.begin(), ending.end());
    keep_loss(program, segment);
    for (Instruction& i : segment.code) {
      erase_if(i.release, [&](int slot) { return !program.slots[slot].persistent; });
    }
  }
  drop_idle_copies(program);
  note_releases(program);
}

int slot_of(EvaluatedBy by, const FlatSlots& flat) {
  return by == EvaluatedBy::average ? flat.average : by == EvaluatedBy::anchor ? flat.anchor : -1;
}

// Copies the slot, a bucket's averages or anchor, to where its parameters are stored, or brings the
// parameters back: from their master copies, or by an exchange with the slot.
Instruction brought(const Program& program, int bucket, int slot, bool back) {
  const FlatSlots& flat = program.buckets[bucket].flat;
  const bool swaps = flat.master < 0;
  Instruction i = of_bucket(swaps ? Code::compute : Code::copy, bucket, program, Serves::parameters,
                            "parameters");
  i.outputs = {flat.stored};
  if (swaps) {
    i.update = Update::swap;
    i.outputs.push_back(slot);
    i.inputs = i.outputs;
  } else {
    i.inputs = {back ? flat.master : slot};
  }
  return i;
}

// Has the program compute with the averages or anchors of its buckets, and brings the parameters
// back at its end. False: its buckets have none.
bool read_instead(Program& program, EvaluatedBy by) {
  Segment begin{.name = "evaluated numbers", .kind = SegmentKind::begin},
      end{.name = "parameters", .kind = SegmentKind::finish};
  const auto add = [](Segment& segment, std::vector<Instruction> code) {
    for (Instruction& i : code) segment.code.push_back(std::move(i));
  };
  for (std::size_t k = 0; k < program.buckets.size(); ++k) {
    const Bucket& b = program.buckets[k];
    const int bucket = static_cast<int>(k), slot = slot_of(by, b.flat);
    if (slot < 0) continue;
    // An evaluation makes no update that a step of training has left, and begins its own gathers.
    program.buckets[k].update_overlaps_forward = program.buckets[k].gather_overlaps_forward = false;
    add(begin, {brought(program, bucket, slot, false)});
    add(end, {brought(program, bucket, slot, true)});
    if (!b.gathered_once_updated()) continue;
    for (Segment* segment : {&begin, &end}) {
      add(*segment, begin_gather(program, bucket, "parameters"));
      add(*segment, {end_gather(program, bucket, "parameters")});
    }
  }
  if (begin.code.empty()) return false;
  const int first = static_cast<int>(program.segments.size());
  program.segments.push_back(std::move(begin));
  program.segments.push_back(std::move(end));
  program.timeline.insert(program.timeline.begin(), SegmentRun{.segment = first});
  program.timeline.push_back({.segment = first + 1});
  return true;
}

// Refuses sequences that are longer than the experiment's, and shorter ones of packed documents.
bool check_sequence(const PlanRequest& request, std::int64_t sequence, std::int64_t step,
                    Problems& problems) {
  if (sequence == request.sequence) return true;
  if (sequence > request.sequence) {
    problems.add(
        Stage::plan, "microbatch.sequence", "microbatch",
        fmt::format("microbatch: step {} has sequences of {} tokens, and the experiment of "
                    "{}, which are the longest",
                    step, sequence, request.sequence),
        fmt::format("sequence = {} in the experiment", sequence));
  } else if (request.documents) {
    problems.add(Stage::plan, "microbatch.sequence", "microbatch",
                 fmt::format("microbatch: step {} has sequences of {} tokens, and documents are "
                             "packed into rows of {}",
                             step, sequence, request.sequence),
                 "rows of one length, or data that are not packed");
  } else {
    return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<const Plan> make_step_plans(const PlanRequest& request,
                                            const MicrobatchPolicy& policy, std::int64_t steps,
                                            std::shared_ptr<const StepPlans>& all,
                                            Problems& problems) {
  PlanRequest made = request;
  made.microbatch = policy.size;
  if (policy.search) return policy.search(made, problems);
  if (!policy.shape) return make_plan(made, problems);
  if (steps > most_steps) {
    problems.add(Stage::plan, "plan.size", "microbatch",
                 fmt::format("microbatch: of {} steps each may have a batch of its own, and a plan "
                             "looks at {} of them at most",
                             steps, most_steps),
                 fmt::format("nearest: steps = {}, or microbatches that are the same in all steps",
                             most_steps));
    return nullptr;
  }
  std::vector<StepShape> shapes;
  std::map<StepShape, std::int64_t> begins;  // first step of each shape
  StepPlans plans;
  std::int64_t sample = 0, tokens = 0;  // before the step
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step % 1024 == 0) throw_if_stopped();
    StepShape shape = policy.shape(step, sample);
    if (shape.sequence == 0) shape.sequence = request.sequence;
    if (!check_sequence(request, shape.sequence, step, problems)) return nullptr;
    sample += shape.batch;
    plans.first.push_back((tokens + shape.sequence - 1) / shape.sequence);
    tokens = (plans.first.back() + shape.batch) * shape.sequence;
    begins.emplace(shape, step);
    shapes.push_back(std::move(shape));
  }
  if (begins.size() > most_plans) {
    problems.add(
        Stage::plan, "plan.size", "microbatch",
        fmt::format("microbatch: the {} steps differ in {} ways, and {} plans are the most", steps,
                    begins.size(), most_plans),
        "let the batch grow by larger increments");
    return nullptr;
  }
  if (begins.size() > 1) {
    const StepShape& largest = begins.rbegin()->first;
    const auto [shortest, longest] = std::ranges::minmax(
        std::views::keys(begins), {}, [](const StepShape& shape) { return shape.sequence; });
    const bool grows = shortest.sequence < longest.sequence;
    made.notes.push_back(fmt::format(
        "steps of {} kinds, batches of {} to {}{}: this is the plan of a batch of {}{}",
        begins.size(), begins.begin()->first.batch, largest.batch,
        grows ? fmt::format(", sequences of {} to {}", shortest.sequence, longest.sequence) : "",
        largest.batch, grows ? fmt::format(" and sequences of {}", largest.sequence) : ""));
  }
  std::map<StepShape, int> index;
  std::set<std::string> said;
  double work = 0;
  for (auto shape = begins.rbegin(); shape != begins.rend(); ++shape) {  // the largest batch first
    if (work > most_steps_work) {
      problems.add(Stage::plan, "plan.size", "microbatch",
                   fmt::format("microbatch: the {} steps differ in {} ways, and plans of this size "
                               "are too many",
                               steps, begins.size()),
                   fmt::format("{} of them at most: let the batch grow by larger increments",
                               plans.plans.size()));
      return nullptr;
    }
    made.batch = shape->first.batch;
    made.microbatch = shape->first.microbatch;
    made.sizes = shape->first.sizes;
    made.smaller_batches = shape->first.at_most;
    made.sequence = shape->first.sequence;
    Problems found;
    auto plan = make_plan(made, found);
    for (Problem p : found.list()) {
      if (!said.insert(p.message).second) continue;
      if (p.key == "batch" || p.key == "microbatch" || made.sequence != request.sequence)
        p.message += fmt::format(" (what microbatch makes of step {})", shape->second);
      problems.add(std::move(p));
    }
    if (plan == nullptr) continue;
    work += plan->work;
    if (const std::string other =
            plans.plans.empty() ? "" : other_shape(*plans.plans.front(), *plan);
        !other.empty()) {
      problems.add(Stage::plan, "microbatch.parameters", "model",
                   fmt::format("model: batches differ from step to step, and its parameters with "
                               "them: {}",
                               other),
                   "let no parameter depend on the batch or its tokens (Model::build)");
      continue;
    }
    if (!plans.plans.empty() && !keep_alike(*plans.plans.front(), *plan)) {
      problems.add(Stage::plan, "microbatch.buckets", "microbatch",
                   fmt::format("microbatch: the plan of step {} keeps its parameters in other "
                               "buckets than those of other steps",
                               shape->second),
                   "let bucket choices depend on the bucket alone");
      continue;
    }
    index[shape->first] = static_cast<int>(plans.plans.size());
    plans.plans.push_back(std::move(plan));
  }
  if (!problems.empty() || plans.plans.empty()) return nullptr;
  for (const StepShape& shape : shapes) plans.of_step.push_back(index.at(shape));
  auto plan = plans.plans.front();
  if (plans.plans.size() > 1) all = std::make_shared<StepPlans>(std::move(plans));
  return plan;
}

std::shared_ptr<const Plan> forward_only(const Plan& plan, EvaluatedBy by) {
  auto forward = std::make_shared<Plan>(plan);
  bool any = by == EvaluatedBy::parameters;
  for (Program& program : forward->programs) {
    keep_forward(program);
    if (read_instead(program, by)) any = true;
    program.outer = nullptr;  // no step of training, after which replicas would be brought together
  }
  return any ? forward : nullptr;
}

}  // namespace mw
