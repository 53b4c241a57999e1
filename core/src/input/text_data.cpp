// Reads bytes of text files as tokens, in order or shuffled by windows, the same for every mix.
#include "input/text_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "base/find_file.h"
#include "base/hash.h"
#include "base/json_text.h"
#include "input/permutation.h"

namespace mw {

namespace fs = std::filesystem;

std::int64_t TextSource::offset_of(std::int64_t k, std::int64_t sequence) const {
  if (sequential_) return k * sequence % (tokens() - sequence - 1);
  const std::int64_t windows = (tokens() - 1) / sequence, epoch = k / windows;
  const Permutation shuffled(windows, mix64(seed_) ^ mix64(~static_cast<std::uint64_t>(epoch)));
  return static_cast<std::int64_t>(shuffled(k % windows)) * sequence;
}

void TextSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                        std::int64_t* labels) const {
  std::int64_t at = offset_of(k, sequence);
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

namespace {

// Adds `given`, or if it is a folder its files by name, hidden ones left out.
void add_files(const std::string& given, const std::string& key, const DataContext& context,
               std::vector<fs::path>& files, Problems& problems) {
  const fs::path path = find_file(given, context.roots);
  std::error_code error;
  if (!fs::exists(path, error)) {
    std::string looked;
    std::set<std::string> named;  // the script may lie in the working directory
    for (const fs::path& root : context.roots) {
      const std::string place = (root / given).lexically_normal().string();
      if (named.insert(place).second) looked += (looked.empty() ? "" : ", ") + place;
    }
    if (looked.empty() || path.is_absolute()) looked = fs::absolute(path, error).string();
    problems.add(Stage::options, "file.missing", key,
                 fmt::format("no file or folder \"{}\"", given),
                 fmt::format("looked for {}", looked));
    return;
  }
  if (!fs::is_directory(path, error)) {
    files.push_back(path);
    return;
  }
  const auto first = static_cast<std::ptrdiff_t>(files.size());
  for (const auto& entry : fs::directory_iterator(path, error))
    if (entry.is_regular_file(error) && entry.path().filename().string().front() != '.')
      files.push_back(entry.path());
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

// Token files and archives are taken for text all too easily: text has no zero bytes.
void check_is_text(const MappedFile& file, const fs::path& path, Problems& problems) {
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
                     fmt::format("{} is no path", json_text(given[i])),
                     "write the path of a file or folder in quotes");
    }
  } else {
    problems.add(Stage::options, "option.value", "path",
                 fmt::format("{} is no path", json_text(given)),
                 "write the path of a file or folder in quotes, or a list of them");
  }
  return files;
}

}  // namespace

Options TextSource::options() {
  return Options()
      .any("path", "a UTF-8 file, a folder of them (read in order of name), or a list")
      .positional("path")
      .integer("sequence", "tokens of one sample")
      .optional()
      .at_least(1)
      .unit("tokens")
      .choice("order", {"shuffled", "sequential"},
              "shuffled: windows in an order of the seed's, each once per epoch; "
              "sequential: as they lie")
      .fallback("shuffled");
}

TextSource::TextSource(const Values& values, const DataContext& context)
    : sequential_(values.text("order") == "sequential"),
      seed_(static_cast<std::uint64_t>(context.seed)) {
  Problems problems;
  const std::vector<fs::path> paths = list_files(values, context, problems);
  for (const fs::path& file : paths) {
    try {
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
  // Sequential offsets are taken mod (tokens - S - 1), which must not be zero.
  const std::int64_t needed = context.sequence + (sequential_ ? 2 : 1);
  if (problems.empty() && tokens() < needed) {
    problems.add(Stage::options, "data.too-short", "path",
                 fmt::format("{} holds {} tokens, one {} sample of sequence = {} needs {}",
                             paths.size() == 1 ? paths[0].string() : "the text", tokens(),
                             sequential_ ? "sequential" : "shuffled", context.sequence, needed),
                 tokens() < 3 ? "give it a longer text"
                              : fmt::format("use a longer text, or sequence = {} or less",
                                            tokens() - (sequential_ ? 2 : 1)));
  }
  problems.throw_if_any();
}

const Registration text_data =
    data<TextSource>("text", "Bytes of UTF-8 text as tokens: 256 ids, no tokeniser.");

}  // namespace mw
