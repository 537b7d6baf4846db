// Where windows were cheap when all blocks were last looked at, the cheapest place first. It is only a hint:
// whoever uses it looks again at what stands there now.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace remint {

class PlaceRanking {
 public:
  struct Place {
    double cost;           // of the cheapest window there, at the time
    StorageId found;       // a storage of it: the place is where its block is
    std::uint32_t number;  // lower addresses had lower numbers
  };

  // Whether it was used so often that all blocks are to be looked at again.
  bool used_up() const { return uses_left_ == 0 || places_.empty(); }
  void use() { --uses_left_; }

  void clear() { places_.clear(); }
  void start(std::vector<Place>& places, std::size_t uses) {
    places_.swap(places);
    std::make_heap(places_.begin(), places_.end(), dearer);
    uses_left_ = uses;
  }

  bool empty() const { return places_.empty(); }
  const Place& cheapest() const { return places_.front(); }
  Place take_cheapest() {
    std::pop_heap(places_.begin(), places_.end(), dearer);
    const Place place = places_.back();
    places_.pop_back();
    return place;
  }
  void put_back(const Place& place) {
    places_.push_back(place);
    std::push_heap(places_.begin(), places_.end(), dearer);
  }

 private:
  static bool dearer(const Place& a, const Place& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.number > b.number;
  }

  std::vector<Place> places_;  // a heap
  std::size_t uses_left_ = 0;
};

}  // namespace remint
