// Writes a rank's pieces as one safetensors file, summing up its bytes on the way to the disk.
#include "checkpoint/rank_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "checkpoint/checksum.h"
#include "meshwright/engine/new_file.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t written_at_a_time = 1 << 20;  // summed while it is in the cache

class SummedFile {
 public:
  explicit SummedFile(const fs::path& path) : path_(path) {
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file_ < 0) fail(errno);
  }
  ~SummedFile() {
    if (file_ >= 0) ::close(file_);
  }
  SummedFile(const SummedFile&) = delete;
  SummedFile& operator=(const SummedFile&) = delete;

  void write(const void* data, std::size_t size) {
    const char* from = static_cast<const char*>(data);
    for (std::size_t at = 0; at < size; at += written_at_a_time) {
      const std::size_t part = std::min(written_at_a_time, size - at);
      sum_.add(from + at, part);
      if (!write_whole(file_, from + at, part)) fail(errno);
    }
    bytes_ += static_cast<std::int64_t>(size);
  }
  StoredFile finish() {
    if (::fsync(file_) != 0) fail(errno);
    const int file = std::exchange(file_, -1);
    if (::close(file) != 0) fail(errno);
    return {bytes_, sum_.text()};
  }

 private:
  [[noreturn]] void fail(int reason) const {
    throw Error(Stage::run, "checkpoint.write", "checkpoint.path",
                fmt::format("{}: {}", path_.string(), std::generic_category().message(reason)));
  }
  const fs::path path_;
  int file_ = -1;
  std::int64_t bytes_ = 0;
  Checksum sum_;
};

}  // namespace

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "F16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      throw Error(Stage::run, "checkpoint.write", "",
                  fmt::format("a checkpoint cannot hold a tensor of type {}", c10::toString(type)));
  }
}

StoredFile write_rank_file(const fs::path& path, const std::vector<StoredPiece>& pieces,
                           const std::map<std::string, std::string>& metadata) {
  // Largest elements first, so that each tensor is aligned behind the padded header.
  std::vector<const StoredPiece*> order;
  for (const StoredPiece& piece : pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->data.element_size() > b->data.element_size();
  });
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = metadata;
  std::int64_t at = 0;
  for (const StoredPiece* piece : order) {
    const std::int64_t end = at + static_cast<std::int64_t>(piece->data.nbytes());
    const std::vector<std::int64_t> shape =
        !piece->own && piece->slice.is_box() ? piece->slice.box.sizes : piece->data.sizes().vec();
    header[piece->name] = {{"dtype", dtype_name(piece->data.scalar_type())},
                           {"shape", shape},
                           {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  SummedFile out(path);
  const std::uint64_t length = text.size();
  out.write(&length, sizeof length);
  out.write(text.data(), text.size());
  for (const StoredPiece* piece : order)
    out.write(piece->data.const_data_ptr(), piece->data.nbytes());
  return out.finish();
}

}  // namespace mw
