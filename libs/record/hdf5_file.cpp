// Creates, extends and reads the tables, series and texts of a run file through HDF5's C
// library.
#include "record/hdf5_file.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <utility>

#include "meshwright/engine/bounds.h"
#include "meshwright/error.h"
#include "record/hdf5_handle.h"

namespace mw {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

namespace {

// The innermost entry of HDF5's error stack: its reason, free of the wrappers around it.
std::string last_reason() {
  std::string reason;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_DOWNWARD,
      [](unsigned, const H5E_error2_t* entry, void* out) -> herr_t {
        if (entry->desc) *static_cast<std::string*>(out) = entry->desc;
        return 0;
      },
      &reason);
  return reason;
}

constexpr const char* writing_hint = "the folder must be there, with room on its disk";
constexpr const char* reading_hint = "is it whole, and a run file of this version?";

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what,
                       const char* hint = writing_hint) {
  throw Error(Stage::run, "run-file.access", "",
              fmt::format("run file {}: cannot {}: {}", path.string(), what, last_reason()), hint);
}

Handle text_type(std::size_t bytes) {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, std::max<std::size_t>(bytes, 1));
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return {type, H5Tclose};
}

Handle row_type(const TableLayout& layout) {
  const hid_t row = H5Tcreate(H5T_COMPOUND, layout.row_bytes());
  std::size_t offset = 0;
  for (const Column& column : layout.columns) {
    switch (column.type) {
      case Column::Type::int32:
        H5Tinsert(row, column.name, offset, H5T_STD_I32LE);
        break;
      case Column::Type::int64:
        H5Tinsert(row, column.name, offset, H5T_STD_I64LE);
        break;
      case Column::Type::float64:
        H5Tinsert(row, column.name, offset, H5T_IEEE_F64LE);
        break;
      case Column::Type::text:
        H5Tinsert(row, column.name, offset, text_type(column.bytes));
        break;
    }
    offset += column.bytes;
  }
  return {row, H5Tclose};
}

Handle create_growing(hid_t file, const char* name, hid_t type, hsize_t chunk) {
  const hsize_t none = 0, unlimited = H5S_UNLIMITED;
  const Handle space(H5Screate_simple(1, &none, &unlimited), H5Sclose);
  const Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_chunk(layout, 1, &chunk);
  const Handle link(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(link, 1);
  H5Pset_char_encoding(link, H5T_CSET_UTF8);
  return {H5Dcreate2(file, name, type, space, link, layout, H5P_DEFAULT), H5Dclose};
}

bool write_at(hid_t file, const char* name, hid_t type, hsize_t at, hsize_t count,
              const void* values) {
  const Handle set(open_dataset(file, name), H5Dclose);
  const hsize_t size = at + count;
  if (!set.valid() || H5Dset_extent(set, &size) < 0) return false;
  if (count == 0) return true;
  const Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Handle space(H5Dget_space(set), H5Sclose);
  return H5Sselect_hyperslab(space, H5S_SELECT_SET, &at, nullptr, &count, nullptr) >= 0 &&
         H5Dwrite(set, type, memory, space, H5P_DEFAULT, values) >= 0;
}

constexpr hsize_t series_chunk = 1024;

// The most series that a dimension scale lists, in an attribute of 16 bytes for each. Attributes of
// this file format have less than 64 KiB.
constexpr hsize_t most_listed = 2000;

hsize_t listed_by(hid_t scale) {
  if (H5Aexists(scale, "REFERENCE_LIST") <= 0) return 0;
  const Handle list(H5Aopen(scale, "REFERENCE_LIST", H5P_DEFAULT), H5Aclose);
  const Handle space(H5Aget_space(list), H5Sclose);
  return static_cast<hsize_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 0));
}

// A series names its dimension scale even where the full scale does not list the series: readers
// find a scale by the series (H5DSiterate_scales, h5py, xarray).
bool attach(hid_t file, hid_t set, hid_t scale) {
  if (listed_by(scale) < most_listed) return H5DSattach_scale(set, scale, 0) >= 0;
  std::string name(static_cast<std::size_t>(H5Iget_name(scale, nullptr, 0)) + 1, '\0');
  H5Iget_name(scale, name.data(), name.size());
  hobj_ref_t reference = 0;
  if (H5Rcreate(&reference, file, name.c_str(), H5R_OBJECT, -1) < 0) return false;
  hvl_t along{1, &reference};
  const hsize_t dims = 1;
  const Handle type(H5Tvlen_create(H5T_STD_REF_OBJ), H5Tclose);
  const Handle space(H5Screate_simple(1, &dims, nullptr), H5Sclose);
  const Handle list(H5Acreate2(set, "DIMENSION_LIST", type, space, H5P_DEFAULT, H5P_DEFAULT),
                    H5Aclose);
  return list.valid() && H5Awrite(list, type, &along) >= 0;
}

}  // namespace

bool lies_in_its_file(hid_t dataset) {
  const Handle how(H5Dget_create_plist(dataset), H5Pclose);
  return how.valid() && H5Pget_external_count(how) == 0 && H5Pget_layout(how) != H5D_VIRTUAL;
}

hid_t open_dataset(hid_t file, const char* name) {
  const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
  if (set < 0 || lies_in_its_file(set)) return set;
  H5Dclose(set);
  H5Epush2(H5E_DEFAULT, __FILE__, __func__, __LINE__, H5E_ERR_CLS, H5E_DATASET, H5E_CANTOPENOBJ,
           "its data would come from another file");
  return H5I_INVALID_HID;
}

bool is_hdf5(const std::filesystem::path& path) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  return H5Fis_hdf5(path.c_str()) > 0;
}

Hdf5File::Hdf5File(const std::filesystem::path& path, Mode mode)
    : path_(path), write_error_(std::make_unique<int>(0)) {
  mode == Mode::read ? check_may_read(path) : check_may_write(path, "log");
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors go to the caller, not to stderr
  // no links to other files
  if (H5Lis_registered(H5L_TYPE_EXTERNAL) > 0) H5Lunregister(H5L_TYPE_EXTERNAL);
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST);
  H5Pset_file_locking(access, /*use_file_locking=*/false, /*ignore_when_disabled=*/true);
  use_steady_driver(access, write_error_.get());
  const unsigned how = mode == Mode::read ? H5F_ACC_RDONLY : H5F_ACC_RDWR;
  file_ = mode == Mode::create ? H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access)
                               : H5Fopen(path.c_str(), how, access);
  if (file_ >= 0) return;
  const char* what = mode == Mode::create ? "create it" : "open it";
  if (*write_error_ != 0) fail_writing(what);
  fail(path, what, mode == Mode::read ? reading_hint : writing_hint);
}

Hdf5File::~Hdf5File() {
  if (file_ >= 0) H5Fclose(file_);
}

void Hdf5File::close() {
  const bool flushed = H5Fflush(file_, H5F_SCOPE_LOCAL) >= 0;
  const bool closed = H5Fclose(std::exchange(file_, -1)) >= 0;
  if (*write_error_ != 0) fail_writing("write it");
  if (!flushed) fail(path_, "write it");
  if (!closed) fail(path_, "close it");
}

void Hdf5File::fail_writing(const std::string& what) {
  throw Error(Stage::run, "run-file.access", "",
              fmt::format("run file {}: cannot {}: {}", path_.string(), what,
                          std::generic_category().message(*write_error_)),
              writing_hint);
}

void Hdf5File::set_attribute(const char* object, const char* name, const std::string& text,
                             std::size_t room) {
  const Handle target(H5Oopen(file_, object, H5P_DEFAULT), H5Oclose);
  if (H5Aexists(target, name) > 0) {
    const Handle attribute(H5Aopen(target, name, H5P_DEFAULT), H5Aclose);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    std::string padded = text;
    padded.resize(H5Tget_size(type), '\0');
    if (H5Awrite(attribute, type, padded.c_str()) < 0) fail(path_, "set an attribute");
    return;
  }
  std::string padded = text;
  padded.resize(std::max({room, text.size(), std::size_t{1}}), '\0');
  const Handle type = text_type(padded.size());
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(H5Acreate2(target, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (H5Awrite(attribute, type, padded.c_str()) < 0) fail(path_, "set an attribute");
}

void Hdf5File::set_attribute(const char* object, const char* name, std::int64_t value) {
  const Handle target(H5Oopen(file_, object, H5P_DEFAULT), H5Oclose);
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(H5Aexists(target, name) > 0 ? H5Aopen(target, name, H5P_DEFAULT)
                                                     : H5Acreate2(target, name, H5T_STD_I64LE,
                                                                  space, H5P_DEFAULT, H5P_DEFAULT),
                         H5Aclose);
  if (H5Awrite(attribute, H5T_NATIVE_INT64, &value) < 0) fail(path_, "set an attribute");
}

void Hdf5File::set_text(const char* name, const std::string& text) {
  if (has(name) && H5Ldelete(file_, name, H5P_DEFAULT) < 0)
    fail(path_, fmt::format("write /{}", name));
  write_text(name, text);
}

void Hdf5File::write_text(const char* name, const std::string& text) {
  const Handle type = text_type(text.size());
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle set(H5Dcreate2(file_, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                   H5Dclose);
  if (H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()) < 0)
    fail(path_, fmt::format("write /{}", name));
}

std::string Hdf5File::attribute(const char* object, const char* name) {
  const Handle target(H5Oopen(file_, object, H5P_DEFAULT), H5Oclose);
  if (!target.valid() || H5Aexists(target, name) <= 0) return "";
  const Handle attribute(H5Aopen(target, name, H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(attribute), H5Tclose);
  const Handle space(H5Aget_space(attribute), H5Sclose);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 ||
      H5Sget_simple_extent_npoints(space) != 1)
    return "";
  std::string text(in_file(H5Tget_size(type), "read an attribute"), '\0');
  if (H5Aread(attribute, type, text.data()) < 0) fail(path_, "read an attribute", reading_hint);
  return text.c_str();  // without the padding
}

std::string Hdf5File::read_text(const char* name) {
  const Handle set(open_dataset(file_, name), H5Dclose);
  if (!set.valid()) fail(path_, fmt::format("read /{}", name), reading_hint);
  const Handle type(H5Dget_type(set), H5Tclose);
  const Handle space(H5Dget_space(set), H5Sclose);
  std::string text(in_file(H5Tget_size(type), fmt::format("read /{}", name)), '\0');
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 ||
      H5Sget_simple_extent_npoints(space) != 1 ||
      H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()) < 0)
    fail(path_, fmt::format("read /{}", name), reading_hint);
  return text.c_str();
}

void Hdf5File::create_group(const char* name) {
  const Handle group(H5Gcreate2(file_, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  if (!group.valid()) fail(path_, fmt::format("create /{}", name));
}

void Hdf5File::create_table(const TableLayout& layout) {
  const Handle type = row_type(layout);
  {
    const Handle set = create_growing(file_, layout.name, type, layout.chunk_rows);
    if (!set.valid()) fail(path_, fmt::format("create /{}", layout.name));
  }
  for (const Column& column : layout.columns)
    if (*column.unit)
      set_attribute(layout.name, fmt::format("units_{}", column.name).c_str(), column.unit);
}

void Hdf5File::write_rows(const TableLayout& layout, std::uint64_t at, const char* packed,
                          std::uint64_t rows) {
  if (!write_at(file_, layout.name, row_type(layout), at, rows, packed))
    fail(path_, fmt::format("append to /{}", layout.name));
}

bool Hdf5File::has(const char* name) {
  return H5Lexists(file_, name, H5P_DEFAULT) > 0;
}

std::uint64_t Hdf5File::count_rows(const TableLayout& layout) {
  return length(layout.name);
}

std::size_t Hdf5File::in_file(std::size_t bytes, const std::string& what) {
  hsize_t all = 0;
  if (H5Fget_filesize(file_, &all) < 0 || bytes > all) fail(path_, what, reading_hint);
  return bytes;
}

std::vector<char> Hdf5File::read_rows(const TableLayout& layout, std::uint64_t at,
                                      std::uint64_t rows) {
  if (rows == 0) return {};
  const auto refuse = [&] { fail(path_, fmt::format("read /{}", layout.name), reading_hint); };
  const Handle set(open_dataset(file_, layout.name), H5Dclose);
  if (!set.valid()) refuse();
  const Handle kept(H5Dget_type(set), H5Tclose);
  if (H5Tget_class(kept) != H5T_COMPOUND || at > length(layout.name) ||
      rows > length(layout.name) - at)
    refuse();
  for (const Column& column : layout.columns) {
    // HDF5 would leave a missing column as it is in memory.
    if (H5Tget_member_index(kept, column.name) < 0) {
      throw Error(Stage::run, "run-file.column", "",
                  fmt::format("run file {}: /{} has no column {}", path_.string(), layout.name,
                              column.name),
                  reading_hint);
    }
  }
  std::vector<char> packed(rows * layout.row_bytes());
  const hsize_t from = at, count = rows;
  const Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Handle space(H5Dget_space(set), H5Sclose);
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, &from, nullptr, &count, nullptr) < 0 ||
      H5Dread(set, row_type(layout), memory, space, H5P_DEFAULT, packed.data()) < 0)
    refuse();
  return packed;
}

void Hdf5File::create_scale(const std::string& name, const char* label) {
  const Handle set = create_growing(file_, name.c_str(), H5T_STD_I64LE, series_chunk);
  if (!set.valid() || H5DSset_scale(set, label) < 0) fail(path_, fmt::format("create /{}", name));
}

void Hdf5File::create_series(const std::string& name, const char* scale, const char* unit) {
  {
    const Handle set = create_growing(file_, name.c_str(), H5T_IEEE_F64LE, series_chunk);
    if (!set.valid()) fail(path_, fmt::format("create /{}", name));
    if (scale) {
      const Handle along(open_dataset(file_, scale), H5Dclose);
      if (!attach(file_, set, along)) fail(path_, fmt::format("create /{}", name));
    }
  }
  if (*unit) set_attribute(name.c_str(), "units", unit);
}

void Hdf5File::write_series(const std::string& name, std::uint64_t at,
                            const std::vector<double>& values) {
  if (!write_at(file_, name.c_str(), H5T_NATIVE_DOUBLE, at, values.size(), values.data()))
    fail(path_, fmt::format("append to /{}", name));
}

void Hdf5File::write_scale(const std::string& name, std::uint64_t at,
                           const std::vector<std::int64_t>& values) {
  if (!write_at(file_, name.c_str(), H5T_NATIVE_INT64, at, values.size(), values.data()))
    fail(path_, fmt::format("append to /{}", name));
}

Hdf5Version hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return {fmt::format("{}.{}.{}", major, minor, release),
          fmt::format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE),
          major == H5_VERS_MAJOR && minor == H5_VERS_MINOR};
}

}  // namespace mw
