// The words of the core. One meaning each; docs/design.md has the whole vocabulary.
#pragma once

#include <cstdint>
#include <limits>

namespace remint {

using Bytes = std::int64_t;
using Nanoseconds = std::int64_t;

// Of blocks in the memory of a CPU, real or simulated.
inline constexpr Bytes kCpuAlignment = 64;

// Indices into the tables of `Records` and `Arena`. Slots of dropped records are used again.
using StorageId = std::uint32_t;
using ValueId = std::uint32_t;
using OpId = std::uint32_t;
using BlockId = std::uint32_t;

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
inline constexpr Bytes kNoAddress = -1;

// What happens to bytes when the program drops its last reference to them.
enum class Deallocation : std::uint8_t {
  kIgnore,  // nothing: they are a candidate for eviction like any other
  kLazy,    // the same, until no recipe can need them any more
  kEager,   // they are evicted at once
  kBanish,  // they are freed for good as soon as nothing evicted depends on them
};

}  // namespace remint
