// Lists each parameter's placement, and its shape on each class of ranks: as JSON, as text, and as
// rows that stand for all equal layers.
#include "draw/placements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/text.h"
#include "meshwright/model.h"

namespace mw {
namespace {

constexpr std::size_t most_classes = 6;  // most columns of the text

// Names the tensors of the parameter's bucket that are sharded, and their axis; empty: none are.
std::string sharded(const Program& program, std::size_t parameter) {
  for (const Bucket& bucket : program.buckets) {
    const auto& all = bucket.parameters;
    if (std::find(all.begin(), all.end(), static_cast<int>(parameter)) == all.end()) continue;
    static constexpr const char* what[] = {"", "optimizer state", "optimizer state, gradients",
                                           "optimizer state, gradients, parameters"};
    const std::string text = bucket.frozen && !bucket.shard_atoms.empty()
                                 ? "parameters"
                                 : what[static_cast<int>(bucket.sharded_state)];
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

std::string stage_text(const Json& stage, bool one_stage) {
  const std::size_t classes = std::min(stage["classes"].size(), most_classes);
  std::vector<std::string> header{"parameter", "dims", "placement"};
  for (std::size_t c = 0; c < classes; ++c) {
    const Json& each = stage["classes"][c];
    const auto ranks = each["ranks"].get<std::int64_t>();
    header.push_back(fmt::format("{}: {}", each["first_rank"].get<int>(), plural(ranks, "rank")));
  }
  header.emplace_back("sharded");
  TextTable table(header);
  for (const PlacementRow& row : placement_rows(stage)) {
    std::vector<std::string> cells{row.name(), fmt::format("({})", join(row.dims)), row.placement};
    cells.insert(cells.end(), row.shapes.begin(),
                 row.shapes.begin() + static_cast<std::ptrdiff_t>(classes));
    cells.push_back(row.in_parts);
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

std::string of_any_layer(const std::string& name) {
  constexpr std::string_view prefix = "layers.";
  if (!name.starts_with(prefix)) return name;
  std::size_t end = prefix.size();
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
  if (end == prefix.size()) return name;
  return std::string(prefix) + "*" + name.substr(end);
}

std::string PlacementRow::name() const {
  return count == 1 ? first : fmt::format("{} … {} ({})", first, last, count);
}

std::vector<PlacementRow> placement_rows(const Json& stage) {
  std::vector<PlacementRow> rows;
  std::map<std::string, std::size_t> where;
  for (const Json& parameter : stage["parameters"]) {
    PlacementRow row;
    row.first = row.last = parameter["name"];
    row.dims = parameter["dims"].get<std::vector<std::string>>();
    row.placement = parameter["placement"];
    row.in_parts = parameter["in_parts"];
    for (const Json& shape : parameter["local"]) row.shapes.push_back(shape_text(shape));
    const std::string key =
        fmt::format("{}\n{}\n{}\n{}\n{}", of_any_layer(row.first), join(row.dims), row.placement,
                    join(row.shapes), row.in_parts);
    const auto [at, fresh] = where.emplace(key, rows.size());
    if (fresh) rows.push_back(row);
    rows[at->second].last = row.last;
    ++rows[at->second].count;
  }
  return rows;
}

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
