// Two containers for tables with millions of small records.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace remint {

// A vector of trivial elements, the first `kInline` of which need no allocation: most ops read two or three
// values, and most storages hold one.
template <typename T, std::uint32_t kInline>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T>, "elements are copied as bytes");

 public:
  SmallVector() = default;
  SmallVector(const SmallVector&) = delete;
  SmallVector& operator=(const SmallVector&) = delete;

  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T& back() { return data()[size_ - 1]; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void clear() { size_ = 0; }
  void pop_back() { --size_; }
  void push_back(const T& element) {
    const T copy = element;  // it may be one of ours
    if (size_ == capacity_) grow();
    data()[size_++] = copy;
  }
  void resize(std::size_t size, const T& element) {
    while (size_ < size) push_back(element);
    size_ = static_cast<std::uint32_t>(size);
  }

 private:
  T* data() { return heap_ ? heap_.get() : inline_; }
  const T* data() const { return heap_ ? heap_.get() : inline_; }
  void grow() {
    std::unique_ptr<T[]> larger(new T[2 * capacity_]);
    std::copy(begin(), end(), larger.get());
    heap_ = std::move(larger);
    capacity_ *= 2;
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = kInline;
  std::unique_ptr<T[]> heap_;
  T inline_[kInline];
};

// A table that grows in chunks, so that elements never move: references to them stay valid.
template <typename T>
class Table {
 public:
  T& operator[](std::uint32_t i) { return chunks_[i >> kBits][i & kMask]; }
  const T& operator[](std::uint32_t i) const { return chunks_[i >> kBits][i & kMask]; }
  std::uint32_t size() const { return size_; }

  std::uint32_t append() {
    if ((size_ & kMask) == 0) chunks_.emplace_back(new T[kMask + 1]);
    return size_++;
  }

 private:
  static constexpr std::uint32_t kBits = 10;
  static constexpr std::uint32_t kMask = (1u << kBits) - 1;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::uint32_t size_ = 0;
};

}  // namespace remint
