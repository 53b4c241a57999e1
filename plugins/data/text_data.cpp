// `mw.text`: bytes of UTF-8 files as tokens.
#include <fmt/core.h>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/mapped_file.h"
#include "known_format.h"
#include "meshwright/data.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/plugin.h"
#include "sample_order.h"

namespace mw {

namespace fs = std::filesystem;

// The files' bytes one after another as tokens, 256 ids. SampleOrder says which of them a sample
// has.
class TextSource final : public TokenSource {
 public:
  static Options options();
  TextSource(const Values& values, const DataContext& context);
  std::int64_t vocab() const override { return 256; }
  std::int64_t tokens() const override { return order_.tokens(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::string content() const override;
  std::vector<SourceFile> files() const override;

 private:
  std::vector<MappedFile> files_;
  std::vector<std::int64_t> starts_ = {
      0};  // offset of each file's first token, and one past the last
  SampleOrder order_;
};

void TextSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                        std::int64_t* labels) const {
  std::int64_t at = order_.offset(k, sequence);
  // The file that holds the first token; empty files share a start with the next one.
  auto file = std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1;
  for (std::int64_t done = 0; done <= sequence; ++file) {
    const std::int64_t end = std::min(starts_[file + 1], at + sequence + 1 - done);
    for (const std::uint8_t* byte = files_[file].data() + (at - starts_[file]); at < end; ++at) {
      if (done < sequence) inputs[done] = *byte;
      if (done > 0) labels[done - 1] = *byte;
      ++byte;
      ++done;
    }
    files_[file].check();
  }
}

std::string TextSource::content() const {
  const std::int64_t share = most_digested / static_cast<std::int64_t>(files_.size());
  std::string text;
  for (const MappedFile& file : files_) text += fmt::format("{:016x}", file.digest(share));
  return text;
}

std::vector<SourceFile> TextSource::files() const {
  std::vector<SourceFile> files;
  for (const MappedFile& file : files_) files.push_back({file.path()});
  return files;
}

namespace {

// Whether `given` can be the name of a text that comes with the program: "gcide".
bool is_name(const std::string& given) {
  return !given.empty() && given.find_first_of("/.") == std::string::npos;
}

fs::path packaged(const std::string& name) {
  return share_folder() / "text" / (name + ".txt");
}

// The hint for an unknown name: the texts that come with the program.
std::string names_there(const std::string& name) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(share_folder() / "text", error)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) return "; no texts came with this program (./meshwright build makes gcide)";
  const std::string near = did_you_mean(name, names);
  return "; texts by name: " + join_quoted(names) + (near.empty() ? "" : "; " + near);
}

// Adds the file `given`, or the files of the folder `given` in order of name, without hidden ones.
void add_files(const std::string& given, const std::string& key, const DataContext& context,
               std::vector<fs::path>& files, Problems& problems) {
  fs::path path = find_file(given, context.roots);
  std::error_code error;
  const bool there = fs::exists(path, error),
             named = is_name(given) && fs::exists(packaged(given), error);
  if (there && named) {
    problems.add(Stage::options, "data.ambiguous", key,
                 fmt::format("\"{}\" is the name of a text that comes with the program, and of {}",
                             given, fs::absolute(path, error).string()),
                 fmt::format("write \"./{}\" for what lies there; for the program's text give that "
                             "another name, or start elsewhere",
                             given));
    return;
  }
  if (!there && is_name(given)) path = packaged(given);
  if (!fs::exists(path, error)) {
    std::string looked;
    std::set<std::string> places;  // each place once: the script may lie in the working directory
    for (const fs::path& root : context.roots) {
      const std::string place = (root / given).lexically_normal().string();
      if (places.insert(place).second) looked += (looked.empty() ? "" : ", ") + place;
    }
    if (looked.empty() || path.is_absolute()) looked = fs::absolute(path, error).string();
    problems.add(Stage::options, "file.missing", key,
                 fmt::format("no file or folder \"{}\"", given),
                 fmt::format("looked for {}{}", looked, is_name(given) ? names_there(given) : ""));
    return;
  }
  if (!fs::is_directory(path, error)) {
    files.push_back(path);
    return;
  }
  const auto first = static_cast<std::ptrdiff_t>(files.size());
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const fs::path& file = at->path();
    std::error_code unknown;
    const fs::file_status status = fs::status(file, unknown);
    if (file.filename().string().front() == '.' || fs::is_directory(status)) continue;
    if (fs::exists(status)) {
      files.push_back(file);  // a pipe or a device is refused when it is opened
      continue;
    }
    const bool nowhere = status.type() == fs::file_type::not_found;
    problems.add(Stage::options, "file.read", key,
                 fmt::format("cannot read {}: {}", file.string(),
                             nowhere ? "it is a link that leads nowhere" : unknown.message()),
                 "is its disk mounted? Or take it out of the folder");
  }
  std::sort(files.begin() + first, files.end());
  if (error) {
    problems.add(Stage::options, "file.read", key,
                 fmt::format("cannot list the folder {}: {}", path.string(), error.message()));
  } else if (static_cast<std::ptrdiff_t>(files.size()) == first) {
    problems.add(Stage::options, "file.missing", key,
                 fmt::format("the folder {} holds no files", path.string()),
                 "its own files are read, not those of folders within, nor hidden ones");
  }
}

// Refuses token files, archives and UTF-16: UTF-8 text has no zero bytes.
void check_is_text(const MappedFile& file, const fs::path& path, Problems& problems) {
  if (const KnownFormat format = known_format(file.data(), file.size()); !format.name.empty()) {
    problems.add(Stage::options, "file.format", "path",
                 fmt::format("{} is no text: it is {}", path.string(), format.name), format.hint);
    return;
  }
  const bool wide = file.size() >= 2 && (std::memcmp(file.data(), "\xff\xfe", 2) == 0 ||
                                         std::memcmp(file.data(), "\xfe\xff", 2) == 0);
  if (wide) {
    problems.add(Stage::options, "file.format", "path",
                 fmt::format("{} is UTF-16: its first two bytes say so", path.string()),
                 "mw.text reads UTF-8 text: iconv -f UTF-16 -t UTF-8");
    return;
  }
  const std::int64_t seen = std::min<std::int64_t>(file.size(), 64 << 10);
  if (seen == 0) return;
  const void* found = std::memchr(file.data(), 0, seen);
  if (found == nullptr) return;
  problems.add(Stage::options, "file.format", "path",
               fmt::format("{} is no text: byte {} is 0", path.string(),
                           static_cast<const std::uint8_t*>(found) - file.data()),
               "mw.text reads UTF-8 text; unpack archives first");
}

std::vector<fs::path> list_files(const Values& values, const DataContext& context,
                                 Problems& problems) {
  std::vector<fs::path> files;
  const Json& given = values.at("path");
  if (given.is_string()) {
    add_files(given.get<std::string>(), "path", context, files, problems);
  } else if (given.is_array() && !given.empty()) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      const std::string item = fmt::format("path[{}]", i + 1);
      if (given[i].is_string())
        add_files(given[i].get<std::string>(), item, context, files, problems);
      else
        problems.add(Stage::options, "option.value", item,
                     fmt::format("{} is no path", lua_text(given[i])),
                     "write the path of a file or folder in quotes");
    }
  } else {
    problems.add(Stage::options, "option.value", "path",
                 fmt::format("{} is no path", lua_text(given)),
                 "write the path of a file or folder in quotes, or a list of them");
  }
  return files;
}

}  // namespace

Options TextSource::options() {
  Options options;
  options
      .any("path",
           "a UTF-8 file, a folder of them (read in order of name), the name of a text that comes "
           "with the program (\"gcide\"), or a list")
      .positional("path");
  SampleOrder::add_options(options);
  return options;
}

TextSource::TextSource(const Values& values, const DataContext& context) : order_(values, context) {
  Problems problems;
  const std::vector<fs::path> paths = list_files(values, context, problems);
  EachFileOnce once;
  for (const fs::path& file : paths) {
    try {
      once.take(file, problems);
      files_.emplace_back(file);
      starts_.push_back(starts_.back() + files_.back().size());
      check_is_text(files_.back(), file, problems);
    } catch (const Error& error) {
      for (Problem p : error.problems()) {
        p.key = "path";
        problems.add(std::move(p));
      }
    }
  }
  if (problems.empty()) {
    order_.take(starts_.back(), paths.size() == 1 ? paths[0].string() : "the text", problems);
  }
  problems.throw_if_any();
}

MESHWRIGHT_BUILT_IN(data<TextSource>("text",
                                     "Bytes of UTF-8 text as tokens: 256 ids, no tokeniser."));

}  // namespace mw
