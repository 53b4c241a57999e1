// What mw.load gives a script: the results of runs, read back from their files.
#include <filesystem>

#include "app/app_host.h"
#include "app/runs_rows.h"
#include "record/run_result.h"
#include "record/run_set.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

Json loaded_run(const RunEntry& entry) {
  Json result;
  try {
    if (!entry.readable()) {
      result = {{"kind", "train"},
                {"name", entry.name},
                {"status", entry.status},
                {"reason", entry.reason.empty() ? Json() : Json(entry.reason)}};
      if (!entry.sweep.empty()) result["sweep"] = entry.sweep;
      for (const auto& [key, value] : entry.values) result["values"][key] = value;
    } else {
      RunReader reader(entry.path);
      result = run_result(reader, entry);
    }
  } catch (const std::exception& error) {
    RunEntry broken = entry;
    broken.status = "unreadable";
    broken.reason = problem_of(error).message;
    return loaded_run(broken);
  }
  const bool said = result.contains("text") && result["text"].is_string();
  if (!said) result["text"] = line_of(result);
  return result;
}

}  // namespace

Json AppHost::load(const std::string& path, const std::string& folder) {
  std::error_code error;
  const fs::path given(path), beside = fs::path(folder) / given;
  const fs::path found = !fs::exists(given, error) && fs::exists(beside, error) ? beside : given;
  const RunSet set = find_runs({found});
  const bool is_file = !fs::is_directory(found, error);
  if (is_file || (set.runs.size() == 1 && set.runs.front().sweep.empty())) {
    find_run(found);  // refuses one that cannot be read
    return loaded_run(set.runs.front());
  }
  Json list = Json::array();
  for (const RunEntry& entry : set.runs) {
    list.push_back(loaded_run(entry));
    list.back()["text"] = line_of(list.back());  // of many, a line each
  }
  return list;
}

}  // namespace mw
