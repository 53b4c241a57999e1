// Reads tables, series and numbers of a run file whose layout only the file itself tells.
#include <fmt/core.h>
#include <hdf5.h>

#include <algorithm>
#include <cstring>

#include "meshwright/error.h"
#include "record/hdf5_file.h"
#include "record/hdf5_handle.h"

namespace mw {
namespace {

[[noreturn]] void refuse_to_read(const std::filesystem::path& path, const std::string& name) {
  throw Error(Stage::run, "run-file.access", "",
              fmt::format("run file {}: cannot read /{}", path.string(), name),
              "is it whole, and a run file of this version?");
}

// A column of a table as it is read: its type, and its place in a row in memory.
struct Member {
  enum class Kind : std::uint8_t { integer, real, text } kind;
  std::string name;
  std::size_t offset = 0, bytes = 8;
};

std::vector<Member> members_of(hid_t type) {
  std::vector<Member> members;
  std::size_t offset = 0;
  const int count = H5Tget_nmembers(type);
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<unsigned>(i);
    const Handle own(H5Tget_member_type(type, index), H5Tclose);
    Member member;
    const H5T_class_t kind = H5Tget_class(own);
    if (kind == H5T_INTEGER) {
      member.kind = Member::Kind::integer;
    } else if (kind == H5T_FLOAT) {
      member.kind = Member::Kind::real;
    } else if (kind == H5T_STRING && H5Tis_variable_str(own) <= 0) {
      member.kind = Member::Kind::text;
      member.bytes = H5Tget_size(own);
    } else {
      continue;
    }
    char* name = H5Tget_member_name(type, index);
    member.name = name;
    H5free_memory(name);
    member.offset = offset;
    offset += member.bytes;
    members.push_back(std::move(member));
  }
  return members;
}

// The type of a row in memory: the members one after the other.
hid_t row_in_memory(hid_t kept, const std::vector<Member>& members, std::size_t bytes) {
  const hid_t row = H5Tcreate(H5T_COMPOUND, bytes);
  for (const Member& member : members) {
    if (member.kind == Member::Kind::text) {
      const int index = H5Tget_member_index(kept, member.name.c_str());
      const Handle text(H5Tget_member_type(kept, static_cast<unsigned>(index)), H5Tclose);
      H5Tinsert(row, member.name.c_str(), member.offset, text);
    } else {
      H5Tinsert(row, member.name.c_str(), member.offset,
                member.kind == Member::Kind::integer ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE);
    }
  }
  return row;
}

template <typename Value>
std::vector<Value> numbers_of(const std::vector<char>& packed, const Member& member,
                              std::size_t bytes, std::uint64_t rows) {
  std::vector<Value> values(rows);
  for (std::uint64_t r = 0; r < rows; ++r)
    std::memcpy(&values[r], packed.data() + r * bytes + member.offset, sizeof(Value));
  return values;
}

std::vector<std::string> texts_of(const std::vector<char>& packed, const Member& member,
                                  std::size_t bytes, std::uint64_t rows) {
  std::vector<std::string> values(rows);
  for (std::uint64_t r = 0; r < rows; ++r) {
    const char* at = packed.data() + r * bytes + member.offset;
    values[r].assign(at, ::strnlen(at, member.bytes));
  }
  return values;
}

}  // namespace

// Throws where a damaged file claims more rows than fit into it if they were compressed by a factor
// of 1000.
std::uint64_t Hdf5File::length(const std::string& name) {
  const Handle set(open_dataset(file_, name.c_str()), H5Dclose);
  const Handle space(H5Dget_space(set), H5Sclose);
  const Handle type(H5Dget_type(set), H5Tclose);
  const hssize_t rows = H5Sget_simple_extent_npoints(space);
  hsize_t bytes = 0;
  if (rows < 0 || H5Sget_simple_extent_ndims(space) != 1 || H5Fget_filesize(file_, &bytes) < 0 ||
      static_cast<double>(rows) * static_cast<double>(H5Tget_size(type)) >
          1000.0 * static_cast<double>(bytes) + 1e6)
    refuse_to_read(path_, name);
  return static_cast<std::uint64_t>(rows);
}

Table Hdf5File::read_table(const char* name, std::uint64_t at, std::uint64_t rows) {
  const Handle set(open_dataset(file_, name), H5Dclose);
  if (!set.valid()) refuse_to_read(path_, name);
  const Handle kept(H5Dget_type(set), H5Tclose);
  if (H5Tget_class(kept) != H5T_COMPOUND) refuse_to_read(path_, name);
  Table table;
  const std::uint64_t all = length(name);
  at = std::min(at, all);
  table.rows = std::min(rows, all - at);
  const std::vector<Member> members = members_of(kept);
  const std::size_t bytes = members.empty() ? 0 : members.back().offset + members.back().bytes;
  std::vector<char> packed(table.rows * bytes);
  if (!packed.empty()) {
    const hsize_t from = at, count = table.rows;
    const Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    const Handle space(H5Dget_space(set), H5Sclose);
    const Handle row(row_in_memory(kept, members, bytes), H5Tclose);
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, &from, nullptr, &count, nullptr) < 0 ||
        H5Dread(set, row, memory, space, H5P_DEFAULT, packed.data()) < 0)
      refuse_to_read(path_, name);
  }
  for (const Member& member : members) {
    TableColumn column;
    column.name = member.name;
    column.unit = attribute(name, fmt::format("units_{}", member.name).c_str());
    switch (member.kind) {
      case Member::Kind::integer:
        column.values = numbers_of<std::int64_t>(packed, member, bytes, table.rows);
        break;
      case Member::Kind::real:
        column.values = numbers_of<double>(packed, member, bytes, table.rows);
        break;
      case Member::Kind::text:
        column.values = texts_of(packed, member, bytes, table.rows);
        break;
    }
    table.columns.push_back(std::move(column));
  }
  return table;
}

std::int64_t Hdf5File::integer(const char* object, const char* name, std::int64_t otherwise) {
  const Handle target(H5Oopen(file_, object, H5P_DEFAULT), H5Oclose);
  if (!target.valid() || H5Aexists(target, name) <= 0) return otherwise;
  const Handle attribute(H5Aopen(target, name, H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(attribute), H5Tclose);
  const Handle space(H5Aget_space(attribute), H5Sclose);
  std::int64_t value = otherwise;
  if (H5Tget_class(type) != H5T_INTEGER || H5Sget_simple_extent_npoints(space) != 1 ||
      H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0)
    return otherwise;
  return value;
}

std::vector<std::string> Hdf5File::datasets(const char* group) {
  std::vector<std::string> names;
  if (!has(group)) return names;
  const auto visit = [](hid_t, const char* name, const H5O_info_t* info, void* out) -> herr_t {
    if (info->type == H5O_TYPE_DATASET)
      static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  if (H5Ovisit_by_name2(file_, group, H5_INDEX_NAME, H5_ITER_INC, visit, &names, H5O_INFO_BASIC,
                        H5P_DEFAULT) < 0)
    refuse_to_read(path_, group);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<double> Hdf5File::read_numbers(const std::string& name) {
  const Handle set(open_dataset(file_, name.c_str()), H5Dclose);
  std::vector<double> values(length(name));
  if (!values.empty() &&
      H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    refuse_to_read(path_, name);
  return values;
}

}  // namespace mw
