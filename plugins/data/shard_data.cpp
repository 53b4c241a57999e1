// `mw.shards`: tokens of files that a tokeniser has written, as llm.c, nanoGPT and Megatron write
// them, told apart by their headers. Nothing that a header says is believed before it fits the
// file, and ids that the model does not know are refused.
#include <fmt/core.h>
#include <glob.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "common/mapped_file.h"
#include "known_format.h"
#include "meshwright/data.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/plugin.h"
#include "sample_order.h"

namespace mw {

namespace fs = std::filesystem;

// How a token lies in a file; little-endian, as all three write them.
enum class TokenType { u8, i8, u16, i16, u32, i32, u64, i64 };
int bytes_of(TokenType type);

// One file of tokens, one after another; all threads may read it.
class TokenFile {
 public:
  // `type`: of a file without a header; "auto": what its bytes and the model's ids leave no doubt
  // of, if its name ends in .bin. Throws Error (options) with the key `path` for what is none of
  // the three, or says of itself what cannot be: the file, and both numbers; with the key `dtype`
  // if a file's type is in doubt, or another than is said.
  TokenFile(const std::filesystem::path& path, const std::string& type, std::int64_t vocab);

  std::int64_t tokens() const { return tokens_; }
  bool has_header() const { return begin_ > 0 || !index_.empty(); }
  int bytes_of_token() const { return bytes_of(type_); }
  const std::filesystem::path& path() const { return file_.path(); }
  const std::filesystem::path& index() const { return index_; }  // Megatron's; empty: it has none
  // Token i; one that is negative comes out so.
  std::int64_t at(std::int64_t i) const;
  void check() const { file_.check(); }
  std::uint64_t digest(std::int64_t most) const { return file_.digest(most); }

 private:
  void read_llm_c(std::int32_t magic);
  void read_megatron(const std::filesystem::path& index);
  void read_bare(const std::string& type, std::int64_t vocab);
  TokenType told_by_bytes(std::int64_t vocab) const;

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
  static constexpr std::array sizes{1, 1, 2, 2, 4, 4, 8, 8};
  return sizes.at(static_cast<std::size_t>(type));
}

TokenFile::TokenFile(const fs::path& path, const std::string& type, std::int64_t vocab)
    : file_(tokens_of(path)) {
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
    read_bare(type, vocab);
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
  if (file_.size() != tokens_ * size) {
    refuse(path(),
           fmt::format("{} bytes, and its index says {} tokens of {} bytes, which are {}",
                       file_.size(), tokens_, size, tokens_ * size),
           "was it cut off, or written again since? Take the index that was written with it");
  }
}

namespace {

constexpr const char* type_names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"};

[[noreturn]] void doubt(const fs::path& file, const std::string& why, const std::string& hint) {
  throw Error(Stage::options, "data.dtype", "dtype", fmt::format("{}: {}", file.string(), why),
              hint);
}

// Bytes of a file that are looked at before a rank starts; the others as they are read.
constexpr std::int64_t most_looked_at = 1 << 16;
// Fewer numbers than these look like others by chance.
constexpr std::int64_t fewest_to_tell = 64;

// What the first bytes are as little-endian numbers of so many bytes.
struct Looked {
  bool fit = false;   // they are a whole number of them, all ids of the model
  bool alike = true;  // all are the same number
  std::int64_t count = 0;
};

template <class Number>
Looked looked_at(const MappedFile& file, std::int64_t vocab) {
  constexpr std::int64_t size = sizeof(Number);
  Looked looked;
  looked.count = std::min(file.size(), most_looked_at) / size;
  looked.fit = looked.count > 0 && file.size() % size == 0;
  for (std::int64_t i = 0; i < looked.count; ++i) {
    const auto number = number_at<Number>(file, i * size);
    looked.fit = looked.fit && number < static_cast<std::uint64_t>(vocab);
    looked.alike = looked.alike && number == number_at<Number>(file, 0);
  }
  return looked;
}

// Letters, digits, spaces and signs, and none of the bytes that no text has.
bool looks_like_text(const MappedFile& file) {
  const std::int64_t looked = std::min(file.size(), most_looked_at);
  if (looked < fewest_to_tell) return false;
  return std::all_of(file.data(), file.data() + looked, [](std::uint8_t byte) {
    return (byte >= 32 && byte < 127) || byte == '\n' || byte == '\r' || byte == '\t';
  });
}

// Whether nearly every second word of 16 bits is 0, as in wider numbers; not all where some are
// negative.
bool has_empty_words(const MappedFile& file) {
  const std::int64_t words = std::min(file.size(), most_looked_at) / 2;
  std::int64_t empty[] = {0, 0};
  for (std::int64_t i = 0; i < words; ++i)
    empty[i % 2] += number_at<std::uint16_t>(file, 2 * i) == 0 ? 1 : 0;
  const auto nearly_all = [&](std::int64_t count) { return 20 * count >= 9 * words; };
  return words >= 2 * fewest_to_tell && nearly_all(empty[0]) != nearly_all(empty[1]);
}

}  // namespace

// A wide number whose upper words are 0 is also two or four of 16 bits, of which every second one
// or more are 0; no tokens are so, and wide numbers that are ids throughout are none by chance.
TokenType TokenFile::told_by_bytes(std::int64_t vocab) const {
  const KnownFormat format = known_format(file_.data(), file_.size());
  const Looked wide = looked_at<std::uint64_t>(file_, vocab),
               middle = looked_at<std::uint32_t>(file_, vocab),
               narrow = looked_at<std::uint16_t>(file_, vocab);
  const bool text = looks_like_text(file_), empty_words = has_empty_words(file_);
  file_.check();
  const char* forced = "; if its bytes are tokens as they lie, say their type: dtype = \"u16\"";
  if (!format.name.empty()) doubt(path(), "it is " + format.name, format.hint + forced);
  if (path().extension() != ".bin") {
    refuse(path(), "it has no header that is known (llm.c's, Megatron's)",
           "a bare list of tokens needs their type: dtype = \"u16\"");
  }
  // In a vocabulary far above 65,536, two 16-bit words often form a valid 32-bit id.
  const bool apart = vocab <= (std::int64_t{1} << 20);
  for (const auto& [looked, type] : {std::pair{wide, TokenType::u64}, {middle, TokenType::u32}}) {
    if (!looked.fit) continue;
    if (looked.count >= fewest_to_tell && !looked.alike && apart) return type;
    if (!narrow.fit) return type;
    doubt(
        path(),
        fmt::format("it has no header, and its {} bytes can be {} ids of {} bytes or {} of 2",
                    file_.size(), file_.size() / bytes_of(type), bytes_of(type), file_.size() / 2),
        "say the type in which the file was written: dtype = \"u16\", \"u32\" or \"i64\"");
  }
  if (text)
    doubt(path(), "it is text",
          std::string("mw.text reads text as tokens; or tokenise it") + forced);
  if (file_.size() > 0 && vocab > (1 << 16)) {
    doubt(
        path(),
        fmt::format("it has no header; its bytes are no ids below {} of 4 or 8 bytes, and 2 bytes "
                    "hold no more than 65,536 ids",
                    vocab),
        "say the type in which the file was written: dtype = \"u16\" if its tokeniser has no "
        "more ids");
  }
  if (empty_words) {
    doubt(path(),
          "it has no header, and nearly every second word of 2 bytes in it is 0: its tokens are "
          "wider, and are no ids of the model as they lie",
          fmt::format("say the type in which the file was written, such as dtype = \"u32\"; tokens "
                      "are below the model's vocab of {}, and little-endian",
                      vocab));
  }
  return TokenType::u16;
}

void TokenFile::read_bare(const std::string& type, std::int64_t vocab) {
  const auto named = std::ranges::find(type_names, type);
  type_ = named == std::end(type_names) ? told_by_bytes(vocab)
                                        : static_cast<TokenType>(named - std::begin(type_names));
  const int size = bytes_of(type_);
  if (file_.size() % size != 0) {
    refuse(path(),
           fmt::format("{} bytes, which are no whole number of tokens of {} bytes", file_.size(),
                       size),
           "was it cut off, or has it tokens of another type? dtype says so");
  }
  const bool wider = named != std::end(type_names) && size == 2 && has_empty_words(file_);
  file_.check();
  if (wider) {
    doubt(path(),
          fmt::format(
              "dtype is \"{}\", and nearly every second word of 2 bytes in it is 0: its tokens "
              "are wider",
              type),
          "dtype = \"u32\" or \"i64\", as the file was written");
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
    case TokenType::u64:  // what is too large comes out negative
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

[[noreturn]] void cannot_list(const std::string& folder, const std::string& why) {
  throw Error(Stage::options, "file.read", "path",
              fmt::format("cannot list the folder {}: {}", folder, why));
}

// What matches, by name; of an index and its tokens the index. Throws Error (options) if some of
// the matches cannot be found or may not be read: the run would train on the others alone.
std::vector<fs::path> matches(const std::string& pattern) {
  static thread_local std::pair<std::string, int> unlisted;
  const auto on_error = [](const char* folder, int reason) {
    // An error would tell a sandboxed script that a forbidden folder exists.
    if (reason == ENOENT || reason == ENOTDIR || !may_read(folder)) return 0;
    unlisted = {folder, reason};
    return 1;
  };
  std::vector<fs::path> found, forbidden;
  glob_t list{};
  const int result = ::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, on_error, &list);
  for (std::size_t i = 0; result == 0 && i < list.gl_pathc; ++i)
    (may_read(list.gl_pathv[i]) ? found : forbidden).emplace_back(list.gl_pathv[i]);
  ::globfree(&list);
  if (result == GLOB_ABORTED)
    cannot_list(unlisted.first, std::generic_category().message(unlisted.second));
  if (result == GLOB_NOSPACE) cannot_list(pattern, std::generic_category().message(ENOMEM));
  if (!found.empty() && !forbidden.empty()) check_may_read(forbidden.front(), "path");
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
                   fmt::format("{} is no path", lua_text(one)),
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
      .choice(
          "dtype", {"auto", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"},
          "of a token in files without a header; auto, for names that end in .bin: 16, 32 or 64 "
          "bits, as the bytes and the model's vocab leave no doubt of")
      .fallback("auto");
  SampleOrder::add_options(options);
  return options;
}

ShardSource::ShardSource(const Values& values, const DataContext& context)
    : order_(values, context), vocab_(context.vocab) {
  Problems problems;
  EachFileOnce once;
  for (const std::string& pattern : patterns_of(values.at("path"), problems)) {
    std::vector<fs::path> found;
    try {
      found = find(pattern, context);
    } catch (const Error& error) {
      for (const Problem& p : error.problems()) problems.add(p);
      continue;
    }
    if (found.empty()) {
      std::error_code error;
      if (may_read(pattern) && fs::is_directory(pattern, error)) {
        problems.add(Stage::options, "file.missing", "path",
                     fmt::format("\"{}\" is a folder, and files of tokens are named", pattern),
                     fmt::format("write \"{}\"", (fs::path(pattern) / "*.bin").string()));
        continue;
      }
      problems.add(Stage::options, "file.missing", "path",
                   fmt::format("no file matches \"{}\"", pattern),
                   "paths are looked for here, beside the script and in the folder above it");
    }
    for (const fs::path& path : found) {
      try {
        files_.emplace_back(path, values.text("dtype"), vocab_);
        once.take(files_.back().path(), problems);
        starts_.push_back(starts_.back() + files_.back().tokens());
      } catch (const Error& error) {
        for (Problem p : error.problems()) {
          if (p.key != "dtype") p.key = "path";
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
    const std::string larger =
        largest >= vocab_ ? fmt::format("the model's vocab must be {} at least", largest + 1) : "";
    const std::string other =
        file.has_header()
            ? ""
            : fmt::format(
                  "{}are they tokens of {} bytes, little-endian? dtype says so of files "
                  "without a header",
                  larger.empty() ? "" : "; or ", file.bytes_of_token());
    problems.add(Stage::options, "data.token", "path", wrong_id(file, at, vocab_),
                 larger.empty() && other.empty() ? "write the file again" : larger + other);
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
