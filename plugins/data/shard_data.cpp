// `mw.shards`: tokens of files that a tokeniser has written, as llm.c, nanoGPT and Megatron write
// them, told apart by their headers. Nothing that a header says is believed before it fits the
// file, and ids that the model does not know are refused.
#include <fmt/core.h>
#include <glob.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/mapped_file.h"
#include "known_format.h"
#include "meshwright/data.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/plugin.h"
#include "number_table.h"
#include "sample_order.h"
#include "token_mask.h"

namespace mw {

namespace fs = std::filesystem;

// The number type of a file's tokens; little-endian, as llm.c, nanoGPT and Megatron write them.
struct TokenType {
  int bytes = 2;
  bool has_sign = false;
};

// What a script says of the token type of files without a header (options dtype, certain).
struct TokenTypeOption {
  std::string name;      // "auto": told by a file's bytes and the model's vocab
  bool certain = false;  // the name holds although the bytes look like a wider type
};

// One file of tokens, one after another; all threads may read it.
class TokenFile {
 public:
  // The type of a file without a header may be "auto" if its name ends in .bin. Throws Error
  // (options): with the key `path` for a file that is neither llm.c's, nor Megatron's, nor bare
  // tokens, or whose header does not fit its size (with both numbers); with the key `dtype` if the
  // type is in doubt, or the header says another one.
  TokenFile(const std::filesystem::path& path, const TokenTypeOption& type, std::int64_t vocab);

  std::int64_t tokens() const { return tokens_; }
  bool has_header() const { return begin_ > 0 || !index_.empty(); }
  int bytes_of_token() const { return type_.bytes; }
  const std::filesystem::path& path() const { return file_.path(); }
  // Megatron's index file; empty: none
  const std::filesystem::path& index() const { return index_; }
  // The lengths of the documents that Megatron's index has. Adds a problem of the key `documents`
  // if the index has a document without a token, or its documents do not have all sequences.
  std::vector<std::int64_t> documents(Problems& problems) const;
  // Token i; negative if the file's number is.
  std::int64_t at(std::int64_t i) const;
  void check() const { file_.check(); }
  std::uint64_t digest(std::int64_t most) const { return file_.digest(most); }
  // Token types of other widths by which all ids are the model's, as a script writes them; empty:
  // none.
  std::string other_types(std::int64_t vocab) const;

 private:
  void read_llm_c(std::int32_t magic);
  void read_megatron(const std::filesystem::path& index);
  void check_said(const std::string& type) const;  // refuses a dtype other than the header's type
  void read_bare(const TokenTypeOption& type, std::int64_t vocab);
  int told_by_bytes(std::int64_t vocab) const;

  MappedFile file_;
  std::filesystem::path index_;
  TokenType type_;
  // The byte of the first token; the number of tokens.
  std::int64_t begin_ = 0, tokens_ = 0;
};

namespace {

// Names of the types of tokens, by 2 log2(bytes), plus 1 for a type with a sign.
constexpr const char* type_names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"};
constexpr std::int64_t llm_c_header = 256 * 4;
// The magic numbers of llm.c's writers, whose tokens are GPT-2's in 16 bits or Llama 3's in 32.
constexpr std::int32_t llm_c_gpt2 = 20240520, llm_c_llama3 = 20240801;
constexpr std::array<char, 9> megatron_magic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr std::int64_t megatron_header = 9 + 8 + 1 + 8 + 8;
// The bytes of the header at which the numbers of sequences and of documents stand.
constexpr std::int64_t megatron_sequences = 18, megatron_documents = 26;

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

// The file that holds the tokens: for a Megatron index (.idx) the .bin file beside it.
fs::path tokens_of(const fs::path& path) {
  return path.extension() == ".idx" ? with_ending(path, ".bin") : path;
}

TokenType megatron_type(int code, const fs::path& index) {
  static constexpr TokenType types[] = {{1},       {1, true}, {2, true}, {4, true},
                                        {8, true}, {},        {},        {2}};
  if (code < 1 || code > 8 || code == 6 || code == 7) {
    refuse(index, fmt::format("its tokens have the type {}", code),
           "types of integers are 1 to 5 and 8 (Megatron's DType)");
  }
  return types[code - 1];
}

}  // namespace

TokenFile::TokenFile(const fs::path& path, const TokenTypeOption& type, std::int64_t vocab)
    : file_(tokens_of(path)) {
  std::error_code error;
  const fs::path index = with_ending(file_.path(), ".idx");
  const bool indexed = fs::exists(index, error);
  if (path.extension() == ".idx" || (indexed && file_.path().extension() == ".bin")) {
    read_megatron(index);
    check_said(type.name);
    return;
  }
  if (is_megatron_index(file_)) {
    refuse(path, "it is an index of Megatron's, whose name does not end in .idx",
           "give index and tokens one name, ending in .idx and .bin");
  }
  const std::int32_t magic = file_.size() >= 4 ? number_at<std::int32_t>(file_, 0) : 0;
  if (magic == llm_c_gpt2 || magic == llm_c_llama3) {
    read_llm_c(magic);
    check_said(type.name);
  } else {
    read_bare(type, vocab);
  }
}

void TokenFile::check_said(const std::string& type) const {
  const std::string own = type_names[2 * std::countr_zero(static_cast<unsigned>(type_.bytes)) +
                                     (type_.has_sign ? 1 : 0)];
  if (type == "auto" || type == own) return;
  throw Error(Stage::options, "data.dtype", "dtype",
              fmt::format("{}: its header says that its tokens are {}, and dtype is \"{}\"",
                          path().string(), own, type),
              fmt::format("leave dtype out, or write dtype = \"{}\"", own));
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
  type_.bytes = magic == llm_c_gpt2 ? 2 : 4;
  begin_ = llm_c_header;
  tokens_ = number_at<std::int32_t>(file_, 8);
  const std::int64_t there = file_.size() - llm_c_header;
  if (tokens_ < 0 || there != tokens_ * type_.bytes) {
    refuse(path(), fmt::format("its header says {} tokens of {} bytes, and {} bytes follow it",
                               tokens_, type_.bytes, there));
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
  const auto sequences = number_at<std::uint64_t>(head, megatron_sequences),
             documents = number_at<std::uint64_t>(head, megatron_documents);
  const auto rest = static_cast<std::uint64_t>(head.size() - megatron_header);
  if (sequences > rest / 12 || documents > rest / 8 || sequences * 12 + documents * 8 != rest) {
    refuse(index, fmt::format("its header says {} sequences and {} documents, and {} bytes follow "
                              "it",
                              sequences, documents, rest));
  }
  const std::int64_t lengths = megatron_header,
                     pointers = lengths + 4 * static_cast<std::int64_t>(sequences);
  const int size = type_.bytes;
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

std::vector<std::int64_t> TokenFile::documents(Problems& problems) const {
  const MappedFile head(index_);
  const auto sequences = number_at<std::int64_t>(head, megatron_sequences),
             count = number_at<std::int64_t>(head, megatron_documents);
  const auto refuse = [&](const std::string& why) {
    problems.add(Stage::options, "data.documents", "documents",
                 fmt::format("{}: {}", index_.string(), why),
                 "write the index again: numbers of sequences, from 0 to all of them, sorted");
  };
  const auto first_sequence = [&](std::int64_t document) {
    return number_at<std::int64_t>(head, megatron_header + 12 * sequences + 8 * document);
  };
  std::vector<std::int64_t> lengths;
  for (std::int64_t d = 0; d + 1 < count; ++d) {
    const std::int64_t begin = first_sequence(d), end = first_sequence(d + 1);
    if (begin < 0 || begin > end || end > sequences || (d == 0 && begin != 0)) {
      refuse(fmt::format("document {} has the sequences from {} to {} of {}", d, begin, end,
                         sequences));
      return {};
    }
    std::int64_t tokens = 0;
    for (std::int64_t i = begin; i < end; ++i)
      tokens += number_at<std::int32_t>(head, megatron_header + 4 * i);
    if (tokens == 0) {
      refuse(fmt::format("document {} has no token", d));
      return {};
    }
    lengths.push_back(tokens);
  }
  head.check();
  if (sequences > 0 && (count < 2 || first_sequence(count - 1) != sequences))
    refuse(fmt::format("its documents do not have all of its {}", plural(sequences, "sequence")));
  return lengths;
}

namespace {

[[noreturn]] void doubt(const fs::path& file, const std::string& why, const std::string& hint) {
  throw Error(Stage::options, "data.dtype", "dtype", fmt::format("{}: {}", file.string(), why),
              hint);
}

// Bytes of a file that are looked at before a rank starts; the rest is checked when it is read.
constexpr std::int64_t most_looked_at = 1 << 16;
// With fewer numbers than this a file may look like another type by chance.
constexpr std::int64_t fewest_to_tell = 64;
// The largest vocab of a byte-level model: all bytes, and as many special tokens at most.
constexpr std::int64_t most_of_bytes = 512;

// The little-endian number of `bytes` bytes at the offset `byte`.
std::uint64_t word_at(const MappedFile& file, std::int64_t byte, int bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, file.data() + byte, static_cast<std::size_t>(bytes));
  return word;
}

// What a file's first bytes look like as numbers of one width.
struct WidthEvidence {
  bool fit = false;     // the file is a whole number of them, and all are ids of the model
  bool alike = true;    // all numbers are equal
  bool halves = false;  // the numbers are in turn lower and upper halves of wider ids
  std::int64_t count = 0;
};

WidthEvidence looked_at(const MappedFile& file, int bytes, std::int64_t vocab) {
  const auto ids = static_cast<std::uint64_t>(vocab);
  // The largest upper half of an id of twice this width. Where it is not far below the range of a
  // half, tokens of this width may be as small.
  const std::uint64_t most = bytes < 8 ? (ids - 1) >> (8 * bytes) : 0;
  const bool told = bytes < 8 && most < std::uint64_t{1} << (8 * bytes - 6);
  WidthEvidence looked;
  looked.count = std::min(file.size(), most_looked_at) / bytes;
  looked.fit = looked.count > 0 && file.size() % bytes == 0;
  std::int64_t low[] = {0, 0};
  for (std::int64_t i = 0; i < looked.count; ++i) {
    const std::uint64_t word = word_at(file, i * bytes, bytes);
    looked.fit = looked.fit && word < ids;
    looked.alike = looked.alike && word == word_at(file, 0, bytes);
    low[i % 2] += word <= most ? 1 : 0;
  }
  // 90 % suffice, as some ids may be negative. If words at even and odd places are all so small,
  // they are tokens, not halves.
  const auto nearly_all = [&](std::int64_t n) { return 20 * n >= 9 * looked.count; };
  looked.halves =
      told && looked.count >= 2 * fewest_to_tell && nearly_all(low[0]) != nearly_all(low[1]);
  file.check();
  return looked;
}

// The token types by which all ids looked at are ids of the model, as a script writes them: dtype =
// "u8" or "u16". Empty: no type fits. Types of `own` bytes are not named.
std::string types_that_fit(const MappedFile& file, std::int64_t vocab, int own = 0) {
  std::vector<std::string> names;
  for (const auto& [bytes, name] :
       {std::pair(1, "u8"), std::pair(2, "u16"), std::pair(4, "u32"), std::pair(8, "i64")}) {
    if (bytes != own && looked_at(file, bytes, vocab).fit) names.emplace_back(name);
  }
  return names.empty() ? "" : "dtype = " + join_quoted(names, " or ");
}

// The hint for a file whose token type the script has to say.
std::string say_type(const MappedFile& file, std::int64_t vocab) {
  const std::string types = types_that_fit(file, vocab);
  return types.empty()
             ? fmt::format(
                   "its bytes are ids below {} in no type: give the model a larger vocab, "
                   "or tokenise for this one",
                   vocab)
             : "say the type in which the file was written: " + types;
}

// Whether the first bytes are printable ASCII, tabs and ends of lines only.
bool looks_like_text(const MappedFile& file) {
  const std::int64_t looked = std::min(file.size(), most_looked_at);
  if (looked < fewest_to_tell) return false;
  const bool text = std::all_of(file.data(), file.data() + looked, [](std::uint8_t byte) {
    return (byte >= 32 && byte < 127) || byte == '\n' || byte == '\r' || byte == '\t';
  });
  file.check();
  return text;
}

// Whether bytes at even and at odd places are distributed alike, as tokens of one byte are. Then
// the sum of (even - odd)^2 / (even + odd) over their counts is about the number of different
// bytes.
bool has_bytes_alike(const MappedFile& file) {
  const std::int64_t looked = std::min(file.size(), most_looked_at) / 2 * 2;
  std::array<std::array<double, 2>, 256> counts{};
  for (std::int64_t i = 0; i < looked; ++i) ++counts[file.data()[i]][i % 2];
  file.check();
  double squares = 0, kinds = 0;
  for (const auto& [even, odd] : counts) {
    if (even + odd == 0) continue;
    squares += (even - odd) * (even - odd) / (even + odd);
    ++kinds;
  }
  return looked >= 4096 && kinds > 1 && squares < 2 * kinds;
}

}  // namespace

// The bytes of a token in a file without a header. If its numbers of 8 or 4 bytes are all ids of
// the model, that is no chance, unless they are few or the model has very many ids.
int TokenFile::told_by_bytes(std::int64_t vocab) const {
  const KnownFormat format = known_format(file_.data(), file_.size());
  file_.check();
  const std::string types = types_that_fit(file_, vocab);
  const std::string forced =
      types.empty() ? "" : "; if its bytes are tokens as they lie, say their type: " + types;
  if (!format.name.empty()) doubt(path(), "it is " + format.name, format.hint + forced);
  if (path().extension() != ".bin") {
    refuse(path(), "it has no header that is known (llm.c's, Megatron's)",
           types.empty() ? say_type(file_, vocab)
                         : "a bare list of tokens needs their type: " + types);
  }
  const WidthEvidence narrow = looked_at(file_, 2, vocab);
  // In a vocabulary far above 65,536, two 16-bit words often form a valid 32-bit id.
  const bool apart = vocab <= (std::int64_t{1} << 20);
  for (const int bytes : {8, 4}) {
    const WidthEvidence looked = looked_at(file_, bytes, vocab);
    if (!looked.fit) continue;
    if (!narrow.fit || (looked.count >= fewest_to_tell && !looked.alike && apart)) return bytes;
    doubt(path(),
          fmt::format("it has no header, and its {} bytes can be {} ids of {} bytes or {} of 2",
                      file_.size(), file_.size() / bytes, bytes, file_.size() / 2),
          say_type(file_, vocab));
  }
  if (looks_like_text(file_))
    doubt(path(), "it is text", "mw.text reads text as tokens; or tokenise it" + forced);
  if (file_.size() > 0 && vocab > (1 << 16)) {
    doubt(
        path(),
        fmt::format("it has no header; its bytes are no ids below {} of 4 or 8 bytes, and 2 bytes "
                    "hold no more than 65,536 ids",
                    vocab),
        say_type(file_, vocab) + ", if its tokeniser has no more ids than that holds");
  }
  if (narrow.fit && has_bytes_alike(file_)) {
    doubt(path(),
          "it has no header, and of ids of 2 bytes the first and the second byte would have the "
          "same values equally often, as tokens of 1 byte do",
          "say the type in which the file was written: dtype = \"u8\" or \"u16\"");
  }
  return 2;
}

std::string TokenFile::other_types(std::int64_t vocab) const {
  return has_header() ? "" : types_that_fit(file_, vocab, type_.bytes);
}

void TokenFile::read_bare(const TokenTypeOption& type, std::int64_t vocab) {
  const auto named = std::ranges::find(type_names, type.name) - std::begin(type_names);
  const bool said = named < std::ssize(type_names);
  type_ = said ? TokenType{1 << named / 2, named % 2 == 1} : TokenType{told_by_bytes(vocab)};
  if (file_.size() % type_.bytes != 0) {
    refuse(path(),
           fmt::format("{} bytes, which are no whole number of tokens of {} bytes", file_.size(),
                       type_.bytes),
           "was it cut off? If not, " + say_type(file_, vocab));
  }
  // A byte-level model's tokens may be any bytes: every second byte of UTF-16 is 0.
  const bool of_bytes = said && type_.bytes == 1 && vocab <= most_of_bytes;
  // Bytes of a half of the wider tokens that the file may hold.
  int half = of_bytes ? 2 : type_.bytes;
  while (half < 8 && (type.certain || !looked_at(file_, half, vocab).halves)) half *= 2;
  if (half < 8) {
    doubt(path(),
          fmt::format("{}, and its words of {} are in turn halves of larger ids: its tokens are "
                      "wider than {}",
                      said ? fmt::format("dtype is \"{}\"", type.name) : "it has no header",
                      plural(half, "byte"), plural(type_.bytes, "byte")),
          fmt::format(
              "say the type in which the file was written, such as dtype = \"{}\"{}; was it "
              "cut off? Then write it again; tokens are below the model's vocab of {}, and "
              "little-endian",
              type_names[half == 1   ? 2
                         : half == 2 ? 4
                                     : 7],
              said ? fmt::format(", or certain = true if its tokens are {} all the same", type.name)
                   : "",
              vocab));
  }
  tokens_ = file_.size() / type_.bytes;
}

// A number that is too large for 64 bits with a sign comes out negative.
std::int64_t TokenFile::at(std::int64_t i) const {
  const std::uint64_t word = word_at(file_, begin_ + i * type_.bytes, type_.bytes);
  const int above = type_.has_sign ? 64 - 8 * type_.bytes : 0;
  return static_cast<std::int64_t>(word << above) >> above;
}

// The files' tokens one after another, by pattern, then by name; SampleOrder says which a sample
// has. An id that the model does not know ends the run, with the file and the place.
class ShardSource final : public TokenSource {
 public:
  static Options options();
  ShardSource(const Values& values, const DataContext& context);
  // the model's vocab: each id is checked against it
  std::int64_t vocab() const override { return vocab_; }
  std::int64_t tokens() const override { return order_.tokens(); }
  bool masks_labels() const override { return mask_.any() || documents_; }
  bool has_documents() const override { return documents_; }
  std::vector<std::int64_t> documents(std::int64_t k, std::int64_t sequence) const override;
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::string content() const override;
  std::vector<SourceFile> files() const override;

 private:
  void check_first_ids(Problems& problems) const;
  void read_mask(const Values& values, const DataContext& context, Problems& problems);
  void read_documents(const Values& values, const DataContext& context, Problems& problems);
  void read_table(const Values& values, const DataContext& context, Problems& problems);
  void add_documents(const std::vector<std::int64_t>& lengths, const std::string& from,
                     const Values& values, Problems& problems);
  // Writes `count` tokens from the place `at` on among all tokens.
  void read(std::int64_t at, std::int64_t count, std::int64_t* tokens) const;
  // The places from `first` + 1 to `first` + `count` among all tokens at which documents begin.
  std::vector<std::int64_t> begins(std::int64_t first, std::int64_t count) const;

  std::vector<TokenFile> files_;
  TokenMask mask_;
  // place of each file's first token; then the number of all tokens
  std::vector<std::int64_t> starts_ = {0};
  SampleOrder order_;
  std::int64_t vocab_;
  bool documents_ = false;
  std::int64_t last_id_ = -1;         // the id of each document's last token; -1: a table says all
  std::vector<std::int64_t> begins_;  // the first token of each document, and the number of tokens
  std::string table_;                 // digests of the tables of documents
};

namespace {

// Ids of each file that are checked before a rank starts; the rest is checked when it is read.
constexpr std::int64_t looked_at_first = 1 << 16;

[[noreturn]] void cannot_list(const std::string& folder, const std::string& why) {
  throw Error(Stage::options, "file.read", "path",
              fmt::format("cannot list the folder {}: {}", folder, why));
}

// Files that match a pattern, by name; of an index and its tokens only the index. Throws Error
// (options) if some of the matches cannot be found or may not be read: the run would train on the
// others alone.
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

// The number of names that the braces of a pattern stand for; where braces nest, a larger number.
double expansions(const std::string& pattern) {
  double all = 1;
  std::vector<double> open;
  for (const char c : pattern) {
    if (c == '{') open.push_back(1);
    if (c == ',' && !open.empty()) ++open.back();
    if (c != '}' || open.empty()) continue;
    all *= open.back();
    open.pop_back();
  }
  return all;
}

// The folder's name as a pattern that matches this folder alone.
std::string escaped(const fs::path& folder) {
  std::string text;
  for (const char c : folder.string()) {
    if (std::string_view("*?[]{}\\").find(c) != std::string_view::npos) text += '\\';
    text += c;
  }
  return text;
}

// The files that a pattern names, under the first root that has any of them. Where a file has the
// pattern as its name, it is that file.
std::vector<fs::path> find(const std::string& pattern, const DataContext& context) {
  constexpr double most = 10000;
  if (expansions(pattern) > most) {
    throw Error(Stage::options, "option.value", "path",
                fmt::format("the braces of \"{}\" stand for {:.0f} names; {:.0f} may be", pattern,
                            expansions(pattern), most),
                "write \"*\", or a list of names");
  }
  const bool anywhere =
      fs::path(pattern).is_absolute() || pattern.starts_with('~') || context.roots.empty();
  for (const fs::path& root : anywhere ? std::vector<fs::path>{""} : context.roots) {
    const fs::path literal = (root / pattern).lexically_normal();
    std::error_code error;
    if (may_read(literal) && fs::exists(literal, error) && !fs::is_directory(literal, error))
      return {literal};
    std::vector<fs::path> found = matches(
        anywhere ? pattern : (fs::path(escaped(root)) / pattern).lexically_normal().string());
    if (!found.empty()) return found;
  }
  return {};
}

std::vector<std::string> patterns_of(const Json& given, const char* option, Problems& problems) {
  std::vector<std::string> patterns;
  for (const Json& one : given.is_array() ? given : Json::array({given})) {
    if (one.is_string()) {
      patterns.push_back(one.get<std::string>());
    } else {
      problems.add(Stage::options, "option.value", option,
                   fmt::format("{} is no path", lua_text(one)),
                   "write the name of a file in quotes, or a pattern: \"data/train_*.bin\"");
    }
  }
  if (patterns.empty() && problems.empty()) {
    problems.add(Stage::options, "option.value", option, "an empty list of files",
                 "write a pattern: \"data/train_*.bin\"");
  }
  return patterns;
}

// Adds problems as problems of an option.
void add_to(Problems& problems, const std::vector<Problem>& found, const char* option) {
  for (Problem problem : found) {
    problem.key = option;
    problems.add(std::move(problem));
  }
}

// The files that an option names by patterns.
std::vector<fs::path> files_of(const Json& given, const char* option, const DataContext& context,
                               Problems& problems) {
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns_of(given, option, problems)) {
    std::vector<fs::path> found;
    try {
      found = find(pattern, context);
    } catch (const Error& error) {
      add_to(problems, error.problems(), option);
      continue;
    }
    std::error_code error;
    if (found.empty() && may_read(pattern) && fs::is_directory(pattern, error)) {
      problems.add(Stage::options, "file.missing", option,
                   fmt::format("\"{}\" is a folder, and files of tokens are named", pattern),
                   fmt::format("write \"{}\"", (fs::path(pattern) / "*.bin").string()));
    } else if (found.empty()) {
      problems.add(Stage::options, "file.missing", option,
                   fmt::format("no file matches \"{}\"", pattern),
                   "paths are looked for here, beside the script and in the folder above it");
    }
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
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
      .fallback("auto")
      .boolean(
          "certain",
          "the type that dtype names is right, although the bytes look like ids that are wider")
      .optional()
      .any("mask",
           "which tokens count as labels: files as path names them, of one byte for each token, 0 "
           "or 1, or a .csv of ranges of tokens that do not count (begin,end)")
      .optional()
      .any("documents",
           "where documents end, whose tokens see no token of another: the id of the token that "
           "ends each; \"idx\", as Megatron's indices say; or a .csv of lengths (the line length, "
           "then one number in each line). A file begins a document, and a row ends one")
      .optional()
      .choice("longer", {"cut", "refuse"},
              "documents that are longer than a row go on in the next one, or are refused, where a "
              "table has their lengths")
      .fallback("cut");
  SampleOrder::add_options(options);
  return options;
}

ShardSource::ShardSource(const Values& values, const DataContext& context)
    : order_(values, context), vocab_(context.vocab) {
  Problems problems;
  const TokenTypeOption said{values.text("dtype"), values.has("certain") && values.flag("certain")};
  if (said.certain && said.name == "auto") {
    problems.add(Stage::options, "option.needs", "certain",
                 "certain is of the type that dtype names, and no dtype is given",
                 "dtype = \"u16\", or leave certain out");
  }
  EachFileOnce once;
  for (const fs::path& path : files_of(values.at("path"), "path", context, problems)) {
    try {
      files_.emplace_back(path, said, vocab_);
      once.take(files_.back().path(), problems);
      starts_.push_back(starts_.back() + files_.back().tokens());
    } catch (const Error& error) {
      for (Problem p : error.problems()) {
        if (p.key != "dtype") p.key = "path";
        problems.add(std::move(p));
      }
    }
  }
  if (problems.empty()) {
    order_.take(
        starts_.back(),
        files_.size() == 1 ? files_[0].path().string() : fmt::format("{} files", files_.size()),
        problems);
    check_first_ids(problems);
    read_mask(values, context, problems);
    read_documents(values, context, problems);
  }
  problems.throw_if_any();
}

void ShardSource::read_documents(const Values& values, const DataContext& context,
                                 Problems& problems) {
  documents_ = values.has("documents");
  if (values.text("longer") == "refuse" && !(documents_ && values.at("documents").is_string()))
    problems.add(Stage::options, "option.needs", "longer",
                 "\"refuse\", and no table has the lengths of documents",
                 "leave longer out, or take documents = \"idx\" or a .csv of lengths");
  if (!documents_) return;
  read_table(values, context, problems);
  begins_.insert(begins_.end(), starts_.begin(), starts_.end());
  std::sort(begins_.begin(), begins_.end());
  begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
}

// Reads the option `documents`: an id, or the lengths of documents in a table.
void ShardSource::read_table(const Values& values, const DataContext& context, Problems& problems) {
  const Json& given = values.at("documents");
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    problems.add(Stage::options, "data.documents", "documents", message, hint);
  };
  if (const auto id = whole_number(given)) {
    last_id_ = *id;
    if (*id < 0 || *id >= vocab_)
      refuse(fmt::format("the id {}, and the model's ids are 0 to {}", *id, vocab_ - 1),
             "the id of the token that ends each document");
    return;
  }
  if (given == "idx") {
    for (std::size_t f = 0; f < files_.size(); ++f) {
      if (files_[f].index().empty()) {
        refuse(files_[f].path().string() + " has no index of Megatron's",
               "give the id of the token that ends each document, or a .csv of lengths");
        continue;
      }
      add_documents(files_[f].documents(problems), files_[f].index().string(), values, problems);
      table_ += fmt::format("{:016x}", MappedFile(files_[f].index()).digest(most_digested));
    }
    return;
  }
  const std::vector<fs::path> files =
      given.is_string() ? files_of(given, "documents", context, problems) : std::vector<fs::path>();
  if (given.is_string() && files.empty()) return;
  if (files.size() != 1)
    return refuse(
        fmt::format("got {}", files.empty() ? lua_text(given) : plural(files.size(), "file")),
        "the id of the token that ends each document, \"idx\", or one .csv of lengths");
  try {
    const std::size_t before = problems.list().size();
    const NumberTable table(files.front(), {"length"}, 1, "data.documents", "documents");
    add_documents(table.columns[0], files.front().string(), values, problems);
    table_ = table.digest;
    const std::int64_t sum = begins_.empty() ? 0 : begins_.back();
    if (problems.list().size() == before && sum != starts_.back())
      refuse(fmt::format("{}: the lengths sum to {}, and the data have {}", files.front().string(),
                         sum, plural(starts_.back(), "token")),
             "the lengths of all documents, in their order");
  } catch (const Error& error) {
    problems.add(error);
  }
}

// Appends to `begins_` the places at which documents of these lengths begin, one after the other.
// `from`: the file that has the lengths, for messages.
void ShardSource::add_documents(const std::vector<std::int64_t>& lengths, const std::string& from,
                                const Values& values, Problems& problems) {
  std::int64_t at = begins_.empty() ? 0 : begins_.back();
  const std::int64_t most = values.text("longer") == "refuse" ? order_.sequence() : INT64_MAX;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    if (lengths[d] > most)
      return problems.add(Stage::options, "data.documents", "longer",
                          fmt::format("{}: document {}, from token {} on, has {}, and a row has {}",
                                      from, d, at, plural(lengths[d], "token"), most),
                          "longer = \"cut\" goes on in the next row");
    if (lengths[d] > starts_.back() - at)
      return problems.add(Stage::options, "data.documents", "documents",
                          fmt::format("{}: document {}, from token {} on, has {}, and the data {}",
                                      from, d, at, plural(lengths[d], "token"), starts_.back()),
                          "the lengths of all documents, in their order");
    begins_.push_back(at += lengths[d]);
  }
}

void ShardSource::read_mask(const Values& values, const DataContext& context, Problems& problems) {
  if (!values.has("mask")) return;
  const std::vector<fs::path> files = files_of(values.at("mask"), "mask", context, problems);
  EachFileOnce once;
  Problems twice;
  for (const fs::path& file : files) once.take(file, twice);
  add_to(problems, twice.list(), "mask");
  if (files.empty() || !twice.empty()) return;
  try {
    mask_ = TokenMask(files, starts_.back(), problems);
  } catch (const Error& error) {
    add_to(problems, error.problems(), "mask");
  }
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
    std::string other;
    if (!file.has_header()) {
      const std::string types = file.other_types(vocab_);
      other = fmt::format("{}are they tokens of {}, little-endian? {}",
                          larger.empty() ? "" : "; or ", plural(file.bytes_of_token(), "byte"),
                          types.empty() ? "dtype says so of files without a header"
                                        : "If they have another type, write " + types);
    }
    problems.add(Stage::options, "data.token", "path", wrong_id(file, at, vocab_),
                 larger.empty() && other.empty() ? "write the file again" : larger + other);
  }
}

void ShardSource::read(std::int64_t at, std::int64_t count, std::int64_t* tokens) const {
  // The file that holds the first token; empty files share a start with the next one.
  auto number = std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1;
  for (const std::int64_t last = at + count; at < last; ++number) {
    const TokenFile& file = files_[number];
    for (const std::int64_t end = std::min(starts_[number + 1], last); at < end; ++at) {
      const std::int64_t id = file.at(at - starts_[number]);
      if (id < 0 || id >= vocab_) {
        file.check();
        throw Error(Stage::run, "data.token", "data", wrong_id(file, at - starts_[number], vocab_),
                    "give the model a larger vocab, or tokenise for this one");
      }
      *tokens++ = id;
    }
    file.check();
  }
}

std::vector<std::int64_t> ShardSource::begins(std::int64_t first, std::int64_t count) const {
  const auto from = std::upper_bound(begins_.begin(), begins_.end(), first);
  std::vector<std::int64_t> all(from, std::upper_bound(from, begins_.end(), first + count));
  if (last_id_ < 0) return all;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  read(first, count, ids.data());
  for (std::int64_t t = 0; t < count; ++t)
    if (ids[static_cast<std::size_t>(t)] == last_id_) all.push_back(first + t + 1);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void ShardSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                         std::int64_t* labels) const {
  const std::int64_t first = order_.offset(k, sequence);
  read(first, sequence, inputs);
  std::copy(inputs + 1, inputs + sequence, labels);
  read(first + sequence, 1, labels + sequence - 1);
  for (std::int64_t t = 0; mask_.any() && t < sequence; ++t)
    if (!mask_.counts(first + t + 1)) labels[t] = -1 - labels[t];
  if (documents_)
    for (const std::int64_t begin : begins(first, sequence))
      labels[begin - first - 1] = -1 - inputs[begin - first - 1];
  mask_.check();
}

std::vector<std::int64_t> ShardSource::documents(std::int64_t k, std::int64_t sequence) const {
  std::vector<std::int64_t> places{0};
  if (!documents_) return places;
  const std::int64_t first = order_.offset(k, sequence);
  for (const std::int64_t begin : begins(first, sequence - 1)) places.push_back(begin - first);
  return places;
}

std::string ShardSource::content() const {
  const std::int64_t share =
      most_digested / static_cast<std::int64_t>(files_.size() + mask_.files().size());
  std::string text = table_;
  for (const TokenFile& file : files_) text += fmt::format("{:016x}", file.digest(share));
  for (const MappedFile& file : mask_.files()) text += fmt::format("{:016x}", file.digest(share));
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
