// Which bytes are occupied at which times: finds the lowest place for a block with a known lifetime.
//
// A segment tree over time. Every node holds address ranges, and ranges that touch are merged. Thousands of
// blocks that stand on each other become one range, so a look need not visit them one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/types.h"

namespace remint {

// Disjoint address ranges, lowest first.
class AddressRanges {
 public:
  void add(Bytes low, Bytes high);
  bool empty() const { return ranges_.empty(); }
  // The lowest address from `from` on with `nbytes` free bytes above it. `cursor` only grows: it is the
  // number of ranges that end at or below the address, and lets the next call go on from there.
  Bytes lowest_gap(Bytes from, Bytes nbytes, std::size_t& cursor, std::uint64_t& looks) const;

 private:
  std::vector<std::pair<Bytes, Bytes>> ranges_;
};

class Occupancy {
 public:
  // Times are 0, 1, ..., num_times - 1.
  explicit Occupancy(std::uint32_t num_times);

  // Occupies [address, address + nbytes) at the times [born, dies).
  void add(std::uint32_t born, std::uint32_t dies, Bytes address, Bytes nbytes);
  // The lowest address at which `nbytes` are free at all times in [born, dies).
  Bytes lowest(std::uint32_t born, std::uint32_t dies, Bytes nbytes);

  // The ranges that were visited. It measures work without a clock.
  std::uint64_t looks() const { return looks_; }

 private:
  struct Node {
    AddressRanges whole;  // blocks that live at all times of the node, but not of its parent
    AddressRanges parts;  // blocks that are listed further down
  };
  struct Look {
    const AddressRanges* ranges;
    std::size_t cursor;
  };

  template <typename Visit>
  void visit(std::uint32_t born, std::uint32_t dies, const Visit& visit_node);
  void collect(const AddressRanges& ranges) {
    if (!ranges.empty()) found_.push_back({&ranges, 0});
  }

  std::uint32_t width_ = 1;
  std::vector<Node> nodes_;
  std::vector<Look> found_;
  std::uint64_t looks_ = 0;
};

}  // namespace remint
