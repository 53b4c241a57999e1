// A mask says which tokens count as labels. It is read from files beside the files of tokens, which
// have a byte for each token, or from a table of CSV, which has ranges of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/mapped_file.h"
#include "meshwright/error.h"

namespace mw {

class TokenMask {
 public:
  // All tokens count.
  TokenMask() = default;
  // `files`: of bytes, 0 for a token that does not count and 1 for one that does, `tokens` of them;
  // or a .csv of the columns begin and end, one range of tokens that do not count in each line,
  // sorted, from begin to end - 1. Adds a problem with the key `mask`, and the place, for what
  // cannot be right.
  TokenMask(const std::vector<std::filesystem::path>& files, std::int64_t tokens,
            Problems& problems);

  bool any() const { return !files_.empty(); }
  // Throws Error (run, "data.mask") for a byte that is neither 0 nor 1.
  bool counts(std::int64_t token) const;
  // Throws Error (run) if a file was cut off since it was opened, and read as zeros.
  void check() const {
    for (const MappedFile& file : files_) file.check();
  }
  const std::vector<MappedFile>& files() const { return files_; }

 private:
  void check_bytes(Problems& problems, std::int64_t tokens);
  void read_table(Problems& problems, std::int64_t tokens);

  std::vector<MappedFile> files_;
  // The number of tokens before each file, and before the end of all files.
  std::vector<std::int64_t> starts_ = {0};
  std::vector<std::int64_t> begins_, ends_;  // the table's ranges, each from begin to end - 1
  bool is_table_ = false;
};

}  // namespace mw
