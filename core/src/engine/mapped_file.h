// A file in memory without reading it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace mw {

// A file's bytes, mapped read-only; all rank threads share the pages.
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
  std::int64_t size() const { return size_; }

 private:
  const std::uint8_t* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace mw
