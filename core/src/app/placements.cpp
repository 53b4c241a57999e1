// `plan --placements`: for each parameter its placement, and the shape that each class of ranks
// holds of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "app/model_text.h"
#include "base/text.h"
#include "meshwright/model.h"
#include "program/rank_view.h"

namespace mw {
namespace {

constexpr std::size_t most_classes = 6;  // as columns

// What of the parameter's bucket a rank keeps only its shard of.
std::string sharded(const Program& program, std::size_t parameter) {
  for (const Bucket& bucket : program.buckets) {
    const auto& all = bucket.parameters;
    if (std::find(all.begin(), all.end(), static_cast<int>(parameter)) == all.end()) continue;
    static constexpr const char* what[] = {"", "optimizer state", "optimizer state, gradients",
                                           "optimizer state, gradients, parameters"};
    const std::string text = what[static_cast<int>(bucket.sharded_state)];
    if (text.empty()) return "";
    return fmt::format("{} over {}", text, program.mesh.name_of(bucket.shard_atoms));
  }
  return "";
}

Json stage_json(const Program& program) {
  const std::vector<RankClass> classes = rank_classes(program);
  Json stage = {
      {"stage", program.stage}, {"classes", Json::array()}, {"parameters", Json::array()}};
  for (const RankClass& each : classes) {
    stage["classes"].push_back({{"first_rank", program.mesh.rank(each.at)}, {"ranks", each.ranks}});
  }
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const ProgramParameter& parameter = program.parameters[p];
    const Value& value = program.graph->value(parameter.value);
    Slot slot;
    slot.dims = value.dims;
    slot.layout = parameter.stored;
    Json shapes = Json::array();
    for (const RankClass& each : classes) shapes.push_back(program.local_shape(slot, each.at));
    Json shape = Json::array();
    for (Dim dim : value.dims) shape.push_back(program.graph->size(dim));
    stage["parameters"].push_back({{"name", value.name},
                                   {"dims", names_of(value.dims)},
                                   {"shape", shape},
                                   {"placement", to_string(parameter.stored, program.mesh)},
                                   {"local", shapes},
                                   {"in_parts", sharded(program, p)}});
  }
  return stage;
}

std::string shape_text(const Json& shape) {
  return fmt::format("{}", fmt::join(shape.get<std::vector<std::int64_t>>(), " x "));
}

// Layers with equal rows stand in one, "layers.0.q … layers.3.q (4)".
struct Row {
  std::vector<std::string> cells;
  std::string first, last;
  int count = 0;
};

std::string stage_text(const Json& stage, bool one_stage) {
  const std::size_t classes = std::min(stage["classes"].size(), most_classes);
  std::vector<std::string> header{"parameter", "dims", "placement"};
  for (std::size_t c = 0; c < classes; ++c) {
    const Json& each = stage["classes"][c];
    const auto ranks = each["ranks"].get<std::int64_t>();
    header.push_back(fmt::format("{}: {}", each["first_rank"].get<int>(), plural(ranks, "rank")));
  }
  header.emplace_back("sharded");
  std::vector<Row> rows;
  std::map<std::string, std::size_t> where;
  for (const Json& parameter : stage["parameters"]) {
    Row row;
    row.first = row.last = parameter["name"];
    std::vector<std::string> dims = parameter["dims"];
    row.cells = {fmt::format("({})", join(dims)), parameter["placement"]};
    for (std::size_t c = 0; c < classes; ++c)
      row.cells.push_back(shape_text(parameter["local"][c]));
    row.cells.push_back(parameter["in_parts"]);
    const std::string key = of_any_layer(row.first) + "\n" + join(row.cells, "\n");
    const auto [at, fresh] = where.emplace(key, rows.size());
    if (fresh) rows.push_back(row);
    rows[at->second].last = row.last;
    ++rows[at->second].count;
  }
  TextTable table(header);
  for (const Row& row : rows) {
    std::vector<std::string> cells{
        row.count == 1 ? row.first : fmt::format("{} … {} ({})", row.first, row.last, row.count)};
    cells.insert(cells.end(), row.cells.begin(), row.cells.end());
    table.add(std::move(cells));
  }
  std::string text = one_stage ? "" : fmt::format("stage {}\n", stage["stage"].get<int>());
  text += table.text("  ");
  if (stage["classes"].size() > classes)
    text += fmt::format("  and {} more classes of ranks; --json has all\n",
                        stage["classes"].size() - classes);
  return text;
}

}  // namespace

Json placements_json(const Plan& plan) {
  Json stages = Json::array();
  for (const Program& program : plan.programs) stages.push_back(stage_json(program));
  return stages;
}

std::string placements_text(const Plan& plan) {
  std::string text =
      "who holds what (columns: the first rank of a class, and how many hold such shapes)\n";
  for (const Json& stage : placements_json(plan))
    text += stage_text(stage, plan.programs.size() == 1) + "\n";
  return text;
}

}  // namespace mw
