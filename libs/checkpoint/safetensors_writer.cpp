// Writes safetensors files: the header first, then each tensor at its place.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "checkpoint/safetensors.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

bool write_at(int file, const char* data, std::size_t size, std::int64_t offset) {
  constexpr std::size_t most_at_a_time = std::size_t{1} << 30;
  while (size > 0) {
    const ssize_t done = ::pwrite(file, data, std::min(size, most_at_a_time), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    data += done;
    offset += done;
    size -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace

std::int64_t SafetensorsWriter::Entry::bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (const std::int64_t size : shape) bytes *= size;
  return bytes;
}

void SafetensorsWriter::check_target(const fs::path& path) {
  check_may_write(path);
  const std::string kind = irregular(path);
  if (kind.empty()) return;
  throw Error(Stage::options, "file.write", "",
              fmt::format("cannot write {}: it is {}, and tensors go into a regular file",
                          path.string(), kind),
              "name another file");
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::vector<Entry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), file_(behind_links(path)) {
  check_target(path);
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Largest elements first, so that each tensor is aligned behind the padded header.
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) {
    if (safetensors_dtype(entry.dtype).empty()) {
      throw Error(Stage::run, "file.write", "",
                  fmt::format("{}: cannot write tensor \"{}\" of type {}", path.string(),
                              entry.name, c10::toString(entry.dtype)));
    }
    order.push_back(&entry);
  }
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return c10::elementSize(a->dtype) > c10::elementSize(b->dtype);
  });
  std::int64_t at = 0;
  for (const Entry* entry : order) {
    const std::int64_t end = at + entry->bytes();
    header[entry->name] = {{"dtype", safetensors_dtype(entry->dtype)},
                           {"shape", entry->shape},
                           {"data_offsets", {at, end}}};
    if (!places_.emplace(entry->name, Place{*entry, at}).second)
      throw Error(Stage::run, "safetensors.twice", "",
                  fmt::format("{}: two tensors \"{}\"", path.string(), entry->name));
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  for (auto& [name, place] : places_)
    place.begin += static_cast<std::int64_t>(sizeof length + text.size());

  out_ = create_unguessable(file_.parent_path(), "." + file_.filename().string(), temporary_);
  if (out_ < 0) fail("create", errno);
  if (!write_whole(out_, reinterpret_cast<const char*>(&length), sizeof length) ||
      !write_whole(out_, text.data(), text.size()))
    fail("write", errno);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (out_ >= 0) ::close(out_);
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove(temporary_, ignored);
}

void SafetensorsWriter::fail(const char* what, int reason) {
  if (out_ >= 0) ::close(out_);
  out_ = -1;
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove(temporary_, ignored);
  temporary_.clear();
  throw Error(Stage::run, "file.write", "",
              fmt::format("cannot {} {}: {}", what, path_.string(),
                          std::generic_category().message(reason)));
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  Place& place = places_.at(name);
  if (tensor.sizes() != at::IntArrayRef(place.entry.shape))
    throw std::logic_error(path_.string() + ": \"" + name + "\" has another shape");
  const at::Tensor flat = tensor.to(at::kCPU, place.entry.dtype).contiguous();
  if (flat.scalar_type() != tensor.scalar_type() && !at::isfinite(flat).all().item<bool>() &&
      at::isfinite(tensor).all().item<bool>()) {
    throw Error(
        Stage::run, "export.range", "export.dtype",
        fmt::format("{} has numbers of up to {:.4g}, which are infinite in the dtype of the "
                    "file",
                    name, tensor.abs().max().item<double>()),
        "write dtype = \"bf16\" or \"fp32\"");
  }
  if (!write_at(out_, static_cast<const char*>(flat.const_data_ptr()), flat.nbytes(), place.begin))
    fail("write", errno);
  place.written = true;
}

bool SafetensorsWriter::complete() const {
  return std::all_of(places_.begin(), places_.end(),
                     [](const auto& place) { return place.second.written; });
}

void SafetensorsWriter::finish() {
  if (!complete()) throw std::logic_error(path_.string() + ": tensors are missing");
  if (::fsync(out_) != 0 && errno != EINVAL) fail("write", errno);
  const int out = std::exchange(out_, -1);
  if (::close(out) != 0) fail("write", errno);
  std::error_code error;
  fs::rename(temporary_, file_, error);
  if (error) fail("write", error.value());
  temporary_.clear();
}

void write_safetensors(const fs::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  SafetensorsWriter writer(path, entries, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace mw
