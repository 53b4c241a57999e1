// Reads and writes whole files, and says what is wrong with one that cannot be written.
#include "common/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

std::optional<std::string> whole_file(const std::filesystem::path& path) {
  if (!irregular(path).empty()) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

bool is_nested_too_deep(std::string_view json) {
  constexpr int deepest = 200;
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_text = !in_text;
    } else if (!in_text && (c == '[' || c == '{')) {
      if (++depth > deepest) return true;
    } else if (!in_text && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

Json json_in(std::string_view text) {
  if (is_nested_too_deep(text)) return {};
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json() : json;
}

Json read_json(const std::filesystem::path& file) {
  if (!may_read(file)) return {};  // a link may lead out of a folder that may be read
  const std::optional<std::string> text = whole_file(file);
  return text ? json_in(*text) : Json();
}

void write_output(const std::string& asked_by, const std::string& path, const std::string& text) {
  const std::filesystem::path file(path);
  check_may_write(file);
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  // Without waiting: nobody may ever read a named pipe.
  const int out =
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
  if (out >= 0) ::fcntl(out, F_SETFL, 0);
  int reason = out >= 0 && write_whole(out, text.data(), text.size()) ? 0 : errno;
  if (out >= 0 && ::close(out) != 0 && reason == 0) reason = errno;
  if (reason == 0) return;
  throw Error(Stage::options, "file.write", "",
              fmt::format("{} {}: cannot write it: {}", asked_by, path,
                          std::generic_category().message(reason)),
              "name a file in a folder that you may write to");
}

Error not_written(const std::filesystem::path& path, int reason) {
  return {Stage::environment, "file.write", "",
          fmt::format("{}: cannot write it: {}", path.string(),
                      std::generic_category().message(reason))};
}

WorkFolder::WorkFolder(const std::string& prefix) {
  std::string name = (std::filesystem::temp_directory_path() / (prefix + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw Error(Stage::environment, "file.write", "", name + ": cannot make this folder",
                "TMPDIR names a folder that you may write to");
  }
  path_ = name;
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(path_, ignored);
}

namespace {

// What a spreadsheet would compute, and could call programs for, where whoever made a run chose it.
bool is_formula(const std::string& text) {
  if (text.size() < 2 || std::string_view("=+-@").find(text[0]) == std::string_view::npos)
    return false;
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return *end != '\0';
}

}  // namespace

std::string csv_quoted(const std::string& text) {
  std::string out = is_formula(text) ? "\"'" : "\"";
  for (const char c : readable(text)) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace mw
