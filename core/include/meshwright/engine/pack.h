// Serialises values for messages between processes of one build. A class lists its members once,
// for packing and unpacking:
//
//   template <class Pack>
//   void members(Pack& pack, Problem& problem) {
//     pack(problem.stage, problem.code, …);
//   }
//
// Numbers keep their bits. The format has no version, so it is not for files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "meshwright/error.h"

namespace mw {

template <class T>
inline constexpr bool packs_as_bits = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Packer {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void bits(const void* from, std::size_t count) {
    bytes_.append(static_cast<const char*>(from), count);
  }
  void length(std::size_t count) { put(static_cast<std::uint64_t>(count)); }

  template <class T>
  void put(const T& value) {
    if constexpr (packs_as_bits<T>) {
      bits(&value, sizeof value);
    } else {
      members(*this, const_cast<T&>(value));  // only reads `value`
    }
  }
  void put(const std::string& text) {
    length(text.size());
    bits(text.data(), text.size());
  }
  template <class T>
  void put(const std::vector<T>& list) {
    length(list.size());
    if constexpr (packs_as_bits<T> && !std::is_same_v<T, bool>) {
      bits(list.data(), list.size() * sizeof(T));
    } else {
      for (const T& each : list) put(each);
    }
  }
  template <class T, std::size_t count>
  void put(const std::array<T, count>& list) {
    for (const T& each : list) put(each);
  }
  template <class A, class B>
  void put(const std::pair<A, B>& both) {
    put(both.first);
    put(both.second);
  }
  template <class Key, class T>
  void put(const std::map<Key, T>& map) {
    length(map.size());
    for (const auto& each : map) put(each);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }

  std::string bytes_;
};

// Reads values that a Packer wrote. Throws Error (run, "process.message") if the bytes are too few,
// or hold a Stage that does not exist.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }

 private:
  std::string_view bits(std::size_t count) {
    if (count > bytes_.size()) refuse("is shorter than what it says");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(Stage::run, "process.message", "", "a message of another process " + what,
                "all processes must be of one build");
  }
  std::size_t length() {
    std::uint64_t count = 0;
    get(count);
    return count;
  }

  template <class T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {  // a byte other than 0 and 1 is no valid bool
      value = bits(1).front() != 0;
    } else if constexpr (packs_as_bits<T>) {
      std::memcpy(&value, bits(sizeof value).data(), sizeof value);
      if constexpr (std::is_same_v<T, Stage>)
        if (value < Stage::script || value > Stage::environment)
          refuse("has no stage of a problem");
    } else {
      members(*this, value);
    }
  }
  void get(std::string& text) { text = bits(length()); }
  template <class T>
  void get(std::vector<T>& list) {
    const std::size_t count = length();
    list.clear();
    if constexpr (packs_as_bits<T> && !std::is_same_v<T, bool>) {
      if (count > bytes_.size() / sizeof(T)) bits(bytes_.size() + 1);
      const std::string_view all = bits(count * sizeof(T));
      list.resize(count);
      if (count > 0) std::memcpy(list.data(), all.data(), all.size());
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        T each{};
        get(each);
        list.push_back(std::move(each));
      }
    }
  }
  template <class T, std::size_t count>
  void get(std::array<T, count>& list) {
    for (T& each : list) get(each);
  }
  template <class A, class B>
  void get(std::pair<A, B>& both) {
    get(both.first);
    get(both.second);
  }
  template <class Key, class T>
  void get(std::map<Key, T>& map) {
    const std::size_t count = length();
    map.clear();
    for (std::size_t i = 0; i < count; ++i) {
      std::pair<Key, T> each;
      get(each);
      map.insert(map.end(), std::move(each));
    }
  }
  template <class T>
  void get(std::optional<T>& value) {
    bool there = false;
    get(there);
    value.reset();
    if (there) get(value.emplace());
  }

  std::string_view bytes_;
};

template <class... T>
std::string pack(const T&... values) {
  Packer packer;
  packer(values...);
  return packer.take();
}

template <class T>
T unpack(std::string_view bytes) {
  T value{};
  Unpacker unpacker(bytes);
  unpacker(value);
  return value;
}

template <class Pack>
void members(Pack& pack, Problem& p) {
  pack(p.stage, p.code, p.key, p.message, p.hint, p.place);
}

}  // namespace mw
