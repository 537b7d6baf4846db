#include "memory/occupancy.h"

#include <algorithm>

namespace remint {

void AddressRanges::add(Bytes low, Bytes high) {
  auto first = std::lower_bound(ranges_.begin(), ranges_.end(), low,
                                [](const auto& range, Bytes address) { return range.second < address; });
  auto last = first;
  for (; last != ranges_.end() && last->first <= high; ++last) {
    low = std::min(low, last->first);
    high = std::max(high, last->second);
  }
  if (first == last) {
    ranges_.insert(first, {low, high});
  } else {
    *first = {low, high};
    ranges_.erase(first + 1, last);
  }
}

Bytes AddressRanges::lowest_gap(Bytes from, Bytes nbytes, std::size_t& cursor, std::uint64_t& looks) const {
  auto range = std::upper_bound(ranges_.begin() + static_cast<std::ptrdiff_t>(cursor), ranges_.end(), from,
                                [](Bytes address, const auto& each) { return address < each.second; });
  ++looks;
  for (; range != ranges_.end() && range->first < from + nbytes; ++range, ++looks) from = range->second;
  cursor = static_cast<std::size_t>(range - ranges_.begin());
  return from;
}

Occupancy::Occupancy(std::uint32_t num_times) {
  while (width_ < num_times) width_ *= 2;
  nodes_.resize(2 * static_cast<std::size_t>(width_));
}

// Calls visit_node(node, contained) for every node that [born, dies) meets, down to the first that it
// contains.
template <typename Visit>
void Occupancy::visit(std::uint32_t born, std::uint32_t dies, const Visit& visit_node) {
  auto descend = [&](auto& self, std::size_t node, std::uint32_t low, std::uint32_t high) -> void {
    const bool contained = born <= low && high <= dies;
    visit_node(nodes_[node], contained);
    if (contained) return;
    const std::uint32_t middle = low + (high - low) / 2;
    if (born < middle) self(self, 2 * node, low, middle);
    if (dies > middle) self(self, 2 * node + 1, middle, high);
  };
  descend(descend, 1, 0, width_);
}

void Occupancy::add(std::uint32_t born, std::uint32_t dies, Bytes address, Bytes nbytes) {
  visit(born, dies, [&](Node& node, bool contained) {
    (contained ? node.whole : node.parts).add(address, address + nbytes);
  });
}

Bytes Occupancy::lowest(std::uint32_t born, std::uint32_t dies, Bytes nbytes) {
  found_.clear();
  visit(born, dies, [&](Node& node, bool contained) {
    collect(node.whole);
    if (contained) collect(node.parts);
  });
  // Go around until all agree on an address.
  Bytes address = 0;
  std::size_t agreed = 0;
  for (std::size_t i = 0; agreed < found_.size(); i = i + 1 == found_.size() ? 0 : i + 1) {
    const Bytes next = found_[i].ranges->lowest_gap(address, nbytes, found_[i].cursor, looks_);
    agreed = next == address ? agreed + 1 : 1;
    address = next;
  }
  return address;
}

}  // namespace remint
