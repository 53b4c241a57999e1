// Reads and writes whole files, and says what is wrong with one that cannot be written.
#include "common/files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iostream>
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
  std::string text;
  std::vector<char> part(std::size_t{1} << 16);
  // Reads in parts, as an iterator over the stream lets the library's exception through where a
  // read fails.
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0)
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
  if (file.bad()) return std::nullopt;
  return text;
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
  if (!may_read(file)) return {};  // a symbolic link may lead out of the folders that may be read
  const std::optional<std::string> text = whole_file(file);
  return text ? json_in(*text) : Json();
}

namespace {

struct KindOfOutput {
  const char* name;
  // whether the first bytes of an existing file are of this kind
  bool (*is)(std::string_view head);
};

// Whether a schedule's CSV begins so: "0F0,0F1,", after commas if a stage is idle first.
bool is_order(std::string_view head) {
  head.remove_prefix(std::min(head.find_first_not_of(','), head.size()));
  const std::size_t letter = head.find_first_not_of("0123456789");
  return letter != 0 && letter < head.size() &&
         std::isupper(static_cast<unsigned char>(head[letter])) != 0;
}

KindOfOutput about(OutputKind kind) {
  using Head = std::string_view;
  switch (kind) {
    case OutputKind::page:
      return {"page of meshwright", [](Head head) {
                return head.starts_with("<!doctype html>\n<!-- meshwright.page/1");
              }};
    case OutputKind::drawing:
      return {"drawing of meshwright", [](Head head) {
                return head.starts_with("<svg") &&
                       head.find("font-family=\"system-ui, sans-serif\"") != Head::npos;
              }};
    case OutputKind::trace:
      return {"trace of meshwright", [](Head head) {
                return head.starts_with("{\"displayTimeUnit\":\"ms\",\"otherData\":");
              }};
    case OutputKind::runs_table:
      return {"table of runs", [](Head head) {
                return head.starts_with("\"run\",") || head.starts_with("{\"run\":");
              }};
    case OutputKind::schedule:
      return {"schedule", is_order};
    case OutputKind::calibration:
      return {"calibration", [](Head head) {
                return head.starts_with("{\n \"schema\": \"meshwright.calibration/");
              }};
    case OutputKind::description:
      return {"description of calibrate --from", [](Head head) {
                return head.starts_with("-- What `meshwright calibrate --from` made of ");
              }};
    case OutputKind::logits:  // after 8 bytes for the length of the header
      return {"file of logits", [](Head head) {
                return head.substr(std::min<std::size_t>(8, head.size()))
                    .starts_with("{\"__metadata__\":{\"hash\":");
              }};
    case OutputKind::any:
      break;
  }
  return {"file", [](Head) { return true; }};
}

Error output_refused(const OutputFile& file, const std::string& why, const std::string& hint) {
  return {Stage::options, "file.write", "", fmt::format("{} {}: {}", file.asked_by, file.path, why),
          hint};
}

Error output_refused(const OutputFile& file, int reason) {
  return output_refused(file, "cannot write it: " + std::generic_category().message(reason),
                        "name a file in a folder that you may write to");
}

// Standard output belongs to whoever started the process: its earlier content is not judged.
bool is_standard_output(const std::string& path) {
  return is_named(STDOUT_FILENO, path);
}

void check_output(const OutputFile& file) {
  const std::filesystem::path path(file.path);
  check_may_write(path);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw output_refused(file, EISDIR);
  if (!std::filesystem::is_regular_file(path, error) || is_standard_output(file.path)) return;
  std::string head(512, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(in.gcount()));
  const KindOfOutput kind = about(file.kind);
  if ((in.is_open() && head.empty()) || kind.is(head)) return;
  throw Error(
      Stage::options, "page.foreign", "",
      fmt::format("{} {}: it is there, and it is no {}", file.asked_by, file.path, kind.name),
      fmt::format("name another file; a {} that is there is replaced", kind.name));
}

bool is_one_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  if (!irregular(a).empty()) return false;  // two outputs may go to one device
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path one = fs::weakly_canonical(fs::absolute(a, error), error);
  return !one.empty() && one == fs::weakly_canonical(fs::absolute(b, error), error);
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& files,
                   const std::vector<std::pair<std::string, std::string>>& inputs) {
  for (auto file = files.begin(); file != files.end(); ++file) {
    if (file->path.empty()) continue;
    for (const auto& [what, path] : inputs)
      if (is_one_file(file->path, path))
        throw output_refused(*file, "that is " + what, "name another file");
    for (auto other = files.begin(); other != file; ++other)
      if (is_one_file(file->path, other->path))
        throw output_refused(*file, other->asked_by + " names it too", "name another file");
    check_output(*file);
  }
}

void write_output(const OutputFile& file, const std::string& text) {
  check_output(file);
  int reason = 0;
  if (is_standard_output(file.path)) {
    std::cout.flush();
    reason = write_whole(STDOUT_FILENO, text.data(), text.size()) ? 0 : errno;
  } else {
    const std::filesystem::path path(file.path);
    std::error_code error;
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
    reason = replace_whole(path, text);
  }
  if (reason != 0) throw output_refused(file, reason);
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

// Whether a spreadsheet would compute the text. It could call programs, and a stranger may have
// written it.
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

bool is_named(int descriptor, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace mw
