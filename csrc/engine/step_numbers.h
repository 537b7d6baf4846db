// Numbers of the tensors that a step makes, which are the same whenever the step is done.
//
// A session numbers tensors in the order in which they appear. Memory outside of the budget gets another
// number whenever an op reads it and no recipe does. How often that happens depends on which recipes are
// left, and so on what was evicted and pinned. Hence it does not count here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace remint {

class StepNumbers {
 public:
  // A step begins; the next tensor of the session gets this number.
  void begin(std::uint64_t first) {
    first_ = first;
    outside_.clear();
    complete_ = true;
  }
  // The step began earlier, with the numbers of the step before.
  void extend(const StepNumbers& before) {
    first_ = before.first_;
    outside_.insert(outside_.begin(), before.outside_.begin(), before.outside_.end());
    complete_ = complete_ && before.complete_;
  }
  // Memory outside of the budget got a number, the largest one so far.
  void note_outside(std::uint64_t number) {
    complete_ = outside_.size() < kMostOutside;
    if (complete_) outside_.push_back(number);
  }
  // False: too many numbers went to memory outside for these to be right.
  bool complete() const { return complete_; }

  std::uint64_t first() const { return first_; }
  // Of a tensor that the step made.
  std::uint64_t index_of(std::uint64_t number) const {
    const auto before = std::lower_bound(outside_.begin(), outside_.end(), number) - outside_.begin();
    return number - first_ - static_cast<std::uint64_t>(before);
  }
  // The session's number of the tensor that the step made as the index-th one.
  std::uint64_t number_at(std::uint64_t index) const {
    // How many numbers outside come before it: the first of them that does not.
    std::size_t low = 0;
    std::size_t high = outside_.size();
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (outside_[middle] - first_ - middle <= index) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return first_ + index + low;
  }

 private:
  // A step with more of them has more ops than a step that is learned.
  static constexpr std::size_t kMostOutside = 1'000'000;

  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> outside_;  // ascending
  bool complete_ = true;
};

}  // namespace remint
