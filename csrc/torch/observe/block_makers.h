// Which op made which tensors, for the labels of a block log. Tensors have numbers in the order in which they
// are made.
#pragma once

#include <vector>

#include "base/types.h"
#include "torch/dispatch/operators.h"

namespace remint {

class BlockMakers {
 public:
  // From this number on, tensors were made by this op (null: by none), which came from this line.
  struct Maker {
    std::uint64_t first_number;
    const Operator* op;
    std::uint32_t source;
  };

  void enable() {
    enabled_ = true;
    end(0);
  }
  void begin(const Operator* op, std::uint32_t source, std::uint64_t next_number) {
    if (!enabled_) return;
    if (!makers_.empty() && makers_.back().first_number == next_number) makers_.pop_back();
    makers_.push_back({next_number, op, source});
  }
  void end(std::uint64_t next_number) { begin(nullptr, kNone, next_number); }
  const std::vector<Maker>& makers() const { return makers_; }

 private:
  bool enabled_ = false;
  std::vector<Maker> makers_;
};

}  // namespace remint
