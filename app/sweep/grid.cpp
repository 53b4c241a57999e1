// Makes the cells of a sweep: each axis multiplies what the axes before it made.
#include "app/sweep/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "app/sweep/axis.h"
#include "lua/host.h"
#include "lua/settings.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t most_cells = 100'000;

struct Partial {
  std::vector<CellValue> values;
  std::vector<std::pair<std::string, Json>> sets;
};

std::size_t depth_of(const std::string& key) {
  return static_cast<std::size_t>(
      std::count_if(key.begin(), key.end(), [](char c) { return c == '.' || c == '['; }));
}

class GridMaker {
 public:
  GridMaker(const SweepTable& sweep, const GridCall& call) : sweep_(sweep), call_(call) {}

  std::vector<Cell> run() {
    std::vector<Partial> partials = grid(sweep_.over, {Partial{}}, "over");
    repeat(partials);
    problems_.throw_if_any();
    std::vector<Cell> cells;
    std::set<std::string> names;
    for (Partial& partial : partials) {
      Cell cell = cell_of(partial);
      const std::string own = cell.name;
      for (int n = 2; !names.insert(cell.name).second; ++n)
        cell.name = fmt::format("{} #{}", own, n);
      cells.push_back(std::move(cell));
    }
    find_skipped(cells, partials);
    problems_.throw_if_any();
    return cells;
  }

 private:
  std::vector<Partial> grid(const Json& over, const std::vector<Partial>& from,
                            const std::string& path) {
    if (!over.is_array()) return table(over, from, path);
    std::vector<Partial> all;
    for (std::size_t i = 0; i < over.size(); ++i) {
      for (Partial& one : table(over[i], from, fmt::format("{}[{}]", path, i + 1)))
        all.push_back(std::move(one));
    }
    return all;
  }

  std::vector<Partial> table(const Json& table, std::vector<Partial> partials,
                             const std::string& path) {
    std::vector<std::string> keys;
    for (const auto& [key, values] : table.items()) {
      if (!key.starts_with('$')) keys.push_back(key);
    }
    const auto rank = [&](const std::string& key) {
      return (is_function(table[key]) ? 2 : 0) + (key == "seed" ? 1 : 0);
    };
    std::stable_sort(keys.begin(), keys.end(),
                     [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
    for (const std::string& key : keys)
      partials = axis(key, table[key], partials, path + "." + key);
    return partials;
  }

  std::vector<Partial> axis(const std::string& key, const Json& given,
                            const std::vector<Partial>& partials, const std::string& path) {
    std::vector<Partial> all;
    const bool function = is_function(given);
    std::vector<AxisValue> values;
    if (!function) values = read_axis(key, given, path, problems_);
    for (const Partial& partial : partials) {
      if (function) {
        const Json result = call_(given, {told(partial)});
        if (result.is_null() || (result.is_structured() && result.empty())) {
          all.push_back(partial);
          continue;
        }
        values = read_axis(key, result, path, problems_);
      }
      for (const AxisValue& value : values) add(key, value, partial, all, path);
      if (all.size() > most_cells) {
        throw Error(Stage::options, "sweep.size", "over",
                    fmt::format("over: the grid has more than {} cells", most_cells),
                    "sweep over fewer values, or in several sweeps");
      }
    }
    return all;
  }

  void add(const std::string& key, const AxisValue& value, const Partial& partial,
           std::vector<Partial>& all, const std::string& path) {
    Partial next = partial;
    next.values.push_back(
        {key, value.label, value.value, key == "plan" || value.named || !is_experiment_key(key)});
    for (const auto& [name, item] : value.sets.items()) {
      const bool twice =
          std::any_of(partial.sets.begin(), partial.sets.end(),
                      [&, name = name](const auto& set) { return set.first == name; });
      if (twice && said_.insert(path + name).second) {
        problems_.add(Stage::options, "sweep.axis", path,
                      fmt::format("{}: {} is set by another axis too", path, name),
                      "set it once in a cell");
      }
      next.sets.emplace_back(name, item);
    }
    if (value.over.is_null()) {
      all.push_back(std::move(next));
    } else {
      for (Partial& one : grid(value.over, {next}, path + ".over")) all.push_back(std::move(one));
    }
  }

  // The table of a cell so far, which the script's functions are given.
  static Json told(const Partial& partial) {
    // missing fields are nil: not all cells have all axes
    Json cell = {{"name", name_of(partial)}, {open_key, true}};
    for (const CellValue& value : partial.values)
      cell[value.key] = value.value.is_null() ? Json(value.text) : value.value;
    for (const auto& [key, value] : partial.sets) cell[key] = value;
    return cell;
  }

  static std::string name_of(const Partial& partial) {
    std::string name;
    for (const CellValue& value : partial.values) {
      name += name.empty() ? "" : " ";
      name += value.shown ? value.text : value.key + "=" + value.text;
    }
    return name.empty() ? "base" : name;
  }

  void repeat(std::vector<Partial>& partials) {
    if (sweep_.repeats == 1) return;
    const Json given = sweep_.base.contains("seed") ? sweep_.base["seed"] : Json(0);
    const std::int64_t first = whole_number(given).value_or(0);
    std::vector<Partial> all;
    for (const Partial& partial : partials) {
      const auto seed = std::find_if(partial.sets.begin(), partial.sets.end(),
                                     [](const auto& set) { return set.first == "seed"; });
      if (seed != partial.sets.end() && !sweep_.same_seed) {
        problems_.add(Stage::options, "sweep.axis", "repeats",
                      "repeats: the cells have seeds of their own, from over",
                      "leave out one of the two, or write repeats = { n, seed = \"same\" }");
        return;
      }
      for (int n = 0; n < sweep_.repeats; ++n) {
        Partial next = partial;
        const std::int64_t number = sweep_.same_seed ? n + 1 : first + n;
        next.values.push_back(
            {sweep_.same_seed ? "repeat" : "seed", std::to_string(number), Json(number), false});
        if (!sweep_.same_seed) next.sets.emplace_back("seed", Json(number));
        all.push_back(std::move(next));
      }
    }
    partials = std::move(all);
  }

  Cell cell_of(const Partial& partial) {
    Cell cell;
    cell.name = name_of(partial);
    cell.values = partial.values;
    cell.table = sweep_.base;
    if (const std::string* repeat = cell.text_of("repeat"); repeat != nullptr && sweep_.same_seed)
      cell.repeat = std::stoi(*repeat);
    std::vector<std::pair<std::string, Json>> sets = partial.sets;
    std::stable_sort(sets.begin(), sets.end(), [](const auto& a, const auto& b) {
      return depth_of(a.first) < depth_of(b.first);
    });
    for (const auto& [key, value] : sets) {
      try {
        apply_setting({key, key, "", value}, cell.table);
      } catch (const Error& error) {
        for (Problem problem : error.problems()) {
          problem.place.clear();
          problem.key = "over";
          problem.message = fmt::format("over: {} in {}: {}", key, cell.name, problem.message);
          if (said_.insert(problem.message).second) problems_.add(std::move(problem));
        }
      }
    }
    return cell;
  }

  void find_skipped(std::vector<Cell>& cells, const std::vector<Partial>& partials) {
    if (sweep_.skip.is_null()) return;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      Json cell = told(partials[i]);
      cell["name"] = cells[i].name;
      const Json why = call_(sweep_.skip, {cell});
      if (why.is_string() && !why.get<std::string>().empty()) {
        cells[i].skipped = why.get<std::string>();
      } else if (!why.is_null() && why != Json(false)) {
        problems_.add(Stage::script, "function.result", "skip",
                      fmt::format("skip: the function returned {} for {}", describe(why),
                                  quote(cells[i].name)),
                      "return why the cell is not run, as text, or nothing");
        return;
      }
    }
  }

  const SweepTable& sweep_;
  const GridCall& call_;
  Problems problems_;
  std::set<std::string> said_;
};

}  // namespace

std::vector<Cell> cells_of(const SweepTable& sweep, const GridCall& call) {
  return GridMaker(sweep, call).run();
}

std::vector<AxisText> axes_of(const std::vector<Cell>& cells) {
  std::vector<AxisText> axes;
  for (const Cell& cell : cells) {
    for (const CellValue& value : cell.values) {
      auto axis = std::find_if(axes.begin(), axes.end(),
                               [&](const AxisText& one) { return one.key == value.key; });
      if (axis == axes.end()) axis = axes.insert(axes.end(), {value.key, {}});
      if (std::find(axis->values.begin(), axis->values.end(), value.text) == axis->values.end())
        axis->values.push_back(value.text);
    }
  }
  return axes;
}

}  // namespace mw
