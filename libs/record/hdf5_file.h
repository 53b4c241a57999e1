// The few functions of HDF5 that run files need, with RAII and errors that say what failed.
//
// Not thread-safe, across objects too: HDF5 as Debian builds it has global state. One thread of the
// process may be inside this class at a time, and the same thread is best.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "record/columns.h"
#include "record/table.h"

namespace mw {

// Whether a file begins as one of HDF5's. Where it cannot be read, HDF5 prints nothing of its own.
bool is_hdf5(const std::filesystem::path& path);

class Hdf5File {
 public:
  enum class Mode { create, append, read };  // create: an existing file is emptied
  // Writes the oldest format that can hold the data, so that any HDF5 reads it, and a file whose
  // writer died opens. No file locking: a reader never stops the writer. Throws Error (run). A file
  // to be written may be no symbolic link.
  Hdf5File(const std::filesystem::path& path, Mode mode);
  // Closes; what could not be written is lost silently: call `close` where that matters. A file
  // that could not be written is closed all the same (steady_driver.cpp) and is broken.
  ~Hdf5File();
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;
  void close();

  // Attributes of `object` ("/" is the root): made, or written over. Texts are UTF-8 of fixed
  // length; a text that is rewritten may be no longer than `room` (at first writing) bytes.
  void set_attribute(const char* object, const char* name, const std::string& text,
                     std::size_t room = 0);
  void set_attribute(const char* object, const char* name, std::int64_t value);
  void write_text(const char* name, const std::string& text);   // a scalar dataset, UTF-8
  void set_text(const char* name, const std::string& text);     // makes or replaces such a dataset
  std::string attribute(const char* object, const char* name);  // a text; empty if there is none
  // An integer attribute; `otherwise` if there is none.
  std::int64_t integer(const char* object, const char* name, std::int64_t otherwise);
  std::string read_text(const char* name);
  void create_group(const char* name);

  // A chunked compound table with no rows; units become attributes units_<column>.
  void create_table(const TableLayout& layout);
  // Adds `rows` packed rows after the first `at` ones; rows beyond are dropped.
  void write_rows(const TableLayout& layout, std::uint64_t at, const char* packed,
                  std::uint64_t rows);
  bool has(const char* name);
  std::uint64_t count_rows(const TableLayout& layout);
  // Rows [at, at + rows), packed as the layout says; columns are matched by name, texts of another
  // length are padded or cut. Throws Error (run) if a column is missing.
  std::vector<char> read_rows(const TableLayout& layout, std::uint64_t at, std::uint64_t rows);

  // Reads rows [at, at + rows) of a table, or as many of them as there are, with whatever columns
  // it has. Columns that are neither numbers nor texts of fixed length are left out.
  Table read_table(const char* name, std::uint64_t at = 0,
                   std::uint64_t rows = std::numeric_limits<std::uint64_t>::max());
  std::uint64_t length(const std::string& name);  // rows of a table, values of a series
  std::int64_t id() const { return file_; }       // HDF5's identifier of the file
  // dataset paths below it, at any depth, sorted
  std::vector<std::string> datasets(const char* group);
  std::vector<double> read_numbers(const std::string& name);  // a 1-D dataset of numbers

  // A growing 1-D dataset; `scale` (or null) names the dimension scale it lies along.
  void create_series(const std::string& name, const char* scale, const char* unit);
  void create_scale(const std::string& name, const char* label);  // dimension scale of int64
  // Values [at, at + count) of a series (float64), or of a scale (int64).
  void write_series(const std::string& name, std::uint64_t at, const std::vector<double>& values);
  void write_scale(const std::string& name, std::uint64_t at,
                   const std::vector<std::int64_t>& values);

 private:
  [[noreturn]] void fail_writing(const std::string& what);
  // Returns `bytes`, the size of a text that the file claims to hold; throws if the file is smaller
  // than that.
  std::size_t in_file(std::size_t bytes, const std::string& what);

  std::filesystem::path path_;
  std::unique_ptr<int> write_error_;  // errno of the first failed write; 0: none
  std::int64_t file_ = -1;            // hid_t
};

struct Hdf5Version {
  std::string running, built;  // "1.10.8"
  bool compatible = false;     // same major and minor: the library aborts the process otherwise
};
Hdf5Version hdf5_version();

}  // namespace mw
