// A file mapped into memory, so that only those of its pages are read that are used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

namespace mw {

// The most bytes that a data source may read for its digest, over all its files.
inline constexpr std::int64_t most_digested = std::int64_t{1} << 30;

// A file's bytes, mapped read-only; all rank threads share the pages. Where the file was cut off
// after it was mapped, or the disk fails, reads give zeros instead of ending the process (SIGBUS):
// call check() after reading.
class MappedFile {
 public:
  // Throws Error (options) with the system's reason, and at once if it is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::uint8_t* data() const { return data_; }
  std::int64_t size() const { return size_; }  // when it was opened
  const std::filesystem::path& path() const { return path_; }

  // A digest of the file's bytes, whatever its path. It is computed once in a process while nobody
  // writes the file. In a file of more than `most` bytes it covers blocks of 64 KiB that are spread
  // over the file, `most` bytes together and two blocks at least.
  std::uint64_t digest(std::int64_t most) const;

  // Throws Error (run) if the bytes read so far may not be the file's: the file is shorter now,
  // could not be read, or was written since digest() was called and has another digest now. Writes
  // through a mapping, and changes on the disk alone, are not noticed.
  void check() const;

 private:
  struct Digested;
  void look_again(std::int64_t written) const;

  std::filesystem::path path_;
  std::uint64_t device_ = 0, inode_ = 0;
  std::int64_t written_ = 0;  // time of the last write when the file was opened, in nanoseconds
  const std::uint8_t* data_ = nullptr;
  std::int64_t size_ = 0;
  struct MappedRange* range_ = nullptr;
  std::unique_ptr<Digested> digested_;
};

}  // namespace mw
