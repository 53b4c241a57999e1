// A list whose first few elements lie in the object itself. Programs hold hundreds of thousands of
// lists of one to four slots, dims or placements: to allocate each takes longer than to fill it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace mw {

// What std::vector does, as far as lists of plain values need it. Elements are copied when a list
// is moved, so that references and iterators of a list that is moved from do not stay good.
template <class T, std::size_t N>
class Few {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using reference = T&;
  using const_reference = const T&;
  using iterator = T*;
  using const_iterator = const T*;
  using reverse_iterator = std::reverse_iterator<iterator>;
  using const_reverse_iterator = std::reverse_iterator<const_iterator>;

  Few() = default;
  explicit Few(std::size_t count, const T& value = T()) { assign(count, value); }
  Few(std::initializer_list<T> list) { assign(list.begin(), list.end()); }
  Few(const std::vector<T>& list) { assign(list.begin(), list.end()); }  // NOLINT: as a copy is
  template <std::input_iterator It>
  Few(It first, It last) {
    assign(first, last);
  }
  Few(const Few& other) { *this = other; }
  Few(Few&& other) noexcept
      : own_(other.own_),
        more_(std::move(other.more_)),
        size_(std::exchange(other.size_, 0)),
        room_(std::exchange(other.room_, N)) {}
  Few& operator=(const Few& other) {
    if (this == &other) return *this;
    if (other.more_ == nullptr && more_ == nullptr) {
      own_ = other.own_;
      size_ = other.size_;
    } else {
      assign(other.begin(), other.end());
    }
    return *this;
  }
  Few& operator=(Few&& other) noexcept {
    own_ = other.own_;
    more_ = std::move(other.more_);
    size_ = std::exchange(other.size_, 0);
    room_ = std::exchange(other.room_, N);
    return *this;
  }
  ~Few() = default;
  operator std::vector<T>() const { return {begin(), end()}; }  // NOLINT: as a copy is

  iterator begin() { return data(); }
  iterator end() { return data() + size_; }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + size_; }
  const_iterator cbegin() const { return begin(); }
  const_iterator cend() const { return end(); }
  reverse_iterator rbegin() { return reverse_iterator(end()); }
  reverse_iterator rend() { return reverse_iterator(begin()); }
  const_reverse_iterator rbegin() const { return const_reverse_iterator(end()); }
  const_reverse_iterator rend() const { return const_reverse_iterator(begin()); }

  T* data() { return more_ ? more_.get() : own_.data(); }
  const T* data() const { return more_ ? more_.get() : own_.data(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::size_t capacity() const { return room_; }

  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T& at(std::size_t i) { return i < size_ ? data()[i] : beyond(); }
  const T& at(std::size_t i) const { return i < size_ ? data()[i] : beyond(); }
  T& front() { return *begin(); }
  const T& front() const { return *begin(); }
  T& back() { return end()[-1]; }
  const T& back() const { return end()[-1]; }

  void reserve(std::size_t count) {
    if (count <= room_) return;
    auto more = std::make_unique<T[]>(count);
    std::copy(begin(), end(), more.get());
    more_ = std::move(more);
    room_ = static_cast<std::uint32_t>(count);
  }
  void resize(std::size_t count, const T& value = T()) {
    const T kept = value;
    reserve(count);
    if (count > size_) std::fill(end(), data() + count, kept);
    size_ = static_cast<std::uint32_t>(count);
  }
  void clear() { size_ = 0; }
  void assign(std::size_t count, const T& value) {
    const T kept = value;
    clear();
    resize(count, kept);
  }
  template <std::input_iterator It>
  void assign(It first, It last) {
    clear();
    if constexpr (std::forward_iterator<It>)
      reserve(static_cast<std::size_t>(std::distance(first, last)));
    for (; first != last; ++first) push_back(*first);
  }
  void assign(std::initializer_list<T> list) { assign(list.begin(), list.end()); }

  void push_back(const T& value) {
    const T kept = value;
    if (size_ == room_) reserve(2 * static_cast<std::size_t>(room_));
    data()[size_++] = kept;
  }
  template <class... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    push_back(T(std::forward<Arguments>(arguments)...));
    return back();
  }
  void pop_back() { --size_; }
  iterator insert(const_iterator place, const T& value) {
    return insert(place, &value, &value + 1);
  }
  template <std::forward_iterator It>
  iterator insert(const_iterator place, It first, It last) {
    const auto at = place - begin();
    const std::vector<T> tail(place, cend());
    const std::vector<T> list(first, last);  // which may be of this very list
    resize(static_cast<std::size_t>(at));
    for (const auto& part : {list, tail}) {
      for (const T& each : part) push_back(each);
    }
    return begin() + at;
  }
  iterator erase(const_iterator first, const_iterator last) {
    const auto at = begin() + (first - begin());
    const auto rest = std::copy(last, cend(), at);
    size_ = static_cast<std::uint32_t>(rest - begin());
    return at;
  }
  iterator erase(const_iterator place) { return erase(place, place + 1); }

  friend bool operator==(const Few& a, const Few& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }
  friend bool operator<(const Few& a, const Few& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  [[noreturn]] static T& beyond() { throw std::out_of_range("no such element of a list"); }

  std::array<T, N> own_{};
  std::unique_ptr<T[]> more_;  // all of them, where they are more than N
  std::uint32_t size_ = 0, room_ = N;
};

// As of the containers of the standard library.
template <class T, std::size_t N, class Which>
std::size_t erase_if(Few<T, N>& list, const Which& which) {
  const auto rest = std::remove_if(list.begin(), list.end(), which);
  const auto gone = static_cast<std::size_t>(list.end() - rest);
  list.erase(rest, list.end());
  return gone;
}

}  // namespace mw
