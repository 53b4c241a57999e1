// Reads the headers of token files; nothing that they say is believed before it fits the file.
#include "shard_files.h"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <system_error>

#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

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

}  // namespace mw
