// Opens a checkpoint, checks its files, and reads slices of its tensors from whichever files hold
// them.
#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>

#include "checkpoint/checksum.h"
#include "common/mapped_file.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/host.h"
#include "meshwright/error.h"
#include "meshwright/threads.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t most_index_text = std::uintmax_t{4} << 30;
constexpr std::size_t summed_at_a_time = 1 << 20;
constexpr int most_checking_threads = 8;

Error broken(const std::string& what) {
  return {Stage::options, "checkpoint.broken", "", what};
}

// A checkpoint that lacks a file is broken; one with a file that this process cannot read may be
// whole.
std::uintmax_t size_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory)
    throw broken(fmt::format("{}: {}", path.filename().string(), error.message()));
  if (error)
    throw Error(Stage::options, "file.read", "",
                fmt::format("cannot read {}: {}", path.string(), error.message()));
  return size;
}

std::string index_text(const fs::path& folder) {
  const fs::path path = folder / index_file;
  check_may_read(path, "checkpoint.path");
  if (const std::uintmax_t size = size_of(path); size > most_index_text)
    throw broken(fmt::format("{}: {} bytes are too many", index_file, size));
  const MappedFile file(path);
  std::string text(reinterpret_cast<const char*>(file.data()),
                   static_cast<std::size_t>(file.size()));
  file.check();
  return text;
}

// Nothing: the file has the size and checksum that the index says.
std::optional<Error> wrong_with(const fs::path& path, const StoredFile& stored) try {
  const MappedFile file(path);
  Checksum sum;
  for (std::int64_t at = 0; at < file.size(); at += summed_at_a_time)
    sum.add(file.data() + at,
            static_cast<std::size_t>(std::min<std::int64_t>(summed_at_a_time, file.size() - at)));
  file.check();
  if (file.size() == stored.bytes && sum.text() == stored.checksum) return std::nullopt;
  return broken(fmt::format("{}: its checksum is {}, and was {} when it was written",
                            path.filename().string(), sum.text(), stored.checksum));
} catch (const Error& error) {
  return error;
}

}  // namespace

std::string parameter_tensor(const std::string& parameter) {
  return "parameters/" + parameter;
}

std::string state_tensor(const std::string& state, const std::string& parameter) {
  return fmt::format("optimizer/{}/{}", state, parameter);
}

std::string of_replica(int replica, const std::string& tensor) {
  return replica == 0 ? tensor : fmt::format("replica {}/{}", replica, tensor);
}

Checkpoint::Checkpoint(const fs::path& folder)
    : folder_(folder), index_(CheckpointIndex::read(index_text(folder))) {
  for (const auto& [rank, stored] : index_.files) {
    const std::string name = file_of_rank(rank);
    const std::uintmax_t size = size_of(folder_ / name);
    if (size != static_cast<std::uintmax_t>(stored.bytes))
      throw broken(fmt::format("{}: it has {} bytes, and had {} when it was written", name, size,
                               stored.bytes));
  }
}

void Checkpoint::verify() const {
  std::vector<std::pair<int, const StoredFile*>> files;
  for (const auto& [rank, stored] : index_.files) files.emplace_back(rank, &stored);
  std::vector<std::optional<Error>> wrong(files.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t f = next++; f < files.size(); f = next++)
      wrong[f] = wrong_with(folder_ / file_of_rank(files[f].first), *files[f].second);
  };
  std::vector<std::jthread> threads;
  const auto most =
      std::min<std::size_t>(files.size(), std::min(core_count(), most_checking_threads));
  for (std::size_t t = 1; t < most; ++t) threads.push_back(start_thread(work));
  work();
  threads.clear();  // joins the threads
  for (const std::optional<Error>& what : wrong)
    if (what) throw Error(*what);
}

const SafetensorsFile& Checkpoint::file(int rank) const {
  const std::lock_guard lock(mutex_);
  auto& file = files_[rank];
  if (!file) file = std::make_unique<SafetensorsFile>(folder_ / file_of_rank(rank));
  return *file;
}

const std::vector<Checkpoint::Source>& Checkpoint::sources(const std::string& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto [found, fresh] = sources_.try_emplace(tensor);
  if (fresh) {
    for (const StoredSlice& stored : index_.tensors.at(tensor).slices)
      found->second.push_back({stored.rank, stored.slice.count, boxes_of(stored.slice)});
  }
  return found->second;
}

at::Tensor Checkpoint::slice_in(const Source& source, const std::string& tensor) const {
  const auto lacks = [&](const std::string& what) {
    return Error(
        Stage::run, "checkpoint.lacks", "resume",
        fmt::format("checkpoint {}: {} {}", folder_.string(), file_of_rank(source.rank), what),
        "is it of another model?");
  };
  const SafetensorsFile& in = file(source.rank);
  if (in.entries().count(tensor) == 0) throw lacks(fmt::format("has no tensor \"{}\"", tensor));
  at::Tensor flat = in.tensor(tensor).view(-1);
  if (flat.numel() != source.count)
    throw lacks(fmt::format("has {} elements of tensor \"{}\", and {} by its index", flat.numel(),
                            tensor, source.count));
  return flat;
}

void Checkpoint::read(const std::string& tensor, const std::vector<std::int64_t>& shape,
                      const Slice& slice, const at::Tensor& flat) const {
  const auto lacks = [&](const std::string& what) {
    return Error(Stage::run, "checkpoint.lacks", "resume",
                 fmt::format("checkpoint {}: {}", folder_.string(), what),
                 "is it of another model?");
  };
  const auto stored = index_.tensors.find(tensor);
  if (stored == index_.tensors.end()) throw lacks(fmt::format("it has no tensor \"{}\"", tensor));
  if (stored->second.shape != shape)
    throw lacks(fmt::format("tensor \"{}\" has another shape than the model's", tensor));
  const std::vector<BoxAt> wanted = boxes_of(slice);
  std::int64_t copied = 0;
  for (const Source& source : sources(tensor)) {
    if (copied == slice.count) break;
    copied += copy_common(source.boxes, slice_in(source, tensor), wanted, flat);
    file(source.rank).check();
  }
  if (copied != slice.count)
    throw lacks(fmt::format("{} of {} elements of tensor \"{}\" are missing", slice.count - copied,
                            slice.count, tensor));
}

at::Tensor Checkpoint::read_whole(const std::string& tensor) const {
  const auto stored = index_.tensors.find(tensor);
  if (stored == index_.tensors.end() || stored->second.slices.empty())
    throw Error(Stage::run, "checkpoint.lacks", "",
                fmt::format("checkpoint {}: it has no tensor \"{}\"", folder_.string(), tensor));
  const StoredTensor& info = stored->second;
  // Checks that all slices are there before memory for the whole tensor is allocated.
  for (const Source& source : sources(tensor)) slice_in(source, tensor);
  const at::Tensor first = file(info.slices.front().rank).tensor(tensor);
  at::Tensor whole = at::empty(info.shape, first.options());
  const Box box = Box::whole(info.shape);
  read(tensor, info.shape, {box, 0, box.elements()}, whole.view(-1));
  return whole;
}

at::Tensor Checkpoint::read_own(int rank, const std::string& name) const {
  if (index_.files.count(rank) == 0) return {};
  const SafetensorsFile& in = file(rank);
  if (in.entries().count(name) == 0) return {};
  at::Tensor own = in.tensor(name).clone();
  in.check();
  return own;
}

}  // namespace mw
