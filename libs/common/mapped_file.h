// A file mapped into memory, of which only what is used is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

namespace mw {

// Bytes that a source of data may read for its digest, of all its files together.
inline constexpr std::int64_t most_digested = std::int64_t{1} << 30;

// A file's bytes, mapped read-only; all rank threads share the pages. Where the file has been cut
// off since, or the disk fails, reading its bytes gives zeros instead of ending the process
// (SIGBUS): call check() after them.
class MappedFile {
 public:
  // Throws Error (options) with the system's reason, and at once for what is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::uint8_t* data() const { return data_; }
  std::int64_t size() const { return size_; }  // when it was opened
  const std::filesystem::path& path() const { return path_; }

  // A digest of its bytes, the same wherever it lies. Made once for a file of this process that has
  // not been written since. Of a file of more than `most` bytes it reads blocks of 64 KiB that are
  // spread over it, `most` bytes together and two at least.
  std::uint64_t digest(std::int64_t most) const;

  // Throws Error (run) if the bytes read so far may not be the file's: it is shorter now, could not
  // be read, or was written since digest() was called and has another digest now. What is written
  // through a mapping, or changes on the disk alone, is not noticed.
  void check() const;

 private:
  struct Digested;
  void look_again(std::int64_t written) const;

  std::filesystem::path path_;
  std::uint64_t device_ = 0, inode_ = 0;
  std::int64_t written_ = 0;  // when it was last, in nanoseconds
  const std::uint8_t* data_ = nullptr;
  std::int64_t size_ = 0;
  struct MappedRange* range_ = nullptr;
  std::unique_ptr<Digested> digested_;
};

}  // namespace mw
