// A file mapped into memory, of which only what is used is read.
#pragma once

#include <cstdint>
#include <filesystem>

namespace mw {

// A file's bytes, mapped read-only; all rank threads share the pages. Where the file has been cut
// off since, or the disk fails, reading its bytes gives zeros instead of ending the process
// (SIGBUS): call check() after them.
class MappedFile {
 public:
  // Throws Error (options) with the system's reason.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::uint8_t* data() const { return data_; }
  std::int64_t size() const { return size_; }  // when it was opened
  const std::filesystem::path& path() const { return path_; }

  // Throws Error (run) if the bytes read so far may not be the file's:
  // it is shorter now, or could not be read.
  void check() const;

 private:
  std::filesystem::path path_;
  std::uint64_t device_ = 0, inode_ = 0;
  const std::uint8_t* data_ = nullptr;
  std::int64_t size_ = 0;
  struct MappedRange* range_ = nullptr;
};

}  // namespace mw
