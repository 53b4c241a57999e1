// `mw.shards`: tokens of files that a tokeniser has written, as llm.c, nanoGPT and Megatron write
// them, told apart by their headers. Nothing that a header says is believed before it fits the
// file, and ids that the model does not know are refused.
#include <fmt/core.h>
#include <glob.h>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "common/mapped_file.h"
#include "meshwright/data.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/plugin.h"
#include "sample_order.h"

namespace mw {

namespace fs = std::filesystem;

// How a token lies in a file; little-endian, as all three write them.
enum class TokenType { u8, i8, u16, i16, u32, i32, i64 };
int bytes_of(TokenType type);

// One file of tokens, one after another; all threads may read it.
class TokenFile {
 public:
  // `type`: of a file without a header; "auto": 16 bits, if its name ends in .bin.
  // Throws Error (options) with the key `path` for what is none of the three, or says of itself
  // what cannot be: the file, and both numbers.
  TokenFile(const std::filesystem::path& path, const std::string& type);

  std::int64_t tokens() const { return tokens_; }
  const std::filesystem::path& path() const { return file_.path(); }
  const std::filesystem::path& index() const { return index_; }  // Megatron's; empty: it has none
  // Token i; one that is negative comes out so.
  std::int64_t at(std::int64_t i) const;
  void check() const { file_.check(); }
  std::uint64_t digest(std::int64_t most) const { return file_.digest(most); }

 private:
  void read_llm_c(std::int32_t magic);
  void read_megatron(const std::filesystem::path& index);
  void read_bare(const std::string& type);

  MappedFile file_;
  std::filesystem::path index_;
  TokenType type_ = TokenType::u16;
  std::int64_t begin_ = 0, tokens_ = 0;  // byte of the first token
};

namespace {

constexpr std::int64_t llm_c_header = 256 * 4;
// The magic numbers of llm.c's writers, whose tokens are GPT-2's in 16 bits or Llama 3's in 32.
constexpr std::int32_t llm_c_gpt2 = 20240520, llm_c_llama3 = 20240801;
constexpr std::array<char, 9> megatron_magic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr std::int64_t megatron_header = 9 + 8 + 1 + 8 + 8;

[[noreturn]] void refuse(const fs::path& file, const std::string& why, std::string hint = "") {
  throw Error(Stage::options, "data.header", "path", fmt::format("{}: {}", file.string(), why),
              hint.empty() ? "was it cut off, or is it another kind of file?" : std::move(hint));
}

template <class Number>
Number number_at(const MappedFile& file, std::int64_t byte) {
  Number number;
  std::memcpy(&number, file.data() + byte, sizeof number);
  return number;
}

bool is_megatron_index(const MappedFile& file) {
  return file.size() >= static_cast<std::int64_t>(megatron_magic.size()) &&
         std::memcmp(file.data(), megatron_magic.data(), megatron_magic.size()) == 0;
}

fs::path with_ending(fs::path path, const char* ending) {
  return path.replace_extension(ending);
}

// The file that holds the tokens: an index names the one beside it.
fs::path tokens_of(const fs::path& path) {
  return path.extension() == ".idx" ? with_ending(path, ".bin") : path;
}

TokenType megatron_type(int code, const fs::path& index) {
  switch (code) {
    case 1:
      return TokenType::u8;
    case 2:
      return TokenType::i8;
    case 3:
      return TokenType::i16;
    case 4:
      return TokenType::i32;
    case 5:
      return TokenType::i64;
    case 8:
      return TokenType::u16;
    default:
      refuse(index, fmt::format("its tokens have the type {}", code),
             "types of integers are 1 to 5 and 8 (Megatron's DType)");
  }
}

}  // namespace

int bytes_of(TokenType type) {
  static constexpr std::array sizes{1, 1, 2, 2, 4, 4, 8};
  return sizes.at(static_cast<std::size_t>(type));
}

TokenFile::TokenFile(const fs::path& path, const std::string& type) : file_(tokens_of(path)) {
  std::error_code error;
  const fs::path index = with_ending(file_.path(), ".idx");
  const bool indexed = fs::exists(index, error);
  if (path.extension() == ".idx" || (indexed && file_.path().extension() == ".bin")) {
    read_megatron(index);
    return;
  }
  if (is_megatron_index(file_)) {
    refuse(path, "it is an index of Megatron's, whose name does not end in .idx",
           "give index and tokens one name, ending in .idx and .bin");
  }
  const std::int32_t magic = file_.size() >= 4 ? number_at<std::int32_t>(file_, 0) : 0;
  if (magic == llm_c_gpt2 || magic == llm_c_llama3) {
    read_llm_c(magic);
  } else {
    read_bare(type);
  }
}

void TokenFile::read_llm_c(std::int32_t magic) {
  if (file_.size() < llm_c_header) {
    refuse(path(),
           fmt::format("{} bytes, and llm.c's header alone has {}", file_.size(), llm_c_header));
  }
  const std::int32_t wanted = magic == llm_c_gpt2 ? 1 : 7,
                     version = number_at<std::int32_t>(file_, 4);
  if (version != wanted) {
    refuse(path(),
           fmt::format("its header (magic {}) has the version {}, not {}", magic, version, wanted));
  }
  type_ = magic == llm_c_gpt2 ? TokenType::u16 : TokenType::u32;
  begin_ = llm_c_header;
  tokens_ = number_at<std::int32_t>(file_, 8);
  const std::int64_t there = file_.size() - llm_c_header;
  if (tokens_ < 0 || there != tokens_ * bytes_of(type_)) {
    refuse(path(), fmt::format("its header says {} tokens of {} bytes, and {} bytes follow it",
                               tokens_, bytes_of(type_), there));
  }
}

void TokenFile::read_megatron(const fs::path& index) {
  index_ = index;
  const MappedFile head(index);
  if (!is_megatron_index(head)) {
    refuse(index, "it is no index of Megatron's (MMIDIDX)",
           "another file's name may end in .idx by chance: move it elsewhere");
  }
  if (head.size() < megatron_header) {
    refuse(index,
           fmt::format("{} bytes, and the header alone has {}", head.size(), megatron_header));
  }
  const auto version = number_at<std::uint64_t>(head, 9);
  if (version != 1) refuse(index, fmt::format("its version is {}, not 1", version));
  type_ = megatron_type(number_at<std::uint8_t>(head, 17), index);
  const auto sequences = number_at<std::uint64_t>(head, 18),
             documents = number_at<std::uint64_t>(head, 26);
  const auto rest = static_cast<std::uint64_t>(head.size() - megatron_header);
  if (sequences > rest / 12 || documents > rest / 8 || sequences * 12 + documents * 8 != rest) {
    refuse(index, fmt::format("its header says {} sequences and {} documents, and {} bytes follow "
                              "it",
                              sequences, documents, rest));
  }
  const std::int64_t lengths = megatron_header,
                     pointers = lengths + 4 * static_cast<std::int64_t>(sequences);
  const int size = bytes_of(type_);
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(sequences); ++s) {
    const auto length = number_at<std::int32_t>(head, lengths + 4 * s);
    const auto pointer = number_at<std::int64_t>(head, pointers + 8 * s);
    if (length < 0 || pointer != tokens_ * size) {
      refuse(index,
             fmt::format("sequence {} has {} tokens at byte {}; the one before ends at {}", s,
                         length, pointer, tokens_ * size),
             "sequences must follow one another, as Megatron's own tools write them");
    }
    tokens_ += length;
  }
  head.check();
  if (file_.size() < tokens_ * size) {
    refuse(path(), fmt::format("{} bytes, and its index says {} tokens of {} bytes", file_.size(),
                               tokens_, size));
  }
}

void TokenFile::read_bare(const std::string& type) {
  if (type == "auto" && path().extension() != ".bin") {
    refuse(path(), "it has no header that is known (llm.c's, Megatron's)",
           "a bare list of tokens needs their type: dtype = \"u16\"");
  }
  type_ = type == "u32" ? TokenType::u32 : TokenType::u16;
  const int size = bytes_of(type_);
  if (file_.size() % size != 0) {
    refuse(path(), fmt::format("{} bytes, which are no whole number of tokens of {} bytes",
                               file_.size(), size));
  }
  tokens_ = file_.size() / size;
}

std::int64_t TokenFile::at(std::int64_t i) const {
  const std::int64_t byte = begin_ + i * bytes_of(type_);
  switch (type_) {
    case TokenType::u8:
      return number_at<std::uint8_t>(file_, byte);
    case TokenType::i8:
      return number_at<std::int8_t>(file_, byte);
    case TokenType::u16:
      return number_at<std::uint16_t>(file_, byte);
    case TokenType::i16:
      return number_at<std::int16_t>(file_, byte);
    case TokenType::u32:
      return number_at<std::uint32_t>(file_, byte);
    case TokenType::i32:
      return number_at<std::int32_t>(file_, byte);
    default:
      return number_at<std::int64_t>(file_, byte);
  }
}

// The files' tokens one after another, in the order of the files' names; which a sample has:
// SampleOrder. An id that the model does not know ends the run, with the file and the place.
class ShardSource final : public TokenSource {
 public:
  static Options options();
  ShardSource(const Values& values, const DataContext& context);
  std::int64_t vocab() const override { return vocab_; }  // the model's: each id is checked
  std::int64_t tokens() const override { return order_.tokens(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::string content() const override;
  std::vector<SourceFile> files() const override;

 private:
  void check_first_ids(Problems& problems) const;

  std::vector<TokenFile> files_;
  std::vector<std::int64_t> starts_ = {0};  // number of each file's first token, and of all
  SampleOrder order_;
  std::int64_t vocab_;
};

namespace {

// Ids of each file that are looked at before a rank starts; the others as they are read.
constexpr std::int64_t looked_at_first = 1 << 16;

// What matches, by name; of an index and its tokens the index.
std::vector<fs::path> matches(const std::string& pattern) {
  std::vector<fs::path> found;
  glob_t list{};
  if (::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &list) == 0) {
    for (std::size_t i = 0; i < list.gl_pathc; ++i)
      if (may_read(list.gl_pathv[i])) found.emplace_back(list.gl_pathv[i]);
  }
  ::globfree(&list);
  const std::set<fs::path> all(found.begin(), found.end());
  std::erase_if(found, [&](const fs::path& path) {
    std::error_code error;
    fs::path index = path;
    return fs::is_directory(path, error) ||
           (path.extension() == ".bin" && all.count(index.replace_extension(".idx")) > 0);
  });
  return found;
}

// Under the first root that has any.
std::vector<fs::path> find(const std::string& pattern, const DataContext& context) {
  if (fs::path(pattern).is_absolute() || pattern.starts_with('~') || context.roots.empty())
    return matches(pattern);
  for (const fs::path& root : context.roots) {
    std::vector<fs::path> found = matches((root / pattern).lexically_normal().string());
    if (!found.empty()) return found;
  }
  return {};
}

std::vector<std::string> patterns_of(const Json& given, Problems& problems) {
  std::vector<std::string> patterns;
  for (const Json& one : given.is_array() ? given : Json::array({given})) {
    if (one.is_string()) {
      patterns.push_back(one.get<std::string>());
    } else {
      problems.add(Stage::options, "option.value", "path",
                   fmt::format("{} is no path", json_text(one)),
                   "write the name of a file in quotes, or a pattern: \"data/train_*.bin\"");
    }
  }
  if (patterns.empty() && problems.empty()) {
    problems.add(Stage::options, "option.value", "path", "an empty list of files",
                 "write a pattern: \"data/train_*.bin\"");
  }
  return patterns;
}

std::string wrong_id(const TokenFile& file, std::int64_t i, std::int64_t vocab) {
  return fmt::format("{}: token {} is {}, and the model's ids are 0 to {}", file.path().string(), i,
                     file.at(i), vocab - 1);
}

}  // namespace

Options ShardSource::options() {
  Options options;
  options
      .any("path",
           "files of tokens: a name, a pattern such as \"data/train_*.bin\", or a list of these; "
           "llm.c's, nanoGPT's (.bin) and Megatron's (.idx beside .bin) are told apart by their "
           "headers")
      .positional("path")
      .choice("dtype", {"auto", "u16", "u32"},
              "of a token in files without a header; auto: u16, if their names end in .bin")
      .fallback("auto");
  SampleOrder::add_options(options);
  return options;
}

ShardSource::ShardSource(const Values& values, const DataContext& context)
    : order_(values, context), vocab_(context.vocab) {
  Problems problems;
  for (const std::string& pattern : patterns_of(values.at("path"), problems)) {
    const std::vector<fs::path> found = find(pattern, context);
    if (found.empty()) {
      problems.add(Stage::options, "file.missing", "path",
                   fmt::format("no file matches \"{}\"", pattern),
                   "paths are looked for here, beside the script and in the folder above it");
    }
    for (const fs::path& path : found) {
      try {
        files_.emplace_back(path, values.text("dtype"));
        starts_.push_back(starts_.back() + files_.back().tokens());
      } catch (const Error& error) {
        for (Problem p : error.problems()) {
          p.key = "path";
          problems.add(std::move(p));
        }
      }
    }
  }
  if (problems.empty()) {
    order_.take(
        starts_.back(),
        files_.size() == 1 ? files_[0].path().string() : fmt::format("{} files", files_.size()),
        problems);
    check_first_ids(problems);
  }
  problems.throw_if_any();
}

void ShardSource::check_first_ids(Problems& problems) const {
  for (const TokenFile& file : files_) {
    std::int64_t largest = 0, at = -1;
    for (std::int64_t i = 0; i < std::min(file.tokens(), looked_at_first); ++i) {
      const std::int64_t id = file.at(i);
      if (id >= 0 && id < vocab_) continue;
      if (at < 0) at = i;
      largest = std::max(largest, id);
    }
    if (at < 0) continue;
    problems.add(Stage::options, "data.token", "path", wrong_id(file, at, vocab_),
                 largest >= vocab_
                     ? fmt::format("the model's vocab must be {} at least", largest + 1)
                     : "are they tokens of this type? dtype says so of files without a header");
  }
}

void ShardSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                         std::int64_t* labels) const {
  std::int64_t at = order_.offset(k, sequence);
  // The file that holds the first token; empty files share a start with the next one.
  auto number = std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1;
  for (std::int64_t done = 0; done <= sequence; ++number) {
    const TokenFile& file = files_[number];
    const std::int64_t end = std::min(starts_[number + 1], at + sequence + 1 - done);
    for (; at < end; ++at, ++done) {
      const std::int64_t id = file.at(at - starts_[number]);
      if (id < 0 || id >= vocab_) {
        file.check();
        throw Error(Stage::run, "data.token", "data", wrong_id(file, at - starts_[number], vocab_),
                    "give the model a larger vocab, or tokenise for this one");
      }
      if (done < sequence) inputs[done] = id;
      if (done > 0) labels[done - 1] = id;
    }
    file.check();
  }
}

std::string ShardSource::content() const {
  const std::int64_t share = most_digested / static_cast<std::int64_t>(files_.size());
  std::string text;
  for (const TokenFile& file : files_) text += fmt::format("{:016x}", file.digest(share));
  return text;
}

std::vector<SourceFile> ShardSource::files() const {
  std::vector<SourceFile> files;
  for (const TokenFile& file : files_) {
    files.push_back({file.path()});
    if (!file.index().empty()) files.push_back({file.index(), /*implied=*/true});
  }
  return files;
}

MESHWRIGHT_BUILT_IN(data<ShardSource>("shards",
                                      "Files of tokens: llm.c's, nanoGPT's or Megatron's."));

}  // namespace mw
