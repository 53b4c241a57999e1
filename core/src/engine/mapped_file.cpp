#include "engine/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

MappedFile::MappedFile(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto fail = [&](int reason) {
    if (file >= 0) ::close(file);
    throw Error(Stage::options, fmt::format("cannot read {}: {}", path.string(),
                                            std::generic_category().message(reason)));
  };
  struct stat info {};
  if (file < 0 || ::fstat(file, &info) != 0) fail(errno);
  if (S_ISDIR(info.st_mode)) fail(EISDIR);
  size_ = info.st_size;
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (address == MAP_FAILED) fail(errno);
    data_ = static_cast<const std::uint8_t*>(address);
  }
  ::close(file);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

}  // namespace mw
