// Draws steps from data whose rows hold documents, and says how much of the work of whole rows
// their ranks and microbatches have.
#include "predict/documents.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <numeric>

#include "meshwright/data.h"
#include "predict/step_counts.h"

namespace mw {
namespace {

constexpr std::int64_t most_steps = 32, fewest_steps = 4;
constexpr std::int64_t most_tokens = std::int64_t{1}
                                     << 25;  // all drawn steps together have no more
// Shares that differ by a smaller part of themselves are priced as one.
constexpr double priced_as_one = 0.02;

// The documents of the samples of a step. Many plans are priced by the same steps, so the last
// ones are remembered.
class DrawnDocuments {
 public:
  using Rows = std::shared_ptr<const OpType::DocumentsOfRows>;
  Rows of(const std::shared_ptr<const TokenSource>& data, std::int64_t first, std::int64_t samples,
          std::int64_t sequence) {
    const std::lock_guard lock(mutex_);
    for (const Known& one : known_)
      if (one.data.lock() == data && one.first == first && one.samples == samples &&
          one.sequence == sequence)
        return one.rows;
    auto rows = std::make_shared<OpType::DocumentsOfRows>();
    for (std::int64_t k = first; k < first + samples; ++k)
      rows->push_back(data->documents(k, sequence));
    known_.push_front({data, first, samples, sequence, rows});
    if (known_.size() > most_steps) known_.pop_back();
    return rows;
  }

 private:
  struct Known {
    std::weak_ptr<const TokenSource> data;
    std::int64_t first, samples, sequence;
    Rows rows;
  };
  std::mutex mutex_;
  std::deque<Known> known_;
};

}  // namespace

Json DocumentForecast::to_json() const {
  return {{"steps", steps},
          {"mean_seconds", mean},
          {"p95_seconds", p95},
          {"work", work},
          {"imbalance", {{"ranks", ranks}, {"microbatches", microbatches}, {"context", context}}}};
}

int attention_of_documents(const Graph& graph) {
  int found = -1;
  double most = 0;
  for (std::size_t o = 0; o < graph.ops().size(); ++o) {
    const Op& op = graph.ops()[o];
    if (op.op_class() != OpClass::attention || !reads(graph, op, DataValue::starts)) continue;
    const double executed = op.type->cost(op, Piece::forward, whole_dims(graph, op), 4).executed;
    if (found < 0 || executed > most) found = static_cast<int>(o), most = executed;
  }
  return found;
}

StepWork::StepWork(const Plan& plan, std::int64_t step, int op)
    : program_(plan.programs.front()), stages_(static_cast<int>(plan.programs.size())), op_(op) {
  static DrawnDocuments& drawn =
      *new DrawnDocuments;  // never destroyed: it refers to plugins' data
  const auto& data = plan.request.priced_data;
  const std::int64_t sequence = plan.request.sequence, batch = plan.request.batch;
  const std::vector<std::int64_t> sizes = program_.groups_of_rows();
  const auto samples = drawn.of(data, step * batch, batch, sequence);
  for (const std::int64_t number : data->samples_of_step(step * batch, sizes, sequence))
    rows_.push_back((*samples)[static_cast<std::size_t>(number - step * batch)]);
  const Op& what = plan.graph->ops()[static_cast<std::size_t>(op)];
  const LocalDims dims = whole_dims(*plan.graph, what);
  auto row = rows_.begin();
  for (const std::int64_t size : sizes) {
    groups_.push_back(what.type->share_executed(what, dims, {row, row + size}));
    row += size;
  }
}

StepWork::Group StepWork::group(int number) const {
  Group group;
  for (std::size_t at = static_cast<std::size_t>(number); at < groups_.size();
       at += static_cast<std::size_t>(program_.batch_ways)) {
    group.sum += groups_[at];
    group.most = std::max(group.most, groups_[at]);
  }
  return group;
}

double StepWork::load(int number) const {
  const Group of = group(number);
  return of.sum + (stages_ - 1) * of.most;
}

std::vector<int> StepWork::by_load() const {
  std::vector<int> order(static_cast<std::size_t>(program_.batch_ways));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load(a) < load(b); });
  return order;
}

double StepWork::mean() const {
  return std::accumulate(groups_.begin(), groups_.end(), 0.0) / static_cast<double>(groups_.size());
}

double StepWork::imbalance_of_ranks() const {
  double most = 0;
  for (int g = 0; g < program_.batch_ways; ++g) most = std::max(most, group(g).sum);
  return most / (mean() * program_.microbatches);
}

double StepWork::imbalance_of_microbatches() const {
  const Group of = group(by_load().back());
  return of.most * program_.microbatches / of.sum;
}

int StepWork::group_of(const Program& program, const Coordinates& at) const {
  const Op& op = program.graph->ops()[static_cast<std::size_t>(op_)];
  const std::int64_t rows = program.batch_of(0);
  const LocalDim batch = program.local_dims(op_, at, 0, rows).at(op.inputs[0].dims[0]);
  return static_cast<int>(batch.offset * program.batch_ways / rows);
}

int StepWork::kind(const RankView& rank, int microbatch) const {
  const auto at = static_cast<std::size_t>(microbatch * program_.batch_ways +
                                           group_of(rank.program(), rank.at()));
  return static_cast<int>(std::lround(std::log(groups_[at]) / priced_as_one));
}

double StepWork::share(const RankView& rank, int op, int part, int microbatch) const {
  const Program& program = rank.program();
  const Op& what = program.graph->ops()[static_cast<std::size_t>(op)];
  if (!reads(*program.graph, what, DataValue::starts)) return 1;
  const LocalDims dims = program.local_dims(op, rank.at(), part, program.batch_of(microbatch));
  const LocalDim& batch = dims.at(what.inputs[0].dims[0]);
  const auto first = rows_.begin() + program.first_row(microbatch) + batch.offset;
  return what.type->share_executed(what, dims, {first, first + batch.size});
}

std::vector<StepWork> draw_steps(const Plan& plan, int op) {
  const std::int64_t tokens = plan.request.batch * plan.request.sequence;
  const std::int64_t steps = std::clamp(most_tokens / tokens, fewest_steps, most_steps);
  std::vector<StepWork> drawn;
  for (std::int64_t step = 0; step < steps; ++step) drawn.emplace_back(plan, step, op);
  return drawn;
}

Coordinates StepWork::slowest_of(const RankView& rank, int group, double& imbalance) const {
  const Program& program = rank.program();
  const Mesh& mesh = program.mesh;
  std::vector<int> atoms;  // mesh atoms that cut the batch, or the queries of attention
  const Op& op = program.graph->ops()[static_cast<std::size_t>(op_)];
  const Dims& queries = op.inputs[0].dims;
  const Layout& cut = program.cut[static_cast<std::size_t>(op_)];
  for (std::size_t a = 0; a < cut.size(); ++a)
    if (cut[a] == Placement::shard(queries[0]) || cut[a] == Placement::shard(queries[1]))
      atoms.push_back(static_cast<int>(a));
  int parts = 1;  // ring steps
  if (const auto ring = program.rotations.find(op_); ring != program.rotations.end())
    parts = mesh.ways(ring->second.atoms);
  Coordinates slowest = rank.at();
  double most = 0, sum = 0, ranks = 0;
  for (const int other : mesh.group(mesh.rank(rank.at()), atoms)) {
    const Coordinates at = mesh.coordinates(other);
    if (group_of(program, at) != group) continue;
    const RankView view(program, at);
    double own = 0;
    for (int part = 0; part < parts; ++part) {
      const double executed = view.cost(op_, Piece::forward, part).executed;
      for (int m = 0; m < program.microbatches; ++m) own += executed * share(view, op_, part, m);
    }
    sum += own;
    ++ranks;
    if (own > most) most = own, slowest = at;
  }
  if (sum > 0) imbalance = std::max(imbalance, most * ranks / sum);
  return slowest;
}

}  // namespace mw
