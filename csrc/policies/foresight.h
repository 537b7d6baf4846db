// Foresight: when each value of a step is used again. A step that was seen before is known to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/types.h"

namespace remint {

class Foresight {
 public:
  using Position = std::uint32_t;  // of an event in the step
  static constexpr Position kNever = std::numeric_limits<Position>::max();

  struct Use {
    std::uint64_t tag;
    Position position;
  };
  // `uses` are in the order of their positions; `starts` has the time at which each event starts if nothing
  // is rematerialized, and that at which the last one ends.
  Foresight(const std::vector<Use>& uses, std::vector<Nanoseconds> starts, std::size_t num_tags)
      : starts_(std::move(starts)), first_(num_tags + 1, 0) {
    for (const Use& use : uses) ++first_[use.tag + 1];
    for (std::size_t tag = 0; tag < num_tags; ++tag) first_[tag + 1] += first_[tag];
    positions_.resize(uses.size());
    cursor_ = first_;
    for (const Use& use : uses) positions_[cursor_[use.tag]++] = use.position;
    cursor_ = first_;
  }

  // The program is at this event. Positions never go back.
  void move_to(Position position) { now_ = position; }
  Position now() const { return now_; }

  // The next event that uses the value, the one at hand included.
  Position next_use(std::uint64_t tag) const {
    if (tag + 1 >= first_.size()) return kNever;
    std::uint32_t& cursor = cursor_[tag];
    const std::uint32_t end = first_[tag + 1];
    while (cursor < end && positions_[cursor] < now_) ++cursor;
    return cursor < end ? positions_[cursor] : kNever;
  }

  // What it took to have each value back in an earlier run of the same step, by tag. Not owned; null: there
  // was none.
  void remember(const std::vector<Nanoseconds>* returns) { returns_ = returns; }
  Nanoseconds took_to_return(std::uint64_t tag) const {
    return returns_ != nullptr && tag < returns_->size() ? (*returns_)[tag] : 0;
  }

  // How many evicted storages around a value are looked at for its score. More take long in long chains. A
  // loop of some hundred ops needs more: otherwise what costs most looks cheap, or is not missed.
  void look_at(std::size_t most) { looks_ = most; }
  std::size_t looks() const { return looks_; }

  // The time from now until then, without rematerialization.
  Nanoseconds until(Position position) const { return starts_[position] - starts_[now_]; }

 private:
  std::vector<Nanoseconds> starts_;
  std::vector<std::uint32_t> first_;
  mutable std::vector<std::uint32_t> cursor_;
  std::vector<Position> positions_;
  Position now_ = 0;
  const std::vector<Nanoseconds>* returns_ = nullptr;
  std::size_t looks_ = 200;
};

}  // namespace remint
