// Keeps the files of a sweep: replaces them whole, locks cells, and puts aside what is run again.
#include "app/sweep/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "app/sweep/grid.h"
#include "app/sweep/label.h"
#include "common/files.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void cannot(const fs::path& file, const std::string& what, int why) {
  throw Error(
      Stage::environment, "file.write", "",
      fmt::format("{}: cannot {}: {}", file.string(), what, std::generic_category().message(why)),
      "run the sweep where you may write, with room on the disk");
}

void make_folders(const fs::path& folder) {
  check_may_write(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) cannot(folder, "make this folder", error.value());
}

// Whether the value under a key is of this type, or there is none.
bool is_or_lacks(const Json& json, const char* key, bool (Json::*is)() const noexcept) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() || ((*found).*is)();
}

// Whether a file has a result as sweeps read it: each value that they use is of its type. A file
// that was cut off, or changed by hand, is no result, and its cell runs again.
bool is_result(const Json& json, const std::string& hash) {
  if (!json.is_object() || json.value("hash", Json()) != Json(hash) ||
      json.value("kind", Json()) != Json("cell"))
    return false;
  for (const char* key : {"losses", "grad_norms"})
    if (!is_or_lacks(json, key, &Json::is_array)) return false;
  for (const char* key : {"predicted", "same_loss_as"})
    if (!is_or_lacks(json, key, &Json::is_object)) return false;
  const auto status = json.find("status"), trained = json.find("trained");
  if (status == json.end() || !status->is_string()) return false;
  if (trained != json.end() && !trained->is_boolean()) return false;
  if (trained != json.end() && *trained == true && json.value("losses", Json()).is_null())
    return false;
  const Json held = json.value("same_loss_as", Json()), predicted = json.value("predicted", Json());
  const auto compared = held.find("compared");
  if (compared != held.end() && !compared->is_boolean()) return false;
  const auto memory = predicted.find("memory");
  if (memory == predicted.end() || memory->is_null()) return true;
  return memory->is_array() && std::ranges::all_of(*memory, [](const Json& stage) {
           const auto peak = stage.find("peak");
           return stage.is_object() && (peak == stage.end() || peak->is_number());
         });
}

// The text under a key; `otherwise` where there is none.
std::string text_in(const Json& json, const char* key, const std::string& otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

}  // namespace

FileLock sweep_lock(const fs::path& file, bool wait) {
  make_folders(file.parent_path());
  try {
    return FileLock(file, wait);
  } catch (const std::system_error& error) {
    cannot(file, "lock it", error.code().value());
  }
}

void replace_file(const fs::path& file, const std::string& text) {
  if (const int reason = replace_whole(file, text); reason != 0) cannot(file, "write it", reason);
}

SweepFolder::SweepFolder(std::string path) : path_(std::move(path)) {
  look_up();
}

// A folder's name ends in the hash of its cell. The label in front may be another than that of now.
void SweepFolder::look_up() {
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::size_t dash = name.rfind('-');
    std::error_code unknown;
    if (dash != std::string::npos && entry->is_directory(unknown))
      known_[name.substr(dash + 1)] = name;
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw Error(Stage::environment, "file.read", "",
                fmt::format("cannot list the folder {}: {}", path_, error.message()));
}

std::string SweepFolder::of(const Cell& cell, const std::string& hash) const {
  const auto known = known_.find(hash);
  const std::string name =
      known != known_.end() ? known->second : fmt::format("{}-{}", file_label(cell.name), hash);
  return path_ + "/" + name;
}

std::optional<Json> SweepFolder::result(const Cell& cell, const std::string& hash) const {
  Json json = read_json(fs::path(of(cell, hash)) / "result.json");
  return is_result(json, hash) ? std::optional(std::move(json)) : std::nullopt;
}

std::string SweepFolder::lock_of(const std::string& hash) const {
  return fmt::format("{}/.locks/{}", path_, hash);
}

std::string SweepFolder::move_aside(const fs::path& folder) const {
  std::error_code error;
  if (!fs::exists(folder, error)) return "";
  make_folders(fs::path(path_) / ".earlier");
  fs::path aside;
  for (int n = 1; aside.empty() || fs::exists(aside, error); ++n)
    aside = fs::path(path_) / ".earlier" / fmt::format("{}.{}", folder.filename().string(), n);
  fs::rename(folder, aside, error);
  if (error) cannot(folder, "move it away", error.value());
  return aside.string();
}

std::string SweepFolder::fresh(const Cell& cell, const std::string& hash,
                               std::string* earlier) const {
  const fs::path folder = of(cell, hash);
  const std::string aside = move_aside(folder);
  if (earlier != nullptr) *earlier = aside;
  make_folders(folder);
  return folder.string();
}

void SweepFolder::put_back(const Cell& cell, const std::string& hash,
                           const std::string& earlier) const {
  const fs::path folder = of(cell, hash);
  move_aside(folder);
  std::error_code error;
  fs::rename(earlier, folder, error);
  if (error) cannot(folder, "put an earlier run back", error.value());
}

void SweepFolder::forget_earlier(const std::string& hash) const {
  const fs::path earlier = fs::path(path_) / ".earlier";
  std::error_code error;
  std::vector<fs::path> own;
  for (fs::directory_iterator entry(earlier, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().stem().string();  // without the number of the run
    if (name.ends_with("-" + hash)) own.push_back(entry->path());
  }
  for (const fs::path& folder : own) fs::remove_all(folder, error);
  fs::remove(earlier, error);  // removes the folder if it is empty
}

void SweepFolder::write_index(const SweepTable& sweep, const std::string& script,
                              const std::vector<Cell>& cells, const std::vector<Planned>& planned,
                              const std::vector<CellState>& states, const std::vector<bool>& mine,
                              const Json& more) const {
  make_folders(path_);
  const auto lock = sweep_lock(fs::path(path_) / ".locks/sweep", /*wait=*/true);
  const fs::path file = fs::path(path_) / "sweep.json";
  Json before = read_json(file);
  const bool own = before.is_object() && text_in(before, "schema", "") == sweep_schema;
  if (std::error_code error; !own && fs::exists(file, error))
    throw Error(Stage::environment, "file.format", "",
                fmt::format("{} cannot be read as the list of a sweep's cells", file.string()),
                "move it away: the sweep makes it again from its own cells, and of cells of other "
                "shards it knows what these write next");
  if (!own) before = Json::object();
  std::map<std::string, const Json*> known;
  if (before.contains("cells") && before["cells"].is_array()) {
    for (const Json& cell : before["cells"]) {
      if (cell.is_object() && cell.contains("id")) known[text_in(cell, "id", "")] = &cell;
    }
  }
  Json list = Json::array();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool planned_here = !planned[i].hash.empty() && states[i].status != "skipped";
    const std::string id = planned_here ? planned[i].hash : cells[i].name;
    Json cell = {{"id", id},
                 {"name", cells[i].name},
                 {"values", cells[i].texts()},
                 {"status", states[i].status},
                 {"reason", states[i].reason.empty() ? Json() : Json(states[i].reason)},
                 {"folder", nullptr},
                 {"seconds", states[i].seconds > 0 ? Json(states[i].seconds) : Json()}};
    const auto other = known.find(id);
    const std::string before_it =
        other == known.end() ? "" : text_in(*other->second, "status", "queued");
    const bool known_more =
        states[i].status == "predicted" && before_it != "predicted" && before_it != "queued";
    if (other != known.end() && (!mine[i] || known_more)) {
      for (const char* key : {"status", "reason", "seconds"}) {
        if (other->second->contains(key)) cell[key] = other->second->at(key);
      }
    }
    if (planned_here && cell["status"] != "predicted") cell["folder"] = of(cells[i], id);
    list.push_back(std::move(cell));
  }
  Json axes = Json::array();
  for (const AxisText& axis : axes_of(cells))
    axes.push_back({{"key", axis.key}, {"values", axis.values}});
  Json index = {{"schema", sweep_schema},
                {"name", sweep.name},
                {"script", script},
                {"created", text_in(before, "created", now_text())},
                {"axes", axes},
                {"baseline", sweep.baseline.empty() ? Json() : Json(sweep.baseline)},
                {"same_loss_as", sweep.like.empty() ? Json() : Json(sweep.like)},
                {"cells", list}};
  index.update(more);
  // A prediction changes no result, so an earlier verdict stays while the cells are the same.
  if (!more.contains("verdict") && before.contains("verdict") && before["cells"] == list)
    index["verdict"] = before["verdict"];
  replace_file(file, json_text(index, 1) + "\n");
}

}  // namespace mw
