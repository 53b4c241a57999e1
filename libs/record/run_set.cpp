// Finds the runs below files and folders, and tells what has become of each, whatever state their
// files are in.
#include "record/run_set.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "common/files.h"
#include "common/process.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/run_path.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr const char* run_file_name = "run.h5";
constexpr const char* sweep_file_name = "sweep.json";
constexpr int deepest_folder = 8;

// What a JSON object has under a key, as text; numbers as they are written.
std::string text_in(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return "";
  const Json& value = object[key];
  if (value.is_string()) return value.get<std::string>();
  return value.is_null() ? "" : value.dump();
}

bool ends_a_cell(const std::string& status) {
  return status == "failed" || status == "skipped" || status == "refused";
}

bool is_run_file(const fs::path& path) {
  return path.extension() == ".h5" || path.extension() == ".hdf5";
}

class Finder {
 public:
  void file(const fs::path& path) { add(judged(read_entry(path))); }

  void folder(const fs::path& path, int depth = 0) {
    std::error_code error;
    if (fs::exists(path / sweep_file_name, error)) return sweep(path);
    if (fs::exists(path / run_file_name, error)) {
      RunEntry entry = read_entry(path / run_file_name);
      entry.folder = path;
      return add(judged(std::move(entry)));
    }
    if (!folders_.insert(fs::weakly_canonical(path, error)).second) return;
    if (depth >= deepest_folder)
      return add(broken(path, fmt::format("deeper than {} folders", deepest_folder)));
    std::vector<fs::path> files, folders;
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      std::error_code ignored;
      if (name.starts_with(".")) continue;  // the hidden copies of runs, among others
      if (at->is_directory(ignored)) {
        folders.push_back(at->path());
      } else if (is_run_file(at->path())) {
        files.push_back(at->path());
      }
    }
    if (error) add(broken(path, error.message()));
    std::sort(files.begin(), files.end());
    std::sort(folders.begin(), folders.end());
    for (const fs::path& each : files) file(each);
    for (const fs::path& each : folders) folder(each, depth + 1);
  }

  RunSet take() { return std::move(found_); }
  bool empty() const { return found_.runs.empty(); }

 private:
  static RunEntry broken(const fs::path& path, const std::string& why) {
    RunEntry entry;
    entry.name = path.filename().string();
    entry.status = "unreadable";
    entry.reason = why;
    entry.path = path;
    return entry;
  }

  // Takes the status from a sweep's result.json: only it says that a run that is done was wrong.
  static RunEntry judged(RunEntry entry) {
    if (entry.path.filename() != run_file_name) return entry;
    const Json result = read_json(entry.path.parent_path() / "result.json");
    const std::string status = text_in(result, "status");
    if (entry.status != "done" || text_in(result, "kind") != "cell" || !ends_a_cell(status))
      return entry;
    entry.status = status;
    entry.reason = text_in(result, "reason");
    return entry;
  }

  void add(RunEntry entry) {
    std::error_code error;
    const fs::path same =
        entry.path.empty() ? entry.folder : fs::weakly_canonical(entry.path, error);
    if (!same.empty() && !seen_.insert(same).second) return;
    found_.runs.push_back(std::move(entry));
  }

  void sweep(const fs::path& path) {
    const Json sweep = read_json(path / sweep_file_name);
    if (!sweep.is_object() || !sweep.contains("cells") || !sweep["cells"].is_array()) {
      add(broken(path / sweep_file_name, "it is no list of a sweep's cells"));
      std::error_code error;
      std::vector<fs::path> cells;  // cells are read even where the list of cells is broken
      for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
        std::error_code ignored;
        if (fs::exists(at->path() / run_file_name, ignored)) cells.push_back(at->path());
      }
      std::sort(cells.begin(), cells.end());
      for (const fs::path& each : cells) folder(each);
      return;
    }
    std::string name = text_in(sweep, "name");
    if (name.empty()) name = path.filename().string();
    for (const Json& each : sweep["cells"]) add(cell(path, name, each));
  }

  // A cell's own file knows best how its run ended; only the sweep knows of a time limit, of a
  // crash, and that a run was wrong.
  static RunEntry cell(const fs::path& sweep, const std::string& name, const Json& cell) {
    const std::string id = text_in(cell, "id"), status = text_in(cell, "status");
    std::string within = text_in(cell, "folder");
    if (within.empty()) within = id;
    RunEntry entry;
    std::error_code error;
    // A cell's folder may be written from the sweep's folder or the working directory. Else its
    // name, or the cell's id, is looked for in the sweep's folder.
    for (const fs::path& folder :
         {sweep / within, fs::path(within), sweep / fs::path(within).filename(), sweep / id}) {
      if (within.empty() || !fs::exists(folder / run_file_name, error)) continue;
      entry = read_entry(folder / run_file_name);
      entry.folder = folder;
      break;
    }
    entry.sweep = name;
    if (const std::string own = text_in(cell, "name"); !own.empty()) entry.name = own;
    if (entry.name.empty()) entry.name = id.empty() ? "?" : id;
    if (entry.path.empty()) {
      entry.folder = sweep / within;
      entry.hash = id;
    }
    const bool unsaid = entry.path.empty() || (!status.empty() && status != "done" &&
                                               (entry.status == "killed" || !entry.readable()));
    if (ends_a_cell(status) || (unsaid && status != "running")) {
      entry.status = status.empty() ? "queued" : status;
      entry.reason = text_in(cell, "reason");
    } else if (entry.path.empty()) {
      entry.status = status;
    }
    if (cell.is_object() && cell.contains("values") && cell["values"].is_object()) {
      for (const auto& [key, value] : cell["values"].items())
        entry.values.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
    }
    return entry;
  }

  RunSet found_;
  std::set<fs::path> seen_, folders_;
};

// Collects files that may be run files. In a folder with "run.h5" only that file counts.
void add_run_files(const fs::path& path, int depth, std::vector<fs::path>& files) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return files.push_back(path);
  if (fs::exists(path / run_file_name, error)) return files.push_back(path / run_file_name);
  if (depth == deepest_folder) return;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->path().filename().string().starts_with(".") || at->is_symlink(ignored)) continue;
    if (at->is_directory(ignored) || is_run_file(at->path()))
      add_run_files(at->path(), depth + 1, files);
  }
}

// A hint for a missing path: the nearest name in its folder.
std::string nearest_run(const fs::path& given) {
  std::vector<std::string> names;
  const fs::path folder = given.has_parent_path() ? given.parent_path() : fs::path(".");
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_directory(ignored) || at->path().extension() == ".h5")
      names.push_back(at->path().filename().string());
  }
  const std::string near = did_you_mean(given.filename().string(), names);
  return near.empty() ? "name a run file, the folder of a run or of a sweep, or a folder of these"
                      : near;
}

Problem missing(const fs::path& given) {
  return {Stage::options, "file.missing", "",
          fmt::format("{}: there is no such file or folder", given.string()), nearest_run(given)};
}

}  // namespace

RunEntry read_entry(const fs::path& file, Probe probe) {
  RunEntry entry;
  entry.path = file;
  // "run.h5" says nothing: the run is named by its folder.
  const bool own_folder = file.filename() == run_file_name && file.has_parent_path();
  entry.name = own_folder ? file.parent_path().filename().string() : file.stem().string();
  if (entry.name.empty()) entry.name = file.string();
  try {
    RunReader reader(file, probe);
    const RunHead head = reader.head();
    if (!head.name.empty()) entry.name = head.name;
    entry.hash = head.hash;
    entry.status = head.status;
    entry.reason = head.reason;
    entry.created = head.created;
    entry.seed = head.seed;
    if (entry.status == "running" && head.host != host_name()) {
      entry.reason =
          fmt::format("on {}: whether it still runs cannot be seen from here", head.host);
    } else if (entry.status == "running" && !writer_lives(file, head.process)) {
      const RunHead later = RunReader(file, probe).head();  // the run may have ended just now
      entry.status = later.status == "running" ? "killed" : later.status;
      entry.reason =
          later.status == "running" ? "it says running, and its process is gone" : later.reason;
    }
    if (entry.status.empty()) {
      entry.status = "unreadable";
      entry.reason = "it has no status";
    }
  } catch (const Error& error) {
    entry.status = "unreadable";
    entry.reason = error.problems().front().message;
    // The entry has the path, so the reason goes without it.
    for (const std::string& lead : {"run file " + file.string() + ": ", file.string() + ": "})
      if (entry.reason.starts_with(lead)) entry.reason.erase(0, lead.size());
  } catch (const std::exception& error) {  // a broken file may claim any size
    entry.status = "unreadable";
    entry.reason = problem_of(error).message;
  }
  return entry;
}

RunSet find_runs(const std::vector<fs::path>& given) {
  std::vector<fs::path> files;
  for (const fs::path& each : given) add_run_files(each, 0, files);
  probe_all(files);
  Finder finder;
  Problems problems;
  for (const fs::path& each : given) {
    std::error_code error;
    if (fs::is_directory(each, error)) {
      finder.folder(each.has_filename() ? each : each.parent_path());
    } else if (fs::exists(each, error)) {
      finder.file(each);
    } else {
      problems.add(missing(each));
    }
  }
  problems.throw_if_any();
  if (finder.empty()) {
    std::vector<std::string> names;
    for (const fs::path& each : given) names.push_back(each.string());
    throw Error(Stage::options, "runs.none", "", fmt::format("{}: there are no runs", join(names)),
                "a script's log = \"runs/name.h5\" makes one");
  }
  return finder.take();
}

RunEntry find_run(const fs::path& given) {
  RunSet set = find_runs({given});
  if (set.runs.size() > 1) {
    std::vector<std::string> names;
    for (const RunEntry& entry : set.runs) {
      if (names.size() == 8) {
        names.emplace_back("…");
        break;
      }
      names.push_back((entry.path.empty() ? entry.folder : entry.path).string());
    }
    throw Error(Stage::options, "runs.several", "",
                fmt::format("{} has {}", given.string(),
                            plural(static_cast<std::int64_t>(set.runs.size()), "run")),
                "name one of them: " + join(names));
  }
  RunEntry entry = std::move(set.runs.front());
  if (!entry.readable()) {
    throw Error(
        Stage::options, "runs.unreadable", "",
        fmt::format("{}: {}", (entry.path.empty() ? entry.folder : entry.path).string(),
                    entry.path.empty() ? entry.status + ", it has no run file" : entry.reason),
        "name a run file: what a script's `log` names");
  }
  return entry;
}

fs::path default_runs() {
  std::error_code error;
  if (fs::is_directory("runs", error)) return "runs";
  throw Error(Stage::options, "file.missing", "", "runs: there is no such folder here",
              "name a run file or a folder of them; a script's log = \"runs/name.h5\" makes one");
}

}  // namespace mw
