// ValueSet: a small set of values, as bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace remint {

struct ValueSet {
  static constexpr int kMost = 256;
  std::array<std::uint64_t, kMost / 64> words{};

  void add(int value) { words[value >> 6] |= std::uint64_t{1} << (value & 63); }
  void remove(int value) { words[value >> 6] &= ~(std::uint64_t{1} << (value & 63)); }
  bool has(int value) const { return (words[value >> 6] >> (value & 63)) & 1; }
  bool operator==(const ValueSet&) const = default;

  bool meets(const ValueSet& other) const {
    for (std::size_t k = 0; k < words.size(); ++k)
      if (words[k] & other.words[k]) return true;
    return false;
  }
  ValueSet operator|(const ValueSet& other) const {
    ValueSet result;
    for (std::size_t k = 0; k < words.size(); ++k) result.words[k] = words[k] | other.words[k];
    return result;
  }
  ValueSet operator&(const ValueSet& other) const {
    ValueSet result;
    for (std::size_t k = 0; k < words.size(); ++k) result.words[k] = words[k] & other.words[k];
    return result;
  }
  ValueSet without(const ValueSet& other) const {
    ValueSet result;
    for (std::size_t k = 0; k < words.size(); ++k) result.words[k] = words[k] & ~other.words[k];
    return result;
  }
  std::uint64_t hash(std::uint64_t seed) const {
    std::uint64_t z = (seed + 1) * 0x9E3779B97F4A7C15ull;
    for (std::uint64_t word : words) {
      z = (z ^ word) * 0xBF58476D1CE4E5B9ull;
      z ^= z >> 29;
    }
    return z ^ (z >> 32);
  }
  template <class Visit>
  void each(Visit&& visit) const {
    for (std::size_t k = 0; k < words.size(); ++k)
      for (std::uint64_t word = words[k]; word; word &= word - 1)
        visit(static_cast<int>(k) * 64 + std::countr_zero(word));
  }
};

}  // namespace remint
