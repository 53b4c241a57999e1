// The safetensors format: a little-endian u64 header length, a JSON header, then the tensors'
// bytes. The header is not trusted: what it says is checked against the file before anything is
// read.
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
  std::int64_t begin = 0, end = 0;  // bytes of the file
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
  // The tensor over the mapped bytes (do not write to it; it lives as long as this file). Throws
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

// What the format calls a dtype, "F32"; empty where it has none.
std::string safetensors_dtype(at::ScalarType type);

// A file that is written tensor by tensor, in any order: under a temporary name beside `path`,
// which it gets once it is complete.
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
  ~SafetensorsWriter();  // takes away what is not finished
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // One of the entries, of its shape; converts to its dtype. Throws Error (run).
  void write(const std::string& name, const at::Tensor& tensor);
  bool complete() const;  // all entries are written
  // Once they are: brings them to the disk and gives the file its name. Throws Error
  // (run), and std::logic_error if one is missing.
  void finish();

 private:
  struct Place {
    Entry entry;
    std::int64_t begin = 0;  // byte of the file
    bool written = false;
  };
  [[noreturn]] void fail(const char* what, int reason);

  const std::filesystem::path path_;
  std::filesystem::path file_, temporary_;
  std::map<std::string, Place> places_;
  int out_ = -1;
};

// All of it at once.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace mw
