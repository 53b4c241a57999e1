// Reads bytes of text files as tokens, in order or shuffled by windows, the same for every mix.
#include "input/text_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/json_text.h"
#include "input/permutation.h"

namespace mw {

namespace fs = std::filesystem;

TextSource::TextSource(std::vector<MappedFile> files, SampleOrder order, std::int64_t seed)
    : files_(std::move(files)), order_(order), seed_(static_cast<std::uint64_t>(seed)) {
  starts_.push_back(0);
  for (const MappedFile& file : files_) starts_.push_back(starts_.back() + file.size());
}

std::int64_t TextSource::offset_of(std::int64_t k, std::int64_t sequence) const {
  if (order_ == SampleOrder::sequential) return k * sequence % (tokens() - sequence - 1);
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

// The path as given if absolute, else the first root under which it exists.
fs::path find_path(const std::string& given, const DataContext& context) {
  const fs::path path(given);
  if (path.is_absolute()) return path;
  std::error_code ignored;
  for (const fs::path& root : context.roots)
    if (fs::exists(root / path, ignored)) return root / path;
  return path;
}

// Adds `given`, or if it is a folder its files by name, hidden ones left out.
void add_files(const std::string& given, const std::string& key, const DataContext& context,
               std::vector<fs::path>& files, Problems& problems) {
  const fs::path path = find_path(given, context);
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
                 fmt::format("{}: no file or folder \"{}\"", key, given),
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
    problems.add(
        Stage::options, "file.read", key,
        fmt::format("{}: cannot list the folder {}: {}", key, path.string(), error.message()));
  } else if (static_cast<std::ptrdiff_t>(files.size()) == first) {
    problems.add(Stage::options, "file.missing", key,
                 fmt::format("{}: the folder {} holds no files", key, path.string()),
                 "its own files are read, not those of folders within, nor hidden ones");
  }
}

// Token files and archives are taken for text all too easily: text has no zero bytes.
void check_is_text(const MappedFile& file, const fs::path& path, const std::string& key,
                   Problems& problems) {
  const std::int64_t seen = std::min<std::int64_t>(file.size(), 64 << 10);
  if (seen == 0) return;
  const void* found = std::memchr(file.data(), 0, seen);
  if (found == nullptr) return;
  problems.add(Stage::options, "file.format", key,
               fmt::format("{}: {} is no text: byte {} is 0", key, path.string(),
                           static_cast<const std::uint8_t*>(found) - file.data()),
               "mw.text reads UTF-8 text; unpack archives first");
}

class TextKind final : public DataKind {
 public:
  TextKind() {
    options_.any("path", "a UTF-8 file, a folder of them (read in order of name), or a list")
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
  std::string name() const override { return "text"; }
  std::string doc() const override {
    return "Bytes of UTF-8 text as tokens: 256 ids, no tokeniser.";
  }
  const Options& options() const override { return options_; }

  std::shared_ptr<const TokenSource> open(const Values& values, const std::string& path,
                                          const DataContext& context,
                                          Problems& problems) const override {
    const std::size_t before = problems.list().size();
    const std::vector<fs::path> paths = list_files(values, path, context, problems);
    std::vector<MappedFile> files;
    std::int64_t tokens = 0;
    for (const fs::path& file : paths) {
      try {
        files.emplace_back(file);
        tokens += files.back().size();
        check_is_text(files.back(), file, path + ".path", problems);
      } catch (const Error& error) {
        for (Problem p : error.problems()) {
          p.key = path + ".path";
          p.message = p.key + ": " + p.message;
          problems.add(std::move(p));
        }
      }
    }
    const bool sequential = values.text("order") == "sequential";
    // Sequential offsets are taken mod (tokens - S - 1), which must not be zero.
    const std::int64_t needed = context.sequence + (sequential ? 2 : 1);
    if (problems.list().size() == before && tokens < needed) {
      problems.add(
          Stage::options, "data.too-short", path + ".path",
          fmt::format("{}.path: {} holds {} tokens, one {} sample of sequence = {} needs {}", path,
                      paths.size() == 1 ? paths[0].string() : "the text", tokens,
                      sequential ? "sequential" : "shuffled", context.sequence, needed),
          tokens < 3 ? "give it a longer text"
                     : fmt::format("use a longer text, or sequence = {} or less",
                                   tokens - (sequential ? 2 : 1)));
    }
    if (context.vocab != 0 && context.vocab < 256) {
      problems.add(
          Stage::options, "data.vocab", "model.vocab",
          fmt::format("model.vocab: {} ids are too few for {}: text has 256", context.vocab, path),
          "use vocab = 256");
    }
    if (problems.list().size() != before) return nullptr;
    return std::make_shared<TextSource>(
        std::move(files), sequential ? SampleOrder::sequential : SampleOrder::shuffled,
        context.seed);
  }

 private:
  static std::vector<fs::path> list_files(const Values& values, const std::string& path,
                                          const DataContext& context, Problems& problems) {
    std::vector<fs::path> files;
    const Json& given = values.at("path");
    const std::string key = path + ".path";
    if (given.is_string()) {
      add_files(given.get<std::string>(), key, context, files, problems);
    } else if (given.is_array() && !given.empty()) {
      for (std::size_t i = 0; i < given.size(); ++i) {
        const std::string item = fmt::format("{}[{}]", key, i + 1);
        if (given[i].is_string())
          add_files(given[i].get<std::string>(), item, context, files, problems);
        else
          problems.add(Stage::options, "option.value", item,
                       fmt::format("{}: {} is no path", item, json_text(given[i])),
                       "write the path of a file or folder in quotes");
      }
    } else {
      problems.add(Stage::options, "option.value", key,
                   fmt::format("{}: {} is no path", key, json_text(given)),
                   "write the path of a file or folder in quotes, or a list of them");
    }
    return files;
  }

  Options options_;
};

}  // namespace

const DataKind& text_data_kind() {
  static const TextKind kind;
  return kind;
}

}  // namespace mw
