// Draws steps from data whose rows hold documents, and says how much of the work of whole rows
// their ranks and microbatches have.
#include "predict/documents.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "meshwright/data.h"

namespace mw {
namespace {

constexpr std::int64_t most_steps = 32, fewest_steps = 4;
constexpr std::int64_t most_tokens = std::int64_t{1} << 25;  // of all steps that are drawn
// Shares that differ by less are priced as one.
constexpr double priced_as_one = 0.02;

// Sets the coordinates on the atoms of some axes to the `number`-th of their combinations.
Coordinates with_number(Coordinates at, const Mesh& mesh, Role role, int number) {
  const std::vector<Axis> axes = mesh.with_role(role);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    for (auto atom = axis->atoms.rbegin(); atom != axis->atoms.rend(); ++atom) {
      const int ways = mesh.atoms()[static_cast<std::size_t>(*atom)].ways;
      at[static_cast<std::size_t>(*atom)] = number % ways;
      number /= ways;
    }
  }
  return at;
}

int number_of(const Coordinates& at, const Mesh& mesh, Role role) {
  int number = 0;
  for (const Axis& axis : mesh.with_role(role)) {
    for (const int atom : axis.atoms)
      number = number * mesh.atoms()[static_cast<std::size_t>(atom)].ways +
               at[static_cast<std::size_t>(atom)];
  }
  return number;
}

int ways_of(const Mesh& mesh, Role role) {
  int ways = 1;
  for (const Axis& axis : mesh.with_role(role)) ways *= axis.ways;
  return ways;
}

bool reads_starts(const Graph& graph, const Op& op) {
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
    const Value& value = graph.value(use.value);
    return value.source == Value::Source::data && value.name == "starts";
  });
}

}  // namespace

Json DocumentForecast::to_json() const {
  return {{"steps", steps},
          {"mean_seconds", mean},
          {"p95_seconds", p95},
          {"work", work},
          {"imbalance", {{"ranks", ranks}, {"microbatches", microbatches}, {"context", context}}}};
}

StepWork::StepWork(const Plan& plan, std::int64_t step)
    : program_(plan.programs.front()), stages_(static_cast<int>(plan.programs.size())) {
  const TokenSource& data = *plan.request.documents;
  const std::int64_t sequence = plan.request.sequence, batch = plan.request.batch;
  const std::vector<std::int64_t> sizes = program_.groups_of_rows();
  const std::vector<std::int64_t> order = data.order_of_rows(step * batch, sizes, sequence);
  const auto pairs_of = [](std::int64_t tokens) {
    return static_cast<double>(tokens) * (static_cast<double>(tokens) + 1) / 2;
  };
  std::int64_t row = 0;
  for (const std::int64_t size : sizes) {
    double pairs = 0;
    for (const std::int64_t end = row + size; row < end; ++row) {
      const std::int64_t sample = order.empty() ? row : order[static_cast<std::size_t>(row)];
      std::vector<std::int64_t> begins = data.documents(step * batch + sample, sequence);
      for (std::size_t d = 0; d < begins.size(); ++d)
        pairs += pairs_of((d + 1 < begins.size() ? begins[d + 1] : sequence) - begins[d]);
      rows_.push_back(std::move(begins));
    }
    groups_.push_back(pairs / (static_cast<double>(size) * pairs_of(sequence)));
  }
  ways_ = static_cast<int>(groups_.size()) / program_.microbatches;
}

StepWork::Group StepWork::group(int number) const {
  Group group;
  for (std::size_t at = static_cast<std::size_t>(number); at < groups_.size();
       at += static_cast<std::size_t>(ways_)) {
    group.sum += groups_[at];
    group.most = std::max(group.most, groups_[at]);
  }
  return group;
}

double StepWork::seconds_like(int number) const {
  const Group of = group(number);
  return of.sum + (stages_ - 1) * of.most;
}

int StepWork::slowest() const {
  int slowest = 0;
  for (int g = 1; g < ways_; ++g)
    if (seconds_like(g) > seconds_like(slowest)) slowest = g;
  return slowest;
}

int StepWork::median() const {
  std::vector<int> order(static_cast<std::size_t>(ways_));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return seconds_like(a) < seconds_like(b); });
  return order[order.size() / 2];
}

double StepWork::mean() const {
  return std::accumulate(groups_.begin(), groups_.end(), 0.0) / static_cast<double>(groups_.size());
}

double StepWork::imbalance_of_ranks() const {
  double most = 0;
  for (int g = 0; g < ways_; ++g) most = std::max(most, group(g).sum);
  return most / (mean() * program_.microbatches);
}

double StepWork::imbalance_of_microbatches() const {
  const Group of = group(slowest());
  return of.most * program_.microbatches / of.sum;
}

int StepWork::kind(const RankView& rank, int microbatch) const {
  const int number = number_of(rank.at(), program_.mesh, Role::data) % ways_;
  return static_cast<int>(
      std::lround(groups_[static_cast<std::size_t>(microbatch * ways_ + number)] / priced_as_one));
}

double StepWork::share(const RankView& rank, int op, int part, int microbatch) const {
  const Program& program = rank.program();
  const Op& what = program.graph->ops()[static_cast<std::size_t>(op)];
  if (!reads_starts(*program.graph, what)) return 1;
  const std::int64_t rows = program.batch_of(microbatch) / ways_;
  const int number = number_of(rank.at(), program_.mesh, Role::data) % ways_;
  const auto first = rows_.begin() + program.first_row(microbatch) + number * rows;
  return what.type->share_executed(
      what, program.local_dims(op, rank.at(), part, program.batch_of(microbatch)),
      OpType::DocumentsOfRows(first, first + rows));
}

std::vector<StepWork> draw_steps(const Plan& plan) {
  const std::int64_t tokens = plan.request.batch * plan.request.sequence;
  std::vector<StepWork> drawn;
  const std::int64_t steps = std::clamp(most_tokens / tokens, fewest_steps, most_steps);
  for (std::int64_t step = 0; step < steps; ++step) drawn.emplace_back(plan, step);
  return drawn;
}

Coordinates slowest_of_group(const RankView& rank, const StepWork& work, int group,
                             double& imbalance) {
  const Program& program = rank.program();
  const Coordinates first = with_number(rank.at(), program.mesh, Role::data, group);
  const auto& ops = program.graph->ops();
  const auto attends = std::find_if(ops.begin(), ops.end(), [&](const Op& op) {
    return op.op_class() == OpClass::attention && reads_starts(*program.graph, op);
  });
  const int ways = ways_of(program.mesh, Role::sequence);
  if (attends == ops.end() || ways == 1) return first;
  const int op = static_cast<int>(attends - ops.begin());
  int parts = 1;  // ring steps
  if (const auto ring = program.rotations.find(op); ring != program.rotations.end())
    for (const int atom : ring->second.atoms)
      parts *= program.mesh.atoms()[static_cast<std::size_t>(atom)].ways;
  Coordinates slowest = first;
  double most = 0, sum = 0;
  for (int number = 0; number < ways; ++number) {
    const RankView view(program, with_number(first, program.mesh, Role::sequence, number));
    double own = 0;
    for (int part = 0; part < parts; ++part) {
      const double executed = view.cost(op, Piece::forward, part).executed;
      for (int m = 0; m < program.microbatches; ++m)
        own += executed * work.share(view, op, part, m);
    }
    sum += own;
    if (own > most) most = own, slowest = view.at();
  }
  if (sum > 0) imbalance = std::max(imbalance, most * ways / sum);
  return slowest;
}

}  // namespace mw
