// A list whose first few elements lie in the object itself. Programs hold hundreds of thousands of
// lists of one to four slots, dims or placements: to allocate each takes longer than to fill it.
#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace mw {

// GCC 12 warns that the inline elements of a new list are read uninitialised, which they are not.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// c10::SmallVector for trivially copyable values, with conversions from and to std::vector.
template <class T, unsigned N>
class Few : public c10::SmallVector<T, N> {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Few() = default;
  explicit Few(std::size_t count, const T& value = T()) : c10::SmallVector<T, N>(count, value) {}
  Few(std::initializer_list<T> list) : c10::SmallVector<T, N>(list) {}
  // Needs forward iterators, because c10::SmallVector reads the range twice.
  template <std::forward_iterator It>
  Few(It first, It last) : c10::SmallVector<T, N>(first, last) {}
  Few(const std::vector<T>& list) : Few(list.begin(), list.end()) {}        // NOLINT: as a copy is
  operator std::vector<T>() const { return {this->begin(), this->end()}; }  // NOLINT: as a copy is

  T& at(std::size_t i) { return i < this->size() ? (*this)[i] : beyond(); }
  const T& at(std::size_t i) const { return i < this->size() ? (*this)[i] : beyond(); }

  friend bool operator==(const Few& a, const Few& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend bool operator<(const Few& a, const Few& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  [[noreturn]] static T& beyond() { throw std::out_of_range("no such element of a list"); }
};

#pragma GCC diagnostic pop

// Like std::erase_if for the containers of the standard library.
template <class T, unsigned N, class Which>
std::size_t erase_if(Few<T, N>& list, const Which& which) {
  const auto rest = std::remove_if(list.begin(), list.end(), which);
  const auto gone = static_cast<std::size_t>(list.end() - rest);
  list.erase(rest, list.end());
  return gone;
}

}  // namespace mw
