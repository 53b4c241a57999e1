// Messages between the processes of one build: numbers as they lie in memory, texts with their
// lengths.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "meshwright/error.h"

namespace mpi {

// What a message is, its first byte.
enum class Message : std::uint8_t {
  arrive,   // all of this process's members of a round are there, and what they called
  credit,   // more blocks of a round may be sent
  aborted,  // a rank cannot go on
  ended,    // a rank makes no further calls
  query,    // where are these ranks?
  answer,
  posted,   // Carrier::post
  goodbye,  // this process will send nothing more
};

class Pack {
 public:
  explicit Pack(Message message) { *this << static_cast<std::uint8_t>(message); }
  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) Pack& operator<<(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Pack& operator<<(std::string_view text) {
    *this << static_cast<std::uint64_t>(text.size());
    bytes_.append(text);
    return *this;
  }
  template <class T>
  Pack& operator<<(const std::vector<T>& list) {
    *this << static_cast<std::uint64_t>(list.size());
    for (const auto& one : list) *this << one;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpack {
 public:
  explicit Unpack(std::string_view bytes) : left_(bytes) {}
  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) T number() {
    T value;
    need(sizeof value);
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    need(size);
    std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  template <class T>
  std::vector<T> numbers() {
    std::vector<T> list(number<std::uint64_t>());
    for (T& one : list) one = number<T>();
    return list;
  }

 private:
  void need(std::size_t bytes) const {
    if (left_.size() >= bytes) return;
    throw mw::Error(mw::Stage::run, "process.message", "",
                    "A message of another process is shorter than it says.",
                    "All processes must run the same build of Meshwright.");
  }
  std::string_view left_;
};

}  // namespace mpi
