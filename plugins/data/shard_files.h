// Files of tokens as llm.c, nanoGPT and Megatron write them, told apart by their headers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/mapped_file.h"

namespace mw {

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
  // Token i; one that is negative comes out so.
  std::int64_t at(std::int64_t i) const;
  void check() const { file_.check(); }
  std::uint64_t digest(std::int64_t most) const { return file_.digest(most); }

 private:
  void read_llm_c(std::int32_t magic);
  void read_megatron(const std::filesystem::path& index);
  void read_bare(const std::string& type);

  MappedFile file_;
  TokenType type_ = TokenType::u16;
  std::int64_t begin_ = 0, tokens_ = 0;  // byte of the first token
};

}  // namespace mw
