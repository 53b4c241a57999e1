// Finds files that describe clusters, and reads the sentence with which each begins.
#include "lua/cluster_files.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace mw {
namespace fs = std::filesystem;

namespace {

// The first sentence of the comment that the file begins with, without the source in brackets at
// its end.
std::string what_it_is(const fs::path& path) {
  std::string comment, line;
  std::ifstream in(path);
  while (std::getline(in, line) && line.starts_with("--")) {
    const auto first = line.find_first_not_of("- ");
    if (first != std::string::npos) comment += (comment.empty() ? "" : " ") + line.substr(first);
  }
  int depth = 0;
  std::size_t opened = 0, closed = 0, at = 0;  // positions of the last brackets
  for (; at < comment.size(); ++at) {
    const char c = comment[at];
    if (c == '(' && depth++ == 0) opened = at;
    if (c == ')' && depth > 0 && --depth == 0) closed = at;
    const bool last = at + 1 == comment.size() || comment[at + 1] == ' ';
    const bool abbreviated = std::string_view(comment).substr(0, at).ends_with(" et al");
    if (c == '.' && depth == 0 && last && !abbreviated) break;
  }
  if (closed + 1 == at && opened > 1) at = opened - 1;
  return comment.substr(0, at);
}

}  // namespace

std::vector<ClusterFile> cluster_files(const fs::path& folder, const std::string& ending) {
  std::vector<ClusterFile> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.ends_with(ending) || name.size() == ending.size()) continue;
    if (!entry->is_regular_file(error)) continue;
    found.push_back(
        {name.substr(0, name.size() - ending.size()), entry->path(), what_it_is(entry->path())});
  }
  std::sort(found.begin(), found.end(),
            [](const ClusterFile& a, const ClusterFile& b) { return a.name < b.name; });
  return found;
}

}  // namespace mw
