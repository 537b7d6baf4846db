// The time that a session spends around ops of the program, without kernels, replays and searches.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace remint {

// To read the clock twice takes longer than much of what it would measure. So one op in eight is measured,
// and counts for eight.
class Bookkeeping {
 public:
  // Whether the op that comes next is measured. The steps are those of the golden ratio: they are in step
  // with no layer of a network.
  bool measures_next() {
    position_ += 0x9E3779B97F4A7C15u;
    return position_ < UINT64_MAX / kOneIn;
  }
  void add(Nanoseconds measured) { total_ += measured * kOneIn; }
  Nanoseconds total() const { return total_; }

 private:
  static constexpr int kOneIn = 8;

  std::uint64_t position_ = 0;
  Nanoseconds total_ = 0;
};

}  // namespace remint
