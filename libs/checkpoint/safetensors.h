// Reads and writes the safetensors format: a little-endian u64 header length, a JSON header, then
// the tensors' bytes. The header is not trusted: all that it says is checked against the file
// before any tensor is read.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/error.h"

namespace mw {

class MappedFile;

struct SafetensorsEntry {
  std::string dtype;  // as the format writes it: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  // the range of the tensor's bytes in the file
};

// One file, mapped read-only; thread-safe once opened.
class SafetensorsFile {
 public:
  // Throws Error (options): missing or unreadable; header longer than 100 MB or than the file; no
  // JSON object; a name twice; unknown dtype; a size that is not shape times dtype; ranges outside
  // the file, overlapping, or with holes between.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // A tensor over the mapped bytes: do not write to it, and do not use it after this object. Throws
  // std::out_of_range for an unknown name and Error (options) for a dtype that ATen has not.
  at::Tensor tensor(const std::string& name) const;
  // After reading tensors: throws Error (run) if the file was cut off meanwhile.
  void check() const;

 private:
  void read_header();
  void check_ranges(std::int64_t data_begin) const;
  [[noreturn]] void refuse(const char* code, const std::string& what) const;

  std::filesystem::path path_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The format's name of a dtype, "F32"; empty: the format has no such dtype.
std::string safetensors_dtype(at::ScalarType type);

// Writes a file tensor by tensor, in any order, under a temporary name beside `path`. The file gets
// its name once it is complete.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    at::ScalarType dtype = at::kFloat;
    std::vector<std::int64_t> shape;
    std::int64_t bytes() const;
  };
  // Throws Error (options, file.write) if something is at the path that is no regular file.
  static void check_target(const std::filesystem::path& path);
  // Dtypes: fp64, fp32, fp16, bf16, int64, int32, uint8, bool. Throws Error (run): it cannot be
  // created (file.write), another dtype, a name twice (safetensors.twice).
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<Entry>& entries,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();  // removes a file that is not finished
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes one of the entries. `tensor` has the entry's shape and is converted to its dtype. Throws
  // Error (run).
  void write(const std::string& name, const at::Tensor& tensor);
  bool complete() const;  // all entries are written
  // Once all entries are written: waits until they are on the disk, and gives the file its name.
  // Throws Error (run), and std::logic_error if an entry is missing.
  void finish();

 private:
  struct Place {
    Entry entry;
    std::int64_t begin = 0;  // offset in the file, in bytes
    bool written = false;
  };
  [[noreturn]] void fail(const char* what, int reason);

  const std::filesystem::path path_;
  std::filesystem::path file_, temporary_;
  std::map<std::string, Place> places_;
  int out_ = -1;
};

// Writes a whole file. Throws as SafetensorsWriter does.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace mw
