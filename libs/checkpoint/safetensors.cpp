// Reads files of the safetensors format, and trusts no length or offset that a file states.
#include "checkpoint/safetensors.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>

#include "common/mapped_file.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Not mw::Json, whose look-up of a name is linear: a hostile header may have millions of names.
using SortedJson = nlohmann::json;

constexpr std::int64_t length_bytes = 8, most_header_bytes = 100'000'000;

struct DtypeInfo {
  const char* name;
  std::int64_t bytes;
  std::optional<at::ScalarType> type;
};

const DtypeInfo dtypes[] = {
    {"F64", 8, at::kDouble},    {"F32", 4, at::kFloat},       {"F16", 2, at::kHalf},
    {"BF16", 2, at::kBFloat16}, {"I64", 8, at::kLong},        {"I32", 4, at::kInt},
    {"I16", 2, at::kShort},     {"I8", 1, at::kChar},         {"U8", 1, at::kByte},
    {"BOOL", 1, at::kBool},     {"U16", 2, std::nullopt},     {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},   {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt}};

const DtypeInfo* find_dtype(const std::string& name) {
  for (const DtypeInfo& info : dtypes)
    if (name == info.name) return &info;
  return nullptr;
}

const DtypeInfo* find_dtype(at::ScalarType type) {
  for (const DtypeInfo& info : dtypes)
    if (info.type == type) return &info;
  return nullptr;
}

// The bytes of a tensor; nothing if a size is negative or the product overflows.
std::optional<std::int64_t> bytes_of(const std::vector<std::int64_t>& shape, std::int64_t element) {
  std::int64_t bytes = element;
  for (const std::int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  return bytes;
}

// Reads an integer of 0 or more that fits into 64 bits. False: the JSON is none.
bool read_count(const SortedJson& json, std::int64_t& out) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > INT64_MAX) return false;
  out = json.get<std::int64_t>();
  return true;
}

bool read_entry(const SortedJson& json, SafetensorsEntry& entry) {
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets"))
    return false;
  const SortedJson &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    return false;
  entry.dtype = dtype.get<std::string>();
  entry.shape.resize(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (!read_count(shape[i], entry.shape[i])) return false;
  return read_count(offsets[0], entry.begin) && read_count(offsets[1], entry.end);
}

// Checks a header's text in one pass before it is parsed: whether a name is there twice, of which
// the parser would keep the last, and whether anything is nested deeper than a tensor's shape. The
// parser's own callback could tell both, but in time that grows with the square of the names.
class HeaderWatch : public nlohmann::json_sax<SortedJson> {
 public:
  std::string twice;
  bool too_deep = false;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return begin(); }
  bool start_array(std::size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    if (open_ == 1 && !names_.insert(name).second && twice.empty()) twice = name;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  static constexpr int deepest = 3;  // levels: the table, a tensor, its shape

  bool begin() {
    too_deep = too_deep || ++open_ > deepest;
    return !too_deep;
  }
  bool end() {
    --open_;
    return true;
  }

  int open_ = 0;
  std::unordered_set<std::string> names_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : path_(path), file_(std::make_unique<MappedFile>(path)) {
  read_header();
  check();
}

void SafetensorsFile::check() const {
  file_->check();
}

SafetensorsFile::~SafetensorsFile() = default;

void SafetensorsFile::refuse(const char* code, const std::string& what) const {
  throw Error(Stage::options, code, "",
              fmt::format("{} is no valid safetensors file: {}", path_.string(), what),
              "is the download complete?");
}

void SafetensorsFile::read_header() {
  if (file_->size() < length_bytes)
    refuse("safetensors.size",
           fmt::format("it has {} bytes, the header's length alone takes 8", file_->size()));
  std::uint64_t length = 0;
  std::memcpy(&length, file_->data(), sizeof length);  // the file and the host are little-endian
  const std::int64_t room = std::min(file_->size() - length_bytes, most_header_bytes);
  if (length > static_cast<std::uint64_t>(room))
    refuse("safetensors.size",
           fmt::format("its header claims {} bytes, {} are possible", length, room));
  const auto* text = reinterpret_cast<const char*>(file_->data() + length_bytes);

  HeaderWatch watch;
  const bool sound = SortedJson::sax_parse(text, text + length, &watch);
  const SortedJson header = sound ? SortedJson::parse(text, text + length, nullptr,
                                                      /*allow_exceptions=*/false)
                                  : SortedJson();
  if (!header.is_object()) refuse("safetensors.header", "its header is no JSON table of tensors");
  if (!watch.twice.empty())
    refuse("safetensors.twice", fmt::format("the name \"{}\" is there twice", watch.twice));

  const std::int64_t data_begin = length_bytes + static_cast<std::int64_t>(length);
  const std::int64_t data_size = file_->size() - data_begin;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") {
      if (!json.is_object()) refuse("safetensors.metadata", "its metadata is no table");
      for (const auto& [key, value] : json.items()) {
        if (!value.is_string())
          refuse("safetensors.metadata", fmt::format("its metadata \"{}\" is no text", key));
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    SafetensorsEntry entry;
    if (!read_entry(json, entry))
      refuse("safetensors.entry",
             fmt::format("tensor \"{}\" lacks a proper dtype, shape or data_offsets", name));
    const DtypeInfo* dtype = find_dtype(entry.dtype);
    if (!dtype)
      refuse("safetensors.dtype",
             fmt::format("tensor \"{}\" has the unknown dtype \"{}\"", name, entry.dtype));
    if (entry.begin > entry.end || entry.end > data_size) {
      refuse("safetensors.offsets", fmt::format("tensor \"{}\" claims bytes {} to {} of {}", name,
                                                entry.begin, entry.end, data_size));
    }
    const auto bytes = bytes_of(entry.shape, dtype->bytes);
    if (bytes != entry.end - entry.begin) {
      refuse("safetensors.shape",
             fmt::format("tensor \"{}\" of shape [{}] and dtype {} has {} bytes", name,
                         fmt::join(entry.shape, ", "), entry.dtype, entry.end - entry.begin));
    }
    entry.begin += data_begin;
    entry.end += data_begin;
    entries_.emplace(name, std::move(entry));
  }
  check_ranges(data_begin);
}

// Checks that the tensors cover the data without holes or overlaps, as the format demands.
void SafetensorsFile::check_ranges(std::int64_t data_begin) const {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
  for (const auto& [name, entry] : entries_) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::int64_t at = data_begin;
  for (const auto& [name, entry] : order) {
    if (entry->begin < at)
      refuse("safetensors.overlap", fmt::format("tensor \"{}\" overlaps another", *name));
    if (entry->begin > at)
      refuse("safetensors.gap",
             fmt::format("{} bytes before tensor \"{}\" belong to none", entry->begin - at, *name));
    at = entry->end;
  }
  if (at != file_->size())
    refuse("safetensors.gap",
           fmt::format("its last {} bytes belong to no tensor", file_->size() - at));
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const SafetensorsEntry& entry = entries_.at(name);
  const DtypeInfo& dtype = *find_dtype(entry.dtype);
  if (!dtype.type) {
    throw Error(Stage::options, "safetensors.dtype", "",
                fmt::format("{}: tensor \"{}\" has dtype {}, which cannot be read", path_.string(),
                            name, entry.dtype));
  }
  auto* data = const_cast<std::uint8_t*>(file_->data() + entry.begin);
  // The format does not align the data, but kernels expect aligned elements.
  if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(dtype.bytes) == 0)
    return at::from_blob(data, entry.shape, *dtype.type);
  at::Tensor copy = at::empty(entry.shape, *dtype.type);
  std::memcpy(copy.data_ptr(), data, entry.end - entry.begin);
  return copy;
}

std::string safetensors_dtype(at::ScalarType type) {
  const DtypeInfo* info = find_dtype(type);
  return info == nullptr ? "" : info->name;
}

}  // namespace mw
