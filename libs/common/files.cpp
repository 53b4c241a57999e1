// Reads and writes whole files, and says what is wrong with one that cannot be written.
#include "common/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "meshwright/engine/bounds.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

std::optional<std::string> whole_file(const std::filesystem::path& path) try {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(file), {}};
} catch (const std::ios_base::failure&) {  // a folder can be opened, and not be read
  return std::nullopt;
}

Json read_json(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return {};
  Json json = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json() : json;
}

void write_output(const std::string& asked_by, const std::string& path, const std::string& text) {
  const std::filesystem::path file(path);
  check_may_write(file);
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (out) return;
  const int reason = errno != 0 ? errno : EIO;
  throw Error(Stage::options, "file.write", "",
              fmt::format("{} {}: cannot write it: {}", asked_by, path,
                          std::generic_category().message(reason)),
              "name a file in a folder that you may write to");
}

std::string csv_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : readable(text)) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace mw
